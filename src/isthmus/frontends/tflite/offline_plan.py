"""The memory plan that TFLite Micro reads from a file: what it places in its arena, and a copy of the file with a plan.

The plan is a metadata entry of the name below, with 32-bit words in its buffer: version, subgraph, how many offsets
follow, and an offset in the arena for each tensor, or -1 for one that the runtime places itself.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.flatbuffer import Table
from isthmus.frontends.tflite.model import ModelFile, SubgraphEntry, TensorEntry
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
    main = model.subgraph(_SUBGRAPH)
    lives = _lives(main)
    others = [model.subgraph(i) for i in range(model.subgraph_count) if i != _SUBGRAPH]
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
        if size:
            planned.append(ArenaTensor(index, entry.name, size, first, last))
    return planned


def embed(model: ModelFile, offsets: Mapping[int, int]) -> bytes:
    """The file with a plan: offsets in the arena by tensor number; the runtime places what is not among them.

    All that was in the file stays in it, byte for byte, behind a new root: references in a flatbuffer are relative.
    Only what is counted from the beginning of the file moves along. A plan that was there already is left out.
    """
    count = sum(model.subgraph(i).tensor_count for i in range(model.subgraph_count))
    words = np.full(3 + count, RUNTIME_PLACES, "<i4")
    words[:3] = _FORMAT_VERSION, _SUBGRAPH, count
    for index, offset in offsets.items():
        if not 0 <= offset < 1 << 31:
            raise QnnError(
                Code.COMMON_NOT_SUPPORTED, f"tensor {index} of '{model.file.name}'", f"offset {offset} needs over 31 bits"
            )
        words[3 + index] = offset
    front = _Front(model, words.tobytes())
    content = bytearray(model.file.data)
    for at in _absolute_offsets(model):
        (offset,) = struct.unpack_from("<Q", content, at)
        struct.pack_into("<Q", content, at, offset + len(front.data))
    return bytes(front.data) + bytes(content)


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
    """What stands before the old content: root, metadata and buffer lists, and the plan.

    It is written from front to back. Every reference points forward, so it is filled in when its target is written;
    those into the old content are filled in at the end, when the length of the front is known.
    """

    def __init__(self, model: ModelFile, plan: bytes) -> None:
        self.data = bytearray()
        self._outward: list[tuple[int, int]] = []
        root = model.root
        if root.fields > len(ModelField):
            model.file.refuse(f"the root table has {root.fields} fields, this format has {len(ModelField)}")
        buffers = root.tables(ModelField.BUFFERS, "buffer")
        if not len(buffers):
            model.file.refuse("it has no buffers")
        entries = root.tables(ModelField.METADATA, "metadata entry")
        kept = [entry for entry in entries if entry.text(MetadataField.NAME) != METADATA_NAME]

        self.data += bytes(4) + IDENTIFIER
        references = {
            int(field): root.file.follow(at, f"field {field} of the root table")
            for field in ModelField
            if field not in (ModelField.VERSION, ModelField.BUFFERS, ModelField.METADATA)
            and (at := root.place(field, 4)) is not None
        }
        table = self._root(references)
        self._vector_of_tables([b.start for b in buffers], table[ModelField.BUFFERS])
        new_buffer = self._last_slot()
        self._vector_of_tables([e.start for e in kept], table[ModelField.METADATA])
        new_entry = self._last_slot()
        self._metadata(len(buffers), new_entry)
        self._buffer(plan, new_buffer)
        self._align(ALIGNMENT)
        for at, target in self._outward:
            self._put(at, len(self.data) + target - at)
        if len(self.data) + len(model.file.data) >= 1 << 31:
            model.file.refuse("with a plan it would be too large for a flatbuffer")

    def _root(self, references: Mapping[int, int]) -> dict[int, int]:
        """The root table; the places of its references that point into this front."""
        fields = len(ModelField)
        self._vtable([4 + 4 * field for field in range(fields)], 4 + 4 * fields)
        start = len(self.data)
        self._put(0, start)
        self.data += struct.pack("<iI", 4 + 2 * fields + self._padding, VERSION)
        places = {}
        for field in range(1, fields):
            at = len(self.data)
            self.data += bytes(4)
            if field in references:
                self._outward.append((at, references[field]))
            elif field in (ModelField.BUFFERS, ModelField.METADATA):
                places[field] = at
        return places
