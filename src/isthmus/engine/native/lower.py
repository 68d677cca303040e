"""Lowering: turns a schedule into a program for the CPU engine, one operation at a time, by tables for each family.

The same tables say in advance what the engine does not execute, and why: for a step, for one operation, or for all
nodes of a graph. Nothing is emitted, packed or compiled for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from isthmus.engine.native.cost import SHARING, is_shared, is_worth_sharing, step_nanoseconds
from isthmus.engine.native.lowering import (
    convolution,
    detection,
    elementwise,
    integer_matmul,
    matmul,
    movement,
    normalization,
    pooling,
    quantized,
    quantized_hybrid,
    random,
    recurrent,
    reduction,
    resize,
    selection,
    wide_convolution,
)
from isthmus.engine.native.lowering.branches import join_branches
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.via_float import movement as movement_of
from isthmus.engine.native.lowering.via_float import through_float
from isthmus.engine.native.lowering.winograd import side_of
from isthmus.engine.native.program import CURSORS, NARROW, Program
from isthmus.engine.native.target import TARGETS, Target, uniform
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, TensorInfo
from isthmus.graph.operation import Call
from isthmus.graph.ops import having
from isthmus.prepare.call_graph import call_graph
from isthmus.prepare.engine_model import DEFAULT_ALIGNMENT, Effort, EngineModel
from isthmus.prepare.geometry.fixed_point import is_hybrid
from isthmus.prepare.inplace import shareable_io
from isthmus.prepare.planner import rewritten
from isthmus.prepare.refused import RefusedNode, refused
from isthmus.prepare.schedule import Repeat, Schedule, Step
from isthmus.prepare.work import Work
from isthmus.system.shield import check

_FAMILIES = (
    convolution, detection, elementwise, integer_matmul, matmul, movement, normalization, pooling, recurrent, reduction,
    resize, selection, random,
)  # fmt: skip


def _unless_empty(entry: Lowering) -> Lowering:
    """Return a lowering that emits nothing if the results have no elements."""

    def emit(step: Step, e: Emitter) -> None:
        if any(tensor.elements for tensor in step.outputs):
            entry.emit(step, e)

    return replace(entry, emit=emit)


# The lowering of each operation on tensors that are not quantized.
_PLAIN: Mapping[str, Lowering] = {
    op: _unless_empty(entry) for family in _FAMILIES for op, entry in family.LOWERINGS.items()
}
# For each operation, a test of which steps its 16-bit lowering covers, and that lowering.
_FIXED16: Mapping[str, tuple[quantized.Covers, Lowering]] = {
    **elementwise.FIXED16, **wide_convolution.FIXED16
}  # fmt: skip
# Operations that use stored elements as plain numbers, whatever their quantization.
_AS_STORED = frozenset(("Cast",))
# Movements that may compute with what they move; their kernels support plain types only.
_COMPUTED = frozenset(("ScatterElements", "ScatterNd"))
# Operations that select or order stored elements. Any type works once quantizations agree.
_MOVED: Mapping[str, Callable[[Step], Lowering]] = {
    op: movement_of(_PLAIN[op])
    for op in having(lambda operation: operation.traits.moves or operation.traits.orders) - _COMPUTED
}
# Operations on fixed-point tensors or floats of 16 bits, computed in float32.
_THROUGH_FLOAT: Mapping[str, Lowering] = {op: through_float(entry) for op, entry in _PLAIN.items()}


def _entry(step: Step) -> Lowering | None:
    """Return the lowering of a step; None if there is none for its operation."""
    # A step on fixed-point tensors uses its 8-bit or 16-bit kernel if that covers the step. Otherwise it moves stored
    # elements, or is computed in float32. So is a step on floats of 16 bits if no kernel covers it.
    table = _PLAIN
    tensors = (*step.inputs, *step.outputs)
    if reduction.is_mean_of_tile(step):
        return reduction.MEAN_OF_TILE
    if step.op not in _AS_STORED and any(t is not None and t.dtype.is_fixed_point for t in tensors):
        for kernels in (quantized.QUANTIZED, _FIXED16):
            covers, lowering = kernels.get(step.op, (None, None))
            if covers is not None and covers(step):
                return lowering
        if is_hybrid(step):
            return quantized_hybrid.HYBRID
        if step.op in _MOVED:
            return _MOVED[step.op](step)
        table = _THROUGH_FLOAT
    elif any(t is not None and t.dtype.is_half for t in tensors):
        entry = table.get(step.op)
        # Kernels that read and write 16 bits are better: the detour needs work space for floats.
        return entry if entry is None or entry.refuses(step) is None else _THROUGH_FLOAT[step.op]
    return table.get(step.op)


def is_in_float(step: Step) -> bool:
    """Return whether a step is computed in float32 because no kernel covers the type of its tensors."""
    entry = _entry(step)
    return entry is not None and entry is _THROUGH_FLOAT.get(step.op)


def refusal(step: Step) -> str | None:
    """Return why the engine does not execute a step, or None if it does."""
    return _refusal(step, _entry(step))


def _refusal(step: Step, entry: Lowering | None) -> str | None:
    return "the CPU engine does not execute this operation" if entry is None else entry.refuses(step)


def _can_split_mean(step: Step, axis: int) -> bool:
    """Return whether a mean over all pixels has the same bits if its sums are computed tile by tile."""
    # Sums of integers are exact. Float sums depend on the order of additions. The kernel adds four pixels at a time, so
    # the pixels of each row, and with them those of each tile, must be a multiple of four.
    source = step.inputs[0]
    assert source is not None
    if source.dtype.is_fixed_point:
        covers, _ = quantized.QUANTIZED["ReduceMean"]
        return step.op == "ReduceMean" and covers(step)
    floats = {source.dtype, step.outputs[0].dtype} == {DataType.FLOAT_32}
    return floats and axis == 1 and source.dims[2] % 4 == 0 and source.dims[3] > 1


def supports(call: Call) -> str | None:
    """Return why no graph with this one call can be executed, or None if one can.

    The call is checked by the operation's own rule and prepared as a graph of its own; then each resulting step is
    checked. A constant may have no data; then nothing is assumed about its contents that would make the operation
    easier.

    Examples
    --------
    >>> from isthmus.graph import DataType, Tensor, TensorType
    >>> x = Tensor("x", TensorType.APP_WRITE, DataType.FLOAT_64, (4,))
    >>> y = Tensor("y", TensorType.APP_READ, DataType.FLOAT_64, (4,))
    >>> supports(Call("gate", "Gelu", [x], {}, [y]))
    "gelu of 'x' FLOAT_64[4] is not supported"
    """
    try:
        refused = unsupported(call_graph(call))
    except QnnError as error:
        return error.rule
    return refused[0].reason if refused else None


def unsupported(graph: Graph) -> list[RefusedNode]:
    """Return all nodes of a finalized graph that cannot be executed, each with the reason."""
    return refused(graph, rewritten(graph).ordered(), refusal)


def lowering_of(step: Step) -> Lowering:
    """Return the lowering of a step, or raise its refusal as an error."""
    entry = _entry(step)
    reason = _refusal(step, entry)
    if entry is None or reason is not None:
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"node '{step.name}' ({step.op})", reason or "")
    return entry


@dataclass(frozen=True)
class NativeEngine(EngineModel):
    """The native engine for a target, with a number of threads.

    Parameters
    ----------
    target
        The target whose costs decide about tiles.
    others
        Further targets that the work space of every step must be large enough for.
    winograd
        Whether convolutions may use Winograd's algorithm. Its results differ in the last digits from those of the
        kernels that compute tiles, so plans with tiles do without it, and so do plans for every target.
    """

    target: Target
    threads: int = 1
    alignment: int = DEFAULT_ALIGNMENT
    others: tuple[Target, ...] = ()
    winograd: bool = False
    sharing = SHARING

    def work_bytes(self, step: Step, threads: int) -> int:
        work = lowering_of(step).work
        return max(work(step, target, threads) for target in (self.target, *self.others))

    def refusal(self, step: Step) -> str | None:
        return refusal(step)

    def store(self, work: Work) -> None:
        if self.winograd:
            for step in work.ordered():
                step.winograd = side_of(step, self.target)

    def nanoseconds(self, step: Step) -> float:
        return step_nanoseconds(step)

    def can_tile(self, step: Step, axis: int) -> bool:
        tensors = [t for t in (*step.inputs, *step.outputs) if t is not None and not t.is_static]
        # A tile would need its own part of the scales.
        if any(t.quantization is not None and t.quantization.axis is not None for t in tensors):
            return False
        if step.op == "ReduceMean" or (step.op == "PoolAvg2d" and prod(step.outputs[0].dims[1:-1]) == 1):
            return _can_split_mean(step, axis)
        # A hybrid product rounds by the range of a row. Only if no rows are shared are the ranges those of the whole.
        return not is_hybrid(step) or quantized_hybrid.is_product_of_rows(step)

    def is_shared(self, step: Step) -> bool:
        return is_shared(step)

    def effort(self, step: Step, axis: int) -> Effort | None:
        return lowering_of(step).effort(step, axis, self.target)


def every_target(threads: int, alignment: int, is_uniform: bool = False) -> NativeEngine:
    """Return the native engine for all targets at once: a schedule for it can be lowered for each of them.

    The first target, which has the widest vectors, decides about tiles.

    - `is_uniform`: Whether it is lowered for `uniform` targets.
    """
    first, *others = map(uniform, TARGETS) if is_uniform else TARGETS
    return NativeEngine(first, threads, alignment, tuple(others))


def lower(schedule: Schedule, target: Target, threads: int) -> Program:
    """Lower a schedule to a program.

    Raises
    ------
    QnnError
        COMMON_INCOMPATIBLE_BINARIES if a step has less work space than its kernels need.
    """
    emitter = Emitter(target, threads, schedule.places, schedule.numerics, bool(schedule.tiled))
    emitter.first_segment = schedule.cursor_pool + CURSORS
    repeats = {repeat.first: repeat for repeat in schedule.repeats}
    by_tiles = {index for first, last in schedule.tiled for index in range(first, last + 1)}
    # The repetition that the current step belongs to.
    repeat: Repeat | None = None
    spaces = zip(schedule.steps, schedule.work, schedule.work_bytes, strict=True)
    for index, (step, work, reserved) in enumerate(spaces):
        check()
        if index in repeats:
            repeat = repeats[index]
            emitter.begin_repeat(repeat, schedule.cursor_pool)
        # Each thread runs whole iterations of a pipelined repetition, so their instructions are not shared.
        pipelined = repeat is not None and repeat.threads > 1
        shared = is_worth_sharing(step, threads) if index in by_tiles else is_shared(step)
        emitter.begin(step, work, threads if shared and not pipelined else 1)
        lowering = lowering_of(step)
        if lowering.work(step, target, 1 if pipelined else threads) > reserved:
            rule = "it has less work space than this version needs for it"
            raise QnnError(Code.COMMON_INCOMPATIBLE_BINARIES, f"node '{step.name}' ({step.op})", rule)
        lowering.emit(step, emitter)
        if repeat is not None and index == repeat.last:
            emitter.end_repeat(repeat)
            repeat = None
    emitter.end()
    state = np.zeros(schedule.state_bytes, np.uint8)
    for tensor, offset in zip(schedule.states, schedule.state_offsets, strict=True):
        content = np.ascontiguousarray(tensor.initial()).reshape(-1).view(np.uint8)
        state[offset : offset + content.size] = content
    program = Program(
        name=schedule.name,
        target=target.name,
        threads=threads,
        kernels=tuple(emitter.kernels),
        table=np.array(emitter.table, NARROW if schedule.tiled else np.int64).reshape(-1, 3),
        words=np.array(emitter.words, np.int64),
        labels=tuple(emitter.labels),
        constants=emitter.constants(),
        inputs=tuple(map(TensorInfo.of, schedule.inputs)),
        outputs=tuple(map(TensorInfo.of, schedule.outputs)),
        states=tuple(map(TensorInfo.of, schedule.states)),
        state_offsets=tuple(schedule.state_offsets),
        state_initial=state,
        scratch_bytes=schedule.scratch_bytes,
        alignment=schedule.alignment,
        shareable_io=shareable_io(schedule),
        segments=tuple(emitter.segments),
    )
    # Tiles have their own ways to divide work among threads.
    return program if threads == 1 or schedule.tiled else join_branches(program, schedule.io_offsets)
