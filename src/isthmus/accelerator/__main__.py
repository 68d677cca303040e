"""The accelerator process: ``python -m isthmus.accelerator SOCKET PARENT``, started by the client's `Accelerator`."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve until the client closes its end of the socket or dies."""
    fd, parent = int(arguments[0]), int(arguments[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    # An interrupt from the terminal is the client's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    from isthmus.accelerator.channel import Channel
    from isthmus.accelerator.server import Server

    Server(Channel(socket.socket(fileno=fd))).run()
    # Threads that still serve must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
