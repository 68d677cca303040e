"""Messages between this process and the one that runs the vendor's library: a header, sections of bytes, descriptors.

Each is a container (`isthmus.system.container`), preceded by its length. The library prints on standard output, so the
messages have a socket of their own. Nothing that comes from the other side is trusted: it runs foreign code.
"""

from __future__ import annotations

import array
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.errors import Code
from isthmus.system.container import ContainerFormat

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
MAX_DESCRIPTORS = 64
_LENGTH = struct.Struct("<Q")
_AT_ONCE = 1 << 20


class Closed(Exception):
    """The error that the other side has closed its end."""


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
        """Send a message; raise `Closed` if the other side has closed its socket."""
        pieces = FORMAT.pack(message.header, message.sections)
        first = _LENGTH.pack(sum(len(piece) for piece in pieces))
        passed = array.array("i", message.descriptors)
        try:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)] if passed else []
            self._end.sendmsg([first], ancillary)
            for piece in pieces:
                self._end.sendall(piece)
        except OSError:
            raise Closed from None

    def receive(self, wait: Callable[[], None] = lambda: None) -> Message:
        """Wait for a message; raise `Closed` if the other side ends before it is complete.

        Parameters
        ----------
        wait
            Waits until the socket can be read, before each read; it raises what ends the wait.
        """
        descriptors: list[int] = []
        (total,) = _LENGTH.unpack(self._read(_LENGTH.size, descriptors, wait))
        if total > MAX_BYTES:
            raise Closed
        header, sections = FORMAT.unpack(self._read(total, descriptors, wait))
        return Message(header, sections, descriptors)

    def _read(self, nbytes: int, descriptors: list[int], wait: Callable[[], None]) -> bytearray:
        """Read exactly this many bytes, and add descriptors that come with them to the list."""
        content = bytearray(nbytes)
        view, done = memoryview(content), 0
        while done < nbytes:
            wait()
            try:
                count, ancillary, _, _ = self._end.recvmsg_into(
                    [view[done : done + _AT_ONCE]], socket.CMSG_LEN(MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
                )
            except OSError:
                raise Closed from None
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors += array.array("i", data[: len(data) - len(data) % 4])
            if not count:
                raise Closed
            done += count
        return content
