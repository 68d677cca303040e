"""Products in two dimensions: an engine supports fewer shapes, and the rows of all batches form one product.

The reshapes around them cost nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from isthmus.graph import Tensor
from isthmus.prepare.match import operand
from isthmus.prepare.rewrite import rewrite, table
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

_TWO_DIMENSIONAL = {
    "Conv1d": "Conv2d",
    "DepthWiseConv1d": "DepthWiseConv2d",
    "TransposeConv1d": "TransposeConv2d",
}


def flatten_products(work: Work) -> None:
    """Rewrite 1-D convolutions as 2-D ones of height 1, and batched products with a constant matrix as one product."""
    rewrite(
        work,
        table((_TWO_DIMENSIONAL.keys(), _as_two_dimensional), (("MatMul", "FullyConnected"), _as_rows)),
    )


def _as_two_dimensional(work: Work, step: Step) -> bool:
    """Rewrite a 1-D convolution as a 2-D one of height 1, with reshapes before and after it."""
    source, weights, result = step.inputs[0], step.inputs[1], step.outputs[0]
    assert source is not None
    assert weights is not None
    params = dict(step.params)
    params["pad_amount"] = np.stack([np.zeros(2, np.int64), np.asarray(params["pad_amount"]).reshape(2)])
    for name, of_height in (("stride", 1), ("dilation", 1), ("output_padding", 0)):
        if name in params:
            params[name] = np.array([of_height, params[name]], np.int64)
    tall = work.insert("Reshape", step, [source], (source.dims[0], 1, *source.dims[1:]), source)
    filters = _with_height(work, step, weights)
    flat = work.native(result.name, (result.dims[0], 1, *result.dims[1:]), result.dtype, result.quantization)
    bias = operand(step, 2)
    work.change(step, op=_TWO_DIMENSIONAL[step.op], inputs=[tall, filters, bias], outputs=[flat], params=params)
    work.add("Reshape", flat.name, [flat], [result], near=step)
    return True


def _with_height(work: Work, step: Step, weights: Tensor) -> Tensor:
    """Return the weights with a new first axis of size 1, the height of the kernel."""
    if weights.is_static:
        return work.with_rank(weights, weights.rank + 1)
    quantization = weights.quantization
    if quantization is not None and quantization.axis is not None:
        quantization = replace(quantization, axis=quantization.axis + 1)
    return work.insert("Reshape", step, [weights], (1, *weights.dims), weights, quantization=quantization)


def _as_rows(work: Work, step: Step) -> bool:
    """Reshape the left operand of a product to one matrix, with the rows of all batches, and the result back."""
    source, matrix, result = step.inputs[0], step.inputs[1], step.outputs[0]
    if source is None or matrix is None or matrix.rank != 2 or not source.elements:
        return False
    if step.op == "MatMul" and (step.params["transpose_in0"] or not matrix.is_static):
        return False
    columns = matrix.dims[1] if step.op == "FullyConnected" or step.params["transpose_in1"] else matrix.dims[0]
    if source.rank == 2 and source.dims[1] == columns:
        return False
    rows = source.elements // columns
    flat = work.insert("Reshape", step, [source], (rows, columns), source)
    product = work.native(result.name, (rows, result.dims[-1]), result.dtype, result.quantization)
    work.change(step, inputs=[flat, *step.inputs[1:]], outputs=[product])
    work.add("Reshape", product.name, [product], [result], near=step)
    return True
