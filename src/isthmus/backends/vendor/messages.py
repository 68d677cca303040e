"""Messages between this process and the one that runs the vendor's library: a header, sections of bytes, descriptors.

Each is a container (`isthmus.system.container`), preceded by its length. The library prints on standard output, so the
messages have a socket of their own. Nothing that comes from the other side is trusted: it runs foreign code.
"""

from __future__ import annotations

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
    b"ISTHMVND",
    1,
    64,
    "message of the vendor's process",
    Code.COMMON_SYSTEM_COMMUNICATION,
    Code.COMMON_SYSTEM_COMMUNICATION,
    is_hashed=False,
)
MAX_BYTES = 1 << 34
"""The largest message."""
_LENGTH = struct.Struct("<Q")


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
    """

    header: dict[str, Any]
    sections: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    descriptors: Sequence[int] = ()


class MessageChannel:
    """One end of a socket pair.

    Parameters
    ----------
    end
        The socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: Message) -> None:
        """Send a message; raise `ChannelClosed` if the other side has closed its socket."""
        pieces = FORMAT.pack(message.header, message.sections)
        length = _LENGTH.pack(sum(len(piece) for piece in pieces))
        try:
            descriptors.send(self._end, [length, *pieces], message.descriptors)
        except OSError:
            raise ChannelClosed from None

    def receive(self, wait: Callable[[], None] = lambda: None) -> Message:
        """Wait for a message; raise `ChannelClosed` if the other side ends before it is complete.

        `wait` is as in `descriptors.receive`.
        """
        passed: list[int] = []
        (total,) = _LENGTH.unpack(descriptors.receive(self._end, _LENGTH.size, passed, wait))
        if total > MAX_BYTES:
            raise ChannelClosed
        header, sections = FORMAT.unpack(descriptors.receive(self._end, total, wait=wait))
        return Message(header, sections, passed)
