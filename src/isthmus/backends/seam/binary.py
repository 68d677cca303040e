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
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from isthmus.engine.native import serialization
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.graph import BinaryInfo, TensorInfo
from isthmus.system import reading
from isthmus.system.interrupts import FileDescriptor
from isthmus.version import build_id

MAGIC = b"ISTHMCTX"
VERSION = 2
SECTION_ALIGNMENT = 4096
_PREFIX = struct.Struct("<8sIIQ32s")
_HEADER_LIMIT = 1 << 24
_COPY_BYTES = 1 << 22

Source = bytes | bytearray | memoryview | mmap.mmap | str | os.PathLike[str]


@dataclass(frozen=True)
class GraphBinary:
    """A graph in a context binary.

    Parameters
    ----------
    program
        Its executable form.
    io_offsets
        Where each input, then each output lies in scratch when they were planned there; else empty.
    """

    program: Program
    io_offsets: tuple[int, ...] = ()

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The inputs, then the outputs."""
        return (*self.program.inputs, *self.program.outputs)


@dataclass(frozen=True)
class BinaryContents:
    """What a context binary holds, with the graphs' programs."""

    version: int
    backend: str
    producer: str
    nbytes: int
    graphs: Mapping[str, GraphBinary]

    @property
    def info(self) -> BinaryInfo:
        """What a client may know of it."""
        graphs = tuple(graph.program.info for graph in self.graphs.values())
        return BinaryInfo(self.version, self.backend, self.producer, self.nbytes, graphs)


def to_bytes(graphs: Sequence[GraphBinary], backend: str) -> bytes:
    """A context binary that holds these graphs.

    Examples
    --------
    >>> info = inspect(to_bytes([], "htp"))
    >>> info.backend, info.graphs
    ('htp', ())
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
                    "io_offsets": list(graph.io_offsets),
                }
            )
            total = position + len(section)
            position = _aligned(total)
        return json.dumps({"backend": backend, "producer": build_id(), "graphs": entries}).encode(), total

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


def read(content: bytes | memoryview | mmap.mmap, verify: bool = True, backend: str | None = None) -> BinaryContents:
    """The graphs of a binary; their arrays are views of `content`.

    Parameters
    ----------
    verify
        Whether to compute the checksums of the programs. Everything else is checked in any case.
    backend
        The backend that it must have been made for; any without it.

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
        maker, producer = _text(header["backend"]), _text(header["producer"])
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as problem:
        raise _refusal(f"its header is not well-formed: {problem}") from None
    graphs: dict[str, GraphBinary] = {}
    position = _PREFIX.size + length
    for name, offset, nbytes, io_offsets in entries:
        if offset % SECTION_ALIGNMENT or offset < position or nbytes < 0 or offset + nbytes > total:
            raise _refusal(f"graph '{name}' lies outside it")
        if any(view[position:offset]):
            raise _refusal(f"there are bytes before graph '{name}' that belong to nothing")
        if name in graphs:
            raise _refusal(f"it holds two graphs named '{name}'")
        graphs[name] = _graph(name, view[offset : offset + nbytes], io_offsets, verify)
        position = offset + nbytes
    if any(view[position:]):
        raise _refusal("there are bytes at its end that belong to nothing")
    if backend not in (None, maker):
        raise _refusal(f"it was made for backend '{maker}', not for '{backend}'")
    return BinaryContents(version, maker, producer, total, graphs)


_Entry = tuple[str, int, int, tuple[int, ...]]


def _entry(fields: Mapping[str, Any]) -> _Entry:
    offset, nbytes = (_whole(fields[key]) for key in ("offset", "nbytes"))
    return str(fields["name"]), offset, nbytes, tuple(map(_whole, fields["io_offsets"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _graph(name: str, section: memoryview, io_offsets: tuple[int, ...], verify: bool) -> GraphBinary:
    try:
        graph = GraphBinary(serialization.from_bytes(section, verify, io_offsets), io_offsets)
    except QnnError as problem:
        rule = f"graph '{name}': {problem.rule}"
        if problem.code is Code.COMMON_INCOMPATIBLE_BINARIES:
            raise _refusal(rule, Code.CONTEXT_BINARY_VERSION, problem.hint) from None
        raise _refusal(rule) from None
    count = len(graph.tensors)
    if graph.program.name != name or len(io_offsets) not in (0, count):
        raise _refusal(f"graph '{name}' differs from what the header says of it")
    for offset, info in zip(io_offsets, graph.tensors, strict=False):
        if offset < 0 or offset + info.nbytes > graph.program.scratch_bytes or offset % info.dtype.itemsize:
            raise _refusal(f"tensor '{info.name}' of graph '{name}' lies outside scratch memory, or askew in it")
    return graph


class ContextBinary:
    """An open binary: checked, and in sealed memory with a file descriptor that another process can map it by.

    A file is copied once, for whoever owns it may write or cut it at any time, and a context must not change with it.
    A context manager.

    Parameters
    ----------
    source
        A file, or the contents of one.
    backend
        The backend that it must have been made for; any without it.
    """

    def __init__(self, source: Source, backend: str | None = None) -> None:
        self._own = _sealed(source)
        try:
            self.content = memoryview(_mapped(self.fd))
            """Its bytes, which last as long as this view."""
            self.contents = read(self.content, backend=backend)
        except BaseException:
            self.close()
            raise

    @property
    def fd(self) -> int:
        """The descriptor of its memory, while it is open."""
        return self._own.fileno()

    @property
    def graphs(self) -> Mapping[str, GraphBinary]:
        """The graphs by name."""
        return self.contents.graphs

    def close(self) -> None:
        """Close the descriptor; the mapping goes with the last graph that is used. Safe to call again."""
        self._own.close()

    def __enter__(self) -> ContextBinary:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def in_place(source: Any) -> memoryview | None:
    """View the bytes of a binary where they are, if programs can be executed from there; else None.

    They are neither copied nor sealed: their owner must keep them unchanged while their graphs are used.
    """
    if isinstance(source, (str, os.PathLike)):
        return None
    try:
        view = memoryview(source).cast("B")
    except (TypeError, ValueError):
        return None
    return view if len(view) and np.frombuffer(view, np.uint8).ctypes.data % serialization.ALIGNMENT == 0 else None


def inspect(source: Source) -> BinaryInfo | None:
    """What a context binary holds, checked whole; None for what does not begin as one."""
    with _sealed(source) as own:
        if os.pread(own.fileno(), len(MAGIC), 0) != MAGIC:
            return None
        return read(_mapped(own.fileno())).info


def is_sealed(fd: int) -> bool:
    """Whether nobody can change what a descriptor refers to."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & reading.SEALS == reading.SEALS
    except OSError:
        return False


def _mapped(fd: int) -> mmap.mmap:
    """A binary's bytes. A mapping takes a descriptor of its own."""
    try:
        return mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
    except OSError as problem:
        raise _refusal(f"it cannot be mapped: {problem.strerror}", Code.COMMON_MEM_ALLOC) from None


def _sealed(source: Any) -> FileDescriptor:
    """A descriptor of a binary's bytes that nobody can change any more."""
    if isinstance(source, (str, os.PathLike)):
        with _opened(source) as stream:
            return _sealed_copy(lambda fd: _copy(stream, fd))
    try:
        view = memoryview(source).cast("B")
    except (TypeError, ValueError) as problem:
        rule = f"a {type(source).__name__} is neither bytes nor a path: {problem}"
        raise _refusal(rule, Code.CONTEXT_INVALID_ARGUMENT) from None
    return _sealed_copy(lambda fd: fd.write(view))


def _copy(stream: BinaryIO, kept: BinaryIO) -> None:
    """All of a binary; of any other file its beginning, which is enough to tell it."""
    kept.write(stream.read(_PREFIX.size))
    stream.seek(0)
    if stream.read(len(MAGIC)) == MAGIC:
        stream.seek(_PREFIX.size)
        shutil.copyfileobj(stream, kept, _COPY_BYTES)


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    try:
        return reading.opened(path)
    except OSError as problem:
        rule = f"'{os.fspath(path)}' cannot be opened: {problem.strerror}"
        raise _refusal(rule, Code.CONTEXT_INVALID_ARGUMENT) from None


def _sealed_copy(write: Callable[[BinaryIO], object]) -> FileDescriptor:
    def checked(stream: BinaryIO) -> None:
        write(stream)
        if stream.tell() == 0:
            raise _refusal("it is empty")

    try:
        return reading.sealed("isthmus-context", checked)
    except OSError as problem:
        raise _refusal(f"it cannot be kept: {problem.strerror}", Code.COMMON_MEM_ALLOC) from None
