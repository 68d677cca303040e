"""Conversion of a program to bytes and back. The schedule is stored, not the source and not the launches.

Bytes are not trusted. The schedule is checked (see `isthmus.prepare.serialization`), and the kernels are generated
again for the current device. So no byte of a file reaches a compiler or a kernel argument without the checks that apply
to a graph composed by a client.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from isthmus.backends.gpu.compile.lower import lower, refusal, work_bytes
from isthmus.backends.gpu.compile.program import KernelProgram
from isthmus.backends.gpu.compile.traits import DeviceTraits, FloatStorage
from isthmus.graph.tensor import MAX_BYTES
from isthmus.prepare import serialization
from isthmus.prepare.schedule import Plan, PlanRow, Pool, Schedule
from isthmus.system.container import MALFORMED, as_size
from isthmus.system.contents import GraphContents, StoredContents

FORMAT = serialization.FORMAT
# The fields of a plan that concern tiling or drawings; files do not contain them.
_LEFT_OUT = frozenset(("regions", "rematerialized", "bounded", "operands"))
# The fields of a plan that are numbers of bytes.
_SIZES = (
    "bytes", "lower_bound", "greedy_bytes", "unshared_bytes", "order_saved_bytes", "aliased_bytes", "fp16_bytes",
    "float_bytes",
)  # fmt: skip
# The alignment of work spaces in scratch.
_WORK_ALIGNMENT = 64


def to_bytes(program: KernelProgram, shared: GraphContents | None = None) -> bytes:
    """Return the program as one block of bytes; its arrays are in it, or in the section `shared`."""
    schedule = program.schedule
    # This engine computes whole steps only.
    plan = {name: value for name, value in asdict(schedule.statistics).items() if name not in _LEFT_OUT}
    return serialization.to_bytes(schedule, {"precision": program.precision.value, "plan": plan}, shared)


def from_bytes(
    content: bytes | memoryview, traits: DeviceTraits, fuse: bool = True, shared: StoredContents | None = None
) -> KernelProgram:
    """Read a program from a block of bytes and lower it for a device.

    - `shared`: the section with its arrays if they are not in the block.

    Raises COMMON_LOADING_BINARIES if the bytes are not a valid program, COMMON_INCOMPATIBLE_BINARIES if the program has
    another version or was planned for another kind of device.
    """
    schedule, precision = schedule_from_bytes(content, shared)
    # The end of the last tensor or work space in scratch.
    needed = max((p.offset + t.nbytes for t, p in schedule.places.items() if p.pool == Pool.SCRATCH), default=0)
    for step, offset, reserved in zip(schedule.steps, schedule.work, schedule.work_bytes, strict=True):
        reason = refusal(step)
        if reason is not None:
            raise FORMAT.refusal(f"node '{step.name}' ({step.op}): {reason}")
        nbytes = work_bytes(step, traits)
        if nbytes > reserved:
            raise FORMAT.outdated("its work space was planned for another kind of device")
        needed = max(needed, offset + nbytes)
    # Whatever size the file requests, the program gets no more scratch than it needs.
    rounded = -(-needed // schedule.alignment) * schedule.alignment
    schedule = replace(schedule, scratch_bytes=min(schedule.scratch_bytes, rounded))
    try:
        return lower(schedule, traits, precision, fuse)
    except MemoryError:
        raise FORMAT.refusal("the host has no memory for its constants") from None


def schedule_from_bytes(
    content: bytes | memoryview, shared: StoredContents | None = None
) -> tuple[Schedule, FloatStorage]:
    """Read a schedule from a block of bytes and check it; return it with the precision that it was planned for.

    `shared` is as for `from_bytes`.
    """
    schedule, engine = serialization.from_bytes(content, shared=shared)
    if schedule.tiled or schedule.repeats or schedule.io_offsets or any(step.part for step in schedule.steps):
        raise FORMAT.refusal("it computes tiles or places inputs in scratch, which kernels on a device do not")
    if any(offset % _WORK_ALIGNMENT for offset in schedule.work):
        raise FORMAT.refusal("a work space is not aligned")
    try:
        return replace(schedule, plan=_plan(engine["plan"])), FloatStorage(engine["precision"])
    except MALFORMED as problem:
        raise FORMAT.malformed(problem) from None


def _plan(fields: dict[str, Any]) -> Plan:
    """Return the plan, which is only reported: nothing is computed from it."""
    rows = tuple(
        PlanRow(str(r["name"]), *(as_size(r[n], MAX_BYTES) for n in ("bytes", "first", "last", "offset")))
        for r in fields["rows"]
    )
    numbers = {name: as_size(fields[name], MAX_BYTES) for name in _SIZES}
    return Plan(
        status=str(fields["status"]), peak_step=int(fields["peak_step"]),
        peak_live=tuple(map(str, fields["peak_live"])), rows=rows,
        steps=tuple((str(op), str(name)) for op, name in fields["steps"]), seconds=float(fields["seconds"]),
        regions=(), rematerialized=(), bounded=False, in_float=(), operands=None, **numbers,
    )  # fmt: skip
