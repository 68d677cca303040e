"""Messages between processes over a socket pair: a number, plain data, sections of bytes, file descriptors.

A frame has the number, the length of a container (`isthmus.system.container`) and the container. The kernel duplicates
descriptors into the process that receives the first byte that they were sent with. Nothing that comes from the other
side is trusted.
"""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.system.container import ContainerFormat
from isthmus.system.shield import PIECE

Check = Callable[[], object]
"""Is called many times a second while a process waits for the other, and raises what ends the wait."""

FORMAT = ContainerFormat(
    b"ISTHMMSG", 1, 64, "message of another process", Code.COMMON_SYSTEM_COMMUNICATION,
    Code.COMMON_SYSTEM_COMMUNICATION, is_hashed=False,
)  # fmt: skip
MAX_BYTES = 1 << 34
"""The largest message."""
MAX_DESCRIPTORS = 64
"""Maximum number of descriptors of a message; the system's own limit is 253."""
# The start of a message: its number, the length of what follows, and the number of its descriptors.
_FRAME = struct.Struct("<QQI")
_RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
# Bytes by which the memory for a message grows.
_GROWTH = 1 << 20
# Errors of the system that do not mean that the other side is gone, with the code that a caller gets.
_CODES = {
    errno.EBADF: Code.MEM_INVALID_ARGUMENT,
    errno.EMFILE: Code.COMMON_RESOURCE_UNAVAILABLE,
    errno.ENFILE: Code.COMMON_RESOURCE_UNAVAILABLE,
    errno.ETOOMANYREFS: Code.COMMON_RESOURCE_UNAVAILABLE,
    errno.ENOMEM: Code.COMMON_MEM_ALLOC,
    errno.ENOBUFS: Code.COMMON_MEM_ALLOC,
}


class ChannelClosed(Exception):
    """The error when the other side is gone."""


@dataclass
class Message:
    """A message.

    - `header`: Plain data. A message without header and sections is only a number; such messages are the fastest.
    - `descriptors`: File descriptors, which the receiver owns.
    - `number`: A number; an answer has that of its request.
    - `missing`: Number of descriptors that did not arrive, because the receiving process can open no more.
    """

    header: dict[str, Any] = field(default_factory=dict)
    sections: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    descriptors: Sequence[int] = ()
    number: int = 0
    missing: int = 0

    def close(self) -> None:
        """Close the descriptors of a received message; safe to call again."""
        descriptors, self.descriptors = self.descriptors, ()
        for fd in descriptors:
            os.close(fd)


class Channel:
    """One end of a socket pair, which receives messages of at most `max_bytes`."""

    def __init__(self, end: socket.socket, max_bytes: int = MAX_BYTES) -> None:
        self._socket, self._max_bytes = end, max_bytes
        self._next_check = 0.0

    @classmethod
    def pair(cls, max_bytes: int = MAX_BYTES) -> tuple[Channel, socket.socket]:
        """Return a channel and the socket of its other end."""
        ours, theirs = socket.socketpair()
        return cls(ours, max_bytes), theirs

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def send(self, message: Message, check: Check | None = None) -> None:
        """Send a whole message; without `check`, the system waits as long as it takes.

        Raises `QnnError` if the system refuses: nothing was sent then. Raises `ChannelClosed` if the other side is
        gone.
        """
        pieces = FORMAT.pack(message.header, message.sections) if message.header or message.sections else []
        frame = _FRAME.pack(message.number, sum(map(len, pieces)), len(message.descriptors))
        flags = socket.MSG_NOSIGNAL | (socket.MSG_DONTWAIT if check else 0)
        rights = [(*_RIGHTS, array.array("i", message.descriptors))] if message.descriptors else []
        is_begun = False
        for piece in (frame, *pieces):
            view = memoryview(piece)
            while view:
                try:
                    sent = self._socket.sendmsg([view], rights, flags)
                except BlockingIOError:
                    self._wait(select.POLLOUT, check)
                except OSError as problem:
                    if is_begun or problem.errno not in _CODES:
                        raise ChannelClosed from problem
                    raise system_refusal(problem, "message", "it cannot be sent") from None
                else:
                    view, rights, is_begun = view[sent:], [], True

    def receive(self, check: Check | None = None) -> Message:
        """Receive the next message; without `check`, the system waits as long as it takes.

        Raises `QnnError` for a message that is too long or damaged. Raises `ChannelClosed` if the other side ends
        before the message is complete.
        """
        descriptors: list[int] = []
        message = Message(descriptors=descriptors)
        try:
            message.number, total, promised = _FRAME.unpack(self._receive(_FRAME.size, check, descriptors))
            message.missing = promised - len(descriptors)
            if total > self._max_bytes:
                raise FORMAT.refusal(f"it would have {total:,} bytes, more than {self._max_bytes:,}")
            if total:
                message.header, message.sections = FORMAT.unpack(self._receive(total, check))
        except BaseException:
            message.close()
            raise
        return message

    def _receive(self, nbytes: int, check: Check | None, descriptors: list[int] | None = None) -> bytearray:
        """Receive exactly this many bytes; descriptors that come with them are added to a list, or closed."""
        # The other side says how many bytes will come. Memory is allocated as they do.
        content, received = bytearray(), 0
        room = 0 if descriptors is None else socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        while received < nbytes:
            if received == len(content):
                content += bytes(min(nbytes - received, _GROWTH))
            self._wait(select.POLLIN, check)
            try:
                with memoryview(content)[received:] as view:
                    count, extra, _, _ = self._socket.recvmsg_into([view], room, socket.MSG_CMSG_CLOEXEC)
            except OSError as problem:
                raise ChannelClosed from problem
            for level, kind, data in extra:
                if descriptors is not None and (level, kind) == _RIGHTS:
                    descriptors += array.array("i", data[: len(data) - len(data) % 4])
            if not count:
                raise ChannelClosed
            received += count
        return content

    def is_ready(self, seconds: float, event: int = select.POLLIN) -> bool:
        """Wait until the socket can be read, or written as `event` says, up to a time limit; return whether it can."""
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(seconds * 1000))

    def _wait(self, event: int, check: Check | None) -> None:
        """Wait until the socket can be read or written; the check is also made while bytes come or go."""
        is_ready = check is None
        while not is_ready:
            is_ready = self.is_ready(PIECE, event)
            if time.monotonic() >= self._next_check:
                assert check is not None
                check()
                self._next_check = time.monotonic() + PIECE

    def shut(self) -> None:
        """Shut the socket down for both sides, even if others have a descriptor of it; safe to call again."""
        # The socket may be closed, or shut down by the other side.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end; safe to call again."""
        self._socket.close()


def system_refusal(problem: OSError, what: str, rule: str, code: Code = Code.COMMON_GENERAL) -> Exception:
    """Return a system error as a `QnnError`: with a code for this kind of error if there is one, else with `code`.

    A `TimeoutError` raised by a signal handler is also an `OSError`, but not one of the system: it is returned as it
    is.
    """
    if problem.errno is None:
        return problem
    return QnnError(_CODES.get(problem.errno, code), what, f"{rule}: {problem.strerror}")
