"""The memory plan that TFLite Micro reads from a file: what it places in its arena, and a copy of the file with a plan.

The plan is a metadata entry of the name below, with 32-bit words in its buffer: version, subgraph, how many offsets
follow, and an offset in the arena for each tensor, or -1 for one that the runtime places itself.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.flatbuffer import Table
from isthmus.frontends.tflite.entries import TensorEntry
from isthmus.frontends.tflite.model import ModelFile, SubgraphEntry
from isthmus.frontends.tflite.schema import (
    IDENTIFIER,
    NUMPY_TYPES,
    VERSION,
    BufferField,
    ElementType,
    MetadataField,
    ModelField,
    OperatorField,
    SubgraphField,
)

METADATA_NAME = "OfflineMemoryAllocation"
ALIGNMENT = 16
"""What the runtime's arena buffers are aligned to, and what a buffer's bytes in the file are aligned to."""
RUNTIME_PLACES = -1

_FORMAT_VERSION = 1
_SUBGRAPH = 0
_OTHER_SIZES = {ElementType.RESOURCE: 4, ElementType.COMPLEX64: 8, ElementType.COMPLEX128: 16}
_LARGEST = 1 << 31
_MOST_TENSORS = 100_000
_NOWHERE = 1  # what a writer that fills offsets in later leaves for "no bytes outside of the flatbuffer"


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
        if size >= _LARGEST:
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
        if not 0 <= offset < _LARGEST:
            raise QnnError(
                Code.COMMON_NOT_SUPPORTED, f"tensor {index} of '{model.file.name}'", f"{offset} is no 31-bit offset"
            )
        words[3 + index] = offset
    front = _Front(model, words.tobytes())
    content = bytearray(model.file.data)
    for at in _absolute_offsets(model):
        (offset,) = struct.unpack_from("<Q", content, at)
        struct.pack_into("<Q", content, at, offset + len(front.data))
    return bytes(front.data) + bytes(content)


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


def _is_constant(subgraph: SubgraphEntry, entry: TensorEntry) -> bool:
    return len(subgraph.model.buffer(entry.buffer)) > 0


def _bytes(entry: TensorEntry) -> int:
    """Bytes in the arena, 0 for types that TFLite Micro does not know; it keeps 4-bit numbers in a byte each."""
    kind = NUMPY_TYPES.get(entry.type)
    itemsize = np.dtype(kind).itemsize if kind is not None else _OTHER_SIZES.get(entry.type, 0)
    return math.prod(entry.shape) * itemsize


def _absolute_offsets(model: ModelFile) -> set[int]:
    """Places in the file of numbers that count from its beginning and are in use."""
    places = set()
    for buffer in model.root.tables(ModelField.BUFFERS, "buffer"):
        places |= _place_in_use(buffer, BufferField.OFFSET)
    for subgraph in model.root.tables(ModelField.SUBGRAPHS, "subgraph"):
        for operator in subgraph.tables(SubgraphField.OPERATORS, "operator"):
            places |= _place_in_use(operator, OperatorField.LARGE_CUSTOM_OPTIONS_OFFSET)
    return places


def _place_in_use(table: Table, field: int) -> set[int]:
    at = table.place(field, 8)
    return set() if at is None or table.integer(field, "u64") <= _NOWHERE else {at}


class _Front:
    """What stands before the old content: root, lists of buffers and of metadata, and the plan.

    References point forward, so each is filled in when its target is written; those into the old content when the
    front is complete and its length is known.
    """

    def __init__(self, model: ModelFile, plan: bytes) -> None:
        self.data = bytearray(bytes(4) + IDENTIFIER)
        self._into_old: list[tuple[int, int]] = []
        root, buffers, kept, number = _parts(model)
        old = {f: root.file.follow(at, f"field {f} of the root table") for f, at in _references(root).items()}
        old.pop(ModelField.BUFFERS, None)
        old.pop(ModelField.METADATA, None)
        places = self._table({*old, ModelField.VERSION, ModelField.BUFFERS, ModelField.METADATA}, 0)
        self._put(places[ModelField.VERSION], VERSION)
        for field, target in old.items():
            self._into_old.append((places[field], target))
        new_buffer = self._references(buffers, number, places[ModelField.BUFFERS])
        new_entry = self._references(kept, len(kept), places[ModelField.METADATA])
        entry = self._table({MetadataField.NAME, MetadataField.BUFFER}, new_entry)
        self._put(entry[MetadataField.BUFFER], number)
        self._vector(METADATA_NAME.encode() + b"\0", len(METADATA_NAME), entry[MetadataField.NAME])
        holder = self._table({BufferField.DATA}, new_buffer)
        self.data += bytes(-(len(self.data) + 4) % ALIGNMENT)
        self._vector(plan, len(plan), holder[BufferField.DATA])
        self.data += bytes(-len(self.data) % ALIGNMENT)
        for at, target in self._into_old:
            self._put(at, len(self.data) + target - at)
        if len(self.data) + len(model.file.data) >= _LARGEST:
            model.file.refuse("with a plan it would be too large for a flatbuffer")

    def _put(self, at: int, value: int) -> None:
        struct.pack_into("<I", self.data, at, value)

    def _arrive(self, reference: int) -> int:
        """Let a reference point to what is written next."""
        self.data += bytes(-len(self.data) % 4)
        self._put(reference, len(self.data) - reference)
        return len(self.data)

    def _table(self, present: Set[int], reference: int) -> dict[int, int]:
        """A table with fields of four bytes each; where they are."""
        fields = sorted(int(field) for field in present)
        length = 4 + 2 * (fields[-1] + 1)
        offsets = [4 + 4 * fields.index(f) if f in fields else 0 for f in range(fields[-1] + 1)]
        self.data += bytes(-(len(self.data) + length) % 4)
        self.data += struct.pack(f"<{2 + len(offsets)}H", length, 4 + 4 * len(fields), *offsets)
        start = self._arrive(reference)
        self.data += struct.pack("<i", length) + bytes(4 * len(fields))
        return {field: start + offsets[field] for field in fields}

    def _vector(self, content: bytes, count: int, reference: int) -> int:
        start = self._arrive(reference) + 4
        self.data += struct.pack("<I", count) + content
        return start

    def _references(self, old: Sequence[Table], new: int, reference: int) -> int:
        """A vector of references to old tables, except for one that is still open; its place."""
        count = max(len(old), new + 1)
        start = self._vector(bytes(4 * count), count, reference)
        self._into_old += [(start + 4 * i, table.start) for i, table in enumerate(old) if i != new]
        return start + 4 * new


def _references(root: Table) -> dict[int, int]:
    """The fields of the root table that are there and refer to something, and where."""
    places = {int(field): root.place(field, 4) for field in ModelField if field != ModelField.VERSION}
    return {field: at for field, at in places.items() if at is not None}


def _parts(model: ModelFile) -> tuple[Table, list[Table], list[Table], int]:
    """The root, the buffers, the metadata that stays, and the number of the buffer for the plan."""
    root = model.root
    if any(root.place(field, 1) is not None for field in range(len(ModelField), root.fields)):
        model.file.refuse("the root table has fields that this format does not know")
    buffers = list(root.tables(ModelField.BUFFERS, "buffer"))
    if not buffers:
        model.file.refuse("it has no buffers")
    entries = list(root.tables(ModelField.METADATA, "metadata entry"))
    kept = [entry for entry in entries if entry.text(MetadataField.NAME) != METADATA_NAME]
    used = {entry.integer(MetadataField.BUFFER, "u32") for entry in kept}
    used |= {s.tensor(i).buffer for s in _subgraphs(model) for i in range(s.tensor_count)}
    free = {entry.integer(MetadataField.BUFFER, "u32") for entry in entries} - used - {0}
    return root, buffers, kept, next((n for n in sorted(free) if n < len(buffers)), len(buffers))
