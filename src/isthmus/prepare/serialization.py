"""Conversion of a schedule to a container and back.

The header has tensors, steps and places; one section has the contents of constants and states and the scales of
channels, each in its own width: 4-bit elements are packed, and a constant that was expanded from them is stored as its
source. Intermediate tensors and constants lose their names, which only reports show.

Bytes are not trusted. Every tensor, every operation (by its own rule) and every place is checked. What an engine
computes from a schedule is checked by the engine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Quantization, Tensor, TensorMemType, TensorType
from isthmus.graph.nibbles import packed, unpacked
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.tensor import MAX_BYTES
from isthmus.prepare.fp16 import Fp16Tensor, to_fp16
from isthmus.prepare.geometry.fixed_point import block_scales, expanded, quantization_of
from isthmus.prepare.pipelining import awaited
from isthmus.prepare.schedule import Place, Pool, Repeat, RowRange, Schedule, Step
from isthmus.system.container import MALFORMED, ContainerFormat, as_size

FORMAT = ContainerFormat(
    b"ISTHSCHD", 1, 64, "schedule", Code.COMMON_LOADING_BINARIES, Code.COMMON_INCOMPATIBLE_BINARIES, is_hashed=True
)
MAX_ALIGNMENT = 1 << 16
MAX_THREADS = 64
_MAX_OFFSET = 1 << 32
"""The bound of quantization offsets and of the strides of repeated steps, positive or negative."""
_CONTENTS = "contents"
"""The name of the section."""
_UNIT = 8
"""The alignment of each array in the section."""
_KINDS = (TensorType.APP_WRITE, TensorType.APP_READ, TensorType.APP_READWRITE, TensorType.NATIVE, TensorType.STATIC)
"""The types of tensors that a schedule may have."""
_NAMED = (TensorType.APP_WRITE, TensorType.APP_READ, TensorType.APP_READWRITE)
"""The types of tensors that keep their names."""
_FP16_KINDS = ((DataType.FLOAT_32, TensorType.NATIVE), (DataType.FLOAT_32, TensorType.STATIC))
"""The data types and types of tensors that may be stored as fp16."""
_NUMERICS = ("exact", "litert", "onnxruntime")
_NUMBERS = frozenset(
    np.dtype(name).str for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
)
"""The element types that arrays of parameters may have, as numpy writes them."""
_INTEGERS = np.dtype(np.int64)
"""The element type of parameters that are stored without one."""
_SCALES = ("<f4", "<f8")
"""The types of stored scales; the first if it holds all of them exactly."""
_WIDTHS = ("|i1", "<i2", "<i4", "<i8")
"""The types of stored offsets and factors; the first that holds all of them."""
_EIGHT_BITS = (DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_8)
"""The data types whose elements may use 4 bits."""
_EXPANDED = (DataType.FLOAT_32, DataType.SFIXED_POINT_8)
"""The data types that 4-bit elements are expanded to."""
_OF_PARTS = frozenset(("Concat", "ReduceMean", "PoolAvg2d"))
"""Operations that, on a tile, write a part of their result or continue a sum, so that their own rule does not apply."""


# -- to bytes ----------------------------------------------------------------------------------------------------------


class _Contents:
    """A collector of arrays for the section; equal ones are stored once."""

    def __init__(self) -> None:
        self._nbytes = 0
        self._pieces: list[bytes | memoryview] = []
        self._known: dict[bytes, int] = {}

    def add(self, array: np.ndarray) -> int:
        """Return the offset of an array in the section."""
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        key = hashlib.sha256(raw).digest()
        if key not in self._known:
            self._known[key] = self._nbytes
            self._pieces += (raw, bytes(-len(raw) % _UNIT))
            self._nbytes += len(raw) + len(self._pieces[-1])
        return self._known[key]

    def joined(self) -> bytes:
        """Return the section."""
        return b"".join(self._pieces)


def to_bytes(schedule: Schedule, engine: Mapping[str, Any]) -> bytes:
    """Return a schedule as one block of bytes, with what its engine needs besides it, as JSON can hold it."""
    tensors = list(
        dict.fromkeys(
            (
                *schedule.inputs, *schedule.outputs, *schedule.states,
                *(t for step in schedule.steps for t in (*step.inputs, *step.outputs) if t is not None),
            )
        )
    )  # fmt: skip
    numbers = {tensor: index for index, tensor in enumerate(tensors)}
    contents = _Contents()
    header = {
        "name": schedule.name,
        "engine": engine,
        "tensors": [_tensor_fields(tensor, schedule.places.get(tensor), contents) for tensor in tensors],
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
    return assemble(header, contents.joined())


def assemble(header: dict[str, Any], contents: bytes) -> bytes:
    """Pack a header and contents into bytes with a valid checksum, without checking what they say."""
    return b"".join(FORMAT.pack(header, {_CONTENTS: contents}))


def _tensor_fields(tensor: Tensor, place: Place | None, contents: _Contents) -> dict[str, Any]:
    """Return a tensor's entry in the header, without fields that have their defaults (see `_tensor`)."""
    q, fields = tensor.quantization, dict[str, Any](dtype=tensor.dtype.name, dims=tensor.dims)
    if tensor.type is not TensorType.NATIVE:
        fields["type"] = tensor.type.name
    if tensor.type in _NAMED:
        fields |= {"name": tensor.name, "mem_type": tensor.mem_type.name}
    if isinstance(tensor, Fp16Tensor):
        fields["fp16"] = True
    if q is not None:
        fields |= _quantization_fields(q, tensor.dims, contents)
    if tensor.source is not None:
        fields["source"] = _source_fields(tensor, tensor.source, contents)
    elif tensor.is_four_bit and tensor.data is not None:
        fields["data"] = contents.add(packed(tensor.data))
    elif tensor.data is not None:
        fields["data"] = contents.add(to_fp16(tensor.data) if isinstance(tensor, Fp16Tensor) else tensor.data)
    if place is not None:
        fields["place"] = [place.pool, place.offset]
    return fields


def _quantization_fields(q: Quantization, dims: tuple[int, ...], contents: _Contents) -> dict[str, Any]:
    """Return what a tensor's entry has of its quantization (see `_quantization`)."""
    if q.axis is None:
        fields = dict[str, Any](quantization=[q.scale, q.offset])
    else:
        scales = np.array(q.scales)
        single = np.float32(scales).astype(np.float64).tobytes() == scales.tobytes()
        kind = _SCALES[0] if single else _SCALES[1]
        offsets = _integers(q.offsets, contents) if any(q.offsets) else None
        fields = {"quantization": [contents.add(scales.astype(kind)), kind, offsets, q.axis]}
    if q.bits:
        fields["bits"] = q.bits
    if q.block and q.axis is not None:
        fields["block"] = min(q.block, dims[q.axis])
    if q.factors:
        fields["factors"] = _integers(q.factors, contents)
    return fields


def _source_fields(tensor: Tensor, source: Tensor, contents: _Contents) -> dict[str, Any]:
    """Return the entry of the constant that another was expanded from, which has the same dimensions.

    The scales of blocks are not stored if they are the factors times the scales of the expanded constant.
    """
    assert source.data is not None
    q = quantization_of(source)
    fields: dict[str, Any] = {"dtype": source.dtype.name, "data": contents.add(packed(source.data)), "bits": q.bits}
    channels = tensor.quantization
    if q.factors and channels is not None and block_scales(channels, q, source.dims) == q.scales:
        assert q.axis is not None
        block = min(q.block, source.dims[q.axis])
        return fields | {"axis": q.axis, "block": block, "factors": _integers(q.factors, contents)}
    return fields | _quantization_fields(q, source.dims, contents)


def _integers(values: tuple[int, ...], contents: _Contents) -> list[Any]:
    """Return the place and the type of stored integers."""
    array = np.array(values, np.int64)
    kind = next(kind for kind in _WIDTHS if np.array_equal(array.astype(kind), array))
    return [contents.add(array.astype(kind)), kind]


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


def from_bytes(content: bytes | memoryview, verify: bool = True) -> tuple[Schedule, dict[str, Any]]:
    """Read a schedule from a block of bytes and check it; return it with what its engine stored besides it.

    The contents of its constants are views of the block.

    Parameters
    ----------
    verify
        Whether to check the checksum. Everything else is always checked.

    Raises
    ------
    QnnError
        COMMON_LOADING_BINARIES if the bytes are not a valid schedule, COMMON_INCOMPATIBLE_BINARIES if they have another
        version.
    """
    header, sections = FORMAT.unpack(content, verify)
    try:
        return _schedule(header, sections[_CONTENTS]), dict(header["engine"])
    except QnnError as problem:
        raise FORMAT.refusal(f"{problem.what}: {problem.rule}") from None
    except (*MALFORMED, AssertionError) as problem:
        raise FORMAT.malformed(problem) from None


def _schedule(header: dict[str, Any], contents: memoryview) -> Schedule:
    """Return the schedule of a header, after all checks; what is wrong raises a ValueError or an operation's error."""
    size = {name: as_size(header[name], MAX_BYTES) for name in ("scratch_bytes", "state_bytes")}
    alignment = as_size(header["alignment"], MAX_ALIGNMENT)
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment} is not a power of two")
    if header["numerics"] not in _NUMERICS:
        raise ValueError("its rounding is unknown")
    tensors = [_tensor(number, fields, contents) for number, fields in enumerate(header["tensors"])]
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
        io_offsets=_io_offsets(
            header["io_offsets"], (*groups["inputs"], *groups["outputs"]), size["scratch_bytes"]
        ),
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
    wanted = {
        "inputs": TensorType.APP_WRITE, "outputs": TensorType.APP_READ, "states": TensorType.APP_READWRITE,
    }  # fmt: skip
    for kind, tensors in groups.items():
        if len({t.name for t in tensors}) != len(tensors) or any(t.type is not wanted[kind] for t in tensors):
            raise ValueError(f"its {kind} are not what they should be")


def _tensor(number: int, fields: dict[str, Any], contents: memoryview) -> Tensor:
    """Return the tensor of an entry in the header, with its data from the section; `Tensor` checks the rest."""
    kind, dtype = TensorType[fields.get("type", "NATIVE")], DataType[fields["dtype"]]
    if kind not in _KINDS:
        raise ValueError(f"a tensor of type {kind.name}")
    name = str(fields["name"] if kind in _NAMED else number)
    dims = tuple(as_size(d, MAX_BYTES) for d in fields["dims"])
    fp16 = fields.get("fp16", False)
    if type(fp16) is not bool or (fp16 and (dtype, kind) not in _FP16_KINDS):
        raise ValueError(f"'{name}' cannot be stored as fp16")
    quantization = None if fields.get("quantization") is None else _quantization(fields, dims, contents)
    source = None
    data = None
    if fields.get("source") is not None:
        if kind is not TensorType.STATIC or dtype not in _EXPANDED:
            raise ValueError(f"'{name}' cannot be expanded from 4 bits")
        source = _source(name, fields["source"], dims, quantization, contents)
        data = expanded(source, dtype)
    elif fields.get("data") is not None:
        four_bits = kind is TensorType.STATIC and quantization is not None and 0 < quantization.bits <= 4
        if four_bits and dtype in _EIGHT_BITS:
            data = _nibbles(contents, fields["data"], dtype, dims)
        else:
            found = _array(contents, fields["data"], np.float16 if fp16 else dtype.numpy, math.prod(dims))
            data = found.astype(dtype.numpy, copy=False).reshape(dims)
    tensor_class = Fp16Tensor if fp16 else Tensor
    mem_type = TensorMemType[fields.get("mem_type", "RAW")]
    return tensor_class(name, kind, dtype, dims, quantization, data, mem_type, source)


def _source(
    name: str, fields: dict[str, Any], dims: tuple[int, ...], channels: Quantization | None, contents: memoryview
) -> Tensor:
    """Return the constant of 4-bit elements that another was expanded from, whose quantization is `channels`."""
    dtype = DataType[fields["dtype"]]
    if fields.get("quantization") is not None:
        quantization = _quantization(fields, dims, contents)
    else:
        # The scales of blocks follow from those of channels, which do not change within a block.
        axis = as_size(fields["axis"], len(dims) - 1)
        if channels is None or channels.axis == axis or not fields["factors"]:
            raise ValueError("blocks without scales")
        blocks = Quantization((1.0,), (0,), axis, block=_block(fields, dims, axis))
        count = math.prod(blocks.grid(dims))
        factors = _integer_array(contents, fields["factors"], count)
        blocks = replace(blocks, scales=(1.0,) * count, offsets=(0,) * count, factors=factors, bits=_bits(fields))
        quantization = replace(blocks, scales=block_scales(channels, blocks, dims))
    if dtype not in _EIGHT_BITS or not 0 < quantization.bits <= 4:
        raise ValueError("a source that does not have 4 bits")
    data = _nibbles(contents, fields["data"], dtype, dims)
    return Tensor(name, TensorType.STATIC, dtype, dims, quantization, data)


def _nibbles(contents: memoryview, offset: Any, dtype: DataType, dims: tuple[int, ...]) -> np.ndarray:
    """Return an array of 4-bit elements, one to a byte."""
    count = math.prod(dims)
    return unpacked(_array(contents, offset, np.uint8, -(-count // 2)), count, dtype.numpy).reshape(dims)


def _bits(fields: dict[str, Any]) -> int:
    """Return the number of bits of elements that are used; 0 if all are."""
    return as_size(fields.get("bits", 0), 64)


def _block(fields: dict[str, Any], dims: tuple[int, ...], axis: int) -> int:
    """Return the number of elements in a block along an axis; 0 if there are no blocks."""
    return as_size(fields.get("block", 0), dims[axis])


def _integer_array(contents: memoryview, place: Any, count: int) -> tuple[int, ...]:
    """Return stored integers from their place and type (see `_integers`)."""
    offset, kind = place
    if kind not in _WIDTHS:
        raise ValueError(f"integers of type {kind!r}")
    return tuple(_array(contents, offset, kind, count).tolist())


def _array(contents: memoryview, offset: Any, dtype: Any, count: int) -> np.ndarray:
    """Return a view of an array in the section."""
    begin = as_size(offset, len(contents))
    if begin % _UNIT or count * np.dtype(dtype).itemsize > len(contents) - begin:
        raise ValueError("an array is outside its section")
    return np.frombuffer(contents, dtype, count, begin) if count else np.empty(0, dtype)


def _quantization(fields: dict[str, Any], dims: tuple[int, ...], contents: memoryview) -> Quantization:
    """Return a quantization: of a tensor, by scale and offset; of channels or blocks, by arrays of both and an axis."""
    numbers, bits = fields["quantization"], _bits(fields)
    if len(numbers) == 2:
        found = Quantization((float(numbers[0]),), (int(numbers[1]),), bits=bits)
    else:
        scales, kind, offsets, axis = numbers
        if kind not in _SCALES:
            raise ValueError(f"scales of type {kind!r}")
        axis = as_size(axis, len(dims) - 1)
        block = _block(fields, dims, axis)
        count = math.prod(Quantization((1.0,), (0,), axis, block=block).grid(dims))
        zeros = (0,) * count if offsets is None else _integer_array(contents, offsets, count)
        factors = _integer_array(contents, fields["factors"], count) if fields.get("factors") else ()
        found = Quantization(tuple(_array(contents, scales, kind, count).tolist()), zeros, axis, bits, block, factors)
    if max(map(abs, found.offsets)) > _MAX_OFFSET:
        raise ValueError("a zero point is out of bounds")
    return found


def _place(
    tensor: Tensor, numbers: Any, size: dict[str, int], groups: dict[str, tuple[Tensor, ...]]
) -> Place:
    """Return a tensor's place, checked to be within its pool and at a multiple of the element's size.

    Parameters
    ----------
    numbers
        The place in the file: the pool's number and the offset.
    size
        The sizes of scratch and state, by their names in the header.
    groups
        The inputs and outputs of the graph; each is a pool of its own, from number `Pool.IO` on.
    """
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
    """Return the offsets of states, checked to be within state memory, which must not be larger than they need."""
    offsets = tuple(as_size(n, MAX_BYTES) for n in numbers)
    for tensor, offset in zip(states, offsets, strict=True):
        if offset + tensor.nbytes > nbytes:
            raise ValueError(f"state '{tensor.name}' is outside state memory")
    if nbytes > sum(-(-tensor.nbytes // alignment) * alignment for tensor in states):
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
            if tensor not in places or type(stride) is not int or abs(stride) > _MAX_OFFSET:
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
        repeats.append(replace(repeat, awaited=awaited(steps, repeat, places)) if repeat.arena else repeat)
    return repeats
