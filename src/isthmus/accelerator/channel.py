"""Control messages between the two processes: one JSON object each, with file descriptors, over a socket pair.

A call has a name and arguments; its answer is the result, or a `QnnError` spelled out.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.errors import Code, QnnError

MAX_FDS = 64
"""Descriptors in one message; the system's own limit is 253."""
_MAX_BYTES = 1 << 16


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """One end of the socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """A channel, and the socket of its other end."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(mine), theirs

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message."""
        content = json.dumps(message).encode()
        if len(content) > _MAX_BYTES:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "control message", f"it has {len(content)} bytes, too many")
        try:
            socket.send_fds(self._socket, [content], list(fds))
        except OSError as problem:
            raise ChannelClosed from problem

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message, and descriptors that are now the receiver's to close."""
        try:
            content, fds, _, _ = socket.recv_fds(self._socket, _MAX_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        except OSError as problem:
            raise ChannelClosed from problem
        if not content:
            for fd in fds:
                os.close(fd)
            raise ChannelClosed
        return json.loads(content), list(fds)

    def close(self) -> None:
        """Close this end; safe to call again."""
        self._socket.close()


def refusal_to_json(error: QnnError) -> dict[str, Any]:
    """An error as an answer."""
    return {"error": [int(error.code), error.what, error.rule, error.hint]}


def refusal_from_json(answer: Mapping[str, Any]) -> QnnError | None:
    """The error that an answer spells out, if it does."""
    if "error" not in answer:
        return None
    code, what, rule, hint = answer["error"]
    return QnnError(Code(code), what, rule, hint)
