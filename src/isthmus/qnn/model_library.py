"""Compiled model libraries (``libqnn_model.so``): foreign code that composes graphs, run in a process of its own.

QNN's converters write a model as C++ that calls a back end's functions, and its tools compile that to a library with
the weights inside. Such a library is loaded by a child process, which hands it a table of functions that write down
what it composes. What comes back is data, checked like a file of strangers. A library that crashes, hangs or talks
nonsense is an error with its name.
"""

from __future__ import annotations

import math
import mmap
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus import isolated, reading
from isthmus.errors import Code, QnnError
from isthmus.frontends import LIBRARY_MAGIC
from isthmus.frontends.composed.build import Builder
from isthmus.frontends.composed.entries import GraphEntry
from isthmus.frontends.composed.serialization import read
from isthmus.graph import Graph
from isthmus.interrupts import owned

SECONDS = 60.0
"""How long a library may take to compose its graphs, unless ``ISTHMUS_MODEL_SECONDS`` says otherwise."""
MAX_MESSAGE = 4096

_CHILD = "isthmus.qnn.model_process"


def is_library(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a library does."""
    return reading.begins(path, LIBRARY_MAGIC)


def load_all(
    path: str | os.PathLike[str],
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    graph: str | None = None,
) -> list[Graph]:
    """The graphs that a model library composes, or the one that is named, finalized.

    Inputs and outputs have the memory type that the library gives them.

    Raises
    ------
    QnnError
        COMMON_LOADING_BINARIES if it cannot be loaded, crashes, takes too long or refuses; COMMON_NOT_SUPPORTED with
        all that it uses and that is not there.
    """
    if shapes or constants:
        rule = "shapes and inputs of a model library are what it was compiled for"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, _what(path), rule)
    entries = compose(path)
    wanted = [entry for entry in entries if graph is None or entry.name == graph]
    if not entries:
        raise QnnError(Code.COMMON_LOADING_BINARIES, _what(path), "it composes no graph")
    if not wanted:
        known = ", ".join(f"'{entry.name}'" for entry in entries)
        raise QnnError(Code.GRAPH_DOES_NOT_EXIST, f"graph '{graph}'", f"'{Path(path).name}' has {known}")
    return [Builder(entry, entry.name).build() for entry in wanted]


def compose(path: str | os.PathLike[str]) -> list[GraphEntry]:
    """What a model library composes, as data."""
    what = _what(path)
    with owned(os.memfd_create, "isthmus-composed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) as own:
        message = _run(what, Path(path).absolute(), own.fileno())
        if message:
            raise QnnError(Code.COMMON_LOADING_BINARIES, what, message)
        try:
            reading.seal(own.fileno())
            content = mmap.mmap(own.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            rule = "its process answered nothing that can be read"
            raise QnnError(Code.COMMON_LOADING_BINARIES, what, rule) from None
    return read(memoryview(content), what)


def _run(what: str, path: Path, fd: int) -> str:
    """Have a child process fill a descriptor; what went wrong, if anything did."""
    seconds = _patience()
    told, telling = os.pipe()
    try:
        command = isolated.command(_CHILD, str(path), str(fd), str(telling), str(os.getpid()))
        child = subprocess.Popen(
            command, env=isolated.environment(), pass_fds=(fd, telling), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as problem:
        os.close(told)
        raise QnnError(Code.COMMON_SYSTEM, what, f"its process cannot be started: {problem.strerror}") from None
    finally:
        os.close(telling)
    try:
        late = not _ended(child.pid, seconds)
    finally:
        # Whatever it may have started goes with it, while its number is still its own.
        os.killpg(child.pid, signal.SIGKILL)
        status = child.wait()
        message = _message(told)
    if late:
        return f"it has not composed its graphs within {seconds:g} s"
    if status < 0:
        return f"it ended its process by {_signal(-status)} while it composed its graphs"
    return message or f"its process ended with {status}" if status else ""


def _ended(pid: int, seconds: float) -> bool:
    """Whether a child, which is not waited for yet, ends within a time."""
    with owned(os.pidfd_open, pid) as own:
        return bool(select.select([own], [], [], seconds)[0])


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
