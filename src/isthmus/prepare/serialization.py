"""Conversion of a schedule to a container and back.

The header has tensors, steps and places. The contents of constants and states and the scales of channels (see
`tensor_entries`) are in a section of their own, or in one that several graphs share.

Bytes are not trusted. Every tensor, every operation (by its own rule) and every place is checked. What an engine
computes from a schedule is checked by the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.graph import Tensor, TensorType
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.rounding import HEXAGON
from isthmus.graph.tensor import MAX_BYTES
from isthmus.prepare.pipelining import awaited_steps
from isthmus.prepare.schedule import Place, Pool, Repeat, RowRange, Schedule, Step
from isthmus.prepare.tensor_entries import tensor_fields, tensor_of
from isthmus.system.container import MALFORMED, ContainerFormat, as_size
from isthmus.system.contents import Contents, GraphContents, StoredContents

FORMAT = ContainerFormat(
    b"ISTHSCHD", 3, 64, "schedule", Code.COMMON_LOADING_BINARIES, Code.COMMON_INCOMPATIBLE_BINARIES, is_hashed=True
)
MAX_ALIGNMENT = 1 << 16
MAX_THREADS = 64
# The bound of the strides of repeated steps, positive or negative.
_MAX_STRIDE = 1 << 32
# The name of the section.
_CONTENTS = "contents"
_NUMERICS = ("exact", "litert", "onnxruntime", HEXAGON)
# The element types that arrays of parameters may have, as numpy writes them.
_NUMBERS = frozenset(
    np.dtype(name).str for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
)
# The element type of parameters that are stored without one.
_INTEGERS = np.dtype(np.int64)
# Operations that, on a tile, write a part of their result or continue a sum, so that their own rule does not apply.
_OF_PARTS = frozenset(("Concat", "ReduceMean", "PoolAvg2d"))


# -- to bytes ----------------------------------------------------------------------------------------------------------


def to_bytes(schedule: Schedule, engine: Mapping[str, Any], shared: GraphContents | None = None) -> bytes:
    """Return a schedule as one block of bytes, with what its engine needs besides it, as JSON can hold it.

    - `shared`: the section that gets its arrays, for a file of several graphs. By default the block has its own.
    """
    tensors = list(
        dict.fromkeys(
            (
                *schedule.inputs, *schedule.outputs, *schedule.states,
                *(t for step in schedule.steps for t in (*step.inputs, *step.outputs) if t is not None),
            )
        )
    )  # fmt: skip
    numbers = {tensor: index for index, tensor in enumerate(tensors)}
    own = Contents()
    contents = own.of(schedule.name) if shared is None else shared
    header = {
        "name": schedule.name,
        "engine": engine,
        "tensors": [_entry(tensor, schedule.places.get(tensor), contents) for tensor in tensors],
        "steps": [
            _step_fields(step, numbers, work)
            for step, work in zip(schedule.steps, zip(schedule.work, schedule.work_bytes, strict=True), strict=True)
        ],
        "repeats": [
            {
                "first": repeat.first, "last": repeat.last, "times": repeat.times, "threads": repeat.threads,
                "advances": [[numbers[tensor], stride] for tensor, stride in repeat.advances.items()],
                "arena": repeat.arena,
            }
            for repeat in schedule.repeats
        ],
        "tiled": schedule.tiled,
        **{kind: [numbers[t] for t in getattr(schedule, kind)] for kind in ("inputs", "outputs", "states")},
        **{name: getattr(schedule, name) for name in ("scratch_bytes", "state_bytes", "alignment", "numerics")},
        **{name: getattr(schedule, name) for name in ("state_offsets", "io_offsets")},
    }  # fmt: skip
    return assemble(header, own.join() if shared is None else None)


def assemble(header: dict[str, Any], contents: bytes | None) -> bytes:
    """Pack a header, and contents unless they are elsewhere, with a valid checksum, without checking what they say."""
    return b"".join(FORMAT.pack(header, {} if contents is None else {_CONTENTS: contents}))


def _entry(tensor: Tensor, place: Place | None, contents: GraphContents) -> dict[str, Any]:
    """Return a tensor's entry in the header, with its place unless it is a constant."""
    fields = tensor_fields(tensor, contents)
    return fields if place is None else fields | {"place": [place.pool, place.offset]}


def _step_fields(step: Step, numbers: Mapping[Tensor, int], work: tuple[int, int]) -> dict[str, Any]:
    """Return a step's entry in the header; `work` is the offset and the size of its work space."""
    params = OPERATIONS[step.op].complete(step.name, step.params)
    fields: dict[str, Any] = {
        "op": step.op,
        "name": step.name,
        "inputs": [None if t is None else numbers[t] for t in step.inputs],
        "outputs": [numbers[t] for t in step.outputs],
        "params": {name: _param(value) for name, value in params.items() if value is not None},
    }
    if step.clamp is not None:
        fields["clamp"] = step.clamp
    if step.part is not None:
        fields["part"] = astuple(step.part)
    if work[1]:
        fields["work"] = work
    return fields


def _param(value: Any) -> Any:
    """Return an operation's parameter as JSON can hold it; `_param_value` is the reverse."""
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype == _INTEGERS else {"array": value.tolist(), "dtype": value.dtype.str}
    return value.item() if isinstance(value, np.generic) else value


# -- and back ----------------------------------------------------------------------------------------------------------


def from_bytes(
    content: bytes | memoryview, verify: bool = True, shared: StoredContents | None = None
) -> tuple[Schedule, dict[str, Any]]:
    """Read a schedule from a block of bytes and check it; return it with what its engine stored besides it.

    The contents of its constants are views of the block, or of the section that it shares with other graphs.

    - `verify`: whether to check the checksum. Everything else is always checked.
    - `shared`: the section with its arrays, for a file of several graphs. By default the block has its own.

    Raises
    ------
    QnnError
        COMMON_LOADING_BINARIES if the bytes are not a valid schedule, COMMON_INCOMPATIBLE_BINARIES if they have another
        version.
    """
    header, sections = FORMAT.unpack(content, verify)
    if sections.keys() != ({_CONTENTS} if shared is None else set()):
        raise FORMAT.refusal("it does not have the sections of one")
    try:
        contents = StoredContents(sections[_CONTENTS]) if shared is None else shared
        return _schedule(header, contents), dict(header["engine"])
    except QnnError as problem:
        raise FORMAT.refusal(f"{problem.what}: {problem.rule}") from None
    except (*MALFORMED, AssertionError) as problem:
        raise FORMAT.malformed(problem) from None


def _schedule(header: dict[str, Any], contents: StoredContents) -> Schedule:
    """Return the schedule of a header, after all checks; what is wrong raises a ValueError or an operation's error."""
    size = {name: as_size(header[name], MAX_BYTES) for name in ("scratch_bytes", "state_bytes")}
    alignment = as_size(header["alignment"], MAX_ALIGNMENT)
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment} is not a power of two")
    if header["numerics"] not in _NUMERICS:
        raise ValueError("its rounding is unknown")
    tensors = [tensor_of(number, fields, contents) for number, fields in enumerate(header["tensors"])]
    groups = {
        kind: tuple(tensors[_index(n, tensors)] for n in header[kind]) for kind in ("inputs", "outputs", "states")
    }
    _check_ends(groups)
    places = {}
    for tensor, fields in zip(tensors, header["tensors"], strict=True):
        place = fields.get("place")
        if (place is None) != tensor.is_static:
            raise ValueError(f"tensor '{tensor.name}' needs a place unless it is a constant")
        if place is not None:
            places[tensor] = _place(tensor, place, size, groups)
    steps = tuple(_step(fields, tensors) for fields in header["steps"])
    work = [_work(fields.get("work"), size["scratch_bytes"]) for fields in header["steps"]]
    for step in steps:
        for tensor in step.outputs:
            if tensor.is_static or tensor in groups["inputs"]:
                raise ValueError(f"node '{step.name}' writes to '{tensor.name}'")
    return Schedule(
        name=str(header["name"]),
        steps=steps,
        inputs=groups["inputs"],
        outputs=groups["outputs"],
        states=groups["states"],
        places=places,
        work=tuple(offset for offset, _ in work),
        work_bytes=tuple(nbytes for _, nbytes in work),
        scratch_bytes=size["scratch_bytes"],
        state_bytes=size["state_bytes"],
        state_offsets=_state_offsets(header["state_offsets"], groups["states"], size["state_bytes"], alignment),
        io_offsets=_io_offsets(header["io_offsets"], (*groups["inputs"], *groups["outputs"]), size["scratch_bytes"]),
        alignment=alignment,
        numerics=header["numerics"],
        repeats=tuple(_repeats(header["repeats"], steps, tensors, places, size["scratch_bytes"])),
        tiled=tuple(_range(fields, steps) for fields in header["tiled"]),
    )


def _index(value: Any, table: list[Any]) -> int:
    """Check that a value is an index of a table."""
    return as_size(value, len(table) - 1)


def _range(numbers: Any, steps: tuple[Step, ...]) -> tuple[int, int]:
    """Return the first and the last step of a range."""
    first, last = (as_size(n, len(steps) - 1) for n in numbers)
    if first > last:
        raise ValueError("a range of steps is empty")
    return first, last


def _check_ends(groups: dict[str, tuple[Tensor, ...]]) -> None:
    """Check that inputs, outputs and states (the keys of `groups`) have their own types and different names."""
    types = {
        "inputs": TensorType.APP_WRITE, "outputs": TensorType.APP_READ, "states": TensorType.APP_READWRITE,
    }  # fmt: skip
    for kind, tensors in groups.items():
        if any(t.type is not types[kind] for t in tensors):
            raise ValueError(f"its {kind} are not what they should be")
    names = [t.name for tensors in groups.values() for t in tensors]
    if len(set(names)) != len(names):
        raise ValueError("two of its tensors have the same name")


def _place(tensor: Tensor, numbers: Any, size: dict[str, int], groups: dict[str, tuple[Tensor, ...]]) -> Place:
    """Return a tensor's place, checked to be within its pool and at a multiple of the element's size."""
    pool, offset = (as_size(n, MAX_BYTES) for n in numbers)
    ends = (*groups["inputs"], *groups["outputs"])
    if pool in (Pool.SCRATCH, Pool.STATE):
        room = size["scratch_bytes" if pool == Pool.SCRATCH else "state_bytes"]
    else:
        room = ends[as_size(pool - Pool.IO, len(ends) - 1)].nbytes
    if offset + tensor.nbytes > room or offset % tensor.itemsize:
        raise ValueError(f"tensor '{tensor.name}' is outside its memory, or not aligned in it")
    if tensor in ends and (pool < Pool.IO or ends[pool - Pool.IO] is not tensor or offset):
        raise ValueError(f"input or output '{tensor.name}' is not at the start of its own memory")
    return Place(pool, offset)


def _state_offsets(numbers: Any, states: tuple[Tensor, ...], nbytes: int, alignment: int) -> tuple[int, ...]:
    """Return the offsets of states, checked to be within state memory, which may exceed them only by padding."""
    offsets = tuple(as_size(n, MAX_BYTES) for n in numbers)
    for tensor, offset in zip(states, offsets, strict=True):
        if offset + tensor.nbytes > nbytes:
            raise ValueError(f"state '{tensor.name}' is outside state memory")
    if nbytes >= sum(-(-tensor.nbytes // alignment) * alignment for tensor in states) + MAX_ALIGNMENT:
        raise ValueError("its state memory is larger than its states")
    return offsets


def _io_offsets(numbers: Any, ends: tuple[Tensor, ...], scratch_bytes: int) -> tuple[int, ...]:
    """Return the offset in scratch of every input and output, or of none."""
    offsets = tuple(as_size(n, MAX_BYTES) for n in numbers)
    for tensor, offset in zip(ends, offsets, strict=True) if offsets else ():
        if offset + tensor.nbytes > scratch_bytes or offset % tensor.itemsize:
            raise ValueError(f"tensor '{tensor.name}' is outside or misaligned in scratch memory")
    return offsets


def _step(fields: dict[str, Any], tensors: list[Tensor]) -> Step:
    """Return a step whose operation accepts it by its own rule, with its parameters completed."""
    operation = OPERATIONS[fields["op"]]
    inputs = [None if n is None else tensors[_index(n, tensors)] for n in fields["inputs"]]
    outputs = [tensors[_index(n, tensors)] for n in fields["outputs"]]
    name = str(fields["name"])
    params = operation.complete(name, {key: _param_value(value) for key, value in fields["params"].items()})
    part = None if fields.get("part") is None else RowRange(*(as_size(n, MAX_BYTES) for n in fields["part"]))
    if part is None or operation.name not in _OF_PARTS:
        operation.verify(Call(name, operation.name, inputs, params, outputs))
    clamp = fields.get("clamp")
    if clamp is not None:
        low, high = (float(limit) for limit in clamp)
        if not low <= high:
            raise ValueError(f"node '{name}' has no range")
        clamp = (low, high)
    return Step(operation.name, name, inputs, outputs, params, clamp, part)


def _param_value(value: Any) -> Any:
    """Return an operation's parameter from the form that `_param` gives it, if it consists of numbers only."""
    if isinstance(value, list):
        found = np.asarray(value, _INTEGERS)
        if found.size and np.asarray(value).dtype != _INTEGERS:
            raise ValueError("a parameter that holds no integers")
        return found
    if isinstance(value, dict):
        if value["dtype"] not in _NUMBERS:
            raise ValueError("a parameter that holds no numbers")
        return np.asarray(value["array"], value["dtype"])
    if value is not None and not isinstance(value, (bool, int, float)):
        raise ValueError("a parameter that is not a number")
    return value


def _work(numbers: Any, scratch_bytes: int) -> tuple[int, int]:
    """Return the offset and the size of a work space, within scratch."""
    if numbers is None:
        return 0, 0
    offset, nbytes = (as_size(n, MAX_BYTES) for n in numbers)
    if offset + nbytes > scratch_bytes:
        raise ValueError("a work space is outside scratch memory")
    return offset, nbytes


def _repeats(
    entries: Any, steps: tuple[Step, ...], tensors: list[Tensor], places: dict[Tensor, Place], scratch_bytes: int
) -> list[Repeat]:
    """Return the repeated steps, in order and apart; what they await follows from the places of their operands."""
    repeats, end = [], -1
    for fields in entries:
        first, last = _range((fields["first"], fields["last"]), steps)
        if first <= end:
            raise ValueError("repeated steps are not in order")
        end = last
        threads, times = as_size(fields["threads"], MAX_THREADS), as_size(fields["times"], MAX_BYTES)
        advances = {}
        for number, stride in fields["advances"]:
            tensor = tensors[_index(number, tensors)]
            if tensor not in places or type(stride) is not int or abs(stride) > _MAX_STRIDE:
                raise ValueError(f"tensor '{tensor.name}' cannot advance")
            advances[tensor] = stride
        repeat = Repeat(first, last, times, advances, threads)
        if fields["arena"] is not None:
            offset, nbytes = (as_size(n, MAX_BYTES) for n in fields["arena"])
            if offset + threads * nbytes > scratch_bytes:
                raise ValueError("the memory of a thread is outside scratch memory")
            repeat = replace(repeat, arena=(offset, nbytes))
        if (threads > 1) != (repeat.arena is not None) or min(threads, times) < 1:
            raise ValueError("a repetition of no use")
        repeats.append(replace(repeat, awaited=awaited_steps(steps, repeat, places)) if repeat.arena else repeat)
    return repeats
