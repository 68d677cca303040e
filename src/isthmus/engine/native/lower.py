"""Lowering: a schedule becomes a program for the CPU engine, one operation at a time by the tables of each family."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isthmus.engine.native.cost import WORTH_SHARING, nanoseconds
from isthmus.engine.native.lowering import (
    convolution,
    elementwise,
    integer_matmul,
    matmul,
    movement,
    normalization,
    pooling,
    quantized,
    quantized_hybrid,
    recurrent,
    reduction,
    resize,
    selection,
)
from isthmus.engine.native.lowering.detours import moved, through_float
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import Target
from isthmus.errors import Code, QnnError
from isthmus.graph import TensorInfo
from isthmus.graph.operation import Call
from isthmus.graph.ops import having
from isthmus.prepare.schedule import Schedule, Step

_FAMILIES = (
    convolution, elementwise, integer_matmul, matmul, movement, normalization, pooling, recurrent, reduction, resize,
    selection,
)  # fmt: skip
_PLAIN: Mapping[str, Lowering] = {op: entry for family in _FAMILIES for op, entry in family.LOWERINGS.items()}
_AS_STORED = frozenset(("Cast",))
"""Operations that are about stored elements, not about what those mean."""
_COMPUTED = frozenset(("ScatterElements", "ScatterNd"))
"""Movements that may compute what they move; their kernels know plain types only."""
_MOVED: Mapping[str, Lowering] = {
    op: moved(_PLAIN[op])
    for op in having(lambda operation: operation.traits.moves or operation.traits.orders) - _COMPUTED
}
"""Operations that choose among stored elements or look at their order, so that any type will do once quantizations
agree."""
_THROUGH_FLOAT: Mapping[str, Lowering] = {op: through_float(entry) for op, entry in _PLAIN.items()}


def lowering_of(step: Step) -> Lowering:
    """The lowering of a step.

    A step on fixed-point tensors goes to its 8-bit kernel where that covers it, moves stored elements, or takes the
    way through float.
    """
    table = _PLAIN
    tensors = (*step.inputs, *step.outputs)
    if step.op not in _AS_STORED and any(t is not None and t.dtype.is_fixed_point for t in tensors):
        covers, entry = quantized.QUANTIZED.get(step.op, (None, None))
        if covers is not None and entry is not None and covers(step):
            return entry
        if quantized_hybrid.covers(step):
            return quantized_hybrid.HYBRID
        table = _MOVED if step.op in _MOVED else _THROUGH_FLOAT
    if step.op not in table:
        what = f"node '{step.name}' ({step.op})"
        raise QnnError(Code.COMMON_NOT_SUPPORTED, what, "the CPU engine does not execute this operation")
    return table[step.op]


def work_bytes(step: Step, target: Target, threads: int) -> int:
    """The scratch that a step needs besides its tensors."""
    return lowering_of(step).work(step, target, threads)


def lower(schedule: Schedule, target: Target, threads: int) -> Program:
    """The program of a schedule."""
    emitter = Emitter(target, threads, schedule.places, schedule.numerics)
    for step, work in zip(schedule.steps, schedule.work, strict=True):
        emitter.begin(step, work, threads if nanoseconds(step) > WORTH_SHARING else 1)
        lowering_of(step).emit(step, emitter)
    state = np.zeros(schedule.state_bytes, np.uint8)
    for tensor, offset in zip(schedule.states, schedule.state_offsets, strict=True):
        if tensor.data is not None:
            content = np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8)
            state[offset : offset + content.size] = content
    return Program(
        name=schedule.name,
        target=target.name,
        threads=threads,
        kernels=tuple(emitter.kernels),
        table=np.array(emitter.table, np.int64).reshape(-1, 3),
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
    )



def supports(call: Call) -> str | None:
    """Why a node cannot be executed; None if it can."""
    step = Step(call.op, call.node, list(call.inputs), list(call.declared or ()), call.params)
    try:
        lowering_of(step)
    except QnnError as refusal:
        return refusal.rule
    return None
