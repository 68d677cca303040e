"""A context binary that stays in its client's memory, or in a mapped file: graphs are read from there when needed.

The client keeps it mapped and unchanged until the context is freed. If it does not, a graph that is loaded later must
neither crash this process nor have other weights. So what belongs to the graph is read by system calls first, which
report memory that is gone, and compared with a checksum that was computed when the context was created. Only then is it
used in place.
"""

from __future__ import annotations

import hashlib
import mmap
import os

import numpy as np

from isthmus.backends.seam import native
from isthmus.backends.seam.binary import (
    BinaryContents,
    ContextBinary,
    Source,
    StoredGraph,
    in_place,
    open_binary,
    read,
    read_planned,
)
from isthmus.backends.seam.planned import GraphOutline, PlannedGraph
from isthmus.backends.seam.program_binary import FORMAT
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel
from isthmus.system.contents import UNIT, unpack_graphs
from isthmus.system.shield import check

# How many bytes are read at a time to compare them.
_PIECE = 1 << 20
# A part of the binary: its offset and its size.
_Span = tuple[int, int]


class KeptBinary:
    """A binary in memory that its client keeps.

    - `contents`: What it holds, with outlines of its graphs: their constants are nowhere else.
    """

    def __init__(self, source: Source, backend: str, log: Log) -> None:
        self._view = _view(source, log)
        self._check_there()
        self.contents: BinaryContents = read(self._view, backend=backend, outline=_outline)
        self._spans = self._spans_of_graphs()
        self._digests = {name: self._digest(name) for name in self._spans}

    @property
    def outlines(self) -> dict[str, GraphOutline]:
        """Its graphs by name."""
        return {name: graph for name, graph in self.contents.graphs.items() if isinstance(graph, GraphOutline)}

    def graph(self, name: str) -> PlannedGraph:
        """Return a graph with its constants.

        Raises CONTEXT_CREATE_FROM_BINARY if its part of the binary has changed or is not there any more.
        """
        if self._digest(name) != self._digests[name]:
            raise self._loss(name, "its memory has changed since the context was created")
        return read_planned(self._view, name)

    def _check_there(self) -> None:
        """Read all of it by system calls, before it is read in place: a mapping may be longer than its file."""
        start, piece = _address(self._view), np.empty(_PIECE, np.uint8)
        for begin in range(0, len(self._view), _PIECE):
            check()
            if not _copy(start + begin, piece[: len(self._view) - begin]):
                rule = "its memory is not there: it is mapped beyond the end of a file"
                raise FORMAT.refusal(rule, Code.COMMON_MEM_ALLOC)

    def _spans_of_graphs(self) -> dict[str, list[_Span]]:
        """Return the parts of the binary that belong to each graph: the header, its own section, and its arrays."""
        _, arrays, sections = unpack_graphs(FORMAT, self._view, verify=False)
        start, first = _address(self._view), (0, FORMAT.header_bytes(self._view))
        base = _address(arrays) - start if len(arrays) else 0
        return {
            name: [
                first, (_address(section) - start, len(section)),
                *((base + offset, nbytes) for offset, nbytes in sorted(self.contents.arrays[name].items())),
            ]
            for name, section in sections.items()
        }  # fmt: skip

    def _digest(self, name: str) -> bytes:
        """Return the checksum of what a graph has in the binary, which is read by system calls."""
        digest, start, piece = hashlib.sha256(), _address(self._view), np.empty(_PIECE, np.uint8)
        for offset, nbytes in self._spans[name]:
            for begin in range(offset, offset + nbytes, _PIECE):
                check()
                count = min(_PIECE, offset + nbytes - begin)
                if not _copy(start + begin, piece[:count]):
                    raise self._loss(name, "its memory is not there any more")
                digest.update(piece[:count].data)
        return digest.digest()

    def _loss(self, name: str, rule: str) -> QnnError:
        return QnnError(
            Code.CONTEXT_CREATE_FROM_BINARY, f"graph '{name}' of a persistent binary", rule,
            "Keep a persistent binary mapped and unchanged until its context is freed.",
        )  # fmt: skip


def _view(source: Source, log: Log) -> memoryview:
    """Return a view of a binary in place; of a sealed copy if its memory is not aligned."""
    if isinstance(source, (str, os.PathLike)):
        with open_binary(source) as stream:
            nbytes = os.fstat(stream.fileno()).st_size
            if not nbytes:
                raise FORMAT.refusal("it is empty")
            try:
                return memoryview(mmap.mmap(stream.fileno(), nbytes, prot=mmap.PROT_READ))
            except OSError as problem:
                raise FORMAT.refusal(f"it cannot be mapped: {problem.strerror}", Code.COMMON_MEM_ALLOC) from None
    view = in_place(source, UNIT)
    if view is not None:
        return view
    with ContextBinary(source) as copied:
        reason = f"its memory does not start at a multiple of {UNIT}"
        log(LogLevel.INFO, f"the persistent context binary is copied: {reason}")
        return copied.content


def _outline(graph: StoredGraph) -> GraphOutline:
    if not isinstance(graph, PlannedGraph):
        raise FORMAT.refusal(f"graph '{graph.name}' is not a schedule, which backend 'htp' stores")
    native.check_plan(graph)
    return GraphOutline.of(graph)


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def _copy(address: int, target: np.ndarray) -> bool:
    """Copy bytes from an address by a system call, and return whether they are there."""
    # Only clients in C and persistent binaries need it.
    from isthmus.cabi.client import BadPointer, read_into

    try:
        read_into(target.ctypes.data, address, target.nbytes)
    except BadPointer:
        return False
    return True
