"""Compiled model libraries (``libqnn_model.so``): foreign code that composes graphs, run in a separate process.

QNN's converters write a model as C++ that calls a backend's functions, and its tools compile that to a library with the
weights inside. Such a library is loaded by a child process, which passes it a table of functions that record what it
composes. The result is data of bounded size, checked like an untrusted file. If a library crashes, hangs, takes all
memory or composes nonsense, the error names it.
"""

from __future__ import annotations

import logging
import mmap
import os
import select
import signal
import subprocess
import time
from functools import cache
from pathlib import Path

from isthmus.errors import Code, QnnError
from isthmus.frontends import LIBRARY_MAGIC, ModelSource
from isthmus.frontends.composed.build import ComposedBuilder
from isthmus.frontends.composed.entries import GraphEntry
from isthmus.frontends.composed.serialization import read
from isthmus.graph import Graph
from isthmus.system import isolated, reading
from isthmus.system.interrupts import own_fd
from isthmus.system.shield import PIECE, check, shielded

_logger = logging.getLogger("isthmus")

MAX_MESSAGE = 4096
"""Maximum size in bytes of the process's error message: no more than a pipe takes at once."""
MAX_COMPOSED = 1 << 34
"""Maximum size in bytes of a library's graphs with their weights."""

REMARK_END = b"\0"
"""What ends each remark before the error message."""
CHILD = "isthmus.qnn.model_process"
"""The module that the process runs."""


def is_library(path: str | os.PathLike[str]) -> bool:
    """Return whether a file starts like a shared library (ELF)."""
    return reading.begins(path, LIBRARY_MAGIC)


def load_all(source: ModelSource) -> list[Graph]:
    """Create the graphs that a model library composes, or only the requested one, and finalize them.

    Inputs and outputs have the memory type that the library declares.

    Raises
    ------
    QnnError
        COMMON_LOADING_BINARIES if it cannot be loaded, crashes, takes too long or fails; COMMON_NOT_SUPPORTED with a
        list of everything it uses that is not supported.
    """
    entries = compose_source(source)
    if not entries:
        raise QnnError(Code.COMMON_LOADING_BINARIES, _what(source.path), "it composes no graph")
    return [ComposedBuilder(entry, entry.name, source.operations).build() for entry in source.select(entries)]


def compose_source(source: ModelSource) -> list[GraphEntry]:
    """Return all graphs that the library of a source composes; refuse shapes and values of inputs, which are fixed."""
    if source.shapes or source.constants:
        rule = "shapes and inputs of a model library are what it was compiled for"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, _what(source.path), rule)
    return compose(source.path, source.prefix)


@shielded
def compose(path: str | os.PathLike[str], prefix: str = ModelSource.prefix) -> list[GraphEntry]:
    """Return the graphs that a model library composes, as data; its functions begin with `prefix`."""
    content = _Composition(_what(path), Path(path).absolute(), prefix, isolated.library_seconds()).result()
    return read(memoryview(content), _what(path))


class _Composition:
    """The process in which a library composes, from start to end.

    Parameters
    ----------
    what
        The library, for messages.
    path, prefix
        The library's file, and what its functions begin with.
    seconds
        The time limit.
    """

    def __init__(self, what: str, path: Path, prefix: str, seconds: float) -> None:
        self._what, self._path, self._prefix, self._seconds = what, path, prefix, seconds

    def result(self) -> mmap.mmap:
        """Return the composed graphs, in a form that the process can no longer change."""
        with own_fd(os.memfd_create, "isthmus-composed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) as own:
            message = self._run(own.fileno())
            if message:
                raise QnnError(Code.COMMON_LOADING_BINARIES, self._what, message)
            return self._sealed(own.fileno())

    def _sealed(self, fd: int) -> mmap.mmap:
        """Return the contents of a memory file, after sealing it so that the process can no longer change them."""
        if os.fstat(fd).st_size > MAX_COMPOSED:
            rule = f"the graphs that it composes take more than {MAX_COMPOSED:,} bytes"
            raise QnnError(Code.COMMON_LOADING_BINARIES, self._what, rule)
        try:
            reading.seal(fd)
            return mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            rule = "its process answered nothing that can be read"
            raise QnnError(Code.COMMON_LOADING_BINARIES, self._what, rule) from None

    def _run(self, fd: int) -> str:
        """Let a child process write the graphs to a memory file; return an error message, or an empty string."""
        # The child writes its error message to this pipe.
        read_end, write_end = os.pipe()
        # Duplicates of the descriptors that the child inherits; they are closed here once it has started.
        passed: list[int] = []
        try:
            passed += [isolated.passable(fd), isolated.passable(write_end)]
            command = isolated.command(CHILD, str(self._path), self._prefix, *map(str, passed), str(os.getpid()))
            child = subprocess.Popen(
                command, env=isolated.environment() | {"OPENBLAS_NUM_THREADS": "1"}, pass_fds=passed,
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as problem:
            os.close(read_end)
            rule = f"its process cannot be started: {problem.strerror}"
            raise QnnError(Code.COMMON_SYSTEM, self._what, rule) from None
        except Exception:
            os.close(read_end)
            raise
        finally:
            for descriptor in (write_end, *passed):
                os.close(descriptor)
        try:
            late = not self._wait(child.pid)
        finally:
            # Kill its process group too, before it is reaped and the id can be reused.
            os.killpg(child.pid, signal.SIGKILL)
            status = child.wait()
            *remarks, message = _message(read_end).split(REMARK_END.decode())
        for remark in remarks:
            _warn_once(f"{self._what}: {remark}")
        reason = ""
        if late:
            reason = f"it did not compose its graphs within {self._seconds:g} s"
        elif status < 0:
            reason = f"it ended its process by {_signal(-status)} while it composed its graphs"
        elif status:
            reason = message or f"its process ended with {status}"
        return "; ".join((reason, *remarks)) if reason else ""

    def _wait(self, pid: int) -> bool:
        """Wait for the end of a child, and return whether it came in time. The child is not reaped here."""
        limit = time.monotonic() + self._seconds
        with own_fd(os.pidfd_open, pid) as own:
            while (remaining := limit - time.monotonic()) > 0:
                check()
                if select.select([own], [], [], min(remaining, PIECE))[0]:
                    return True
        return False


@cache
def _warn_once(text: str) -> None:
    """Log a warning, unless it was logged before."""
    _logger.warning("%s", text)


def _message(fd: int) -> str:
    """Read what a process left in a pipe, and close the pipe."""
    try:
        os.set_blocking(fd, False)
        return os.read(fd, MAX_MESSAGE).decode("utf-8", "replace")
    except BlockingIOError:
        return ""
    finally:
        os.close(fd)


def _signal(number: int) -> str:
    """Return a signal's name, for messages."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _what(path: str | os.PathLike[str]) -> str:
    """Return the name of a library for messages."""
    return f"model library '{os.fspath(path)}'"
