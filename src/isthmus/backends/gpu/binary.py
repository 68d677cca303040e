"""Context binaries of the GPU backend: graphs as their checked schedules, lowered again for the device at hand.

Neither source nor machine code is taken from a file, so a binary runs on any device, and what it could make a device do
is what a composed graph could. Structure, sizes and checksums are checked before anything is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from isthmus.backends.gpu.compile import serialization
from isthmus.backends.gpu.compile.program import KernelProgram
from isthmus.backends.gpu.compile.traits import DeviceTraits
from isthmus.backends.seam.driver import Source
from isthmus.errors import Code, QnnError
from isthmus.graph import BinaryInfo, Graph, TensorType
from isthmus.system import reading
from isthmus.version import build_id

MAGIC = b"ISTHMGPU"
VERSION = 1
MAX_BYTES = 1 << 32
"""The largest file that passes for a binary: all of it is read."""
_PREFIX = struct.Struct("<8sIIQ32s")
"""What it is, the version, the size of the header, the size of all, and a checksum of everything but this prefix."""
_HEADER_LIMIT = 1 << 24


def to_bytes(programs: Sequence[KernelProgram]) -> bytes:
    """A context binary that holds these programs."""
    sections = [serialization.to_bytes(program) for program in programs]
    entries = [
        {"name": program.name, "nbytes": len(section)} for program, section in zip(programs, sections, strict=True)
    ]
    header = json.dumps({"producer": build_id(), "graphs": entries}).encode()
    body = b"".join((header, *sections))
    return _PREFIX.pack(MAGIC, VERSION, len(header), _PREFIX.size + len(body), _digest(body)) + body


def programs(source: Source, traits: DeviceTraits) -> list[KernelProgram]:
    """The programs of a context binary, lowered for a device.

    Raises
    ------
    QnnError
        CONTEXT_BINARY_VERSION for another version of the format, CONTEXT_CREATE_FROM_BINARY for all else.
    """
    content = _content(source)
    if content is None:
        raise _refusal("it does not begin as one of the GPU backend does")
    return _read(content, traits)[1]


def inspect(source: Source) -> BinaryInfo | None:
    """What a context binary holds, checked whole; None for what does not begin as one."""
    content = _content(source)
    if content is None:
        return None
    # What it needs on one device is not what it needs on another; this is what the usual one would.
    producer, found = _read(content, DeviceTraits())
    graphs = tuple(replace(program.info, target="opencl") for program in found)
    return BinaryInfo(VERSION, "gpu", producer, len(content), graphs)


def outline(program: KernelProgram) -> Graph:
    """A graph out of a context binary as far as a client sees it: its inputs and outputs."""
    graph = Graph(program.name)
    for kind, infos in ((TensorType.APP_WRITE, program.inputs), (TensorType.APP_READ, program.outputs)):
        for info in infos:
            tensor = graph.create_tensor(info.name, kind, info.dtype, info.dims, info.quantization)
            tensor.mem_type = info.mem_type
    graph.finalized = True
    return graph


def _refusal(rule: str, code: Code = Code.CONTEXT_CREATE_FROM_BINARY, hint: str = "") -> QnnError:
    return QnnError(code, "context binary", rule, hint)


def _digest(body: bytes | memoryview) -> bytes:
    return hashlib.sha256(body).digest()


def _content(source: Any) -> memoryview | None:
    """The bytes of a binary; None for what does not begin as one."""
    if isinstance(source, (str, os.PathLike)):
        try:
            with reading.opened(source) as stream:
                if stream.read(len(MAGIC)) != MAGIC:
                    return None
            content = reading.contents(source, MAX_BYTES)
            return memoryview(content) if content.startswith(MAGIC) else None
        except MemoryError:
            raise _refusal("the host has no memory to read it") from None
        except OSError as problem:
            rule = f"'{os.fspath(source)}' cannot be opened: {problem.strerror}"
            raise _refusal(rule, Code.CONTEXT_INVALID_ARGUMENT) from None
    try:
        # A copy: whoever has the original may change it at any time.
        view = memoryview(source).cast("B")
        return memoryview(bytes(view)) if bytes(view[: len(MAGIC)]) == MAGIC else None
    except (TypeError, ValueError) as problem:
        rule = f"a {type(source).__name__} is neither bytes nor a path: {problem}"
        raise _refusal(rule, Code.CONTEXT_INVALID_ARGUMENT) from None


def _read(view: memoryview, traits: DeviceTraits) -> tuple[str, list[KernelProgram]]:
    if len(view) < _PREFIX.size:
        raise _refusal(f"{len(view)} bytes are too few for one")
    _, version, length, total, digest = _PREFIX.unpack_from(view)
    if version != VERSION:
        rule = f"its format has version {version}, this software reads version {VERSION}"
        raise _refusal(rule, Code.CONTEXT_BINARY_VERSION, "Generate it again.")
    if total != len(view):
        raise _refusal(f"it says that it has {total} bytes, it has {len(view)}")
    body = view[_PREFIX.size :]
    if length > min(_HEADER_LIMIT, len(body)):
        raise _refusal("its header is longer than itself")
    if _digest(body) != digest:
        raise _refusal("its checksum is wrong: it is damaged")
    try:
        header = json.loads(bytes(body[:length]))
        producer = _text(header["producer"])
        entries = [(_text(entry["name"]), _size(entry["nbytes"])) for entry in header["graphs"]]
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as problem:
        raise _refusal(f"its header is not well-formed: {problem}") from None
    if len({name for name, _ in entries}) != len(entries):
        raise _refusal("it holds two graphs of one name")
    if length + sum(nbytes for _, nbytes in entries) != len(body):
        raise _refusal("its graphs are not as long as its header says")
    found, position = [], length
    for name, nbytes in entries:
        found.append(_graph(name, body[position : position + nbytes], traits))
        position += nbytes
    return producer, found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a size")
    return value


def _graph(name: str, section: memoryview, traits: DeviceTraits) -> KernelProgram:
    try:
        program = serialization.from_bytes(section, traits)
    except QnnError as problem:
        raise _refusal(f"graph '{name}': {problem.rule}") from None
    if program.name != name:
        raise _refusal(f"graph '{name}' differs from what the header says of it")
    return program
