"""Lowering of a schedule to a program for an OpenCL device, one operation at a time, with a table for each family.

The same tables tell in advance what cannot be executed, and why. Element-wise steps that directly follow the step whose
result they take become part of its kernel, where memory allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from isthmus.backends.gpu.compile.limits import check_constants, check_device, refuses_tensors
from isthmus.backends.gpu.compile.lowering import (
    convolution,
    elementwise,
    matmul,
    movement,
    normalization,
    pooling,
    rearrangement,
    recurrent,
    reduction,
    resize,
    selection,
)
from isthmus.backends.gpu.compile.lowering.chains import links_of, operand_class, plain
from isthmus.backends.gpu.compile.lowering.emitter import Chain, KernelEmitter, KernelLowering, Link
from isthmus.backends.gpu.compile.lowering.hybrid import hybrid
from isthmus.backends.gpu.compile.lowering.rearrangement import Rearrangement, touch
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
from isthmus.prepare.storage import Block, Storage
from isthmus.prepare.work import Work

_FAMILIES = (
    convolution, elementwise, matmul, movement, normalization, pooling, recurrent, reduction, resize, selection,
)  # fmt: skip
# Lowerings by operation; in the second table, two of them also accept float operands with 8-bit weights.
_PLAIN: Mapping[str, KernelLowering] = {op: entry for family in _FAMILIES for op, entry in family.LOWERINGS.items()}
_TABLE: Mapping[str, KernelLowering] = {**_PLAIN, **{op: hybrid(_PLAIN[op]) for op in ("FullyConnected", "Conv2d")}}
MAX_CHAIN = 6
"""The number of links with which a chain takes no further step."""


def refusal(step: Step) -> str | None:
    """Return why the engine cannot execute a step, or None."""
    entry = _TABLE.get(step.op)
    if entry is None:
        return "the OpenCL engine does not execute this operation"
    return refuses_tensors(step) or entry.refuses(step)


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

    Mixed precision then decides whether they are stored as fp16, as for all FLOAT_32 tensors.
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

    - `alignment`: The alignment in bytes of tensors in pools.
    - `fuse`: Whether several steps may become one launch.
    """

    traits: DeviceTraits
    precision: FloatStorage
    alignment: int
    fuse: bool = True

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

    def together(self, steps: Sequence[Step], storage: Storage) -> list[tuple[int, int]]:
        """Return the ranges of movements that one launch makes, with the convolution before them if it can take them.

        All results of such a launch are written while its operands are read.
        """
        if not self.fuse or self.traits.kind != "gpu":
            return []
        numbers: dict[Block, int] = {}

        def at(tensor: Tensor) -> BufferRef:
            """Return where a tensor is in its block, as if each block were a pool."""
            block, low, high = storage.span(tensor)
            number = numbers.setdefault(block, len(numbers))
            pool = DevicePool.SCRATCH if block.pool is None else DevicePool.OUTPUT
            return BufferRef(pool, number, low - block.low, high - low, False)

        ranges, index = [], 0
        while index < len(steps):
            found = _movements(steps, index, at)
            if found is None:
                index += 1
                continue
            end, moves = found
            before = steps[index - 1]
            joins = index > 0 and _takes_moves(before) and moves.behind(at(before.outputs[0]), at) is not None
            ranges.append((index - joins, end - 1))
            index = end
        return ranges


def prepare(
    graph: Graph,
    traits: DeviceTraits,
    precision: FloatStorage = FloatStorage.FP32,
    fuse: bool = True,
    optimize_memory: bool = True,
) -> KernelProgram:
    """Turn a complete graph into a program for a device.

    - `fuse`: Whether element-wise steps may become part of the kernel before them.
    - `optimize_memory`: Whether to look for an operation order and a layout that need less memory. Otherwise every
      intermediate tensor keeps its own memory until the end.

    Raises COMMON_NOT_SUPPORTED, naming every node that the engine cannot execute.
    """
    options = PlanOptions() if optimize_memory else PlanOptions(optimize_order=False, plan_nodes=0, reuse_memory=False)
    engine = KernelEngine(traits, precision, max(traits.alignment, 16), fuse)
    return lower(Planner(graph, options, engine).schedule(), traits, precision, fuse)


def lower(
    schedule: Schedule, traits: DeviceTraits, precision: FloatStorage = FloatStorage.FP32, fuse: bool = True
) -> KernelProgram:
    """Lower a schedule to a program.

    - `fuse`: Whether element-wise steps may become part of the kernel before them.

    Raises COMMON_MEM_ALLOC if the device cannot allocate memory of the required size.
    """
    check_device(schedule, traits)
    emitter = KernelEmitter(traits, precision, schedule.places, len(schedule.inputs), schedule.numerics)
    for head, end, chain in _groups(schedule, emitter, fuse):
        step = schedule.steps[head]
        label = f"{'+'.join(each.op for each in schedule.steps[head:end])} {step.name}"
        if isinstance(chain, Rearrangement):
            emitter.begin(schedule.work[head], None, label)
            rearrangement.emit_rearrangement(emitter, chain)
            continue
        emitter.begin(schedule.work[head], chain, label)
        lowering = lowering_of(step)
        # A step without results takes no launches.
        if any(output.elements for output in step.outputs):
            lowering.emit(step, emitter)
    check_constants(schedule, emitter.constant_bytes, traits)
    return KernelProgram(
        name=schedule.name,
        traits=traits,
        precision=precision,
        units=tuple(emitter.units),
        launches=tuple(emitter.launches),
        steps=tuple(emitter.labels),
        constants=emitter.constants(),
        large_constants=tuple(emitter.large_constants),
        inputs=tuple(map(TensorInfo.of, schedule.inputs)),
        outputs=tuple(map(TensorInfo.of, schedule.outputs)),
        states=tuple(map(TensorInfo.of, schedule.states)),
        state_offsets=tuple(schedule.state_offsets),
        scratch_bytes=schedule.scratch_bytes,
        alignment=schedule.alignment,
        schedule=schedule,
    )


def _groups(
    schedule: Schedule, e: KernelEmitter, fuse: bool
) -> Iterator[tuple[int, int, Chain | Rearrangement | None]]:
    """Yield the steps in order, each with the following steps that become part of its kernel.

    A group is the index of its first step, the index behind its last step, and the chain of the steps after the first;
    for movements that one launch makes it is what they do.

    An element-wise step is added if it can be part of a chain (`_links_after`), nothing else needs the intermediate
    result in memory (`_is_needed`), and the first step's kernel may already write its output (`_may_write`). Movements
    are added likewise.
    """
    steps = schedule.steps
    # How often each tensor is read.
    uses = Counter(t for step in steps for t in step.inputs if t is not None)
    index = 0
    while index < len(steps):
        moved = _fold_movements(schedule, index, e) if fuse else None
        if moved is not None:
            yield index, *moved
            index = moved[0]
            continue
        last, links = index, tuple[Link, ...]()
        while fuse and last + 1 < len(steps) and len(links) < MAX_CHAIN:
            more = _links_after(steps[index], steps[last], steps[last + 1], schedule, uses)
            if more is None or _is_needed(steps, last, steps[last].outputs[0], e.at):
                break
            if not _may_write(steps[index], (*links, *more), steps[last + 1].outputs[0], e, schedule.work[index]):
                break
            links, last = (*links, *more), last + 1
        chain = Chain(links, steps[last].outputs[0]) if links else None
        behind = _movements_behind(schedule, index, last, links, e) if fuse else None
        if behind is not None:
            last, chain = behind
        yield index, last + 1, chain
        index = last + 1


def _movements(
    steps: Sequence[Step], index: int, at: Callable[[Tensor], BufferRef]
) -> tuple[int, Rearrangement] | None:
    """Return what the movements from a step on do as one launch, and the index behind the last of them."""
    return rearrangement.find(steps, index, at, lambda i, reader: _is_needed(steps, i, reader, at))


def _fold_movements(schedule: Schedule, index: int, e: KernelEmitter) -> tuple[int, Rearrangement] | None:
    """Return what movements do that become one launch, and the index behind the last of them."""
    found = _movements(schedule.steps, index, e.at) if e.gpu else None
    return found if found is not None and rearrangement.may_write(found[1], e.at, ()) else None


def _movements_behind(
    schedule: Schedule, head: int, last: int, links: Sequence[Link], e: KernelEmitter
) -> tuple[int, Chain] | None:
    """Return the chain of a convolution whose result is stored where the movements behind it put it, and the index of
    the last of these; None if its kernel cannot do that.

    - `last`, `links`: The last step of the chain so far, and its links.
    """
    steps = schedule.steps
    step, value = steps[head], steps[last].outputs[0]
    found = _movements(steps, last + 1, e.at) if e.gpu and last + 1 < len(steps) and _takes_moves(step) else None
    moves = found[1].behind(e.at(value), e.at) if found is not None else None
    if found is None or moves is None or moves.sources[moves.computed].itemsize != e.storage(value).size:
        return None
    if _is_needed(steps, last, moves.sources[moves.computed], e.at):
        return None
    operands = [*step.inputs, *(tensor for link in links for tensor in link.operands)]
    reads = [e.at(tensor) for tensor in operands if tensor is not None and not tensor.is_static]
    needed = lowering_of(step).work(step, e.traits)
    if needed:
        reads.append(BufferRef(DevicePool.SCRATCH, 0, schedule.work[head], needed, False))
    if not rearrangement.may_write(moves, e.at, reads):
        return None
    return found[0] - 1, Chain(tuple(links), value, moves)


def _takes_moves(step: Step) -> bool:
    """Return whether the kernel of a step can store channels of its result in several places."""
    return step.op in convolution.LOWERINGS and _TABLE[step.op].takes_chain and len(step.outputs) == 1


def _links_after(
    head: Step, before: Step, step: Step, schedule: Schedule, uses: Mapping[Tensor, int]
) -> list[Link] | None:
    """Return the links that a step adds to the chain behind `head`, or None if it cannot be part of it.

    - `before`: The last step so far: the head, or the last one of the chain. Its result must be a float tensor that
      only `step` reads, once, and neither an output nor in state memory.
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
            # Kernels that are not element-wise read a chain's operands as floats, indexed as `operand_class` says.
            if head.op not in elementwise.LOWERINGS and operand_class(tensor, output.dims) is None:
                return None
            if head.op not in elementwise.LOWERINGS and tensor.dtype.is_fixed_point:
                return None
    return chained


def _is_needed(steps: Sequence[Step], index: int, reader: Tensor, at: Callable[[Tensor], BufferRef]) -> bool:
    """Return whether anything besides the next step needs the result of step `index` in memory.

    Tensors may share memory: a part of a joined tensor is also read as part of the whole. A tensor in an output stays
    there unless the next step overwrites all of it.

    - `reader`: The tensor that names the result as an operand of the next step, and of no other step.
    """
    after = steps[index + 1]
    place = at(steps[index].outputs[0])
    if place.pool in (DevicePool.INPUT, DevicePool.OUTPUT) and not _same(place, at(after.outputs[0])):
        return True
    written: list[BufferRef] = []
    for step in steps[index + 1 :]:
        for tensor in step.operands:
            if tensor is reader and step is after:
                continue
            if touch(place, at(tensor)) and not any(_covers(other, at(tensor)) for other in written):
                return True
        results = list(map(at, step.outputs))
        if any(_covers(other, place) for other in results):
            return False
        written += results
    return False


def _may_write(head: Step, links: Sequence[Link], output: Tensor, e: KernelEmitter, work: int) -> bool:
    """Return whether a chain's output may be written while the head's operands are read.

    The output was planned for a later step, so its memory may be that of an operand of the head. An operand that
    occupies exactly the output's bytes is safe: each element is read by the work-item that overwrites it.

    - `work`: The offset in scratch of the head's work space, which the output must not share either.
    """
    goal = e.at(output)
    element_wise = head.op in elementwise.LOWERINGS
    for tensor in head.inputs:
        if tensor is not None and not tensor.is_static and touch(goal, e.at(tensor)):
            same = element_wise and tensor.dims == output.dims and _same(goal, e.at(tensor))
            if not same:
                return False
    for link in links:
        for tensor in link.operands:
            if tensor is None or tensor.is_static or not touch(goal, e.at(tensor)):
                continue
            if tensor.dims != output.dims or not _same(goal, e.at(tensor)):
                return False
    needed = lowering_of(head).work(head, e.traits)
    return not (
        needed and touch(goal, BufferRef(goal.pool, 0, work, needed, False)) and goal.pool is DevicePool.SCRATCH
    )


def _covers(a: BufferRef, b: BufferRef) -> bool:
    """Return whether the first range of memory contains all bytes of the second."""
    return (
        (a.pool, a.index) == (b.pool, b.index) and a.offset <= b.offset and b.offset + b.nbytes <= a.offset + a.nbytes
    )


def _same(a: BufferRef, b: BufferRef) -> bool:
    """Return whether two ranges of memory are the same bytes, read or written."""
    return (a.pool, a.index, a.offset, a.nbytes) == (b.pool, b.index, b.offset, b.nbytes)
