"""Identity removal: drops steps without effect; merges consecutive movements into one, or into a Reshape, which is
free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isthmus.graph import Tensor
from isthmus.prepare.rewrite import rewrite, table
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
_RESIZES = ("Resize", "ResizeBilinear", "ResizeNearestNeighbor")


def remove_identities(work: Work) -> None:
    """Remove steps without effect, and merge consecutive reshapes and transposes."""
    rewrite(
        work,
        table(
            (("Cast", "Convert", "Reshape", "Pad", "Tile", "StridedSlice", *_RESIZES), _same_shape),
            (("Concat", "Split"), _only_one),
            (_REDUCTIONS, _nothing_reduced),
            (("Transpose",), _joined_transposes),
            (("Transpose",), _transpose_of_ones),
            (("Reshape",), _joined_reshapes),
        ),
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have the same shape, type and quantization."""
    return a.dims == b.dims and a.dtype is b.dtype and a.quantization == b.quantization


def _same_shape(work: Work, step: Step) -> bool:
    """Remove a step that keeps shape and type, which for these operations means the same values unless it reverses."""
    source = step.inputs[0]
    if source is None or step.clamp is not None or not _equal(source, step.outputs[0]):
        return False
    if step.op == "StridedSlice" and (np.asarray(step.params["ranges"])[:, 2] < 0).any():
        return False
    return work.bypass(step)


def _only_one(work: Work, step: Step) -> bool:
    """Remove a Concat of one operand, or a Split into one result."""
    source = step.inputs[0]
    if source is None or len(step.inputs) != 1 or len(step.outputs) != 1:
        return False
    return _equal(source, step.outputs[0]) and work.bypass(step)


def _nothing_reduced(work: Work, step: Step) -> bool:
    """Replace a reduction over axes of size 1 by a Reshape."""
    source = step.inputs[0]
    if source is None or step.clamp is not None or source.quantization != step.outputs[0].quantization:
        return False
    if any(source.dims[axis] != 1 for axis in np.asarray(step.params["axes"]).reshape(-1)):
        return False
    work.replace(step, "Reshape", [source])
    return True


def permutation(step: Step) -> list[int]:
    """Return the perm of a Transpose."""
    return [int(p) for p in np.asarray(step.params["perm"]).reshape(-1)]


def _joined_transposes(work: Work, step: Step) -> bool:
    """Replace a Transpose of a Transpose by one Transpose."""
    inner = work.producer(step.inputs[0])
    if inner is None or inner.op != "Transpose":
        return False
    first, second = permutation(inner), permutation(step)
    perm = np.array([first[p] for p in second], np.int64)
    work.change(step, inputs=inner.inputs, params={"perm": perm})
    _drop_if_unread(work, inner)
    return True


def _transpose_of_ones(work: Work, step: Step) -> bool:
    """Replace a Transpose by a Reshape if the axes longer than 1 keep their order, so that no element moves."""
    source = step.inputs[0]
    assert source is not None
    if not keeps_order(source.dims, permutation(step)):
        return False
    work.replace(step, "Reshape", [source])
    return True


def keeps_order(dims: Sequence[int], perm: Sequence[int]) -> bool:
    """Return whether a permutation of axes leaves all elements in order."""
    moved = [p for p in perm if dims[p] != 1]
    return moved == sorted(moved)


def _joined_reshapes(work: Work, step: Step) -> bool:
    """Replace a Reshape of a Reshape by one Reshape."""
    inner = work.producer(step.inputs[0])
    if inner is None or inner.op != "Reshape":
        return False
    work.change(step, inputs=inner.inputs)
    _drop_if_unread(work, inner)
    return True


def _drop_if_unread(work: Work, step: Step) -> None:
    """Remove a step if nothing uses its results any more."""
    if not any(work.consumers(t) or work.is_kept(t) for t in step.outputs):
        work.remove(step)
