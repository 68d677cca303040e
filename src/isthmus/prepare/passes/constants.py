"""Constant folding: a step that reads only constants is computed during preparation."""

from __future__ import annotations

from isthmus.graph import DataType
from isthmus.graph.evaluate import evaluate
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

MAX_BYTES = 1 << 26
"""Results larger than this many bytes are not kept as constants."""


def fold_constants(work: Work) -> None:
    """Fold all but Dequantize, since a quantized operation may still use the fixed-point constant behind it."""
    _fold(work, keep=frozenset({"Dequantize"}))


def fold_all_constants(work: Work) -> None:
    """Fold every step that reads only constants."""
    _fold(work, keep=frozenset())


def _fold(work: Work, keep: frozenset[str]) -> None:
    """Fold all steps that read only constants, except those of the operations to keep."""
    for step in work.ordered():
        if step.op not in keep and is_constant(work, step):
            fold(work, step)


def is_constant(work: Work, step: Step) -> bool:
    """Return whether a step can be computed now; a constant that is copied to a graph output stays a copy."""
    return (
        step.clamp is None
        and all(t is None or t.is_static for t in step.inputs)
        and (sum(t.nbytes for t in step.outputs) <= MAX_BYTES or _unpacks(step))
        and not (step.op == "Reshape" and work.is_output(step.outputs[0]))
    )


def _unpacks(step: Step) -> bool:
    """Return whether a step dequantizes 4-bit constants: an engine that keeps them packed needs no room for reals."""
    return step.op == "Dequantize" and step.inputs[0] is not None and step.inputs[0].is_four_bit


def fold(work: Work, step: Step) -> bool:
    """Compute a step that reads only constants, and replace it by its results."""
    arrays = [None if t is None else t.data for t in step.inputs]
    results = evaluate(step.op, step.inputs, arrays, step.params, step.outputs, work.numerics)
    work.remove(step)
    for tensor, value in zip(step.outputs, results, strict=False):
        constant = work.constant(tensor.name, value.astype(tensor.dtype.numpy), tensor.quantization, tensor.dtype)
        if _unpacks(step) and tensor.dtype is DataType.FLOAT_32:
            constant.source = step.inputs[0]
        work.reread(tensor, constant)
        # The client's memory for an output is still written by a step.
        if work.is_output(tensor):
            work.add("Reshape", step.name, [constant], [tensor])
    return True


def fold_if_constant(work: Work, step: Step) -> bool:
    """Fold a step if it is constant; a rule for passes whose other rules create constants."""
    return is_constant(work, step) and fold(work, step)
