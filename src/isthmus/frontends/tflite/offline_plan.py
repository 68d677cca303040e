"""The memory plan that TFLite Micro reads from a file: what it places in its arena, and a copy of the file with a plan.

The plan is a metadata entry of the name below, with 32-bit words in its buffer: version, subgraph, how many offsets
follow, and an offset in the arena for each tensor, or -1 for one that the runtime places itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.flatbuffer import Table
from isthmus.frontends.tflite.entries import TfliteTensor
from isthmus.frontends.tflite.file_patch import LARGEST, Front, check_root, old_references
from isthmus.frontends.tflite.model import ModelFile, SubgraphEntry
from isthmus.frontends.tflite.schema import (
    NUMPY_TYPES,
    VERSION,
    ElementType,
    MetadataField,
    ModelField,
)

METADATA_NAME = "OfflineMemoryAllocation"
ALIGNMENT = 16
"""What the runtime's arena buffers are aligned to."""
RUNTIME_PLACES = -1

_FORMAT_VERSION = 1
_SUBGRAPH = 0
_OTHER_SIZES = {ElementType.RESOURCE: 4, ElementType.COMPLEX64: 8, ElementType.COMPLEX128: 16}
_MOST_TENSORS = 100_000


@dataclass(frozen=True)
class ArenaTensor:
    """A tensor of the main subgraph that lies in the arena, from its first operator to its last (both included)."""

    index: int
    name: str
    bytes: int
    first: int
    last: int


def arena_tensors(model: ModelFile) -> list[ArenaTensor]:
    """The tensors that a plan may place, with their lives as TFLite Micro sees them.

    Constants and variables are not among them. Neither are tensors with the number of a tensor that another subgraph
    keeps in the arena: the runtime reads one list of offsets for all subgraphs, so that such an offset would be taken
    for both.

    Raises
    ------
    QnnError
        COMMON_NOT_SUPPORTED for a tensor whose shape the file leaves open.
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
        if size >= LARGEST:
            model.file.refuse(f"tensor '{entry.name}' has {size} bytes")
        if size:
            planned.append(ArenaTensor(index, entry.name, size, first, last))
    return planned


def embed(model: ModelFile, offsets: Mapping[int, int]) -> bytes:
    """The file with a plan: offsets in the arena by tensor number; the runtime places what is not among them.

    All that was in the file stays in it, byte for byte, behind a new root: references in a flatbuffer are relative.
    Only what is counted from the beginning of the file moves along. A plan that was there already is left out.
    """
    count = sum(subgraph.tensor_count for subgraph in _subgraphs(model))
    words = np.full(3 + count, RUNTIME_PLACES, "<i4")
    words[:3] = _FORMAT_VERSION, _SUBGRAPH, count
    for index, offset in offsets.items():
        if not 0 <= offset < LARGEST:
            raise QnnError(
                Code.COMMON_NOT_SUPPORTED, f"tensor {index} of '{model.file.name}'", f"{offset} is not a 31-bit offset"
            )
        words[3 + index] = offset
    return _front(model, words.tobytes()).before(model)


def _subgraphs(model: ModelFile) -> list[SubgraphEntry]:
    """All subgraphs, the main one first; a file in which many share one table is refused."""
    subgraphs, total = [], 0
    for index in range(model.subgraph_count):
        subgraphs.append(model.subgraph(index))
        total += subgraphs[-1].tensor_count + subgraphs[-1].operator_count + 1
        if total > _MOST_TENSORS:
            model.file.refuse(f"it has more than {_MOST_TENSORS} tensors and operators")
    return subgraphs


def _lives(main: SubgraphEntry) -> dict[int, tuple[int, int]]:
    """First and last operator of each tensor; inputs live from the beginning, outputs to the end."""
    lives: dict[int, tuple[int, int]] = {}

    def touch(indices: tuple[int, ...], time: int) -> None:
        for index in indices:
            if index >= 0:
                first, last = lives.get(index, (time, time))
                lives[index] = min(first, time), max(last, time)

    touch(main.inputs, 0)
    last = 0
    for operator in main.operators():
        last = operator.index
        touch((*operator.inputs, *operator.outputs), last)
    touch(main.outputs, last)
    return lives


def _is_constant(subgraph: SubgraphEntry, entry: TfliteTensor) -> bool:
    return len(subgraph.shared.buffer(entry.buffer)) > 0


def _bytes(entry: TfliteTensor) -> int:
    """Bytes in the arena, 0 for types that TFLite Micro does not know; it keeps 4-bit numbers in a byte each."""
    kind = NUMPY_TYPES.get(entry.type)
    itemsize = np.dtype(kind).itemsize if kind is not None else _OTHER_SIZES.get(entry.type, 0)
    return math.prod(entry.shape) * itemsize


def _front(model: ModelFile, plan: bytes) -> Front:
    """What stands before the old content: root, lists of buffers and of metadata, and the plan."""
    root, buffers, kept, number = _parts(model)
    front = Front()
    old = old_references(root, [field for field in ModelField if field != ModelField.VERSION])
    old.pop(ModelField.BUFFERS, None)
    old.pop(ModelField.METADATA, None)
    places = front.table({*old, ModelField.VERSION, ModelField.BUFFERS, ModelField.METADATA}, 0)
    front.put(places[ModelField.VERSION], VERSION)
    for field, target in old.items():
        front.into_old(places[field], target)
    starts: list[int | None] = [table.start for table in buffers]
    starts[number : number + 1] = [None]
    (new_buffer,) = front.references(starts, places[ModelField.BUFFERS])
    (new_entry,) = front.references([*(table.start for table in kept), None], places[ModelField.METADATA])
    entry = front.table({MetadataField.NAME, MetadataField.BUFFER}, new_entry)
    front.put(entry[MetadataField.BUFFER], number)
    front.text(METADATA_NAME, entry[MetadataField.NAME])
    front.buffer(plan, new_buffer)
    return front


def _parts(model: ModelFile) -> tuple[Table, list[Table], list[Table], int]:
    """The root, the buffers, the metadata that stays, and the number of the buffer for the plan."""
    root = model.root
    check_root(model)
    buffers = list(root.tables(ModelField.BUFFERS, "buffer"))
    if not buffers:
        model.file.refuse("it has no buffers")
    entries = list(root.tables(ModelField.METADATA, "metadata entry"))
    kept = [entry for entry in entries if entry.text(MetadataField.NAME) != METADATA_NAME]
    used = {entry.integer(MetadataField.BUFFER, "u32") for entry in kept}
    used |= {s.tensor(i).buffer for s in _subgraphs(model) for i in range(s.tensor_count)}
    free = {entry.integer(MetadataField.BUFFER, "u32") for entry in entries} - used - {0}
    return root, buffers, kept, next((n for n in sorted(free) if n < len(buffers)), len(buffers))
