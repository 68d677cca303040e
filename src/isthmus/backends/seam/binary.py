"""Context binaries: graphs in one file that is mapped, not parsed. Writing, opening, checking, inspecting.

The format is described in docs/context-binary.md: a container with one graph in each section, as a program for one
target or as a schedule for any. Nothing in it is trusted.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from isthmus.backends.seam import planned
from isthmus.backends.seam.planned import PlannedGraph
from isthmus.backends.seam.program_binary import FORMAT, differing, named
from isthmus.engine.native import serialization
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError, code_of
from isthmus.graph import BinaryInfo
from isthmus.system import reading
from isthmus.system.container import MALFORMED, as_text
from isthmus.system.interrupts import FileDescriptor
from isthmus.version import PRODUCER

# Bytes that are read at a time when a file is copied.
_COPY_BYTES = 1 << 22

StoredGraph = Program | PlannedGraph
"""A graph of a binary: a program for one target, or a plan that becomes one where it is loaded."""

Source = bytes | bytearray | memoryview | mmap.mmap | str | os.PathLike[str]


@dataclass(frozen=True)
class BinaryContents:
    """The contents of a context binary, with the graphs' programs or schedules.

    - `version`: The version of the file format.
    - `backend`: The backend that the graphs were compiled for.
    - `producer`: The version of this project that wrote the binary.
    - `nbytes`: Size of the whole binary.
    - `graphs`: The graphs by name.
    """

    version: int
    backend: str
    producer: str
    nbytes: int
    graphs: Mapping[str, StoredGraph]

    @property
    def info(self) -> BinaryInfo:
        """Its public description."""
        graphs = tuple(graph.info for graph in self.graphs.values())
        return BinaryInfo(self.version, self.backend, self.producer, self.nbytes, graphs)

    @property
    def programs(self) -> dict[str, Program]:
        """The graphs of a binary that may hold programs only."""
        found = {name: graph for name, graph in self.graphs.items() if isinstance(graph, Program)}
        self._check_all(found, "program")
        return found

    @property
    def planned(self) -> dict[str, PlannedGraph]:
        """The graphs of a binary that may hold schedules only."""
        found = {name: graph for name, graph in self.graphs.items() if isinstance(graph, PlannedGraph)}
        self._check_all(found, "schedule")
        return found

    def _check_all(self, found: Mapping[str, StoredGraph], kind: str) -> None:
        """Refuse graphs of another kind than those that were found."""
        for name in self.graphs.keys() - found.keys():
            raise FORMAT.refusal(f"graph '{name}' is not a {kind}, which backend '{self.backend}' stores")


def to_bytes(graphs: Sequence[StoredGraph], backend: str) -> bytes:
    """Return a context binary of these graphs.

    Examples
    --------
    >>> info = inspect(to_bytes([], "htp"))
    >>> info.backend, info.graphs
    ('htp', ())
    """
    sections = {
        graph.name: graph.to_bytes() if isinstance(graph, PlannedGraph) else serialization.to_bytes(graph)
        for graph in graphs
    }
    return b"".join(FORMAT.pack({"backend": backend, "producer": PRODUCER}, sections))


def read(content: bytes | memoryview | mmap.mmap, verify: bool = True, backend: str | None = None) -> BinaryContents:
    """Read the graphs of a binary; their arrays are views of `content`.

    - `verify`: Whether to compute the checksums of the graphs. Everything else is always checked.
    - `backend`: The backend that it must have been made for. By default any.

    Raises
    ------
    QnnError
        CONTEXT_BINARY_VERSION for another version of the format, CONTEXT_CREATE_FROM_BINARY for everything else.
    """
    header, sections = FORMAT.unpack(content)
    try:
        made_for, producer = as_text(header["backend"]), as_text(header["producer"])
    except MALFORMED as problem:
        raise FORMAT.malformed(problem) from None
    graphs = {name: _graph(name, section, verify) for name, section in sections.items()}
    if backend not in (None, made_for):
        raise FORMAT.refusal(f"it was made for backend '{made_for}', not for '{backend}'")
    return BinaryContents(FORMAT.version, made_for, producer, memoryview(content).nbytes, graphs)


def _graph(name: str, section: memoryview, verify: bool) -> StoredGraph:
    """Read one graph out of its section; `name` is the section's name, and must be the graph's."""
    is_planned = section[: len(planned.FORMAT.magic)] == planned.FORMAT.magic
    graph: StoredGraph
    try:
        graph = planned.from_bytes(section, verify) if is_planned else serialization.from_bytes(section, verify)
    except QnnError as problem:
        raise named(name, problem) from None
    if graph.name != name:
        raise differing(name)
    return graph


class ContextBinary:
    """An open, checked binary in sealed memory, with a file descriptor by which another process can map it.

    A file is copied once, because its owner may write or truncate it at any time, and a context must not change with
    it. A context manager.

    - `source`: A file, or the contents of one.
    - `backend`: The backend that it must have been made for. By default any.
    - `verify`: Whether to compute the checksums of the graphs, which is not needed for a binary that was just made.
    """

    def __init__(self, source: Source, backend: str | None = None, verify: bool = True) -> None:
        self._descriptor = _sealed(source)
        try:
            self.content = memoryview(_mapped(self.fd))
            """Its bytes, which last as long as this view."""
            self.contents = read(self.content, verify, backend)
            """What the bytes hold: the graphs, and for which backend they are."""
        except Exception:
            self.close()
            raise

    @property
    def fd(self) -> int:
        """The descriptor of its memory, while it is open."""
        return self._descriptor.fileno()

    def close(self) -> None:
        """Close the descriptor; the mapping lives as long as a graph uses it. Safe to call again."""
        self._descriptor.close()

    def __enter__(self) -> ContextBinary:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def in_place(source: Any) -> memoryview | None:
    """Return a view of a binary's bytes in place, if they are aligned; else None.

    They are neither copied nor sealed: their owner must not change them while their graphs are in use.
    """
    if isinstance(source, (str, os.PathLike)):
        return None
    try:
        view = memoryview(source).cast("B")
    except (TypeError, ValueError):
        return None
    is_aligned = len(view) and np.frombuffer(view, np.uint8).ctypes.data % planned.FORMAT.alignment == 0
    return view if is_aligned else None


def inspect(source: Source) -> BinaryInfo | None:
    """Describe a context binary after checking all of it; None for other formats."""
    with _sealed(source) as descriptor:
        if os.pread(descriptor.fileno(), len(FORMAT.magic), 0) != FORMAT.magic:
            return None
        return read(_mapped(descriptor.fileno())).info


def _mapped(fd: int) -> mmap.mmap:
    """Map a binary's bytes. The mapping keeps its own descriptor."""
    try:
        return mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
    except OSError as problem:
        raise FORMAT.refusal(f"it cannot be mapped: {problem.strerror}", Code.COMMON_MEM_ALLOC) from None


def _sealed(source: Any) -> FileDescriptor:
    """Return a descriptor of a sealed copy of a binary's bytes."""
    if isinstance(source, (str, os.PathLike)):
        with _opened(source) as stream:
            return _sealed_copy(lambda file: _copy(stream, file))
    try:
        view = memoryview(source).cast("B")
    except (TypeError, ValueError) as problem:
        rule = f"a {type(source).__name__} is neither bytes nor a path: {problem}"
        raise FORMAT.refusal(rule, Code.CONTEXT_INVALID_ARGUMENT) from None
    return _sealed_copy(lambda file: file.write(view))


def _copy(stream: BinaryIO, copy: BinaryIO) -> None:
    """Copy all of a binary; of any other file only the beginning, which is enough to recognize it."""
    beginning = stream.read(len(FORMAT.magic))
    copy.write(beginning)
    if beginning == FORMAT.magic:
        shutil.copyfileobj(stream, copy, _COPY_BYTES)


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file, or refuse it."""
    try:
        return reading.opened(path)
    except OSError as problem:
        rule = f"it cannot be opened: {problem.strerror}"
        code = code_of(problem, Code.CONTEXT_INVALID_ARGUMENT)
        raise FORMAT.refusal(rule, code, reading.nearest_file(path)) from None


def _sealed_copy(write: Callable[[BinaryIO], object]) -> FileDescriptor:
    """Return a descriptor of sealed memory with what `write` writes; refuse an empty binary."""

    def checked(stream: BinaryIO) -> None:
        write(stream)
        if stream.tell() == 0:
            raise FORMAT.refusal("it is empty")

    try:
        return reading.sealed("isthmus-context", checked)
    except OSError as problem:
        raise FORMAT.refusal(f"it cannot be kept: {problem.strerror}", Code.COMMON_MEM_ALLOC) from None
