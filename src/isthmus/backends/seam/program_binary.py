"""Reading of context binaries that hold programs, without importing the modules that plan and lower graphs.

The accelerator is a process of its own, which starts faster the less it imports. `binary` has the rest.
"""

from __future__ import annotations

import fcntl
import mmap
from collections.abc import Mapping

import numpy as np

from isthmus.engine.native import serialization
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.system import reading
from isthmus.system.container import ContainerFormat
from isthmus.system.contents import StoredContents, unpack_graphs

FORMAT = ContainerFormat(
    magic=b"ISTHMCTX",
    version=5,
    alignment=4096,
    what="context binary",
    damaged=Code.CONTEXT_CREATE_FROM_BINARY,
    other_version=Code.CONTEXT_BINARY_VERSION,
    is_hashed=False,
)
"""The format of context binaries of the native engine. Each graph has its own checksum."""


def read_programs(
    content: bytes | memoryview | mmap.mmap, verify: bool = True, apart: Mapping[str, np.ndarray] | None = None
) -> dict[str, Program]:
    """Read the programs of a binary by name; their arrays are views of `content`. Refuse anything but programs.

    - `verify`: Whether to compute their checksums; everything else is always checked.
    - `apart`: Segments by name that are not in the binary.
    """
    _, arrays, sections = unpack_graphs(FORMAT, content, verify)
    programs = {}
    for name, section in sections.items():
        try:
            programs[name] = serialization.from_bytes(section, verify, StoredContents(arrays), apart)
        except QnnError as problem:
            raise named(name, problem) from None
        if programs[name].name != name:
            raise differing(name)
    return programs


def named(name: str, problem: QnnError) -> QnnError:
    """Return the error of a graph's section as an error of the binary that names the graph."""
    rule = f"graph '{name}': {problem.rule}"
    return FORMAT.outdated(rule) if problem.code is serialization.FORMAT.other_version else FORMAT.refusal(rule)


def differing(name: str) -> QnnError:
    """Return the error for a graph that has another name than its section."""
    return FORMAT.refusal(f"graph '{name}' differs from what the header says of it")


def is_sealed(fd: int) -> bool:
    """Return whether a descriptor's memory is sealed against any change."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & reading.SEALS == reading.SEALS
    except OSError:
        return False
