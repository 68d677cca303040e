"""Messages of bytes and file descriptors over a socket pair, between processes that share memory.

The kernel duplicates descriptors into the process that receives the first byte that they were sent with.
"""

from __future__ import annotations

import array
import socket
from collections.abc import Callable, Sequence

MAX_DESCRIPTORS = 64
"""Maximum number of descriptors that come with one byte; the system's own limit is 253."""
_RIGHTS = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
_GROWTH = 1 << 20
"""Bytes by which the memory for a message grows."""


class ChannelClosed(Exception):
    """The error when the other side is gone."""


def send(
    end: socket.socket,
    pieces: Sequence[bytes | memoryview],
    descriptors: Sequence[int] = (),
    wait: Callable[[], None] | None = None,
) -> None:
    """Send pieces of bytes one after the other, and descriptors with the first.

    With an `OSError`, nothing was sent. With `ChannelClosed`, the other side ended in between.

    Parameters
    ----------
    wait
        Waits until the socket can be written, whenever it is full; it raises what ends the wait. Without it, the system
        waits as long as it takes.
    """
    flags = socket.MSG_NOSIGNAL | (socket.MSG_DONTWAIT if wait else 0)
    rights = [(*_RIGHTS, array.array("i", descriptors))] if descriptors else []
    is_begun = False
    for piece in pieces:
        view = memoryview(piece)
        while view:
            try:
                sent = end.sendmsg([view], rights, flags)
            except BlockingIOError:
                sent = 0
            except OSError as problem:
                if is_begun:
                    raise ChannelClosed from problem
                raise
            if sent:
                view, rights, is_begun = view[sent:], [], True
            elif wait is not None:
                wait()


def receive(
    end: socket.socket, nbytes: int, descriptors: list[int] | None = None, wait: Callable[[], None] = lambda: None
) -> bytearray:
    """Receive exactly this many bytes; raise `ChannelClosed` if the other side ends before.

    Parameters
    ----------
    descriptors
        The list to which descriptors that come with the bytes are added; the caller owns them, also after an error.
        Without it, the system closes them.
    wait
        Waits until the socket can be read, before each read; it raises what ends the wait.
    """
    # The other side says how many bytes will come. Memory is allocated as they do.
    content, received = bytearray(), 0
    room = 0 if descriptors is None else socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
    while received < nbytes:
        if received == len(content):
            content += bytes(min(nbytes - received, _GROWTH))
        wait()
        try:
            with memoryview(content)[received:] as view:
                count, extra, _, _ = end.recvmsg_into([view], room, socket.MSG_CMSG_CLOEXEC)
        except OSError as problem:
            raise ChannelClosed from problem
        for level, kind, data in extra:
            if descriptors is not None and (level, kind) == _RIGHTS:
                descriptors += array.array("i", data[: len(data) - len(data) % 4])
        if not count:
            raise ChannelClosed
        received += count
    return content
