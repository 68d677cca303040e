"""Lowering of a schedule to a program for an OpenCL device, one operation at a time, with a table for each family.

The same tables tell in advance what cannot be executed, and why. Element-wise steps that directly follow the step whose
result they take become part of its kernel, where memory allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isthmus.backends.gpu.compile.limits import check_constants, check_device, refuses_size
from isthmus.backends.gpu.compile.lowering import (
    convolution,
    elementwise,
    matmul,
    movement,
    normalization,
    pooling,
    recurrent,
    reduction,
    resize,
    selection,
)
from isthmus.backends.gpu.compile.lowering.chains import links_of, operand_class, plain
from isthmus.backends.gpu.compile.lowering.emitter import Chain, KernelEmitter, KernelLowering, Link
from isthmus.backends.gpu.compile.lowering.hybrid import hybrid
from isthmus.backends.gpu.compile.program import BufferRef, KernelProgram
from isthmus.backends.gpu.compile.program import KernelPool as DevicePool
from isthmus.backends.gpu.compile.traits import DeviceTraits, FloatStorage
from isthmus.backends.gpu.mixed_precision import choose, store_as_fp16
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, Tensor, TensorInfo
from isthmus.graph.operation import Call
from isthmus.prepare.call_graph import call_graph
from isthmus.prepare.engine_model import EngineModel
from isthmus.prepare.half_precision import widen_halves
from isthmus.prepare.planner import Planner, PlanOptions, rewritten
from isthmus.prepare.refused import RefusedNode, refused
from isthmus.prepare.schedule import Pool, Schedule, Step
from isthmus.prepare.work import Work

_FAMILIES = (
    convolution, elementwise, matmul, movement, normalization, pooling, recurrent, reduction, resize, selection,
)  # fmt: skip
# Lowerings by operation; in the second table, two of them also accept float operands with 8-bit weights.
_PLAIN: Mapping[str, KernelLowering] = {op: entry for family in _FAMILIES for op, entry in family.LOWERINGS.items()}
_TABLE: Mapping[str, KernelLowering] = {**_PLAIN, **{op: hybrid(_PLAIN[op]) for op in ("FullyConnected", "Conv2d")}}
MAX_CHAIN = 6
"""The number of links of a chain from which on no further step is added."""


def refusal(step: Step) -> str | None:
    """Return why the engine cannot execute a step, or None."""
    entry = _TABLE.get(step.op)
    if entry is None:
        return "the OpenCL engine does not execute this operation"
    return refuses_size(step) or entry.refuses(step)


def supports(call: Call) -> str | None:
    """Return why a graph of only this call cannot be executed, or None."""
    try:
        nodes = unsupported(call_graph(call))
    except QnnError as error:
        return error.rule
    return nodes[0].reason if nodes else None


def unsupported(graph: Graph) -> list[RefusedNode]:
    """Return all nodes of a finalized graph that cannot be executed, each with the reason."""
    work = rewritten(graph)
    _widen_if_needed(work)
    return refused(graph, work.ordered(), refusal)


def _widen_if_needed(work: Work) -> None:
    """Declare FLOAT_16 intermediates as FLOAT_32 unless kernels execute all steps as they are.

    Whether such tensors are stored as fp16 is then chosen for all floats.
    """
    if any(refusal(step) is not None for step in work.ordered()):
        widen_halves(work)


def lowering_of(step: Step) -> KernelLowering:
    """Return the lowering of a step, or raise its refusal as an error."""
    reason = refusal(step)
    if reason is not None:
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"node '{step.name}' ({step.op})", reason)
    return _TABLE[step.op]


def work_bytes(step: Step, traits: DeviceTraits) -> int:
    """Return the bytes of scratch that a step needs besides its tensors."""
    return lowering_of(step).work(step, traits)


@dataclass(frozen=True)
class KernelEngine(EngineModel):
    """What planning must know of this engine, on a device that stores floats in a given precision.

    Parameters
    ----------
    alignment
        The alignment in bytes of tensors in pools.
    """

    traits: DeviceTraits
    precision: FloatStorage
    alignment: int

    def work_bytes(self, step: Step, threads: int) -> int:
        return work_bytes(step, self.traits)

    def refusal(self, step: Step) -> str | None:
        return refusal(step)

    def convert(self, work: Work) -> None:
        _widen_if_needed(work)

    def store(self, work: Work) -> None:
        """Choose which tensors are stored as fp16, and replace them in all steps."""
        if self.precision is FloatStorage.FP16:
            store_as_fp16(work, choose(work).fp16)


def prepare(
    graph: Graph,
    traits: DeviceTraits,
    precision: FloatStorage = FloatStorage.FP32,
    fuse: bool = True,
    optimize_memory: bool = True,
) -> KernelProgram:
    """Turn a complete graph into a program for a device.

    Parameters
    ----------
    fuse
        Whether element-wise steps may become part of the kernel before them.
    optimize_memory
        Whether to look for an operation order and a layout that need less memory. Otherwise every intermediate tensor
        keeps its own memory until the end.

    Raises
    ------
    QnnError
        COMMON_NOT_SUPPORTED, naming every node that the engine cannot execute.
    """
    options = PlanOptions() if optimize_memory else PlanOptions(optimize_order=False, plan_nodes=0, reuse_memory=False)
    engine = KernelEngine(traits, precision, max(traits.alignment, 16))
    return lower(Planner(graph, options, engine).schedule(), traits, precision, fuse)


@dataclass(frozen=True)
class _Group:
    """A step, the steps that become part of its kernel, and the chain that these form.

    Parameters
    ----------
    head, last
        The indices of the step and of the last step behind it that is part of its kernel; equal if there is none.
    chain
        What the kernel applies to the result of the head; None if there is nothing.
    """

    head: int
    last: int
    chain: Chain | None


def lower(
    schedule: Schedule, traits: DeviceTraits, precision: FloatStorage = FloatStorage.FP32, fuse: bool = True
) -> KernelProgram:
    """Lower a schedule to a program.

    Parameters
    ----------
    fuse
        Whether element-wise steps may become part of the kernel before them.

    Raises
    ------
    QnnError
        COMMON_MEM_ALLOC if the device cannot allocate memory of the required size.
    """
    check_device(schedule, traits)
    emitter = KernelEmitter(traits, precision, schedule.places, len(schedule.inputs), schedule.numerics)
    for group in _groups(schedule, emitter, fuse):
        step = schedule.steps[group.head]
        names = [step.op, *(schedule.steps[i].op for i in range(group.head + 1, group.last + 1))]
        emitter.begin(step, schedule.work[group.head], group.chain, f"{'+'.join(names)} {step.name}")
        lowering_of(step).emit(step, emitter)
    check_constants(schedule, emitter.constant_bytes, traits)
    return KernelProgram(
        name=schedule.name,
        traits=traits,
        precision=precision,
        units=tuple(emitter.units),
        launches=tuple(emitter.launches),
        steps=tuple(emitter.labels),
        constants=emitter.constants(),
        inputs=tuple(map(TensorInfo.of, schedule.inputs)),
        outputs=tuple(map(TensorInfo.of, schedule.outputs)),
        states=tuple(map(TensorInfo.of, schedule.states)),
        state_offsets=tuple(schedule.state_offsets),
        scratch_bytes=schedule.scratch_bytes,
        alignment=schedule.alignment,
        schedule=schedule,
    )


def _groups(schedule: Schedule, e: KernelEmitter, fuse: bool) -> list[_Group]:
    """Return the steps in order, each with the following element-wise steps that become part of it.

    A step is added as long as it can be (`_links_after`), nothing else needs the intermediate result in memory
    (`_is_kept`), and the kernel may already write the step's output (`_may_write`).
    """
    steps = schedule.steps
    # How often each tensor is read.
    uses = Counter(t for step in steps for t in step.inputs if t is not None)
    groups, index = [], 0
    while index < len(steps):
        last, links = index, tuple[Link, ...]()
        while fuse and last + 1 < len(steps) and len(links) < MAX_CHAIN:
            more = _links_after(steps[index], steps[last], steps[last + 1], schedule, uses)
            if more is None or _is_kept(schedule, last, e):
                break
            if not _may_write(steps[index], (*links, *more), steps[last + 1].outputs[0], e, schedule.work[index]):
                break
            links, last = (*links, *more), last + 1
        chain = Chain(links, steps[last].outputs[0]) if links else None
        groups.append(_Group(index, last, chain))
        index = last + 1
    return groups


def _links_after(
    head: Step, before: Step, step: Step, schedule: Schedule, uses: Mapping[Tensor, int]
) -> list[Link] | None:
    """Return the links that a step adds to the chain behind `head`, or None if it cannot be part of it.

    Parameters
    ----------
    before
        The last step so far: the head, or the last one of the chain. Its result must be a float tensor that only `step`
        reads, once, and neither an output nor in state memory.
    uses
        How often each tensor is read.
    """
    value = before.outputs[0]
    entry, place = _TABLE[head.op], schedule.places.get(value)
    if not entry.takes_chain or len(before.outputs) > 1 or value.dtype is not DataType.FLOAT_32:
        return None
    if (
        place is None
        or place.pool == Pool.STATE
        or value in schedule.outputs
        or (uses[value], step.inputs.count(value)) != (1, 1)
    ):
        return None
    output = step.outputs[0]
    if value.dims != output.dims or not elementwise.is_real(output) or not output.elements:
        return None
    links = links_of(step)
    if links is None or not all(elementwise.is_real(t) for t in step.inputs if t is not None):
        return None
    if head.op in elementwise.LOWERINGS and links_of(head) is None:
        return None
    # None stands for the value that runs through the chain.
    chained = [
        Link(link.function, tuple(None if t is value else plain(t) for t in link.operands), link.a, link.b)
        for link in links
    ]
    for link in chained:
        for tensor in link.operands:
            if tensor is None:
                continue
            # The other kernels read operands of a chain as floats, and only as `operand_class` describes.
            if head.op not in elementwise.LOWERINGS and operand_class(tensor, output.dims) is None:
                return None
            if head.op not in elementwise.LOWERINGS and tensor.dtype.is_fixed_point:
                return None
    return chained


def _is_kept(schedule: Schedule, index: int, e: KernelEmitter) -> bool:
    """Return whether anything besides the next step needs the result of step `index` in memory.

    Tensors may share memory: a part of a joined tensor is also read as part of the whole. A tensor in an output stays
    there unless the next step overwrites all of it.
    """
    value, after = schedule.steps[index].outputs[0], schedule.steps[index + 1]
    place = e.at(value)
    if schedule.places[value].pool >= Pool.IO and not _same(place, e.at(after.outputs[0])):
        return True
    written: set[Tensor] = set()
    for step in schedule.steps[index + 1 :]:
        for tensor in step.inputs:
            if tensor is None or tensor.is_static or tensor is value or tensor in written:
                continue
            if _touch(place, e.at(tensor)):
                return True
        if any(_covers(e.at(tensor), place) for tensor in step.outputs):
            return False
        written.update(step.outputs)
    return False


def _may_write(head: Step, links: Sequence[Link], output: Tensor, e: KernelEmitter, work: int) -> bool:
    """Return whether a chain's output may be written while the head's operands are read.

    The output was planned for a later step, so its memory may be that of an operand of the head. An operand that
    occupies exactly the output's bytes is safe: each element is read by the work-item that overwrites it.

    Parameters
    ----------
    links, output
        The chain, and the tensor that its result is stored in.
    work
        The offset in scratch of the head's work space, which the output must not share either.
    """
    goal = e.at(output)
    element_wise = head.op in elementwise.LOWERINGS
    for tensor in head.inputs:
        if tensor is not None and not tensor.is_static and _touch(goal, e.at(tensor)):
            same = element_wise and tensor.dims == output.dims and _same(goal, e.at(tensor))
            if not same:
                return False
    for link in links:
        for tensor in link.operands:
            if tensor is None or tensor.is_static or not _touch(goal, e.at(tensor)):
                continue
            if tensor.dims != output.dims or not _same(goal, e.at(tensor)):
                return False
    needed = lowering_of(head).work(head, e.traits)
    return not (
        needed and _touch(goal, BufferRef(goal.pool, 0, work, needed, False)) and goal.pool is DevicePool.SCRATCH
    )


def _touch(a: BufferRef, b: BufferRef) -> bool:
    """Return whether two ranges of memory have a byte in common."""
    return (a.pool, a.index) == (b.pool, b.index) and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def _covers(a: BufferRef, b: BufferRef) -> bool:
    """Return whether the first range of memory contains all bytes of the second."""
    return (
        (a.pool, a.index) == (b.pool, b.index) and a.offset <= b.offset and b.offset + b.nbytes <= a.offset + a.nbytes
    )


def _same(a: BufferRef, b: BufferRef) -> bool:
    """Return whether two ranges of memory are the same bytes, read or written."""
    return (a.pool, a.index, a.offset, a.nbytes) == (b.pool, b.index, b.offset, b.nbytes)
