"""Affine folding: per-channel factors and terms around a linear step are folded into its weights and bias.

This covers batch normalisation before or after a convolution, and a separate scale or bias. A Multiply followed by an
Add that cannot be folded becomes one Batchnorm. Products are computed in double precision.
"""

from __future__ import annotations

import numpy as np

from isthmus.graph import DataType, Tensor
from isthmus.graph.ops import OPERATIONS, having
from isthmus.graph.traits import ProductKind
from isthmus.prepare.rewrite import floats, is_fusible, number, operand, per_channel, rewrite
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

LINEAR = having(lambda operation: operation.traits.product not in (None, ProductKind.INTEGERS))
"""Operations that multiply in[0] by the weights in[1] and add the bias in[2]."""
AFFINE = frozenset({"Batchnorm", "ElementWiseMultiply", "ElementWiseAdd"})
"""Operations that may be ``x * factor + term`` with constants for each channel."""


def fold_affine(work: Work) -> None:
    """Fold affine steps into the linear steps around them."""
    rewrite(
        work,
        (("Cast",), _round_once),
        (AFFINE, _fold_into_producer),
        (LINEAR, _fold_factor_before),
        (("ElementWiseMultiply",), _fold_through_product),
        (("ElementWiseAdd",), _pair),
    )


def affine(step: Step) -> tuple[np.ndarray | None, np.ndarray | None] | None:
    """Return the per-channel factor and term of a step ``x * factor + term``; None for one that is absent.

    The result is None if the step is not of this form.
    """
    x, result = step.inputs[0], step.outputs[0]
    if x is None or x.dims != result.dims or not is_fusible(x):
        return None
    values = per_channel(step.inputs[1], result)
    if values is None:
        return None
    if step.op == "Batchnorm":
        bias = operand(step, 2)
        term = per_channel(bias, result)
        return None if bias is not None and term is None else (values, term)
    return (values, None) if step.op == "ElementWiseMultiply" else (None, values)


def output_axis(step: Step) -> int:
    """Return the axis of a linear step's weights that corresponds to its output channels."""
    weights = step.input(1)
    if product_of(step) is ProductKind.ROWS:
        return 0
    transposed = product_of(step) is ProductKind.MATRIX and step.params["transpose_in1"]
    return weights.rank - 2 if transposed else weights.rank - 1


def product_of(step: Step) -> ProductKind | None:
    """Return which kind of product a step is."""
    return OPERATIONS[step.op].traits.product


def _along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Return a vector as an array of this rank that extends along one axis."""
    return values.reshape([-1 if a == axis else 1 for a in range(rank)])


def _set_weights(work: Work, step: Step, weights: np.ndarray | None, bias: np.ndarray | None) -> None:
    """Give a linear step new weights and a new bias; None keeps the old ones."""
    old = step.input(1)
    dtype = step.outputs[0].dtype
    new = old if weights is None else work.floats(old.name, weights, dtype)
    inputs = [step.inputs[0], new]
    if bias is not None:
        # A bias is added in float32, so it need not be rounded to 16 bits.
        inputs.append(work.floats(f"{step.name}.bias", bias, DataType.FLOAT_32 if dtype.is_half else dtype))
    else:
        inputs.extend(step.inputs[2:3])
    work.change(step, inputs=inputs)


def _bias(step: Step) -> np.ndarray | None:
    """Return the float bias of a linear step: zeros if it has none, None if it is not a float constant."""
    tensor = operand(step, 2)
    return np.zeros(step.outputs[0].dims[-1]) if tensor is None else floats(tensor)


def _round_once(work: Work, step: Step) -> None:
    """Replace casts of 16-bit floats around a float32 Batchnorm by a Batchnorm of 16 bits with float32 coefficients."""
    norm = work.sole_producer(step.inputs[0])
    before = None if norm is None or norm.op != "Batchnorm" else work.producer(norm.inputs[0])
    if norm is None or before is None or before.op != "Cast":
        return
    x, result = before.inputs[0], step.outputs[0]
    if x is None or not x.dtype.is_half or result.dtype is not x.dtype:
        return
    work.change(norm, inputs=[x, *norm.inputs[1:]])
    work.absorb(norm, step)
    if not work.consumers(before.outputs[0]) and not work.is_output(before.outputs[0]):
        work.remove(before)


def _fold_into_producer(work: Work, step: Step) -> None:
    """Fold an affine step into the weights and bias of the linear step before it."""
    linear = work.sole_producer(step.inputs[0])
    values = affine(step)
    if linear is None or values is None or linear.op not in LINEAR or linear.clamp is not None:
        return
    factor, term = values
    bias = _bias(linear)
    if bias is None:
        return
    weights = None
    if factor is not None:
        weights = _weights(linear)
        # Those of a grouped transposed convolution have no axis of all output channels.
        if weights is None or (product_of(linear) is ProductKind.TRANSPOSED and linear.params["group"] != 1):
            return
        weights = weights * _along(factor, output_axis(linear), weights.ndim)
        bias = bias * factor
    if term is not None:
        bias = bias + term
    # Do not add a bias of zeros.
    if operand(linear, 2) is None and term is None:
        bias = None
    _set_weights(work, linear, weights, bias)
    work.set_clamp(linear, step.clamp)
    work.absorb(linear, step)


def _weights(step: Step) -> np.ndarray | None:
    """Return the weights of a linear step if they can be multiplied: floats that are not packed as 4-bit elements."""
    weights = step.inputs[1]
    return None if weights is None or weights.source is not None else floats(weights)


def _fold_factor_before(work: Work, step: Step) -> None:
    """Fold ``conv(x * factor + term)``: the factor always, the term only if there is no padding."""
    # Padding adds zeros after the term, where a folded term would count for them too.
    before = work.sole_producer(step.inputs[0])
    if before is None or before.op not in AFFINE or before.clamp is not None:
        return
    values = affine(before)
    weights, bias = _weights(step), _bias(step)
    if values is None or weights is None:
        return
    factor, term = values
    x = before.input()
    channels = _input_channels(step, x, weights)
    if channels is None:
        return
    if term is not None:
        if bias is None or product_of(step) is ProductKind.TRANSPOSED or np.any(step.params.get("pad_amount", 0)):
            return
        summed = tuple(a for a in range(weights.ndim) if a != output_axis(step))
        bias = bias + (weights * channels(term)).sum(axis=summed)
    else:
        bias = None
    if factor is not None:
        weights = weights * channels(factor)
    _set_weights(work, step, weights if factor is not None else None, bias)
    work.remove(before)
    work.change(step, inputs=[x, *step.inputs[1:]])


class _PerInput:
    """A function that broadcasts one number per input channel to the shape of a step's weights.

    - `axis`, `rank`: the axis of the weights that has the input channels, and the rank of the weights.
    - `repeat`: how many successive indices of that axis belong to one input channel.
    """

    def __init__(self, axis: int, rank: int, repeat: int = 1) -> None:
        self.axis, self.rank, self.repeat = axis, rank, repeat

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return _along(np.repeat(values, self.repeat), self.axis, self.rank)


def _input_channels(step: Step, x: Tensor, weights: np.ndarray) -> _PerInput | None:
    """Return the broadcast from input channels to a linear step's weights; None if these channels are not one axis."""
    rank, kind = weights.ndim, product_of(step)
    if kind is ProductKind.DEPTH_WISE:
        return _PerInput(rank - 1, rank, weights.shape[-1] // x.dims[-1])
    if kind in (ProductKind.CONVOLUTION, ProductKind.TRANSPOSED):
        return _PerInput(rank - 2, rank) if step.params["group"] == 1 else None
    if kind is ProductKind.ROWS:
        return _PerInput(1, rank) if x.dims[-1] == weights.shape[1] else None
    if step.params["transpose_in0"] or rank != 2:
        return None
    return _PerInput(1 if step.params["transpose_in1"] else 0, rank)


def _fold_through_product(work: Work, step: Step) -> None:
    """Fold a number that scales a product of two computed matrices into the weights that produce one of them."""
    factor = number(step.inputs[1])
    product = work.sole_producer(step.inputs[0])
    if factor is None or product is None or product.op != "MatMul" or product.clamp is not None:
        return
    if operand(product, 2) is not None or product.inputs[0] is product.inputs[1]:
        return
    if step.outputs[0].dims != product.outputs[0].dims:
        return
    for matrix in product.inputs[:2]:
        linear = work.sole_producer(matrix)
        while linear is not None and linear.op in ("Reshape", "Transpose"):
            linear = work.sole_producer(linear.inputs[0])
        if linear is None or linear.op not in LINEAR or linear.clamp is not None:
            continue
        weights, bias = _weights(linear), _bias(linear)
        if weights is not None and bias is not None:
            _set_weights(work, linear, weights * factor, None if operand(linear, 2) is None else bias * factor)
            work.set_clamp(product, step.clamp)
            work.absorb(product, step)
            return


def _pair(work: Work, step: Step) -> None:
    """Replace a Multiply and an Add, each by a constant per channel, by one Batchnorm."""
    first = work.sole_producer(step.inputs[0])
    if first is None or first.op != "ElementWiseMultiply" or first.clamp is not None:
        return
    scale, shift = affine(first), affine(step)
    if scale is None or shift is None or scale[0] is None or shift[1] is None:
        return
    dtype = step.outputs[0].dtype
    weight = work.floats(f"{step.name}.weight", scale[0], dtype)
    bias = work.floats(f"{step.name}.bias", shift[1], dtype)
    x = first.inputs[0]
    work.remove(first)
    work.replace(step, "Batchnorm", [x, weight, bias])
