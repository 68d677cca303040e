"""Context binaries: graphs in one file that is mapped, not parsed. Writing, opening, checking, inspecting.

The format is described in docs/context-binary.md: a container with one graph in each section, as a program for one
target or as a schedule for any, and a section with the constants of all graphs. Nothing in it is trusted.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from isthmus.backends.seam import planned
from isthmus.backends.seam.device_record import DeviceRecord, graph_sizes
from isthmus.backends.seam.planned import GraphOutline, PlannedGraph
from isthmus.backends.seam.program_binary import FORMAT, differing, named
from isthmus.engine.native import serialization
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError, code_of
from isthmus.graph import BinaryInfo, GraphInfo, GraphSizes
from isthmus.prepare import sharing
from isthmus.prepare.sharing import UnsharedConstants
from isthmus.system import reading
from isthmus.system.container import MALFORMED, as_text
from isthmus.system.contents import Contents, GraphContents, StoredContents, pack_graphs, unpack_graphs
from isthmus.system.interrupts import FileDescriptor
from isthmus.version import PRODUCER

# Bytes that are read at a time when a file is copied.
_COPY_BYTES = 1 << 22

_Stored = TypeVar("_Stored", Program, PlannedGraph)
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
    - `device`: The device that it was made for, if it states one.
    - `op_data`: How many bytes describe the operations of each graph.
    - `sizes`: The bytes of the graphs' constants by name, alone and shared.
    - `arrays`: For each graph, the sizes of its arrays by their offsets in the section that all graphs have.
    """

    version: int
    backend: str
    producer: str
    nbytes: int
    graphs: Mapping[str, StoredGraph | GraphOutline]
    device: DeviceRecord | None
    op_data: Mapping[str, int]
    sizes: Mapping[str, GraphSizes]
    arrays: Mapping[str, Mapping[int, int]]

    @property
    def shares(self) -> bool:
        """Whether graphs share constants."""
        return any(sizes.shared_weights for sizes in self.sizes.values())

    @property
    def info(self) -> BinaryInfo:
        """Its public description."""
        graphs = tuple(map(self._graph_info, self.graphs.values()))
        device = self.device or DeviceRecord()
        return BinaryInfo(self.version, self.backend, self.producer, self.nbytes, graphs, device.soc, device.arch)

    def _graph_info(self, graph: StoredGraph | GraphOutline) -> GraphInfo:
        """Describe a graph with its constants, and with its memory on the device if the binary states one."""
        info, sizes = graph.info, self.sizes[graph.name]
        record = self.device and self.device.graphs[graph.name]
        figures = record.figures(info, self.op_data[graph.name], sizes) if record else None
        return replace(info, figures=figures, sizes=sizes)

    @property
    def programs(self) -> dict[str, Program]:
        """The graphs of a binary that may hold programs only."""
        return self._only(Program, "program")

    @property
    def planned(self) -> dict[str, PlannedGraph]:
        """The graphs of a binary that may hold schedules only."""
        return self._only(PlannedGraph, "schedule")

    def _only(self, kind: type[_Stored], noun: str) -> dict[str, _Stored]:
        """Return the graphs by name; refuse a binary with graphs of another kind. `noun` names the kind."""
        graphs = {name: graph for name, graph in self.graphs.items() if isinstance(graph, kind)}
        for name in self.graphs.keys() - graphs.keys():
            raise FORMAT.refusal(f"graph '{name}' is not a {noun}, which backend '{self.backend}' stores")
        return graphs


def to_bytes(
    graphs: Sequence[StoredGraph],
    backend: str,
    device: DeviceRecord | None = None,
    shares: bool = True,
    apart: bool = False,
) -> bytes:
    """Return a context binary of these graphs, with a record of the device that it is for if there is one.

    In a binary for a device the constants that several graphs share come first: clients may bring them apart.

    - `shares`: Whether graphs share equal constants. Otherwise each has its own.
    - `apart`: Whether the segments of programs are not in it: the reader has them.

    >>> info = inspect(to_bytes([], "htp"))
    >>> info.backend, info.graphs
    ('htp', ())
    """
    contents = Contents(shares)
    if device is not None and shares and len(graphs) > 1:
        # Only when all graphs are known it is known which constants they share.
        survey = Contents(shares, stores=False)
        for graph in graphs:
            _section(graph, survey.of(graph.name), apart)
        contents = Contents(shares, first=survey)
    sections = {graph.name: _section(graph, contents.of(graph.name), apart) for graph in graphs}
    stated = {} if device is None else {"device": device.to_json()}
    return pack_graphs(FORMAT, {"backend": backend, "producer": PRODUCER, **stated}, contents, sections)


def describe(graphs: Sequence[PlannedGraph], device: DeviceRecord, shares: bool) -> list[GraphInfo]:
    """Describe graphs with their memory, as their context binary would.

    - `shares`: As for `to_bytes`.
    """
    contents = Contents(shares, stores=False)
    sections = [graph.to_bytes(contents.of(graph.name)) for graph in graphs]
    sizes = graph_sizes(contents.arrays)
    return [
        replace(
            graph.info,
            figures=device.graphs[graph.name].figures(graph.info, FORMAT.header_bytes(section), sizes[graph.name]),
        )
        for graph, section in zip(graphs, sections, strict=True)
    ]


def _section(graph: StoredGraph, contents: GraphContents, apart: bool) -> bytes:
    """Return a graph as the bytes of its section; its constants go into `contents`. `apart` as for `to_bytes`."""
    return (
        graph.to_bytes(contents) if isinstance(graph, PlannedGraph) else serialization.to_bytes(graph, contents, apart)
    )


def read(
    content: bytes | memoryview | mmap.mmap,
    verify: bool = True,
    backend: str | None = None,
    apart: Mapping[str, np.ndarray] | None = None,
    outline: Callable[[StoredGraph], GraphOutline] | None = None,
) -> BinaryContents:
    """Read the graphs of a binary; their arrays are views of `content`.

    - `verify`: Whether to compute the checksums of the graphs. Everything else is always checked.
    - `backend`: The backend that it must have been made for. By default any.
    - `apart`: Segments of programs by name that are not in the binary.
    - `outline`: Returns what is kept of each graph; by default all of it.

    Raises CONTEXT_BINARY_VERSION for another version of the format, CONTEXT_CREATE_FROM_BINARY for everything else.
    """
    header, arrays, sections = unpack_graphs(FORMAT, content, verify)
    unpacked = UnpackedBinary(header, sections, (arrays,), memoryview(content).nbytes)
    return contents_of(unpacked, verify, backend, apart, outline)


class UnpackedBinary(NamedTuple):
    """The parts of a binary: its header, the sections of its graphs, the pieces of that with their arrays, its size."""

    header: Mapping[str, Any]
    sections: Mapping[str, memoryview]
    arrays: tuple[memoryview, ...]
    nbytes: int


def contents_of(
    unpacked: UnpackedBinary,
    verify: bool = True,
    backend: str | None = None,
    apart: Mapping[str, np.ndarray] | None = None,
    outline: Callable[[StoredGraph], GraphOutline] | None = None,
) -> BinaryContents:
    """Read the graphs of a binary that was unpacked, as `read` does."""
    header, sections, arrays, nbytes = unpacked
    try:
        made_for, producer = as_text(header["backend"]), as_text(header["producer"])
        device = DeviceRecord.from_json(header["device"], sections) if "device" in header else None
    except MALFORMED as problem:
        raise FORMAT.malformed(problem) from None
    contents = {name: StoredContents(*arrays) for name in sections}
    graphs: dict[str, StoredGraph | GraphOutline] = {}
    for name, section in sections.items():
        graph = _graph(name, section, contents[name], verify, apart)
        graphs[name] = graph if outline is None else outline(graph)
    if backend not in (None, made_for):
        raise FORMAT.refusal(f"it was made for backend '{made_for}', not for '{backend}'")
    op_data = {name: FORMAT.header_bytes(section) for name, section in sections.items()}
    sizes = graph_sizes({name: each.arrays for name, each in contents.items()})
    for name, each in graphs.items():
        # A program has its small constants in its own section.
        own = each.constant_bytes - sum(contents[name].arrays.values()) if isinstance(each, Program) else 0
        sizes[name] = replace(sizes[name], constants=sizes[name].constants + own)
    arrays_of = {name: stored.arrays for name, stored in contents.items()}
    return BinaryContents(FORMAT.version, made_for, producer, nbytes, graphs, device, op_data, sizes, arrays_of)


def read_planned(content: memoryview, name: str) -> PlannedGraph:
    """Return one graph of a binary that was read as a whole before, which has schedules only."""
    _, arrays, sections = unpack_graphs(FORMAT, content, verify=False)
    return planned.from_bytes(sections[name], verify=False, shared=StoredContents(arrays))


def _graph(
    name: str, section: memoryview, contents: StoredContents, verify: bool, apart: Mapping[str, np.ndarray] | None
) -> StoredGraph:
    """Read one graph out of its section; `name` is the section's name, and must be the graph's."""
    is_planned = section[: len(planned.FORMAT.magic)] == planned.FORMAT.magic
    graph: StoredGraph
    try:
        if is_planned:
            graph = planned.from_bytes(section, verify, contents)
        else:
            graph = serialization.from_bytes(section, verify, contents, apart)
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
    - `apart`: Segments of programs by name that are not in the binary.
    """

    def __init__(
        self,
        source: Source,
        backend: str | None = None,
        verify: bool = True,
        apart: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._descriptor = _seal(source)
        try:
            self.content = memoryview(_map(self.fd))
            """Its bytes, which last as long as this view."""
            self.contents = read(self.content, verify, backend, apart)
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


def in_place(source: Any, alignment: int = planned.FORMAT.alignment) -> memoryview | None:
    """Return a view of a binary's bytes in place, if they are aligned; else None.

    They are neither copied nor sealed: their owner must not change them while their graphs are in use.
    """
    if isinstance(source, (str, os.PathLike)):
        return None
    try:
        view = memoryview(source).cast("B")
    except (TypeError, ValueError):
        return None
    is_aligned = len(view) and np.frombuffer(view, np.uint8).ctypes.data % alignment == 0
    return view if is_aligned else None


def inspect(source: Source) -> BinaryInfo | None:
    """Describe a context binary after checking all of it; None for other formats."""
    contents = _read_own(source)
    return None if contents is None else contents.info


def unshared(source: Source) -> tuple[UnsharedConstants, ...] | None:
    """Return which large constants the graphs of a binary do not share, and why; None for other formats."""
    contents = _read_own(source)
    if contents is None:
        return None
    graphs = contents.graphs.values()
    found = sharing.unshared([each.schedule for each in graphs if isinstance(each, PlannedGraph)], contents.shares)
    return found + _of_programs([each for each in graphs if isinstance(each, Program)])


def _read_own(source: Source) -> BinaryContents | None:
    """Read a context binary of this format, or return None for other formats."""
    with _seal(source) as descriptor:
        is_own = os.pread(descriptor.fileno(), len(FORMAT.magic), 0) == FORMAT.magic
        return read(_map(descriptor.fileno())) if is_own else None


def _of_programs(programs: Sequence[Program]) -> tuple[UnsharedConstants, ...]:
    """Return the segments that programs do not share. What they were packed from is not known any more."""
    names = {each.name: [serialization.segment_name(segment) for segment in each.segments] for each in programs}
    owners = Counter(name for listed in names.values() for name in set(listed))
    return sharing.add_up_constants(
        (
            each.name,
            segment.nbytes,
            "",
            "other contents than in other graphs, or packed in another form (`cpu.weight_sharing` prevents that)",
        )
        for each in programs
        for name, segment in zip(names[each.name], each.segments, strict=True)
        if owners[name] == 1 < len(programs)
    )


def _map(fd: int) -> mmap.mmap:
    """Map a binary's bytes. The mapping keeps its own descriptor."""
    try:
        return mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
    except OSError as problem:
        raise FORMAT.refusal(f"it cannot be mapped: {problem.strerror}", Code.COMMON_MEM_ALLOC) from None


def _seal(source: Any) -> FileDescriptor:
    """Return a descriptor of a sealed copy of a binary's bytes."""
    if isinstance(source, (str, os.PathLike)):
        with open_binary(source) as stream:
            return _seal_copy(lambda file: _copy(stream, file))
    try:
        view = memoryview(source).cast("B")
    except (TypeError, ValueError) as problem:
        rule = f"a {type(source).__name__} is neither bytes nor a path: {problem}"
        raise FORMAT.refusal(rule, Code.CONTEXT_INVALID_ARGUMENT) from None
    return _seal_copy(lambda file: file.write(view))


def _copy(stream: BinaryIO, copy: BinaryIO) -> None:
    """Copy all of a binary; of any other file only the beginning, which is enough to recognize it."""
    beginning = stream.read(len(FORMAT.magic))
    copy.write(beginning)
    if beginning == FORMAT.magic:
        shutil.copyfileobj(stream, copy, _COPY_BYTES)


def open_binary(path: str | os.PathLike[str]) -> BinaryIO:
    """Open the file of a binary, or refuse it."""
    try:
        return reading.open_file(path)
    except OSError as problem:
        rule = f"it cannot be opened: {problem.strerror}"
        code = code_of(problem, Code.CONTEXT_INVALID_ARGUMENT)
        raise FORMAT.refusal(rule, code, reading.nearest_file(path)) from None


def _seal_copy(write: Callable[[BinaryIO], object]) -> FileDescriptor:
    """Return a descriptor of sealed memory with what `write` writes; refuse an empty binary."""

    def checked(stream: BinaryIO) -> None:
        write(stream)
        if stream.tell() == 0:
            raise FORMAT.refusal("it is empty")

    try:
        return reading.write_sealed("isthmus-context", checked)
    except OSError as problem:
        raise FORMAT.refusal(f"it cannot be kept: {problem.strerror}", Code.COMMON_MEM_ALLOC) from None
