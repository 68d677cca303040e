"""Messages between this process and one that runs a foreign library: a header, sections of bytes, descriptors.

Each is a container (`isthmus.system.container`), preceded by its length. The library prints on standard output, so the
messages have a socket of their own. Nothing that comes from the other side is trusted: it runs foreign code.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.errors import Code
from isthmus.system import descriptors
from isthmus.system.container import ContainerFormat
from isthmus.system.descriptors import ChannelClosed

FORMAT = ContainerFormat(
    b"ISTHMLIB",
    1,
    64,
    "message of a library's process",
    Code.COMMON_SYSTEM_COMMUNICATION,
    Code.COMMON_SYSTEM_COMMUNICATION,
    is_hashed=False,
)
MAX_BYTES = 1 << 34
"""The largest message."""
_LENGTH = struct.Struct("<Q")
_WORD = 1 << 63
"""Marks a length that is none, but a whole message: a number."""


@dataclass
class Message:
    """A message.

    Parameters
    ----------
    header
        Plain data.
    sections
        Bytes by name.
    descriptors
        File descriptors, which the receiver owns.
    word
        If it is not None, the message is this number and nothing else. Such messages are the fastest.
    """

    header: dict[str, Any] = field(default_factory=dict)
    sections: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    descriptors: Sequence[int] = ()
    word: int | None = None


class MessageChannel:
    """One end of a socket pair.

    Parameters
    ----------
    end
        The socket.
    max_bytes
        The size of the largest message that is received.
    """

    def __init__(self, end: socket.socket, max_bytes: int = MAX_BYTES) -> None:
        self._end, self._max_bytes = end, max_bytes

    def send(self, message: Message, wait: Callable[[], None] | None = None) -> None:
        """Send a message; raise `ChannelClosed` if the other side has closed its socket.

        `wait` is as in `descriptors.send`.
        """
        pieces = [] if message.word is not None else FORMAT.pack(message.header, message.sections)
        length = _LENGTH.pack(sum(map(len, pieces)) if message.word is None else _WORD | message.word)
        try:
            descriptors.send(self._end, [length, *pieces], message.descriptors, wait)
        except OSError:
            raise ChannelClosed from None

    def receive(self, wait: Callable[[], None] = lambda: None) -> Message:
        """Wait for a message; raise `ChannelClosed` if the other side ends before it is complete.

        `wait` is as in `descriptors.receive`.
        """
        passed: list[int] = []
        try:
            (total,) = _LENGTH.unpack(descriptors.receive(self._end, _LENGTH.size, passed, wait))
            if total & _WORD:
                return Message(descriptors=passed, word=total ^ _WORD)
            if total > self._max_bytes:
                raise FORMAT.refusal(f"it would have {total:,} bytes, more than {self._max_bytes:,}")
            header, sections = FORMAT.unpack(descriptors.receive(self._end, total, wait=wait))
            return Message(header, sections, passed)
        except BaseException:
            for fd in passed:
                os.close(fd)
            raise
