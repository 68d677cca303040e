"""Runs the accelerator process: ``isthmus.backends.accelerator SOCKET PARENT``, started isolated by `Connection`."""

from __future__ import annotations

import os
import signal
import socket
import sys

from isthmus.system import isolated


def main(arguments: list[str]) -> int:
    """Serve until the client closes its end of the socket or dies."""
    fd, parent = int(arguments[0]), int(arguments[1])
    isolated.end_with(parent)
    # An interrupt from the terminal is the client's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    from isthmus.backends.accelerator.channel import Channel
    from isthmus.backends.accelerator.confinement import confine
    from isthmus.backends.accelerator.server import AcceleratorServer
    from isthmus.engine.native import loader

    end = socket.socket(fileno=fd)
    # Whatever would be loaded when it is first needed must be there before no file can be opened.
    loader.prepare_to_load()
    AcceleratorServer(Channel(end), confine(fd)).run()
    # Threads that still serve must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
