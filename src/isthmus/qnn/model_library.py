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
from functools import cache
from pathlib import Path

from isthmus.errors import Code, QnnError
from isthmus.frontends import ModelSource
from isthmus.frontends.composed.build import ComposedBuilder
from isthmus.frontends.composed.entries import GraphEntry
from isthmus.frontends.composed.serialization import read
from isthmus.graph import Graph
from isthmus.system import isolated, reading
from isthmus.system.child import Child, describe_status
from isthmus.system.interrupts import own_fd
from isthmus.system.shield import shielded

_logger = logging.getLogger("isthmus")

MAX_MESSAGE = 4096
"""Maximum size in bytes of the process's error message: no more than a pipe takes at once."""
MAX_COMPOSED = 1 << 34
"""Maximum size in bytes of a library's graphs with their weights."""

REMARK_END = b"\0"
"""What ends each remark before the error message."""
CHILD = "isthmus.qnn.model_process"
"""The module that the process runs."""


def load_all(source: ModelSource) -> list[Graph]:
    """Create the graphs that a model library composes, or only the requested one, and finalize them.

    Inputs and outputs have the memory type that the library declares.
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
    what = _what(path)
    with own_fd(os.memfd_create, "isthmus-composed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) as own:
        fd = own.fileno()
        message = _run_library(what, Path(path).absolute(), prefix, fd)
        if not message and os.fstat(fd).st_size > MAX_COMPOSED:
            message = f"the graphs that it composes take more than {MAX_COMPOSED:,} bytes"
        if message:
            raise QnnError(Code.COMMON_LOADING_BINARIES, what, message)
        try:
            # The process can no longer change them.
            reading.seal(fd)
            content = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            rule = "its process answered nothing that can be read"
            raise QnnError(Code.COMMON_LOADING_BINARIES, what, rule) from None
    return read(memoryview(content), what)


def _run_library(what: str, path: Path, prefix: str, fd: int) -> str:
    """Let a child process write a library's graphs to a memory file; return an error message, or an empty string."""
    seconds = isolated.library_seconds()
    # The child writes its error message to this pipe.
    read_end, write_end = os.pipe()
    try:
        child = Child(CHILD, str(os.getpid()), str(path), prefix, descriptors=[fd, write_end], folder=None)
    except Exception as problem:
        os.close(read_end)
        if isinstance(problem, OSError):
            rule = f"its process cannot be started: {problem.strerror}"
            raise QnnError(Code.COMMON_SYSTEM, what, rule) from None
        raise
    finally:
        os.close(write_end)
    try:
        is_late = not child.ends_within(seconds)
    finally:
        child.end()
        *remarks, message = _message(read_end).split(REMARK_END.decode())
    for remark in remarks:
        _warn_once(f"{what}: {remark}")
    reason, how = "", describe_status(child.returncode)
    if is_late:
        reason = f"it did not compose its graphs within {seconds:g} s"
    elif child.returncode < 0:
        reason = f"it ended its process by {how} while it composed its graphs"
    elif child.returncode:
        reason = message or f"its process ended with {how}"
    return "; ".join((reason, *remarks)) if reason else ""


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


def _what(path: str | os.PathLike[str]) -> str:
    """Return the name of a library for messages."""
    return f"model library '{os.fspath(path)}'"
