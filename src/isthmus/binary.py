"""Context binaries: one or more programs in one file that is mapped, not parsed. Written, opened, checked, inspected.

The format is described in docs/context-binary.md. Nothing in a binary is trusted: structure, bounds and checksums are
checked before anything is used, and there is no pickle in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.engine.native import serialization
from isthmus.engine.native.program import Program, TensorInfo
from isthmus.errors import Code, QnnError
from isthmus.graph.datatypes import MemType

MAGIC = b"ISTHMCTX"
VERSION = 1
SECTION_ALIGNMENT = 4096
_PREFIX = struct.Struct("<8sIIQ32s")
_HEADER_LIMIT = 1 << 24
_SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

Source = bytes | bytearray | memoryview | mmap.mmap | str | os.PathLike[str]


@dataclass(frozen=True)
class GraphBinary:
    """A graph in a context binary.

    Parameters
    ----------
    program
        Its executable form.
    mem_types
        The memory type that each input, then each output was prepared for.
    io_offsets
        Where each input, then each output lies in scratch when they were planned there; else empty.
    """

    program: Program
    mem_types: tuple[MemType, ...]
    io_offsets: tuple[int, ...] = ()

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The inputs, then the outputs."""
        return (*self.program.inputs, *self.program.outputs)


@dataclass(frozen=True)
class BinaryInfo:
    """What a context binary holds, without a backend (QnnSystemContext_getBinaryInfo)."""

    version: int
    backend: str
    producer: str
    nbytes: int
    graphs: Mapping[str, GraphBinary]


def to_bytes(graphs: Sequence[GraphBinary], backend: str, producer: str = "isthmus") -> bytes:
    """A context binary that holds these graphs.

    Examples
    --------
    >>> inspect(to_bytes([], "htp")).backend
    'htp'
    """
    sections = [serialization.to_bytes(graph.program) for graph in graphs]

    def header(start: int) -> tuple[bytes, int]:
        entries: list[dict[str, Any]] = []
        position = total = start
        for graph, section in zip(graphs, sections, strict=True):
            entries.append(
                {
                    "name": graph.program.name,
                    "offset": position,
                    "nbytes": len(section),
                    "mem_types": [kind.name for kind in graph.mem_types],
                    "io_offsets": list(graph.io_offsets),
                }
            )
            total = position + len(section)
            position = _aligned(total)
        return json.dumps({"backend": backend, "producer": producer, "graphs": entries}).encode(), total

    # Offsets are part of the header whose length they depend on; room for the largest ones settles it.
    start = _aligned(_PREFIX.size + len(header(1 << 48)[0]))
    text, total = header(start)
    content = bytearray(total)
    content[: _PREFIX.size] = _PREFIX.pack(MAGIC, VERSION, len(text), total, _digest(VERSION, total, text))
    content[_PREFIX.size : _PREFIX.size + len(text)] = text
    for entry, section in zip(json.loads(text)["graphs"], sections, strict=True):
        content[entry["offset"] : entry["offset"] + entry["nbytes"]] = section
    return bytes(content)


def _digest(version: int, total: int, text: bytes) -> bytes:
    return hashlib.sha256(struct.pack("<IQ", version, total) + text).digest()


def _aligned(position: int) -> int:
    return -(-position // SECTION_ALIGNMENT) * SECTION_ALIGNMENT


def _refusal(rule: str, code: Code = Code.CONTEXT_CREATE_FROM_BINARY, hint: str = "") -> QnnError:
    return QnnError(code, "context binary", rule, hint)


def read(content: bytes | memoryview | mmap.mmap, verify: bool = True) -> BinaryInfo:
    """The graphs of a binary; their arrays are views of `content`.

    Parameters
    ----------
    verify
        Whether to compute the checksums of the programs. Everything else is checked in any case.

    Raises
    ------
    QnnError
        CONTEXT_BINARY_VERSION for another version of the format, CONTEXT_CREATE_FROM_BINARY for all else.
    """
    view = memoryview(content).cast("B")
    if len(view) < _PREFIX.size:
        raise _refusal(f"{len(view)} bytes are too few for one")
    magic, version, length, total, digest = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise _refusal("it does not begin as one does")
    if version != VERSION:
        rule = f"its format has version {version}, this software reads version {VERSION}"
        raise _refusal(rule, Code.CONTEXT_BINARY_VERSION, "Generate it again.")
    if total != len(view):
        raise _refusal(f"it says that it has {total} bytes, it has {len(view)}")
    if length > min(_HEADER_LIMIT, len(view) - _PREFIX.size):
        raise _refusal("its header is longer than itself")
    text = bytes(view[_PREFIX.size : _PREFIX.size + length])
    if _digest(version, total, text) != digest:
        raise _refusal("the checksum of its header is wrong: it is damaged")
    try:
        header = json.loads(text)
        entries = [_entry(fields) for fields in header["graphs"]]
        backend, producer = str(header["backend"]), str(header["producer"])
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as problem:
        raise _refusal(f"its header is not well-formed: {problem}") from None
    graphs: dict[str, GraphBinary] = {}
    position = _PREFIX.size + length
    for name, offset, nbytes, mem_types, io_offsets in entries:
        if offset % SECTION_ALIGNMENT or offset < position or nbytes < 0 or offset + nbytes > total:
            raise _refusal(f"graph '{name}' lies outside it")
        if any(view[position:offset]):
            raise _refusal(f"there are bytes before graph '{name}' that belong to nothing")
        if name in graphs:
            raise _refusal(f"it holds two graphs named '{name}'")
        graphs[name] = _graph(name, view[offset : offset + nbytes], mem_types, io_offsets, verify)
        position = offset + nbytes
    if any(view[position:]):
        raise _refusal("there are bytes at its end that belong to nothing")
    return BinaryInfo(version, backend, producer, total, graphs)


_Entry = tuple[str, int, int, tuple[MemType, ...], tuple[int, ...]]


def _entry(fields: Mapping[str, Any]) -> _Entry:
    offset, nbytes = (_whole(fields[key]) for key in ("offset", "nbytes"))
    mem_types = tuple(MemType[kind] for kind in fields["mem_types"])
    return str(fields["name"]), offset, nbytes, mem_types, tuple(map(_whole, fields["io_offsets"]))


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _graph(
    name: str, section: memoryview, mem_types: tuple[MemType, ...], io_offsets: tuple[int, ...], verify: bool
) -> GraphBinary:
    try:
        graph = GraphBinary(serialization.from_bytes(section, verify), mem_types, io_offsets)
    except QnnError as problem:
        raise _refusal(f"graph '{name}': {problem.rule}") from None
    count = len(graph.tensors)
    if graph.program.name != name or len(mem_types) != count or len(io_offsets) not in (0, count):
        raise _refusal(f"graph '{name}' differs from what the header says of it")
    for offset, info in zip(io_offsets, graph.tensors, strict=False):
        if offset < 0 or offset + info.nbytes > graph.program.scratch_bytes:
            raise _refusal(f"tensor '{info.name}' of graph '{name}' lies outside scratch memory")
    return graph


class ContextBinary:
    """An open binary: mapped, checked, with a file descriptor that another process can map it by. A context manager.

    Parameters
    ----------
    source
        A file, which is mapped as it is, or the contents of one, which are copied once into memory that can be shared.
    """

    def __init__(self, source: Source) -> None:
        self.fd = _open_file(source) if isinstance(source, (str, os.PathLike)) else _sealed_copy(source)
        try:
            self.nbytes = os.fstat(self.fd).st_size
            if self.nbytes == 0:
                raise _refusal("it is empty")
            self.info = read(mmap.mmap(self.fd, self.nbytes, prot=mmap.PROT_READ))
        except BaseException:
            self.close()
            raise

    @property
    def graphs(self) -> Mapping[str, GraphBinary]:
        """The graphs by name."""
        return self.info.graphs

    def close(self) -> None:
        """Close the descriptor; the mapping goes with the last graph that is used. Safe to call again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> ContextBinary:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def inspect(source: Source) -> BinaryInfo:
    """What a context binary holds, checked whole."""
    with ContextBinary(source) as binary:
        return binary.info


def is_sealed(fd: int) -> bool:
    """Whether nobody can change what a descriptor refers to."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALED == _SEALED
    except OSError:
        return False


def _open_file(path: str | os.PathLike[str]) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as problem:
        rule = f"'{os.fspath(path)}' cannot be opened: {getattr(problem, 'strerror', None) or problem}"
        raise _refusal(rule, Code.CONTEXT_INVALID_ARGUMENT) from None
    if not os.path.isfile(f"/proc/self/fd/{fd}"):
        os.close(fd)
        raise _refusal(f"'{os.fspath(path)}' is not a file", Code.CONTEXT_INVALID_ARGUMENT)
    return fd


def _sealed_copy(content: Any) -> int:
    try:
        view = memoryview(content).cast("B")
    except (TypeError, ValueError) as problem:
        rule = f"a {type(content).__name__} is neither bytes nor a path: {problem}"
        raise _refusal(rule, Code.CONTEXT_INVALID_ARGUMENT) from None
    fd = os.memfd_create("isthmus-context", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        written = 0
        while written < len(view):
            written += os.write(fd, view[written:])
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALED | fcntl.F_SEAL_SEAL)
    except OSError as problem:
        os.close(fd)
        raise _refusal(f"it cannot be kept: {problem.strerror}", Code.COMMON_MEM_ALLOC) from None
    return fd
