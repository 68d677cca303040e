"""Matrix products: MatMul, Gemm, Einsum, and the integer product."""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue, identity
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.frontends.onnx.reduction import reduce_value
from isthmus.graph import DataType, Tensor


def _matrix(node: OnnxNode, value: OnnxValue) -> tuple[Tensor, bool]:
    """Return an operand of a product and whether it is stored transposed, preferring the form that moves less data."""
    rank = value.rank
    straight = identity(rank)
    swapped = (*straight[:-2], rank - 1, rank - 2)
    builder = node.builder
    if builder.is_free(value, straight):
        return builder.store_as(value, straight), False
    # If the rows are the last stored axis, the transposed form keeps it there and moves only others.
    if builder.is_free(value, swapped) or value.perm[-2] == rank - 1:
        return builder.store_as(value, swapped), True
    return builder.store_as(value, straight), False


def matmul(node: OnnxNode, a: OnnxValue, b: OnnxValue, **output: Any) -> OnnxValue:
    """Emit ONNX's MatMul, also for vectors; `output` gives the data type and quantization of a quantized result."""
    builder = node.builder
    if a.rank == 0 or b.rank == 0:
        node.refuse("its operands must not be scalars")
    left = builder.reshape_to(a, (1, *a.dims)) if a.rank == 1 else a
    right = builder.reshape_to(b, (*b.dims, 1)) if b.rank == 1 else b
    if a.tensor.dtype is DataType.FLOAT_64 or (a.tensor.dtype.is_integer and not output):
        result = _multiply(node, left, right)
    elif right.rank == 2 and left.perm[-1] == left.rank - 1 and builder.is_constant(right):
        # Rows may be stored in any order, because every row is multiplied by the same matrix.
        result = OnnxValue(node.emit("MatMul", [left.tensor, builder.materialize(right)], **output), left.perm)
    else:
        (first, transpose0), (second, transpose1) = _matrix(node, left), _matrix(node, right)
        params = {"transpose_in0": transpose0, "transpose_in1": transpose1}
        result = OnnxValue.of(node.emit("MatMul", [first, second], params, **output))
    if a.rank == 1 or b.rank == 1:
        dims = list(result.dims)
        if b.rank == 1:
            dims.pop()
        if a.rank == 1:
            dims.pop(-1 if b.rank == 1 else -2)
        result = builder.reshape_to(result, dims)
    return result


def _multiply(node: OnnxNode, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    """Multiply matrices of doubles or integers as products that are added; no kernel multiplies them faster."""
    columns = node.reshape_to(a, (*a.dims, 1))
    rows = node.reshape_to(b, (*b.dims[:-2], 1, *b.dims[-2:]))
    products = node.times(columns, rows)
    return reduce_value(node, "ReduceSum", products, [products.rank - 2], False)


def _gemm(node: OnnxNode) -> OnnxValue:
    """Convert alpha * a @ b + beta * c, with a and b transposed if requested."""
    # It is a FullyConnected if b is a constant of floats, otherwise a MatMul. Scaling and addition are separate
    # operations unless they can be done on constants or by the bias.
    a, b, c = node.value(0), node.value(1), node.optional(2)
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    if a.rank != 2 or b.rank != 2:
        node.refuse(f"operands of rank {a.rank} and {b.rank} are not matrices")
    a, b = (v.permute() if node.attr(flag, 0) else v for v, flag in ((a, "transA"), (b, "transB")))
    builder = node.builder
    is_float = a.tensor.dtype.is_float and a.tensor.dtype is not DataType.FLOAT_64
    if not a.tensor.dtype.is_float and (alpha, beta) != (1.0, 1.0):
        node.unsupported("alpha or beta with integer operands")
    if is_float and b.is_static and alpha != 1.0:
        b, alpha = node.times(b, alpha), 1.0
    if c is not None and beta != 1.0:
        c = node.times(c, beta) if beta else None
    if not is_float or not builder.is_constant(b):
        product = matmul(node, a, b)
    else:
        bias = c if c is not None and _is_bias(c, b.dims[1]) and alpha == 1.0 else None
        operands = [builder.materialize(a), builder.store_as(b, (1, 0))]
        if bias is not None:
            operands.append(builder.materialize(builder.reshape_to(bias, (b.dims[1],))))
            c = None
        product = OnnxValue.of(node.emit("FullyConnected", operands))
    if alpha != 1.0:
        product = node.times(product, alpha)
    return product if c is None else node.plus(product, c)


def _is_bias(c: OnnxValue, columns: int) -> bool:
    """Return whether the third operand of a Gemm has one element per column."""
    return c.dims in ((columns,), (1, columns)) or (columns == 1 and c.tensor.elements == 1)


def _matmul_integer(node: OnnxNode) -> OnnxValue:
    """Convert to a MatMulInteger, with one zero point per operand or one per row or column."""
    a, b = node.value(0), node.value(1)
    builder = node.builder
    if a.rank < 2 or b.rank < 2:
        node.unsupported("operands of rank 1")
    operands: list[Tensor | None] = [builder.materialize(a), builder.materialize(b)]
    for index, size in ((2, a.dims[-2]), (3, b.dims[-1])):
        zero_point = node.optional(index)
        if zero_point is None:
            operands.append(None)
            continue
        if zero_point.tensor.elements not in (1, size):
            node.unsupported("zero points per matrix of a batch")
        operands.append(builder.materialize(builder.reshape_to(zero_point, (zero_point.tensor.elements,))))
    while operands[-1] is None:
        operands.pop()
    return OnnxValue.of(node.emit("MatMulInteger", operands))


# --- Einsum -------------------------------------------------------------------------------------------------------


def _einsum(node: OnnxNode) -> OnnxValue:
    """Contract the operands pair by pair, sum over the axes that the result lacks, and permute the rest."""
    # Each operand goes with its labels, a letter per axis. A pair keeps the labels that the result or another operand
    # needs.
    values = [node.value(index) for index in range(len(node.inputs))]
    terms, result = _labels(node, node.attr("equation", ""), values)
    operands = [_without_repeats(node, value, term) for value, term in zip(values, terms, strict=True)]
    while len(operands) > 1:
        (a, a_labels), (b, b_labels), *rest = operands
        needed = set(result) | {label for _, labels in rest for label in labels}
        operands = [_contract(node, a, a_labels, b, b_labels, needed), *rest]
    value, labels = operands[0]
    value, labels = _sum_axes(node, value, labels, set(result))
    if sorted(labels) != sorted(result):
        node.refuse(f"equation '{node.attr('equation')}' names output axes that no input has")
    return value.permute([labels.index(label) for label in result])


def _labels(node: OnnxNode, equation: str, values: Sequence[OnnxValue]) -> tuple[list[str], str]:
    """Return one letter per axis for each operand and the result; an ellipsis becomes letters that are not used yet."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(values):
        node.refuse(f"equation '{equation}' names {len(terms)} operands, {len(values)} are given")
    used = set(text)
    spare = [letter for letter in string.ascii_letters if letter not in used]
    pairs = zip(values, terms, strict=True)
    widest = max((value.rank - len(term.replace("...", "")) for value, term in pairs if "..." in term), default=0)
    if widest < 0 or widest > len(spare):
        node.refuse(f"equation '{equation}' does not fit its operands")
    dots = "".join(spare[:widest])
    expanded = []
    for value, term in zip(values, terms, strict=True):
        missing = value.rank - len(term.replace("...", ""))
        term = term.replace("...", dots[len(dots) - missing :] if missing else "")
        if len(term) != value.rank or not all(label.isalpha() for label in term):
            node.refuse(f"equation '{equation}' does not fit an operand of rank {value.rank}")
        expanded.append(term)
    if arrow:
        return expanded, right.replace("...", dots)
    # Without an arrow, the result has the ellipsis, then the labels that occur once in alphabetical order.
    every = "".join(expanded)
    once = sorted(label for label in set(every) - set(dots) if every.count(label) == 1)
    return expanded, dots + "".join(once)


def _without_repeats(node: OnnxNode, value: OnnxValue, labels: str) -> tuple[OnnxValue, str]:
    """Take the diagonal if a label repeats within one operand: mask it, then sum over the second axis."""
    for index, label in enumerate(labels):
        first = labels.index(label)
        if first != index:
            size = value.dims[first]
            dims = [size if axis in (first, index) else 1 for axis in range(value.rank)]
            mask = OnnxValue(node.builder.numbers(np.eye(size).reshape(dims), value.tensor.dtype), identity(len(dims)))
            diagonal = node.times(value, mask)
            value = reduce_value(node, "ReduceSum", diagonal, [index], False)
            return _without_repeats(node, value, labels[:index] + labels[index + 1 :])
    return value, labels


def _sum_axes(node: OnnxNode, value: OnnxValue, labels: str, needed: set[str]) -> tuple[OnnxValue, str]:
    """Sum over the axes whose labels are not in `needed`; return the value and its remaining labels."""
    axes = [axis for axis, label in enumerate(labels) if label not in needed]
    if not axes:
        return value, labels
    return reduce_value(node, "ReduceSum", value, axes, False), "".join(label for label in labels if label in needed)


def _contract(
    node: OnnxNode, a: OnnxValue, a_labels: str, b: OnnxValue, b_labels: str, needed: set[str]
) -> tuple[OnnxValue, str]:
    """Combine two operands by a batched matrix product, or by a broadcast product if no axis is summed.

    Returns the product and its labels: those of both that are in `needed`, then those of `a` only and of `b` only.
    """
    a, a_labels = _sum_axes(node, a, a_labels, needed | set(b_labels))
    b, b_labels = _sum_axes(node, b, b_labels, needed | set(a_labels))
    inner = [label for label in a_labels if label in b_labels and label not in needed]
    shared = [label for label in a_labels if label in b_labels and label in needed]
    rows = [label for label in a_labels if label not in b_labels]
    columns = [label for label in b_labels if label not in a_labels]
    sizes = dict(zip(a_labels, a.dims, strict=True))
    for label, size in zip(b_labels, b.dims, strict=True):
        sizes[label] = max(sizes.get(label, 1), size)
    if not inner:
        joined = "".join(shared + rows + columns)
        operands = [_spread(node, v, labels, joined) for v, labels in ((a, a_labels), (b, b_labels))]
        return node.times(*operands), joined
    if any(a.dims[a_labels.index(n)] != b.dims[b_labels.index(n)] for n in inner + shared):
        node.unsupported("broadcasting an axis of size 1 in a product that sums over axes")

    def matrix(value: OnnxValue, labels: str, *groups: Sequence[str]) -> OnnxValue:
        """Return a value as a batch of matrices: batch axes in groups[0], then one axis for each further group."""
        ordered = value.permute([labels.index(label) for group in groups for label in group])
        dims = [sizes[label] for label in groups[0]]
        joined = [reduce(lambda x, y: x * y, (sizes[label] for label in group), 1) for group in groups[1:]]
        return node.reshape_to(ordered, [*dims, *joined])

    product = matmul(node, matrix(a, a_labels, shared, rows, inner), matrix(b, b_labels, shared, inner, columns))
    joined = "".join(shared + rows + columns)
    return node.reshape_to(product, [sizes[label] for label in joined]), joined


def _spread(node: OnnxNode, value: OnnxValue, labels: str, joined: str) -> OnnxValue:
    """Return a value with its axes in the order of `joined`, with size 1 for axes that it lacks."""
    order = [labels.index(label) for label in joined if label in labels]
    moved = value.permute(order)
    dims = iter(moved.dims)
    return node.reshape_to(moved, [next(dims) if label in labels else 1 for label in joined])


CONVERTERS: dict[str, Converter] = {
    "MatMul": lambda node: matmul(node, node.value(0), node.value(1)),
    "Gemm": _gemm,
    "MatMulInteger": _matmul_integer,
    "Einsum": _einsum,
    "Transpose": lambda node: node.value(0).permute(node.attr("perm")),
}
