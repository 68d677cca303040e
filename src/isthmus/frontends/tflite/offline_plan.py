"""The memory plan that TFLite Micro reads from a file: the tensors in its arena, and a copy of the file with a plan.

The plan is a metadata entry with the name below. Its buffer has 32-bit words: version, subgraph, number of offsets, and
for each tensor its offset in the arena, or -1 if the runtime places it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.flatbuffer import Table
from isthmus.frontends.flatbuffer_writer import TableFields
from isthmus.frontends.tflite.entries import TfliteTensor
from isthmus.frontends.tflite.file_patch import MAX_FILE_BYTES, check_root, old_references, old_tables, put_before
from isthmus.frontends.tflite.model import ModelFile, SubgraphEntry
from isthmus.frontends.tflite.schema import NUMPY_TYPES, VERSION, BufferField, ElementType, MetadataField, ModelField

METADATA_NAME = "OfflineMemoryAllocation"
"""The name of the metadata entry that holds a plan."""
ALIGNMENT = 16
"""The alignment of the runtime's arena buffers."""
RUNTIME_PLACES = -1
"""The offset of a tensor that the runtime places."""

_FORMAT_VERSION = 1
_SUBGRAPH = 0
# Bytes per element of types that have no numpy type here.
_OTHER_SIZES = {ElementType.RESOURCE: 4, ElementType.COMPLEX64: 8, ElementType.COMPLEX128: 16}
# The most tensors and operators of all subgraphs.
_MAX_TENSORS = 100_000


@dataclass(frozen=True)
class ArenaTensor:
    """A tensor of the main subgraph that is in the runtime's arena.

    - `first`, `last`: the numbers of the first and last operator that use it; it occupies its memory from one to the
      other.
    """

    index: int
    name: str
    bytes: int
    first: int
    last: int


def arena_tensors(model: ModelFile) -> list[ArenaTensor]:
    """Return the tensors that a plan may place, with their lifetimes as TFLite Micro computes them.

    Constants and variables are excluded. So are tensors with the number of a tensor that another subgraph keeps in the
    arena: the runtime reads one list of offsets for all subgraphs and would use such an offset for both.

    Raises `QnnError`: COMMON_NOT_SUPPORTED for a tensor with an open dimension.
    """
    main, *others = _subgraphs(model)
    lives = _lives(main)
    taken = {i for other in others for i in range(other.tensor_count) if not _is_constant(other, other.tensor(i))}
    planned = []
    for index, (first, last) in sorted(lives.items()):
        entry = main.tensor(index)
        if _is_constant(main, entry) or entry.is_variable or index in taken:
            continue
        if -1 in entry.signature:
            raise QnnError(
                Code.COMMON_NOT_SUPPORTED,
                f"tensor '{entry.name}' of '{model.file.name}'",
                f"its shape {list(entry.signature)} is open, and a plan in the file needs every size",
                "Convert the model with fixed shapes.",
            )
        size = _bytes(entry)
        if size >= MAX_FILE_BYTES:
            model.file.refuse(f"tensor '{entry.name}' has {size} bytes")
        if size:
            planned.append(ArenaTensor(index, entry.name, size, first, last))
    return planned


def embed(model: ModelFile, offsets: Mapping[int, int]) -> bytes:
    """Return the file with a plan of arena offsets by tensor number; the runtime places all other tensors.

    The old content stays byte for byte, behind a new root, because references in a flatbuffer are relative. Only
    offsets that count from the beginning of the file are adjusted. An existing plan is removed.
    """
    count = sum(subgraph.tensor_count for subgraph in _subgraphs(model))
    words = np.full(3 + count, RUNTIME_PLACES, "<i4")
    words[:3] = _FORMAT_VERSION, _SUBGRAPH, count
    for index, offset in offsets.items():
        if not 0 <= offset < MAX_FILE_BYTES:
            raise QnnError(
                Code.COMMON_NOT_SUPPORTED, f"tensor {index} of '{model.file.name}'", f"{offset} is not a 31-bit offset"
            )
        words[3 + index] = offset
    return put_before(model, _root(model, words.tobytes()))


def _subgraphs(model: ModelFile) -> list[SubgraphEntry]:
    """Return all subgraphs, the main one first. Refuse a file with too many tensors and operators."""
    # The size of the file does not limit their number: a damaged file may refer to one table many times.
    subgraphs, total = [], 0
    for index in range(model.subgraph_count):
        subgraphs.append(model.subgraph(index))
        total += subgraphs[-1].tensor_count + subgraphs[-1].operator_count + 1
        if total > _MAX_TENSORS:
            model.file.refuse(f"it has more than {_MAX_TENSORS} tensors and operators")
    return subgraphs


def _lives(main: SubgraphEntry) -> dict[int, tuple[int, int]]:
    """Return first and last operator of each tensor; inputs live from the beginning, outputs to the end."""
    lives: dict[int, tuple[int, int]] = {}

    def touch(indices: tuple[int, ...], operator_index: int) -> None:
        """Extend the lives of tensors to an operator."""
        for index in indices:
            if index >= 0:
                first, last = lives.get(index, (operator_index, operator_index))
                lives[index] = min(first, operator_index), max(last, operator_index)

    touch(main.inputs, 0)
    last = 0
    for operator in main.operators():
        last = operator.index
        touch((*operator.inputs, *operator.outputs), last)
    touch(main.outputs, last)
    return lives


def _is_constant(subgraph: SubgraphEntry, entry: TfliteTensor) -> bool:
    """Return whether a tensor has contents in the file."""
    return len(subgraph.shared.buffer(entry.buffer)) > 0


def _bytes(entry: TfliteTensor) -> int:
    """Return the bytes in the arena, 0 for types that TFLite Micro does not support; 4-bit numbers take a byte each."""
    kind = NUMPY_TYPES.get(entry.type)
    itemsize = np.dtype(kind).itemsize if kind is not None else _OTHER_SIZES.get(entry.type, 0)
    return math.prod(entry.shape) * itemsize


def _root(model: ModelFile, plan: bytes) -> TableFields:
    """Return the new root: the old fields, and the lists of buffers and of metadata with the plan."""
    root, buffers, other_metadata, number = _parts(model)
    # The plan's buffer replaces that of an old plan, or is added at the end.
    contents = old_tables(buffers)
    contents[number : number + 1] = [{BufferField.DATA: ("array", np.frombuffer(plan, np.uint8))}]
    entry = {MetadataField.NAME: ("text", METADATA_NAME), MetadataField.BUFFER: ("u32", number)}
    return {
        **old_references(root, [field for field in ModelField if field != ModelField.VERSION]),
        ModelField.VERSION: ("u32", VERSION),
        ModelField.BUFFERS: ("tables", contents),
        ModelField.METADATA: ("tables", [*old_tables(other_metadata), entry]),
    }


def _parts(model: ModelFile) -> tuple[Table, list[Table], list[Table], int]:
    """Return the root, the buffers, the metadata to keep, and the number of the buffer for the plan."""
    root = model.root
    check_root(model)
    buffers = list(root.tables(ModelField.BUFFERS, "buffer"))
    if not buffers:
        model.file.refuse("it has no buffers")
    entries = list(root.tables(ModelField.METADATA, "metadata entry"))
    others = [entry for entry in entries if entry.text(MetadataField.NAME) != METADATA_NAME]
    used = {entry.integer(MetadataField.BUFFER, "u32") for entry in others}
    used |= {s.tensor(i).buffer for s in _subgraphs(model) for i in range(s.tensor_count)}
    free = {entry.integer(MetadataField.BUFFER, "u32") for entry in entries} - used - {0}
    return root, buffers, others, next((n for n in sorted(free) if n < len(buffers)), len(buffers))
