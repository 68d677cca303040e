"""The loop of a process that runs a foreign library: ``MODULE SOCKET PAGE``, isolated.

It answers requests on a socket, one at a time. SOCKET and PAGE are file descriptors; the page takes the name of the
function that is being called. When the parent closes the socket, the process ends, even inside a call.
"""

from __future__ import annotations

import mmap
import os
import resource
import select
import socket
import threading
from collections.abc import Callable

from isthmus.backends.foreign.process import STAGE_BYTES
from isthmus.system.channel import Channel, ChannelClosed, Message

_IDLE = 1000.0
_SOCKET_CLOSED = select.POLLHUP | select.POLLERR | select.POLLNVAL


class CallError(Exception):
    """The error that a function of the library returned another code than 0."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} answers {code}")
        self.function, self.code = function, code


def enter(stage: mmap.mmap, function: str) -> None:
    """Write the name of the function that is about to be called to the page that the parent reads."""
    text = function.encode("utf-8", "replace")[: len(stage) - 1]
    stage[: len(text) + 1] = text + b"\0"


def _end_with_parent(end: socket.socket) -> None:
    """End this process when the other side closes its socket; the library may be inside a call for minutes."""
    poll = select.poll()
    # No event is asked for: poll still reports a closed socket, and nothing else.
    poll.register(end, 0)
    while True:
        for _, event in poll.poll(_IDLE * 1000):
            if event & _SOCKET_CLOSED:
                os._exit(0)


def serve(arguments: list[str], answering: Callable[[mmap.mmap], Callable[[Message], Message]]) -> None:
    """Answer requests until the parent closes the socket; `arguments` are the socket and the page.

    `answering` takes the page, and returns the function that answers a request.
    """
    end_fd, page_fd = map(int, arguments)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end = socket.socket(fileno=end_fd)
    threading.Thread(target=_end_with_parent, args=(end,), daemon=True).start()
    answer, channel = answering(mmap.mmap(page_fd, STAGE_BYTES)), Channel(end)
    try:
        while True:
            channel.send(answer(channel.receive()))
    except ChannelClosed:
        # The library's exit handlers are of no use here, and may fail.
        os._exit(0)
