"""Conversion of a program to a container and back. The schedule is stored, not the source and not the launches.

Bytes are not trusted. A schedule says what is computed and where tensors are placed. Every tensor, every operation (by
its own rule) and every place is checked, and the kernels are generated again for the current device. So no byte of a
file reaches a compiler or a kernel argument without the checks that apply to a graph composed by a client. The contents
of constants and states are sections, in the order of the tensors.
"""

from __future__ import annotations

import math
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
from isthmus.system.container import MALFORMED, ContainerFormat, as_size

FORMAT = ContainerFormat(
    b"ISTHOCLS", 3, 64, "program", Code.COMMON_LOADING_BINARIES, Code.COMMON_INCOMPATIBLE_BINARIES, is_hashed=True
)
MAX_ALIGNMENT = 1 << 16
_KINDS = (TensorType.APP_WRITE, TensorType.APP_READ, TensorType.APP_READWRITE, TensorType.NATIVE, TensorType.STATIC)
"""The types of tensors that a schedule may have."""
_FP16_KINDS = ((DataType.FLOAT_32, TensorType.NATIVE), (DataType.FLOAT_32, TensorType.STATIC))
"""The data types and types of tensors that may be stored as fp16."""
_NUMERICS = ("exact", "litert", "onnxruntime")
_NUMBERS = frozenset(
    np.dtype(name).str for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
)
"""The element types that arrays of parameters may have, as numpy writes them."""
_OF_TILES = frozenset(("regions", "rematerialized", "bounded"))
"""The fields of a plan that concern tiling; files do not contain them."""


# -- to bytes ----------------------------------------------------------------------------------------------------------


def to_bytes(program: KernelProgram) -> bytes:
    """Return the program as one block of bytes."""
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
        """Return a tensor's entry in the header; its data, if it has some, are a section that the entry names."""
        q, data = tensor.quantization, None
        if tensor.data is not None:
            data = str(len(contents))
            contents.append(
                to_fp16(tensor.data) if isinstance(tensor, Fp16Tensor) else np.ascontiguousarray(tensor.data)
            )
        place = schedule.places.get(tensor)
        return {
            "name": tensor.name, "type": tensor.type.name, "dtype": tensor.dtype.name, "dims": list(tensor.dims),
            "quantization": None if q is None else [list(q.scales), list(q.offsets), q.axis],
            "mem_type": tensor.mem_type.name, "data": data, "fp16": isinstance(tensor, Fp16Tensor),
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
        "plan": {name: value for name, value in asdict(schedule.plan).items() if name not in _OF_TILES},
    }  # fmt: skip
    return assemble(header, contents)


def assemble(header: dict[str, Any], contents: list[np.ndarray]) -> bytes:
    """Pack a header and contents into bytes with a valid checksum, without checking what they say."""
    raw = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in contents]
    return b"".join(FORMAT.pack(header, {str(index): data for index, data in enumerate(raw)}))


def _param(value: Any) -> Any:
    """Return an operation's parameter as JSON can hold it; `_param_value` is the reverse."""
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.str}
    return value.item() if isinstance(value, np.generic) else value


# -- and back ----------------------------------------------------------------------------------------------------------


def from_bytes(content: bytes | memoryview, traits: DeviceTraits, fuse: bool = True) -> KernelProgram:
    """Read a program from a block of bytes and lower it for a device.

    Raises
    ------
    QnnError
        COMMON_LOADING_BINARIES if the bytes are not a valid program, COMMON_INCOMPATIBLE_BINARIES if the program has
        another version or was planned for another kind of device.
    """
    schedule, precision = schedule_from_bytes(content)
    # The end of the last tensor or work space in scratch.
    needed = max((p.offset + t.nbytes for t, p in schedule.places.items() if p.pool == Pool.SCRATCH), default=0)
    for step, offset in zip(schedule.steps, schedule.work, strict=True):
        reason = refusal(step)
        if reason is not None:
            raise FORMAT.refusal(f"node '{step.name}' ({step.op}): {reason}")
        end = offset + work_bytes(step, traits)
        if end > schedule.scratch_bytes:
            raise FORMAT.outdated("its work space was planned for another kind of device")
        needed = max(needed, end)
    # Whatever size the file requests, the program gets no more scratch than it needs.
    rounded = -(-needed // schedule.alignment) * schedule.alignment
    schedule = replace(schedule, scratch_bytes=min(schedule.scratch_bytes, rounded))
    try:
        return lower(schedule, traits, precision, fuse)
    except MemoryError:
        raise FORMAT.refusal("the host has no memory for its constants") from None


def schedule_from_bytes(content: bytes | memoryview) -> tuple[Schedule, FloatStorage]:
    """Read a schedule from a block of bytes and check it; return it with the precision that it was planned for."""
    header, sections = FORMAT.unpack(content)
    try:
        schedule = _schedule(header, sections)
        precision = FloatStorage(header["precision"])
    except QnnError as problem:
        raise FORMAT.refusal(f"{problem.what}: {problem.rule}") from None
    except (*MALFORMED, AssertionError) as problem:
        raise FORMAT.malformed(problem) from None
    return schedule, precision


def _schedule(header: dict[str, Any], sections: dict[str, memoryview]) -> Schedule:
    """Return the schedule of a header, after all checks; what is wrong raises a ValueError or an operation's error."""
    size = {name: as_size(header[name], MAX_BYTES) for name in ("scratch_bytes", "state_bytes")}
    alignment = as_size(header["alignment"], MAX_ALIGNMENT)
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment} is not a power of two")
    if header["numerics"] not in _NUMERICS:
        raise ValueError("its rounding is unknown")
    tensors = [_tensor(fields, sections) for fields in header["tensors"]]
    groups = {
        kind: tuple(tensors[_index(n, tensors)] for n in header[kind]) for kind in ("inputs", "outputs", "states")
    }
    _check_ends(groups)
    places = {}
    for tensor, fields in zip(tensors, header["tensors"], strict=True):
        if (fields["place"] is None) != tensor.is_static:
            raise ValueError(f"tensor '{tensor.name}' needs a place unless it is a constant")
        if fields["place"] is not None:
            places[tensor] = _place(tensor, fields["place"], size, groups)
    steps = tuple(_step(fields, tensors) for fields in header["steps"])
    work = tuple(as_size(n, MAX_BYTES) for n in header["work"])
    offsets = tuple(as_size(n, MAX_BYTES) for n in header["state_offsets"])
    if len(work) != len(steps) or len(offsets) != len(groups["states"]):
        raise ValueError("its tables differ in length")
    if any(offset % 64 for offset in work):
        raise ValueError("a work space is not aligned")
    for tensor, offset in zip(groups["states"], offsets, strict=True):
        if offset + tensor.nbytes > size["state_bytes"]:
            raise ValueError(f"state '{tensor.name}' is outside state memory")
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


def _index(value: Any, table: list[Any]) -> int:
    """Check that a value is an index of a table."""
    return as_size(value, len(table) - 1)


def _check_ends(groups: dict[str, tuple[Tensor, ...]]) -> None:
    """Check that inputs, outputs and states (the keys of `groups`) have their own types and different names."""
    wanted = {
        "inputs": TensorType.APP_WRITE, "outputs": TensorType.APP_READ, "states": TensorType.APP_READWRITE,
    }  # fmt: skip
    for kind, tensors in groups.items():
        if len({t.name for t in tensors}) != len(tensors) or any(t.type is not wanted[kind] for t in tensors):
            raise ValueError(f"its {kind} are not what they should be")


def _tensor(fields: dict[str, Any], sections: dict[str, memoryview]) -> Tensor:
    """Return the tensor of an entry in the header, with its data from a section; `Tensor` checks the rest."""
    kind, dtype = TensorType[fields["type"]], DataType[fields["dtype"]]
    if kind not in _KINDS:
        raise ValueError(f"a tensor of type {kind.name}")
    dims = tuple(as_size(d, MAX_BYTES) for d in fields["dims"])
    fp16 = fields["fp16"]
    if type(fp16) is not bool or (fp16 and (dtype, kind) not in _FP16_KINDS):
        raise ValueError(f"'{fields['name']}' cannot be stored as fp16")
    stored = np.dtype(np.float16 if fp16 else dtype.numpy)
    nbytes = math.prod(dims) * stored.itemsize
    data = None
    if fields["data"] is not None:
        section = sections[fields["data"]]
        if len(section) != nbytes:
            raise ValueError(f"the contents of '{fields['name']}' have {len(section)} bytes, not {nbytes}")
        data = np.frombuffer(section, stored).astype(dtype.numpy, copy=False).reshape(dims)
    quantization = None
    if fields["quantization"] is not None:
        scales, offsets, scale_axis = (fields["quantization"][n] for n in range(3))
        axis = None if scale_axis is None else as_size(scale_axis, len(dims) - 1)
        quantization = Quantization(tuple(map(float, scales)), tuple(int(n) for n in offsets), axis)
        if any(abs(n) > 1 << 32 for n in quantization.offsets):
            raise ValueError(f"the zero point of '{fields['name']}' is out of bounds")
    tensor_class = Fp16Tensor if fp16 else Tensor
    return tensor_class(str(fields["name"]), kind, dtype, dims, quantization, data, TensorMemType[fields["mem_type"]])


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
        raise ValueError(f"tensor '{tensor.name}' is outside its memory")
    if tensor in ends and (pool < Pool.IO or ends[pool - Pool.IO] is not tensor or offset):
        raise ValueError(f"'{tensor.name}' shares its memory with other tensors")
    return Place(pool, offset)


def _step(fields: dict[str, Any], tensors: list[Tensor]) -> Step:
    """Return a step whose operation accepts it by its own rule, with its parameters completed."""
    operation = OPERATIONS[fields["op"]]
    inputs = [None if n is None else tensors[_index(n, tensors)] for n in fields["inputs"]]
    outputs = [tensors[_index(n, tensors)] for n in fields["outputs"]]
    name = str(fields["name"])
    params = operation.complete(name, {key: _param_value(value) for key, value in fields["params"].items()})
    operation.verify(Call(name, operation.name, inputs, params, outputs))
    clamp = fields["clamp"]
    if clamp is not None:
        low, high = (float(limit) for limit in clamp)
        if not low <= high:
            raise ValueError(f"node '{name}' has no range")
        clamp = (low, high)
    return Step(operation.name, name, inputs, outputs, params, clamp)


def _param_value(value: Any) -> Any:
    """Return an operation's parameter from the form that `_param` gives it, if it consists of numbers only."""
    if isinstance(value, dict):
        if value["dtype"] not in _NUMBERS:
            raise ValueError("a parameter that holds no numbers")
        return np.asarray(value["array"], value["dtype"])
    if value is not None and not isinstance(value, (bool, int, float)):
        raise ValueError("a parameter that is not a number")
    return value


def _plan(fields: dict[str, Any]) -> Plan:
    """Return the plan, which is only reported: nothing is computed from it."""
    rows = tuple(
        PlanRow(str(r["name"]), *(as_size(r[n], MAX_BYTES) for n in ("bytes", "first", "last", "offset")))
        for r in fields["rows"]
    )
    numbers = {
        name: as_size(fields[name], MAX_BYTES)
        for name in (
            "bytes",
            "lower_bound",
            "greedy_bytes",
            "unshared_bytes",
            "order_saved_bytes",
            "aliased_bytes",
            "fp16_bytes",
            "float_bytes",
        )
    }
    return Plan(
        status=str(fields["status"]), peak_step=int(fields["peak_step"]),
        peak_live=tuple(map(str, fields["peak_live"])), rows=rows,
        steps=tuple((str(op), str(name)) for op, name in fields["steps"]), seconds=float(fields["seconds"]),
        regions=(), rematerialized=(), bounded=False, in_float=(), **numbers,
    )  # fmt: skip
