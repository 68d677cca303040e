"""Conversion of DLC files to graphs, without any vendor library. A DLC is an archive of flatbuffers and weights.

The operating system copies the file once into memory that cannot be changed, and this memory is mapped. Weights are
views of it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.build import ComposedBuilder
from isthmus.frontends.composed.entries import GraphEntry
from isthmus.frontends.dlc import archive, version3, version4
from isthmus.frontends.dlc.archive import Archive
from isthmus.frontends.dlc.contents import DlcContents, Reading
from isthmus.frontends.dlc.operations import translate
from isthmus.frontends.formats import reading_errors
from isthmus.frontends.model_source import ModelSource
from isthmus.graph import Graph
from isthmus.system import reading

__all__ = ["MAGIC", "load", "map_copy", "parse", "read", "records"]

MAGIC = archive.MAGIC
MAX_BYTES = 1 << 36
"""The largest file that is read, in bytes."""
MAX_METADATA = 1 << 20
"""The largest metadata entry that is searched for the producer, in bytes."""

# The header of a record: magic number, version, and a number that is not used.
_HEADER = struct.Struct("<HHI")
# The magic number of a record.
_RECORD = 0x0AD5
# The part of an entry's name that marks a graph prepared for one machine.
_CACHE = ".cache."
# How many entries an error message names if an archive is not a DLC.
_SHOWN = 4


def read(path: str | os.PathLike[str]) -> DlcContents:
    """Read the contents of a DLC, with the file's own names.

    Raises `QnnError`: COMMON_LOADING_BINARIES if the file is damaged or its version is neither 3 nor 4.
    """
    return parse(map_copy(path), Path(path).name)


def map_copy(path: str | os.PathLike[str]) -> memoryview:
    """Map a copy of a file in memory that cannot be changed.

    Raises `QnnError`: COMMON_INVALID_ARGUMENT if the file does not exist or cannot be read.
    """
    with reading_errors(path):
        return memoryview(reading.map_file(path, MAX_BYTES))


def records(data: bytes | memoryview, name: str) -> Mapping[str, memoryview]:
    """Return the entries of a DLC's archive by name, as views of its bytes."""
    return archive.read(memoryview(data).cast("B"), name).entries


def parse(data: bytes | memoryview, name: str) -> DlcContents:
    """Parse the bytes of a DLC; tensor bytes in the result are views of them."""
    file = archive.read(memoryview(data).cast("B"), name)
    entries = {entry: len(content) for entry, content in file.entries.items()}
    caches = tuple(entry for entry in entries if _CACHE in entry)
    if "model" not in entries and not caches:
        shown = ", ".join(f"'{entry}'" for entry in list(entries)[:_SHOWN]) or "nothing"
        more = f" and {len(entries) - _SHOWN} more" * (len(entries) > _SHOWN)
        rule = f"it is an archive of {shown}{more}; a DLC has an entry 'model', or a cache"
        raise QnnError(Code.COMMON_LOADING_BINARIES, f"file '{name}'", rule, "It is not a DLC.")
    version, graphs = _graphs(file)
    return DlcContents(name, version, len(data), _producer(file), entries, caches, graphs)


def load(source: ModelSource) -> list[Graph]:
    """Convert the graphs of a DLC. Its inputs have fixed shapes, so other shapes are refused.

    Returns finalized graphs, in the order of the file. Constants are read-only views of the mapped file.
    """
    contents = read(source.path)
    name = contents.name
    if not contents.graphs:
        caches = f", only what was prepared for another machine ({', '.join(contents.caches)})" * bool(contents.caches)
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"model file '{name}'", f"it holds no graph{caches}")
    built = [
        ComposedBuilder(translate(entry, source.clean_names), entry.name or Path(name).stem, source.operations).build()
        for entry in source.select(contents.graphs)
    ]
    for graph in built:
        _check_shapes(graph, source.shapes or {})
    return built


def _graphs(file: Archive) -> tuple[int, tuple[GraphEntry, ...]]:
    """Return the version of a DLC and its graphs; a file with caches only has none."""
    record = file.entries.get("model")
    if record is None:
        return 4, ()
    version = _version(file, "model")
    model = Reading(_body(record), f"{file.name}:model", version4.MODEL)
    if version == 3:
        return 3, version3.read(model, _params(file, 3))
    return 4, version4.read(model, _data(file))


def _data(file: Archive) -> version4.Data:
    """Return the bytes of the tensors of a version 4 file: entry model.params, and model.params.bin if it exists."""
    raw = file.entries.get("model.params.bin", memoryview(b""))
    return version4.Data(_params(file, 4), raw)


def _params(file: Archive, expected: int) -> Reading | None:
    """Open entry model.params, which must have the version of the model; None if there is none."""
    entry = "model.params"
    if entry not in file.entries:
        return None
    version = _version(file, entry)
    if version != expected:
        file.refuse(f"entry '{entry}' has version {version}, its model version {expected}")
    return Reading(_body(file.entries[entry]), f"{file.name}:{entry}", version4.PARAMS)


def _is_bare(content: memoryview) -> bool:
    """Return whether a record is a flatbuffer without a header, as early files of version 3 have them."""
    return bytes(content[4:8]) in (version4.MODEL, version4.PARAMS)


def _body(content: memoryview) -> memoryview:
    """Return the flatbuffer in a record."""
    return content if _is_bare(content) else content[_HEADER.size :]


def _version(file: Archive, entry: str) -> int:
    """Return the version of a record."""
    content = file.entries[entry]
    if len(content) < _HEADER.size:
        file.refuse(f"entry '{entry}' is too short for a record")
    magic, version, _ = _HEADER.unpack_from(content)
    if _is_bare(content):
        return 3
    if magic != _RECORD:
        file.refuse(f"entry '{entry}' does not begin as a record of a DLC does")
    if version not in (3, 4):
        rule = f"it is a DLC of version {version}; versions 3 and 4 are read"
        hint = "Convert its model again with a newer converter."
        raise QnnError(Code.COMMON_LOADING_BINARIES, f"file '{file.name}'", rule, hint)
    return int(version)


def _producer(file: Archive) -> str:
    """Return the tool that made a file, if its metadata name it. This is for information only."""
    for entry, content in file.entries.items():
        if entry.startswith("dlc.metadata") and len(content) <= MAX_METADATA:
            text = str(content, "utf-8", "replace")
            producer = _from_json(text) if text.lstrip().startswith("{") else _from_lines(text)
            if producer:
                return producer
    return ""


def _from_json(text: str) -> str:
    """Return the converter and its version from metadata in JSON, or ""."""
    try:
        command: Any = json.loads(text)["dlcGenerationInfo"][-1]["converterCommand"]
        return f"{command['tool']} {command['converterVersion']}"[:200]
    except (LookupError, TypeError, ValueError, RecursionError):
        return ""


def _from_lines(text: str) -> str:
    """Return the converter and its version from metadata in lines of ``name=value``, or ""."""
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    tool = fields.get("converter-command", "").split(" ")[0]
    return f"{tool} {fields.get('converter-version', '')}".strip()[:200]


def _check_shapes(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse requested shapes of inputs that differ from the graph's."""
    fixed = {tensor.name: tensor.dims for tensor in graph.inputs}
    for name, dims in shapes.items():
        if tuple(dims) != fixed.get(name):
            inputs = ", ".join(f"'{input}' {list(shape)}" for input, shape in fixed.items())
            rule = f"the shapes of a DLC are fixed; graph '{graph.name}' has {inputs}"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"shape {list(dims)} of input '{name}'", rule)
