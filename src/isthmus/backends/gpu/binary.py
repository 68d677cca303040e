"""Context binaries of the GPU backend: graphs as checked schedules, lowered again for the current device.

Neither source nor machine code is taken from a file. A binary therefore runs on any device, and it can make a device do
only what a composed graph could. A binary is a container with one program in each section, and
a section with the arrays of all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from isthmus.backends.gpu.compile import serialization
from isthmus.backends.gpu.compile.program import KernelProgram
from isthmus.backends.gpu.compile.traits import DeviceTraits
from isthmus.backends.seam.device_record import graph_sizes
from isthmus.backends.seam.driver import Source
from isthmus.errors import Code, QnnError
from isthmus.graph import BinaryInfo, GraphSizes
from isthmus.prepare import sharing
from isthmus.prepare.sharing import UnsharedConstants
from isthmus.system import reading
from isthmus.system.container import MALFORMED, ContainerFormat, as_text
from isthmus.system.contents import Contents, StoredContents, pack_graphs, unpack_graphs
from isthmus.version import PRODUCER

FORMAT = ContainerFormat(
    b"ISTHMGPU", 4, 64, "context binary", Code.CONTEXT_CREATE_FROM_BINARY, Code.CONTEXT_BINARY_VERSION, is_hashed=False
)
"""The format of context binaries of the GPU backend. Each program has its own checksum."""
MAX_BYTES = 1 << 32
"""The largest file that is accepted as a binary; the whole file is read."""


def to_bytes(programs: Sequence[KernelProgram]) -> bytes:
    """Return a context binary that holds these programs, which share equal constants."""
    contents = Contents()
    sections = {program.name: serialization.to_bytes(program, contents.of(program.name)) for program in programs}
    return pack_graphs(FORMAT, {"producer": PRODUCER}, contents, sections)


def programs(source: Source, traits: DeviceTraits) -> list[KernelProgram]:
    """Return the programs of a context binary, lowered for a device.

    Raises CONTEXT_BINARY_VERSION for another version of the format, CONTEXT_CREATE_FROM_BINARY for any other problem.
    """
    content = _content(source)
    if content is None:
        raise FORMAT.refusal("it does not begin as one of the GPU backend does")
    return _read(content, traits).programs


def inspect(source: Source) -> BinaryInfo | None:
    """Check a context binary completely and describe it; return None if it does not begin as one."""
    content = _content(source)
    if content is None:
        return None
    # Memory needs differ between devices. These are the figures for the default traits.
    contents = _read(content, DeviceTraits())
    graphs = tuple(
        replace(program.info, target="opencl", sizes=contents.sizes[program.name]) for program in contents.programs
    )
    return BinaryInfo(FORMAT.version, "gpu", contents.producer, len(content), graphs)


def unshared(source: Source) -> tuple[UnsharedConstants, ...] | None:
    """Return which large constants the graphs of a binary do not share, and why; None if it does not begin as one."""
    content = _content(source)
    if content is None:
        return None
    return sharing.unshared([program.schedule for program in _read(content, DeviceTraits()).programs], shares=True)


def _content(source: Any) -> memoryview | None:
    """Return the bytes of a binary, given as bytes or as a path, or None if it does not begin as one."""
    if isinstance(source, (str, os.PathLike)):
        try:
            with reading.open_file(source) as stream:
                # Do not read all of a large file that is no binary.
                if stream.read(len(FORMAT.magic)) != FORMAT.magic:
                    return None
            content = reading.contents(source, MAX_BYTES)
            return memoryview(content) if content.startswith(FORMAT.magic) else None
        except MemoryError:
            raise FORMAT.refusal("the host has no memory to read it") from None
        except OSError as problem:
            rule = f"it cannot be opened: {problem.strerror}"
            raise FORMAT.refusal(rule, Code.CONTEXT_INVALID_ARGUMENT) from None
    try:
        # Copy: the owner of the original may change it at any time.
        view = memoryview(source).cast("B")
        return memoryview(bytes(view)) if bytes(view[: len(FORMAT.magic)]) == FORMAT.magic else None
    except (TypeError, ValueError) as problem:
        rule = f"a {type(source).__name__} is neither bytes nor a path: {problem}"
        raise FORMAT.refusal(rule, Code.CONTEXT_INVALID_ARGUMENT) from None


@dataclass(frozen=True)
class _Contents:
    """What a binary holds: the build that wrote it, its programs, and the bytes of their constants by name."""

    producer: str
    programs: list[KernelProgram]
    sizes: dict[str, GraphSizes]


def _read(view: memoryview, traits: DeviceTraits) -> _Contents:
    """Check a binary and lower its programs for a device."""
    header, arrays, sections = unpack_graphs(FORMAT, view)
    try:
        producer = as_text(header["producer"])
    except MALFORMED as problem:
        raise FORMAT.malformed(problem) from None
    contents = {name: StoredContents(arrays) for name in sections}
    programs = [_graph(name, section, contents[name], traits) for name, section in sections.items()]
    return _Contents(producer, programs, graph_sizes({name: each.arrays for name, each in contents.items()}))


def _graph(name: str, section: memoryview, contents: StoredContents, traits: DeviceTraits) -> KernelProgram:
    """Return the program in a section, lowered for a device; `name` is the section's name, and must be the graph's."""
    try:
        program = serialization.from_bytes(section, traits, shared=contents)
    except QnnError as problem:
        raise FORMAT.refusal(f"graph '{name}': {problem.rule}") from None
    if program.name != name:
        raise FORMAT.refusal(f"graph '{name}' differs from what the header says of it")
    return program
