"""A program as bytes and back. What is kept is the schedule it was lowered from, not source and not launches.

Bytes are not trusted. A schedule says what is computed, and where tensors lie; every tensor, every operation (by its
own rule) and every place is checked, and the kernels are written anew for the device at hand. So no byte of a file
reaches a compiler or an argument of a kernel unless it went through the same checks as a graph that a client composes.

Layout: 8 bytes magic, u32 version, u32 header length, 32 bytes SHA-256 of all that follows, header (JSON), contents of
constants and states, each at a multiple of 64 bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from isthmus.backends.gpu.compile.lower import lower, refusal, work_bytes
from isthmus.backends.gpu.compile.program import KernelProgram
from isthmus.backends.gpu.compile.traits import DeviceTraits, FloatStorage
from isthmus.backends.gpu.mixed_precision import Fp16Tensor, to_fp16
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Quantization, Tensor, TensorMemType, TensorType
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.tensor import MAX_BYTES
from isthmus.prepare.schedule import Place, Plan, PlanRow, Pool, Schedule, Step

MAGIC = b"ISTHOCLS"
VERSION = 2
ALIGNMENT = 64
MAX_ALIGNMENT = 1 << 16
_PREFIX = struct.Struct("<8sII32s")
_KINDS = (TensorType.APP_WRITE, TensorType.APP_READ, TensorType.APP_READWRITE, TensorType.NATIVE, TensorType.STATIC)
_HALVES = ((DataType.FLOAT_32, TensorType.NATIVE), (DataType.FLOAT_32, TensorType.STATIC))
_NUMERICS = ("exact", "litert", "onnxruntime")
_NUMBERS = frozenset(
    np.dtype(name).str for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
)
"""What arrays of parameters may hold, as numpy writes it."""
_OF_STRIPS = frozenset(("regions", "again", "bounded"))
"""What a plan tells of strips, which no file holds."""
_AGAIN = "Generate it again."


def _refuse(rule: str, code: Code = Code.COMMON_LOADING_BINARIES) -> QnnError:
    return QnnError(code, "program", rule, _AGAIN if code is Code.COMMON_INCOMPATIBLE_BINARIES else "")


# -- to bytes ----------------------------------------------------------------------------------------------------------


def to_bytes(program: KernelProgram) -> bytes:
    """The program as one block of bytes."""
    schedule = program.schedule
    tensors = list(
        dict.fromkeys(
            (
                *schedule.inputs, *schedule.outputs, *schedule.states,
                *(t for step in schedule.steps for t in (*step.inputs, *step.outputs) if t is not None),
            )
        )
    )  # fmt: skip
    numbers = {tensor: index for index, tensor in enumerate(tensors)}
    contents: list[np.ndarray] = []

    def described(tensor: Tensor) -> dict[str, Any]:
        q, data = tensor.quantization, None
        if tensor.data is not None:
            data = len(contents)
            contents.append(
                to_fp16(tensor.data) if isinstance(tensor, Fp16Tensor) else np.ascontiguousarray(tensor.data)
            )
        place = schedule.places.get(tensor)
        return {
            "name": tensor.name, "type": tensor.type.name, "dtype": tensor.dtype.name, "dims": list(tensor.dims),
            "quantization": None if q is None else [list(q.scales), list(q.offsets), q.axis],
            "mem_type": tensor.mem_type.name, "data": data, "half": isinstance(tensor, Fp16Tensor),
            "place": None if place is None else [place.pool, place.offset],
        }  # fmt: skip

    header = {
        "name": schedule.name,
        "precision": program.precision.value,
        "tensors": [described(tensor) for tensor in tensors],
        "steps": [
            {
                "op": step.op, "name": step.name, "inputs": [None if t is None else numbers[t] for t in step.inputs],
                "outputs": [numbers[t] for t in step.outputs],
                "params": {name: _param(value) for name, value in step.params.items()}, "clamp": step.clamp,
            }
            for step in schedule.steps
        ],
        "work": list(schedule.work),
        **{kind: [numbers[t] for t in getattr(schedule, kind)] for kind in ("inputs", "outputs", "states")},
        **{name: getattr(schedule, name) for name in ("scratch_bytes", "state_bytes", "alignment", "numerics")},
        "state_offsets": list(schedule.state_offsets),
        # This engine computes whole steps only.
        "plan": {name: value for name, value in asdict(schedule.plan).items() if name not in _OF_STRIPS},
    }  # fmt: skip
    return assemble(header, contents)


def assemble(header: dict[str, Any], contents: list[np.ndarray]) -> bytes:
    """A header and the contents behind it as bytes with the right checksum, whatever they say."""
    offsets, position = [], 0
    for array in contents:
        offsets.append([position, array.nbytes])
        position += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    text = json.dumps(header | {"contents": offsets}).encode()
    start = -(-(_PREFIX.size + len(text)) // ALIGNMENT) * ALIGNMENT
    body = bytearray(start - _PREFIX.size + position)
    body[: len(text)] = text
    for (offset, nbytes), array in zip(offsets, contents, strict=True):
        at = start - _PREFIX.size + offset
        body[at : at + nbytes] = array.tobytes()
    return _PREFIX.pack(MAGIC, VERSION, len(text), hashlib.sha256(body).digest()) + bytes(body)


def _param(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.str}
    return value.item() if isinstance(value, np.generic) else value


# -- and back ----------------------------------------------------------------------------------------------------------


def from_bytes(content: bytes | memoryview, traits: DeviceTraits, fuse: bool = True) -> KernelProgram:
    """The program in a block of bytes, lowered for a device.

    Raises
    ------
    QnnError
        COMMON_LOADING_BINARIES if the bytes are no sound program, COMMON_INCOMPATIBLE_BINARIES if they are one of
        another version, or one that was planned for another kind of device.
    """
    schedule, precision = schedule_from_bytes(content)
    needed = max((p.offset + t.nbytes for t, p in schedule.places.items() if p.pool == Pool.SCRATCH), default=0)
    for step, offset in zip(schedule.steps, schedule.work, strict=True):
        reason = refusal(step)
        if reason is not None:
            raise _refuse(f"node '{step.name}' ({step.op}): {reason}")
        end = offset + work_bytes(step, traits)
        if end > schedule.scratch_bytes:
            rule = "its work space was planned for another kind of device"
            raise _refuse(rule, Code.COMMON_INCOMPATIBLE_BINARIES)
        needed = max(needed, end)
    # Whatever it asks for, it gets what it needs.
    whole = -(-needed // schedule.alignment) * schedule.alignment
    schedule = replace(schedule, scratch_bytes=min(schedule.scratch_bytes, whole))
    try:
        return lower(schedule, traits, precision, fuse)
    except MemoryError:
        raise _refuse("the host has no memory for its constants") from None


def schedule_from_bytes(content: bytes | memoryview) -> tuple[Schedule, FloatStorage]:
    """The schedule in a block of bytes, checked, and the precision that it was planned for."""
    view = memoryview(content).cast("B")
    if len(view) < _PREFIX.size:
        raise _refuse(f"{len(view)} bytes are too few for a program")
    magic, version, length, digest = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise _refuse("it does not begin as a program does")
    if version != VERSION:
        raise _refuse(f"version {version} is not {VERSION}", Code.COMMON_INCOMPATIBLE_BINARIES)
    if hashlib.sha256(view[_PREFIX.size :]).digest() != digest:
        raise _refuse("its checksum is wrong: it is damaged or cut short")
    if length > len(view) - _PREFIX.size:
        raise _refuse("its header is longer than the file")
    try:
        header = json.loads(bytes(view[_PREFIX.size : _PREFIX.size + length]))
        start = -(-(_PREFIX.size + length) // ALIGNMENT) * ALIGNMENT
        schedule = _schedule(header, view[start:])
        precision = FloatStorage(header["precision"])
    except QnnError as problem:
        raise _refuse(f"{problem.what}: {problem.rule}") from None
    except (
        LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, AssertionError,
        MemoryError,
    ) as problem:  # fmt: skip
        raise _refuse(f"its header is not well-formed: {problem}") from None
    return schedule, precision


def _schedule(header: dict[str, Any], body: memoryview) -> Schedule:
    size = {name: _whole(header[name], MAX_BYTES) for name in ("scratch_bytes", "state_bytes")}
    alignment = _whole(header["alignment"], MAX_ALIGNMENT)
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment} is no power of two")
    if header["numerics"] not in _NUMERICS:
        raise ValueError("its rounding is unknown")
    tensors = [_tensor(fields, header["contents"], body) for fields in header["tensors"]]
    groups = {
        kind: tuple(tensors[_index(n, tensors)] for n in header[kind]) for kind in ("inputs", "outputs", "states")
    }
    _check_ends(groups)
    places = {}
    for tensor, fields in zip(tensors, header["tensors"], strict=True):
        if (fields["place"] is None) != tensor.is_static:
            raise ValueError(f"tensor '{tensor.name}' has no place, or one that it should not have")
        if fields["place"] is not None:
            places[tensor] = _place(tensor, fields["place"], size, groups, alignment)
    steps = tuple(_step(fields, tensors) for fields in header["steps"])
    work = tuple(_whole(n, MAX_BYTES) for n in header["work"])
    offsets = tuple(_whole(n, MAX_BYTES) for n in header["state_offsets"])
    if len(work) != len(steps) or len(offsets) != len(groups["states"]):
        raise ValueError("its tables differ in length")
    if any(offset % 64 for offset in work):
        raise ValueError("a work space is not aligned")
    for tensor, offset in zip(groups["states"], offsets, strict=True):
        if offset + tensor.nbytes > size["state_bytes"]:
            raise ValueError(f"state '{tensor.name}' lies outside state memory")
    if size["state_bytes"] > sum(-(-tensor.nbytes // alignment) * alignment for tensor in groups["states"]):
        raise ValueError("its state memory is larger than its states")
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
        work=work,
        scratch_bytes=size["scratch_bytes"],
        state_bytes=size["state_bytes"],
        state_offsets=offsets,
        io_offsets=(),
        alignment=alignment,
        plan=_plan(header["plan"]),
        numerics=header["numerics"],
    )


def _whole(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is no number from 0 to {most}")
    return value


def _index(value: Any, table: list[Any]) -> int:
    return _whole(value, len(table) - 1)


def _check_ends(groups: dict[str, tuple[Tensor, ...]]) -> None:
    wanted = {
        "inputs": TensorType.APP_WRITE, "outputs": TensorType.APP_READ, "states": TensorType.APP_READWRITE,
    }  # fmt: skip
    for kind, tensors in groups.items():
        if len({t.name for t in tensors}) != len(tensors) or any(t.type is not wanted[kind] for t in tensors):
            raise ValueError(f"its {kind} are not what they should be")


def _tensor(fields: dict[str, Any], offsets: list[Any], body: memoryview) -> Tensor:
    kind, dtype = TensorType[fields["type"]], DataType[fields["dtype"]]
    if kind not in _KINDS:
        raise ValueError(f"a tensor of type {kind.name}")
    dims = tuple(_whole(d, MAX_BYTES) for d in fields["dims"])
    half = fields["half"]
    if type(half) is not bool or (half and (dtype, kind) not in _HALVES):
        raise ValueError(f"'{fields['name']}' is no tensor that can be halves")
    stored = np.dtype(np.float16 if half else dtype.numpy)
    nbytes = math.prod(dims) * stored.itemsize
    data = None
    if fields["data"] is not None:
        offset, length = (_whole(n, MAX_BYTES) for n in offsets[_index(fields["data"], offsets)])
        if length != nbytes or offset % ALIGNMENT or offset + length > len(body):
            raise ValueError(f"the contents of '{fields['name']}' lie outside the file")
        data = np.frombuffer(body[offset : offset + length], stored).astype(dtype.numpy, copy=False).reshape(dims)
    given = fields["quantization"]
    quantization = None
    if given is not None:
        axis = None if given[2] is None else _whole(given[2], len(dims) - 1)
        quantization = Quantization(tuple(map(float, given[0])), tuple(int(n) for n in given[1]), axis)
        if any(abs(n) > 1 << 32 for n in quantization.offsets):
            raise ValueError(f"the zero point of '{fields['name']}' is out of bounds")
    made = Fp16Tensor if half else Tensor
    return made(str(fields["name"]), kind, dtype, dims, quantization, data, TensorMemType[fields["mem_type"]])


def _place(
    tensor: Tensor, given: Any, size: dict[str, int], groups: dict[str, tuple[Tensor, ...]], alignment: int
) -> Place:
    """A place within its pool, at a multiple of the element's size."""
    pool, offset = (_whole(n, MAX_BYTES) for n in given)
    ends = (*groups["inputs"], *groups["outputs"])
    if pool in (Pool.SCRATCH, Pool.STATE):
        room = size["scratch_bytes" if pool == Pool.SCRATCH else "state_bytes"]
    else:
        room = ends[_whole(pool - Pool.IO, len(ends) - 1)].nbytes
    if offset + tensor.nbytes > room or offset % tensor.itemsize:
        raise ValueError(f"tensor '{tensor.name}' lies outside its memory")
    if tensor in ends and (pool < Pool.IO or ends[pool - Pool.IO] is not tensor or offset):
        raise ValueError(f"'{tensor.name}' does not lie in memory of its own")
    return Place(pool, offset)


def _step(fields: dict[str, Any], tensors: list[Tensor]) -> Step:
    """An operation that its own rule accepts, with the parameters that the rule leaves."""
    operation = OPERATIONS[fields["op"]]
    inputs = [None if n is None else tensors[_index(n, tensors)] for n in fields["inputs"]]
    outputs = [tensors[_index(n, tensors)] for n in fields["outputs"]]
    name = str(fields["name"])
    given = {key: _given(value) for key, value in fields["params"].items()}
    params = operation.complete(name, given)
    operation.verify(Call(name, operation.name, inputs, params, outputs))
    clamp = fields["clamp"]
    if clamp is not None:
        low, high = (float(limit) for limit in clamp)
        if not low <= high:
            raise ValueError(f"node '{name}' has no range")
        clamp = (low, high)
    return Step(operation.name, name, inputs, outputs, params, clamp)


def _given(value: Any) -> Any:
    if isinstance(value, dict):
        if value["dtype"] not in _NUMBERS:
            raise ValueError("a parameter that holds no numbers")
        return np.asarray(value["array"], value["dtype"])
    if value is not None and not isinstance(value, (bool, int, float)):
        raise ValueError("a parameter that is no number")
    return value


def _plan(fields: dict[str, Any]) -> Plan:
    rows = tuple(
        PlanRow(str(r["name"]), *(_whole(r[n], MAX_BYTES) for n in ("bytes", "first", "last", "offset")))
        for r in fields["rows"]
    )
    numbers = {
        name: _whole(fields[name], MAX_BYTES)
        for name in (
            "bytes",
            "lower_bound",
            "greedy_bytes",
            "unshared_bytes",
            "order_saved_bytes",
            "aliased_bytes",
            "half_bytes",
            "float_bytes",
        )
    }
    return Plan(
        status=str(fields["status"]), peak_step=int(fields["peak_step"]),
        peak_live=tuple(map(str, fields["peak_live"])), rows=rows,
        steps=tuple((str(op), str(name)) for op, name in fields["steps"]), seconds=float(fields["seconds"]),
        regions=(), again=(), bounded=False, in_float=(), **numbers,
    )  # fmt: skip
