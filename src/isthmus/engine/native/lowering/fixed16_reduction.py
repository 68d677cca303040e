"""Lowering of sums, means, pools and softmax of 16-bit fixed-point tensors."""

from __future__ import annotations

import itertools
import math

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.fixed16_elementwise import middle_of, operand_words, result_words, scale_of
from isthmus.engine.native.lowering.fixed_point import rounding_kernel
from isthmus.engine.native.lowering.quantized import AVERAGE_POOL
from isthmus.engine.native.target import Target
from isthmus.prepare.geometry.fixed_point import is_sixteen_bit
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step


def _covers(step: Step) -> bool:
    tensors = (step.inputs[0], step.outputs[0])
    return all(is_sixteen_bit(t) for t in tensors) and all(t is not None and t.elements for t in tensors)


def _quantizations(step: Step) -> dict[str, int | float]:
    """Return the words for the quantizations of operand and result."""
    x, output = operand(step, 0), step.outputs[0]
    return {"ratio": scale_of(x) / scale_of(output), **operand_words(x, "in"), **result_words(step, output)}


def _extents(step: Step) -> tuple[int, int, int, int, int] | None:
    """Return the elements along kept, summed, kept, summed and kept axes; None if they alternate more often."""
    dims = operand(step, 0).dims
    axes = {int(a) % len(dims) for a in np.asarray(step.params["axes"]).reshape(-1)} or set(range(len(dims)))
    # Pairs of whether axes are summed, and the elements along them.
    runs = [
        (summed, math.prod(dims[axis] for axis in group))
        for summed, group in itertools.groupby((a for a in range(len(dims)) if dims[a] > 1), lambda a: a in axes)
    ]
    runs = runs if runs and not runs[0][0] else [(False, 1), *runs]
    sizes = [size for _, size in runs]
    if len(sizes) > 5:
        return None
    if len(sizes) <= 3:
        # One group of summed axes is the second one: their elements are then neighbours.
        outer, count, inner = (*sizes, *[1] * (3 - len(sizes)))
        return outer, 1, 1, count, inner
    outer, count, kept, inner_count, inner = (*sizes, *[1] * (5 - len(sizes)))
    return outer, count, kept, inner_count, inner


def _covers_sum(step: Step) -> bool:
    return _covers(step) and step.part is None and _extents(step) is not None


def _sum_work(step: Step, target: Target, threads: int) -> int:
    """Return the bytes for a sum of each inner element, for each thread."""
    extents = _extents(step)
    assert extents is not None
    return 8 * extents[-1] * threads


def _emit_sum(step: Step, e: Emitter) -> None:
    extents = _extents(step)
    assert extents is not None
    outer, count, kept, inner_count, inner = extents
    elements = count * inner_count
    e.emit(
        rounding_kernel(e, step.op, "quantized_reduction:reduce_sum"),
        x=e.at(operand(step, 0)), y=e.at(step.outputs[0]), outer_count=outer, count=count, kept=kept,
        inner_count=inner_count, inner=inner, work=e.work(), divisor=elements if step.op == "ReduceMean" else 1,
        **_quantizations(step),
    )  # fmt: skip


def _covers_pool(step: Step) -> bool:
    return _covers(step) and (step.part is None or step.part.pixels == 0)


def _covers_softmax(step: Step) -> bool:
    return _covers(step) and int(step.params["axis"]) in (-1, operand(step, 0).rank - 1)


def _softmax_work(step: Step, target: Target, threads: int) -> int:
    """Return the bytes for the exponentials of a row, for each thread."""
    return 4 * operand(step, 0).dims[-1] * threads


def _emit_softmax(step: Step, e: Emitter) -> None:
    x, output = operand(step, 0), step.outputs[0]
    length = x.dims[-1]
    e.emit(
        "quantized_reduction:softmax_wide", x=e.at(x), y=e.at(output), rows=x.elements // length, length=length,
        work=e.work(), scale=scale_of(x) * float(step.params["beta"]), inverse=1.0 / scale_of(output),
        in_flip=middle_of(x), **result_words(step, output),
    )  # fmt: skip


_SUM = (_covers_sum, Lowering(_emit_sum, _sum_work))
FIXED16 = {
    "ReduceMean": _SUM,
    "ReduceSum": _SUM,
    "PoolAvg2d": (_covers_pool, AVERAGE_POOL),
    "Softmax": (_covers_softmax, Lowering(_emit_softmax, _softmax_work)),
}
"""For each operation, a test of which steps its 16-bit lowering covers, and that lowering."""
