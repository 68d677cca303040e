"""Removal of steps that are not needed: without effect, with results that nothing reads, or equal to an earlier step.

Consecutive movements are merged into one, or into a Reshape, which is free.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from isthmus.graph import Tensor
from isthmus.prepare.rewrite import rewrite
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
_RESIZES = ("Resize", "ResizeBilinear", "ResizeNearestNeighbor")
# Constants of at most this many bytes are compared by contents, larger ones by identity.
_SMALL = 256


def remove_identities(work: Work) -> None:
    """Remove steps without effect, and merge consecutive reshapes and transposes."""
    rewrite(
        work,
        (("Cast", "Convert", "Reshape", "Pad", "Tile", "StridedSlice", *_RESIZES), _same_shape),
        (("Concat", "Split"), _single_part),
        (_REDUCTIONS, _nothing_reduced),
        (("Transpose",), _join_transposes),
        (("Transpose",), _transpose_of_ones),
        (("Reshape",), _join_reshapes),
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have the same shape, type and quantization."""
    return a.dims == b.dims and a.dtype is b.dtype and a.quantization == b.quantization


def _same_shape(work: Work, step: Step) -> None:
    """Remove a step that keeps shape and type: it also keeps the values, unless it is a slice with negative strides."""
    source = step.inputs[0]
    if source is None or step.clamp is not None or not _equal(source, step.outputs[0]):
        return
    if step.op == "StridedSlice" and (np.asarray(step.params["ranges"])[:, 2] < 0).any():
        return
    work.bypass(step)


def _single_part(work: Work, step: Step) -> None:
    """Remove a Concat of one operand, or a Split into one result."""
    source = step.inputs[0]
    if source is None or len(step.inputs) != 1 or len(step.outputs) != 1:
        return
    if _equal(source, step.outputs[0]):
        work.bypass(step)


def _nothing_reduced(work: Work, step: Step) -> None:
    """Replace a reduction over axes of size 1 by a Reshape."""
    source = step.inputs[0]
    if source is None or step.clamp is not None or source.quantization != step.outputs[0].quantization:
        return
    if any(source.dims[axis] != 1 for axis in np.asarray(step.params["axes"]).reshape(-1)):
        return
    work.replace(step, "Reshape", [source])


def permutation(step: Step) -> list[int]:
    """Return the perm of a Transpose."""
    return [int(p) for p in np.asarray(step.params["perm"]).reshape(-1)]


def _join_transposes(work: Work, step: Step) -> None:
    """Replace a Transpose of a Transpose by one Transpose."""
    inner = work.producer(step.inputs[0])
    if inner is None or inner.op != "Transpose":
        return
    first, second = permutation(inner), permutation(step)
    perm = np.array([first[p] for p in second], np.int64)
    work.change(step, inputs=inner.inputs, params={"perm": perm})
    _drop_if_unread(work, inner)


def _transpose_of_ones(work: Work, step: Step) -> None:
    """Replace a Transpose by a Reshape if the axes longer than 1 keep their order, so that no element moves."""
    source = step.input()
    if not keeps_order(source.dims, permutation(step)):
        return
    work.replace(step, "Reshape", [source])


def keeps_order(dims: Sequence[int], perm: Sequence[int]) -> bool:
    """Return whether a permutation of axes leaves all elements in order."""
    moved = [p for p in perm if dims[p] != 1]
    return moved == sorted(moved)


def _join_reshapes(work: Work, step: Step) -> None:
    """Replace a Reshape of a Reshape by one Reshape."""
    inner = work.producer(step.inputs[0])
    if inner is None or inner.op != "Reshape":
        return
    work.change(step, inputs=inner.inputs)
    _drop_if_unread(work, inner)


def _drop_if_unread(work: Work, step: Step) -> None:
    """Remove a step if nothing uses its results any more."""
    if not any(work.consumers(t) or work.is_kept(t) for t in step.outputs):
        work.remove(step)


def remove_dead(work: Work) -> None:
    """Remove every step whose results are not used."""
    needed = [*work.outputs, *work.updates.values()]
    alive: set[Step] = set()
    while needed:
        step = work.producer(needed.pop())
        if step is not None and step not in alive:
            alive.add(step)
            needed.extend(t for t in step.inputs if t is not None)
    for step in [s for s in work.steps if s not in alive]:
        work.remove(step)


def merge_duplicates(work: Work) -> None:
    """Keep only the first of several steps with equal operation, operands and parameters.

    A step that writes a graph output is kept, because every output has memory of its own.
    """
    by_signature: dict[Hashable, Step] = {}
    for step in work.ordered():
        first = by_signature.setdefault(_signature(step), step)
        if first is step or any(work.is_output(t) for t in step.outputs):
            continue
        work.remove(step)
        for mine, other in zip(step.outputs, first.outputs, strict=True):
            work.reread(mine, other)


def _signature(step: Step) -> Hashable:
    """Return all that determines the results of a step; steps with equal signatures compute the same."""
    return (
        step.op,
        step.clamp,
        tuple(_operand(t) for t in step.inputs),
        tuple((t.dims, t.dtype, t.quantization) for t in step.outputs),
        tuple((name, _hashable(value)) for name, value in sorted(step.params.items())),
    )


def _operand(tensor: Tensor | None) -> Hashable:
    """Return what identifies an operand: its contents if it is a small constant, otherwise the tensor itself."""
    if tensor is not None and tensor.is_static and tensor.data is not None and tensor.nbytes <= _SMALL:
        return (tensor.dtype, tensor.dims, tensor.quantization, tensor.data.tobytes())
    return tensor


def _hashable(value: Any) -> Hashable:
    """Return a parameter's value in a hashable form."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    return tuple(_hashable(v) for v in value) if isinstance(value, (list, tuple)) else value
