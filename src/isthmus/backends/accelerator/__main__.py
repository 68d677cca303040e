"""The accelerator process: ``isthmus.backends.accelerator SOCKET PARENT``, started isolated by `Connection`."""

from __future__ import annotations

import os
import signal
import socket
import sys

from isthmus.system import isolated


def main(arguments: list[str]) -> int:
    """Serve until the client closes its end of the socket or dies.

    The arguments are the descriptor of this end of the socket, and the client's process id.
    """
    fd, parent = int(arguments[0]), int(arguments[1])
    isolated.end_with(parent)
    # The client responds to an interrupt from the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    from isthmus.backends.accelerator.confinement import confine
    from isthmus.backends.accelerator.server import AcceleratorServer
    from isthmus.engine.native import loader
    from isthmus.system.channel import Channel

    channel = Channel(socket.socket(fileno=fd))
    # Load everything now that would be loaded on demand: later no file can be opened.
    loader.prepare_to_load()
    AcceleratorServer(channel, confine(fd)).run()
    # Threads that are still serving must not keep the process alive.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
