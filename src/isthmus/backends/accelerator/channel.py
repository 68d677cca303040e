"""Control messages between the two processes: JSON objects in numbered frames, with descriptors, over a socket pair.

A call has a name and arguments. The reply has the call's number and holds the result, or the fields of a `QnnError`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.system import descriptors
from isthmus.system.descriptors import ChannelClosed

MAX_BYTES = 64 << 20
"""Maximum size of a message in bytes."""
_MAX_TEXT = 4096
"""Maximum number of characters of each text of an error."""
_HEADER = struct.Struct("<8sIIQ")
"""The start of a frame: `_MAGIC`, the length of the message, the number of descriptors, the number of the call."""
_MAGIC = b"ISTHCALL"
_CODES = {
    errno.EBADF: Code.MEM_INVALID_ARGUMENT,
    errno.EMFILE: Code.COMMON_RESOURCE_UNAVAILABLE,
    errno.ENFILE: Code.COMMON_RESOURCE_UNAVAILABLE,
    errno.ETOOMANYREFS: Code.COMMON_RESOURCE_UNAVAILABLE,
    errno.ENOMEM: Code.COMMON_MEM_ALLOC,
    errno.ENOBUFS: Code.COMMON_MEM_ALLOC,
}
"""Errors of the system that do not mean that the other side is gone, with the code that a caller gets."""


@dataclass
class Frame:
    """A received message.

    Parameters
    ----------
    number
        The number of its call.
    content
        Its text.
    fds
        Its descriptors, which the receiver must close.
    promised
        Number of descriptors that were sent with it. Fewer arrive if this process can open no more.
    """

    number: int
    content: bytes = b""
    fds: list[int] = field(default_factory=list)
    promised: int = 0

    def message(self) -> dict[str, Any]:
        """Return the decoded message; refuse an incomplete one."""
        if len(self.fds) != self.promised:
            rule = f"of {self.promised} descriptors {len(self.fds)} arrived: {os.strerror(errno.EMFILE)}"
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, "accelerator", rule)
        try:
            decoded = json.loads(self.content)
        except (ValueError, RecursionError) as problem:
            raise QnnError(Code.COMMON_GENERAL, "control message", f"it is not well-formed: {problem}") from None
        if not isinstance(decoded, dict):
            raise QnnError(Code.COMMON_GENERAL, "control message", "it is not an object")
        return decoded

    def close(self) -> None:
        """Close the descriptors; safe to call again."""
        while self.fds:
            os.close(self.fds.pop())


def encoded(message: Mapping[str, Any]) -> bytes:
    """Return a message encoded for `Channel.send`; refuse one that is too long."""
    content = json.dumps(message).encode()
    if len(content) > MAX_BYTES:
        rule = f"it has {len(content)} bytes, {MAX_BYTES} are the most"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "control message", rule)
    return content


class Channel:
    """One end of the socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """Return a channel and the socket of its other end."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return Channel(mine), theirs

    def send(self, number: int, content: bytes, fds: Sequence[int] = ()) -> None:
        """Send a whole message; if it is refused with a `QnnError`, nothing was sent."""
        header = _HEADER.pack(_MAGIC, len(content), len(fds), number)
        try:
            descriptors.send(self._socket, [header + content], fds)
        except OSError as problem:
            if problem.errno not in _CODES:
                raise ChannelClosed from problem
            raise refused_by_the_system(problem, "control message", "it cannot be sent") from None

    def receive(self) -> Frame:
        """Receive the next message. `ChannelClosed` if the other side is gone or sends something else."""
        frame = Frame(0)
        try:
            header = descriptors.receive(self._socket, _HEADER.size, frame.fds)
            magic, length, frame.promised, frame.number = _HEADER.unpack(header)
            if magic != _MAGIC or length > MAX_BYTES:
                raise ChannelClosed
            frame.content = bytes(descriptors.receive(self._socket, length))
        except Exception:
            frame.close()
            raise
        return frame

    def shut(self) -> None:
        """Shut the socket down for both sides, even if others have a descriptor of it; safe to call again."""
        # The socket may be closed, or shut down by the other side.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end; safe to call again."""
        self._socket.close()


def refused_by_the_system(problem: OSError, what: str, rule: str, code: Code = Code.COMMON_GENERAL) -> Exception:
    """Return a system error as a `QnnError`: with a code for this kind of error if there is one, else with `code`.

    A `TimeoutError` raised by a signal handler is also an `OSError`, but not one of the system: it is returned as it
    is.
    """
    if problem.errno is None:
        return problem
    return QnnError(_CODES.get(problem.errno, code), what, f"{rule}: {problem.strerror}")


def refusal_to_json(error: QnnError) -> dict[str, Any]:
    """Encode an error as a reply. Its texts are truncated, since names in them may have any length."""
    return {"error": [int(error.code), *(text[:_MAX_TEXT] for text in (error.what, error.rule, error.hint))]}


def refusal_from_json(answer: Mapping[str, Any]) -> QnnError | None:
    """Return the error of a reply, if it has one; a malformed one raises a `TypeError` or `ValueError`."""
    if "error" not in answer:
        return None
    code, *texts = answer["error"]
    what, rule, hint = texts
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{texts!r} are not texts")
    return QnnError(Code(code), what, rule, hint)
