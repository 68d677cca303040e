"""Lowering of MatMul and FullyConnected. Constant right matrices are packed here, others by a preceding launch.

Quantized operands are multiplied as their stored integers minus their zero points. This is exact in single precision as
long as sums stay below 2**24. One factor for each column remains to be applied.
"""

from __future__ import annotations

from math import prod

import numpy as np

from isthmus.backends.gpu.compile.lowering import product
from isthmus.backends.gpu.compile.lowering.chains import limit_links, reals_of
from isthmus.backends.gpu.compile.lowering.elementwise import is_real
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering, Link
from isthmus.backends.gpu.compile.program import BufferRef
from isthmus.backends.gpu.compile.storage import FLOAT
from isthmus.backends.gpu.compile.traits import DeviceTraits
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.matrices import Matrices
from isthmus.prepare.schedule import Step

_ALIGNMENT = 128


def zero_of(tensor: Tensor) -> int:
    """Return the zero point of a tensor, or 0 if it has none."""
    return tensor.quantization.zero_point if tensor.dtype.is_fixed_point and tensor.quantization is not None else 0


def factor_links(factors: np.ndarray, output: Tensor, clamp: tuple[float, float] | None) -> list[Link]:
    """Return the links that turn sums of integers into results: a factor for each channel, and limits.

    A quantized result is computed in units of its own scale. The factor is rounded once, as in other implementations.
    """
    if not output.dtype.is_fixed_point:
        return [_channel_factor(factors), *limit_links(clamp)]
    assert output.quantization is not None
    scale = np.float32(output.quantization.scale)
    limits = None if clamp is None else tuple(float(np.rint(np.float64(c) / output.quantization.scale)) for c in clamp)
    return [_channel_factor(factors / scale), *limit_links(None if limits is None else (limits[0], limits[1]))]


def _channel_factor(factors: np.ndarray) -> Link:
    """Return the link that multiplies each channel by its factor."""
    values = np.ascontiguousarray(factors, np.float32)
    constant = Tensor("factors", TensorType.STATIC, DataType.FLOAT_32, values.shape, None, values)
    return Link("ElementWiseMultiply", (None, constant))


def _bias(step: Step) -> Tensor | None:
    """Return the bias of a product, or None if it has none."""
    return step.inputs[2] if len(step.inputs) > 2 else None


def _sides(step: Step) -> tuple[Matrices, Matrices]:
    """Return the left and right operand as matrices: which one each batch uses, their sizes and the steps in memory."""
    left, right = operand(step, 0), operand(step, 1)
    if step.op == "FullyConnected":
        # Its weights are transposed: [columns of the result, depth].
        units, features = right.dims
        one = np.zeros(1, np.int64)
        rows = left.elements // features
        return Matrices(one, rows, features, features, 1), Matrices(one, features, units, 1, features)
    batch = np.broadcast_shapes(left.dims[:-2], right.dims[:-2])
    a = Matrices.of(left.dims, bool(step.params.get("transpose_in0")), batch)
    b = Matrices.of(right.dims, bool(step.params.get("transpose_in1")), batch)
    # If all batches have the same right matrix, the rows of all left ones are one large matrix.
    dense = a.column_step == 1 and np.array_equal(a.batch, np.arange(a.batch.size))
    if dense and a.batch.size > 1 and not b.batch.any():
        one = np.zeros(1, np.int64)
        a = Matrices(one, a.rows * a.batch.size, a.columns, a.columns, 1)
        b = Matrices(one, b.rows, b.columns, b.row_step, b.column_step)
    return a, b


def _align(nbytes: int) -> int:
    """Round a size up to the alignment of the work space."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _needs(step: Step, traits: DeviceTraits) -> tuple[int, int]:
    """Return the bytes of work space for the packed right operand and for a transposed left one."""
    a, b = _sides(step)
    width = product.panel_width(traits, a.rows, b.columns)
    panels = 0
    if not operand(step, 1).is_static:
        panels = _align((int(b.batch.max(initial=0)) + 1) * b.rows * -(-b.columns // width) * width * 4)
    turned = _align(operand(step, 0).elements * 4) if a.column_step != 1 else 0
    return panels, turned


def _emit(step: Step, e: KernelEmitter) -> None:
    """Emit a matrix product: launches that pack or transpose operands where needed, and then the product."""
    # If the left operand is quantized, the sums are of integers as far as possible, and a factor for each column
    # follows. A transposed left operand was converted to reals before, so its scale is not part of that factor.
    x, y, bias, output = operand(step, 0), operand(step, 1), _bias(step), step.outputs[0]
    a, b = _sides(step)
    count = a.batch.size
    width = product.panel_width(e.traits, a.rows, b.columns)
    padded = -(-b.columns // width) * width
    # Whether sums are of stored integers; then `factor` is the real value of a unit of the sums.
    whole_numbers = x.dtype.is_fixed_point
    panel_bytes, turned_bytes = _needs(step, e.traits)
    factor: np.ndarray = np.float32(x.quantization.scale if whole_numbers and x.quantization is not None else 1)
    biases = np.zeros(b.columns, np.float32) if bias is None else reals_of(bias).reshape(-1)
    if y.is_static:
        matrices = _constant_matrices(y, b, whole_numbers)
        if whole_numbers and y.dtype.is_fixed_point:
            assert y.quantization is not None
            factor = factor * np.array(y.quantization.scales, np.float32)
        place, storage = e.weights(product.pack(matrices, width))
    else:
        place = e.work(0, panel_bytes, writes=False)
        _emit_pack(e, y, b, width, e.work(0, panel_bytes, writes=True))
        storage = FLOAT
    if a.column_step != 1:
        # A transposed left operand is rewritten row by row first.
        source = e.work(panel_bytes, turned_bytes)
        _emit_turn(e, x, a, e.work(panel_bytes, turned_bytes, writes=True))
        left = product.Left(source, FLOAT, a.rows, a.columns, a.columns)
        factor = factor / np.float32(x.quantization.scale if whole_numbers and x.quantization is not None else 1)
    else:
        left = product.Left(e.at(x), e.storage(x), a.rows, a.columns, a.columns, zero=zero_of(x))
    links = limit_links(step.clamp)
    if whole_numbers:
        factors = np.broadcast_to(factor, (b.columns,))
        biases = biases / factors
        are_integers = a.column_step == 1 and y.is_static and y.dtype.is_fixed_point
        if are_integers and bias is not None and not bias.dtype.is_float:
            # The sums of stored integers are integers of this scale.
            biases = np.rint(biases)
        links = factor_links(factors, output, step.clamp)
    right = product.Right(
        place, storage, b.columns, width,
        None if bias is None else e.constant(np.tile(product.pad_bias(biases, b.columns, width), (count, 1))),
    )  # fmt: skip
    batches = None
    if count > 1:
        # For each batch: where its left matrix, its right matrix and its result begin, and its first channel.
        batches = np.stack(
            [
                a.batch * a.elements, b.batch * (b.rows * padded), np.arange(count) * (a.rows * b.columns),
                np.zeros(count, np.int64),
            ],
            axis=1,
        )  # fmt: skip
    product.emit_product(e, left, right, product.ResultTarget(output, b.columns), links, batches, whole_numbers)


def whole_biases(bias: Tensor, factors: np.ndarray) -> np.ndarray:
    """Return a quantized bias in units of the sums: its stored integers, unless its scales differ.

    `factors` are the values of a unit of the sums, for each channel.
    """
    assert bias.data is not None
    assert bias.quantization is not None
    numbers = bias.data.reshape(-1).astype(np.float64) + np.array(bias.quantization.offsets, np.float64)
    ratios = np.array(bias.quantization.scales, np.float64) / factors
    return numbers if np.allclose(ratios, 1.0, rtol=1e-5, atol=0.0) else np.rint(numbers * ratios)


def _constant_matrices(y: Tensor, b: Matrices, whole_numbers: bool) -> np.ndarray:
    """Return a constant right operand as [count, depth, columns]: its reals, or its integers minus the zero point."""
    # `whole_numbers` tells whether the product multiplies stored integers; then a quantized operand stays in integers.
    assert y.data is not None
    values = reals_of(y)
    if whole_numbers and y.dtype.is_fixed_point:
        assert y.quantization is not None
        quantization = y.quantization
        shape = [-1 if d == quantization.axis else 1 for d in range(y.rank)]
        offsets = np.array(quantization.offsets).reshape(shape if quantization.axis is not None else ())
        values = (y.data.astype(np.int64) + offsets).astype(np.float32)
    matrices = values.reshape(-1, *y.dims[-2:])
    if b.row_step == 1 and b.column_step != 1:
        matrices = matrices.swapaxes(1, 2)
    return matrices.reshape(-1, b.rows, b.columns)


def _emit_pack(e: KernelEmitter, y: Tensor, b: Matrices, width: int, goal: BufferRef) -> None:
    """Emit a kernel that writes a computed right operand as panels of floats, `width` columns each, to `goal`."""
    # In the kernel, ``x`` is the operand and ``y`` the panels. The last panel is filled up with zeros.
    count = int(b.batch.max(initial=0)) + 1
    panels = -(-b.columns // width)
    kernel = e.kernel()
    storage = kernel.tensor("x", y)
    kernel.memory("y", goal, "float")
    kernel.ints(
        K=b.rows, N=b.columns, width=width, panels=panels, row_step=b.row_step, column_step=b.column_step,
        items=count * panels * b.rows,
    )  # fmt: skip
    body = f"""  int item = get_global_id(1), n = get_global_id(0);
  if (item >= items || n >= width) return;
  int k = item % K, panel = item / K % panels, matrix = item / (K * panels);
  int column = panel * width + n;
  float v = 0.0f;
  if (column < N) v = {storage.load("x", "matrix * K * N + k * row_step + column * column_step")};
  y[item * width + n] = v;"""
    kernel.launch("pack", [body], (width, count * panels * b.rows), (32, 4))


def _emit_turn(e: KernelEmitter, x: Tensor, a: Matrices, goal: BufferRef) -> None:
    """Emit a kernel that writes a transposed left operand row by row, as floats, to `goal`."""
    count = prod(x.dims[:-2])
    kernel = e.kernel()
    storage = kernel.tensor("x", x)
    kernel.memory("y", goal, "float")
    kernel.ints(M=a.rows, K=a.columns, items=count * a.rows)
    body = f"""  int k = get_global_id(0), item = get_global_id(1);
  if (k >= K || item >= items) return;
  y[item * K + k] = {storage.load("x", "item / M * M * K + k * M + item % M")};"""
    kernel.launch("turn", [body], (a.columns, count * a.rows), (32, 4))


def _refuses(step: Step) -> str | None:
    """Return why a product cannot be executed, or None. Weights may have one scale for each column of the result."""
    x, y, bias, output = operand(step, 0), operand(step, 1), _bias(step), step.outputs[0]
    if not all(is_real(t) for t in (x, y, bias, output) if t is not None):
        return "only floats and fixed-point operands are supported"
    if output.elements and not y.elements:
        return "a product over no elements is not supported"
    if bias is not None and not bias.is_static:
        return "a bias that is computed is not supported"
    if y.is_static and y.dtype.is_fixed_point and y.quantization is not None and y.quantization.axis is not None:
        columns = 0 if step.op == "FullyConnected" or step.params.get("transpose_in1") else y.rank - 1
        if y.quantization.axis != columns or (y.rank > 2 and columns == 0):
            return f"{y.describe()} has scales along another axis than the columns of the result"
    return None


_PRODUCT = KernelLowering(_emit, lambda step, traits: sum(_needs(step, traits)), _refuses, takes_chain=True)
LOWERINGS: dict[str, KernelLowering] = {"MatMul": _PRODUCT, "FullyConnected": _PRODUCT}
