"""Compiled model libraries (``libqnn_model.so``): foreign code that composes graphs, run in a process of its own.

QNN's converters write a model as C++ that calls a back end's functions, and its tools compile that to a library with
the weights inside. Such a library is loaded by a child process, which hands it a table of functions that write down
what it composes. What comes back is data of bounded size, checked like a file of strangers. A library that crashes,
hangs, takes all memory or talks nonsense is an error with its name.
"""

from __future__ import annotations

import math
import mmap
import os
import select
import signal
import subprocess
import time
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

SECONDS = 60.0
"""How long a library may take to compose its graphs, unless ``ISTHMUS_MODEL_SECONDS`` says otherwise."""
MAX_MESSAGE = 4096
MAX_COMPOSED = 1 << 34
"""The most bytes that a library's graphs may take with their weights."""

CHILD = "isthmus.qnn.model_process"
"""What the process runs."""


def is_library(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a library does."""
    return reading.begins(path, LIBRARY_MAGIC)


def load_all(source: ModelSource) -> list[Graph]:
    """Make the graphs that a model library composes, or the one that is asked for, finalized.

    Inputs and outputs have the memory type that the library gives them.

    Raises
    ------
    QnnError
        COMMON_LOADING_BINARIES if it cannot be loaded, crashes, takes too long or refuses; COMMON_NOT_SUPPORTED with
        all that it uses and that is not there.
    """
    what = _what(source.path)
    if source.shapes or source.constants:
        rule = "shapes and inputs of a model library are what it was compiled for"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule)
    entries = compose(source.path)
    if not entries:
        raise QnnError(Code.COMMON_LOADING_BINARIES, what, "it composes no graph")
    return [ComposedBuilder(entry, entry.name).build() for entry in source.select(entries)]


@shielded
def compose(path: str | os.PathLike[str]) -> list[GraphEntry]:
    """What a model library composes, as data."""
    content = _Composition(_what(path), Path(path).absolute(), _patience()).result()
    return read(memoryview(content), _what(path))


class _Composition:
    """The process that a library composes in, from its start to its end.

    Parameters
    ----------
    what
        The library, for messages.
    seconds
        How long it may take.
    """

    def __init__(self, what: str, path: Path, seconds: float) -> None:
        self._what, self._path, self._seconds = what, path, seconds

    def result(self) -> mmap.mmap:
        """What was composed, which nobody can change any more."""
        with own_fd(os.memfd_create, "isthmus-composed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) as own:
            message = self._run(own.fileno())
            if message:
                raise QnnError(Code.COMMON_LOADING_BINARIES, self._what, message)
            return self._sealed(own.fileno())

    def _sealed(self, fd: int) -> mmap.mmap:
        """What a descriptor holds."""
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
        """Have a child process fill a descriptor; what went wrong, if anything did."""
        told, telling = os.pipe()
        passed: list[int] = []
        try:
            passed += [isolated.passable(fd), isolated.passable(telling)]
            command = isolated.command(CHILD, str(self._path), *map(str, passed), str(os.getpid()))
            child = subprocess.Popen(
                command, env=isolated.environment() | {"OPENBLAS_NUM_THREADS": "1"}, pass_fds=passed,
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as problem:
            os.close(told)
            rule = f"its process cannot be started: {problem.strerror}"
            raise QnnError(Code.COMMON_SYSTEM, self._what, rule) from None
        except Exception:
            os.close(told)
            raise
        finally:
            for own in (telling, *passed):
                os.close(own)
        try:
            late = not self._ends(child.pid)
        finally:
            # Whatever it may have started goes with it, while its number is still its own.
            os.killpg(child.pid, signal.SIGKILL)
            status = child.wait()
            message = _message(told)
        if late:
            return f"it has not composed its graphs within {self._seconds:g} s"
        if status < 0:
            return f"it ended its process by {_signal(-status)} while it composed its graphs"
        return message or f"its process ended with {status}" if status else ""

    def _ends(self, pid: int) -> bool:
        """Whether a child, which is not waited for yet, ends in time."""
        limit = time.monotonic() + self._seconds
        with own_fd(os.pidfd_open, pid) as own:
            while (left := limit - time.monotonic()) > 0:
                check()
                if select.select([own], [], [], min(left, PIECE))[0]:
                    return True
        return False


def _message(fd: int) -> str:
    """What a process left in a pipe, which is closed."""
    try:
        os.set_blocking(fd, False)
        return os.read(fd, MAX_MESSAGE).decode("utf-8", "replace")
    except BlockingIOError:
        return ""
    finally:
        os.close(fd)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _patience() -> float:
    text = os.environ.get("ISTHMUS_MODEL_SECONDS")
    try:
        seconds = float(text) if text else SECONDS
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        what = f"ISTHMUS_MODEL_SECONDS '{text}'"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "must be a number of seconds above 0")
    return seconds


def _what(path: str | os.PathLike[str]) -> str:
    return f"model library '{os.fspath(path)}'"
