"""Lowering of convolutions and products of 16-bit fixed point with constant weights of 8 or 16 bits.

The zero point of the input goes into the bias, that of the weights into what is added to stored weights (see the
kernels). Long taps are divided into chunks, and chunks are collected into blocks whose sums fit 32 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from isthmus.engine.native.lowering import fixed_point
from isthmus.engine.native.lowering import quantized_product as products
from isthmus.engine.native.lowering.emitter import Effort, Emitter, Lowering, choose
from isthmus.engine.native.lowering.quantized_product import QuantizedProduct
from isthmus.engine.native.lowering.reduction import result_limits
from isthmus.engine.native.signatures.quantized_convolution import DEPTHWISE_ROWS, GROUP_BYTES, HEAD_BYTES
from isthmus.engine.native.target import Target
from isthmus.graph import Tensor
from isthmus.graph.rounding import HEXAGON
from isthmus.prepare.geometry.fixed_point import is_eight_bit, is_sixteen_bit, quantization_of
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.matrices import Matrices
from isthmus.prepare.geometry.phases import Phase, phases
from isthmus.prepare.schedule import Step

# The most groups of a chunk. The sums of that many fit 32 bits whatever the weights are.
_CHUNK = 64
# The largest sum of magnitudes of weights whose products with 16-bit numbers fit 32 bits.
_MAX_WEIGHTS = (1 << 16) - 1
# The most products in a sum; float64 holds such sums exactly.
_MAX_DEPTH = 1 << 18


def _chunking(
    product: QuantizedProduct, x: Tensor, target: Target, threads: int
) -> tuple[products.ProductBlocking, int]:
    """Return the blocking of a product of `x`, and into how many chunks of its groups taps are divided."""
    # Chunks have equal lengths. If that makes taps longer, rows are copied, since rows in place end with the last tap.
    plan = products.cut(product, products.row_form(x, target), target, threads)
    least = -(-plan.groups // _CHUNK)
    counts = [count for count in range(least, 2 * least) if plan.groups % count == 0] or [least]
    groups = -(-plan.groups // counts[0])
    missing = 4 * (groups * counts[0] - plan.groups)
    if missing and not plan.staged:
        plan = products.cut(product, 1, target, threads)
    more = -(-missing // 64) * 64 if missing else 0
    return replace(plan, groups=groups, work_bytes=plan.work_bytes + more), counts[0]


@dataclass(frozen=True)
class _Weights:
    """Weights as the kernels store them.

    Parameters
    ----------
    stored
        Signed numbers [taps, depth, columns].
    addends
        What is added to them, for each column.
    width
        Their form (see `HEAD_BYTES`).
    """

    stored: np.ndarray
    addends: np.ndarray
    width: str

    @property
    def values(self) -> np.ndarray:
        """The weights without zero points."""
        return self.stored.astype(np.int64) + self.addends

    @property
    def dtype(self) -> type:
        """The numpy type of stored numbers."""
        return np.int16 if self.width == "w16" else np.int8

    def parts(self) -> list[np.ndarray]:
        """Return the addends of the weights; those of 16 bits as two arrays, for the high and the low byte."""
        if self.width != "w16":
            return [self.addends]
        low = (self.addends + 128) % 256 - 128
        return [(self.addends - low) >> 8, low]

    def magnitudes(self) -> list[np.ndarray]:
        """Return the magnitudes of the weights; those of 16 bits as two arrays, for the high and the low byte."""
        if self.width != "w16":
            return [np.abs(self.values)]
        high, low = self.parts()
        numbers = self.stored.astype(np.int64)
        return [np.abs((numbers >> 8) + high), np.abs((numbers & 255) + low)]

    def in_chunks(self, chunks: int, length: int) -> _Weights:
        """Return the weights with each tap divided into chunks of this length, the last filled up with real zeros."""
        taps, depth, columns = self.stored.shape
        whole = np.broadcast_to(-self.addends, (taps, chunks * length, columns)).copy()
        whole[:, :depth] = self.stored
        return replace(self, stored=whole.reshape(taps * chunks, length, columns))


def _weights_of(step: Step, matrix: np.ndarray, columns: int) -> _Weights:
    """Return weights; `matrix` are the stored numbers as [taps, depth, columns]."""
    weights = operand(step, 1)
    info = np.iinfo(weights.dtype.numpy)
    middle = 0 if info.min < 0 else (info.max + 1) // 2
    zeros = np.broadcast_to(-np.array(quantization_of(weights).offsets, np.int64), (columns,))
    return _Weights(matrix.astype(np.int64) - middle, middle - zeros, f"w{info.bits}")


def _block(weights: _Weights) -> int:
    """Return the number of taps in a block: the sum of every block of taps fits 32 bits."""
    tap_sums = np.max([part.sum(1) for part in weights.magnitudes()], axis=0)
    taps = len(tap_sums)
    for blocks in range(1, taps + 1):
        size = -(-taps // blocks)
        padded = np.zeros((-(-taps // size) * size, tap_sums.shape[1]), np.int64)
        padded[:taps] = tap_sums
        if padded.reshape(-1, size, tap_sums.shape[1]).sum(1).max() <= _MAX_WEIGHTS:
            return size
    raise AssertionError("a chunk fits 32 bits")


def _bias(step: Step, columns: int) -> np.ndarray:
    """Return the bias in units of the sums, not rounded; zeros if there is none."""
    bias, x, weights = (step.inputs[i] if len(step.inputs) > i else None for i in (2, 0, 1))
    if bias is None:
        return np.zeros(columns)
    assert x is not None
    assert weights is not None
    assert bias.data is not None
    units = fixed_point.product_units(x, weights, columns)
    if not fixed_point.is_in_reals(bias, units):
        return bias.data.reshape(-1).astype(np.float64)
    if bias.dtype.is_float:
        return bias.data.reshape(-1).astype(np.float64) / units
    quantization = quantization_of(bias)
    steps = bias.data.reshape(-1).astype(np.int64) + np.array(quantization.offsets)
    return steps * np.array(quantization.scales, np.float32).astype(np.float64) / units


def _scales(step: Step, columns: int) -> np.ndarray:
    """Return the factors from sums to steps of the result."""
    units = fixed_point.product_units(operand(step, 0), operand(step, 1), columns)
    return units / float(np.float32(quantization_of(step.outputs[0]).scale))


def _in_integers(
    step: Step, weights: _Weights, scales: np.ndarray, bias: np.ndarray, e: Emitter
) -> tuple[_Weights, np.ndarray]:
    """Return weights and scales for sums that are scaled in integers if the numerics ask for it, else as they are."""
    # In integers, a scale is a multiplier and a shift, and halves are rounded up. LiteRT's multipliers have 15 bits;
    # its matrix products have finer scales. For Hexagon chips they have as many bits as the largest sum leaves room
    # for.
    fractions, exponents = np.frexp(scales)
    if weights.width != "w8":
        return weights, scales
    if e.numerics == HEXAGON:
        largest = float((np.abs(weights.values).sum((0, 1)) * (1 << 16) + np.abs(bias)).max(initial=0))
        bits, most = min(31, 62 - math.frexp(largest)[1]), 62
        if bits < 16 or (bias != np.rint(bias)).any():
            return weights, scales
        multipliers = np.rint(fractions * (1 << bits)).astype(np.int64)
    elif e.numerics == "litert" and step.op not in ("FullyConnected", "MatMul"):
        bits, most = 15, 46
        multipliers = np.floor(fractions * (1 << 31) + 0.5).astype(np.int64)
        carries = multipliers == 1 << 31
        multipliers, exponents = np.where(carries, multipliers >> 1, multipliers), exponents + carries
        multipliers = np.where(multipliers < 0x7FFF0000, (multipliers + (1 << 15)) >> 16, 0x7FFF)
    else:
        return weights, scales
    shifts = bits - exponents.astype(np.int64)
    if shifts.min() < 1 or shifts.max() > most:
        return weights, scales
    return replace(weights, width="w8i"), (multipliers + (shifts << 32)).view(np.float64)


def _heads(bias: np.ndarray, scales: np.ndarray, weights: _Weights) -> list[np.ndarray]:
    """Return what a panel has for each column before the weights; addends occur twice, for pairs of weights."""
    return [bias, scales, *(part.astype(np.int16).repeat(2).view(np.int32) for part in weights.parts())]


def _product_of(step: Step) -> QuantizedProduct:
    """Return the product that a step computes, with distances in bytes."""
    return products.in_bytes(products.product_of(step), 2, 2)


def _work(step: Step, target: Target, threads: int) -> int:
    """Return the bytes of scratch for rows that cannot be read in place."""
    return _chunking(_product_of(step), operand(step, 0), target, threads)[0].work_bytes * threads


def _effort(step: Step, axis: int, target: Target) -> Effort | None:
    """Return the cost of tiles (see `tile_effort`)."""
    product = _product_of(step)
    plan = products.cut(product, products.row_form(operand(step, 0), target), target, 1)
    return products.tile_effort(product, plan.vectors, step, axis, target)


def _emit(step: Step, e: Emitter) -> None:
    product, data = _product_of(step), operand(step, 1).data
    assert data is not None
    weights = _weights_of(step, products.matrix_of(step, product, data), product.columns * product.groups)
    _emit_product(step, e, product, weights)


def _emit_product(
    step: Step, e: Emitter, product: QuantizedProduct, everything: _Weights, places: tuple[int, int] = (0, 0),
    out_row: int = 0,
) -> None:  # fmt: skip
    """Emit one instruction for each group of channels."""
    # `places` are the offsets of the product's input and result in the tensors, `out_row` the distance between rows of
    # results, all in bytes; if that is 0, rows follow each other.
    x, output = operand(step, 0), step.outputs[0]
    plan, chunks = _chunking(product, x, e.target, e.threads)
    origin = products.origin_of(x, products.row_form(x, e.target))
    total = product.columns * product.groups
    bias = _bias(step, total)
    everything, scales = _in_integers(step, everything, _scales(step, total), bias, e)
    starts = products.offsets(product, plan)
    tap_offsets = (starts[:, None] + 4 * plan.groups * np.arange(chunks)).reshape(-1)
    columns = plan.vectors * e.target.lanes
    for group in range(product.groups):
        part = slice(group * product.columns, (group + 1) * product.columns)
        weights = replace(everything, stored=everything.stored[:, :, part], addends=everything.addends[part]).in_chunks(
            chunks, 2 * plan.groups
        )
        heads = _heads(bias[part] - origin * weights.values.sum((0, 1)), scales[part], weights)
        block, taps = _block(weights), len(tap_offsets)
        panel_bytes = columns * (HEAD_BYTES[weights.width] + GROUP_BYTES[weights.width] * taps * plan.groups)
        e.emit(
            f"quantized_convolution:convolve_wide.{weights.width}_{plan.rows}x{plan.vectors}",
            x=e.at(x, places[0] + group * product.channels), y=e.at(output, places[1] + 2 * group * product.columns),
            weights=e.packed(products.panels, weights.stored, heads, columns, e.target.lanes, 2, weights.dtype),
            offsets=e.offset_table(tap_offsets), work=e.work(), work_bytes=plan.work_bytes,
            **products.geometry_words(product, plan, taps, panel_bytes), padding=origin & 0xFFFF, **result_limits(step),
            few_rows=int(everything.stored.size > x.elements),
            out_row=out_row or product.out_width * product.out_pixel,
            block=block, blocks=-(-taps // block),
        )  # fmt: skip


def _covers_weights(step: Step, *column_axes: int | None) -> bool:
    """Return whether a step multiplies 16-bit numbers by constants with one scale, or scales along a column axis."""
    weights = products.constant_weights(step, is_sixteen_bit)
    if weights is None or not weights.is_static or not weights.dtype.is_fixed_point or weights.dtype.itemsize > 2:
        return False
    limits, quantization = np.iinfo(weights.dtype.numpy), quantization_of(weights)
    inside = all(limits.min <= -offset <= limits.max for offset in quantization.offsets)
    columns = step.outputs[0].dims[-1]
    return inside and quantization.axis in (None, *column_axes) and weights.elements // columns <= _MAX_DEPTH


_COVERS = products.covers_products(_covers_weights)


# -- two matrices known at run time ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Multiplication:
    """The blocking of a product of matrices known at run time.

    Parameters
    ----------
    left, right
        The matrices.
    tile
        The rows and vectors of results in a tile.
    chunks, groups
        The chunks of the depth, and the pairs of numbers in each.
    """

    left: Matrices
    right: Matrices
    tile: tuple[int, int]
    chunks: int
    groups: int

    @staticmethod
    def of(step: Step, target: Target) -> _Multiplication:
        """Return the blocking of a step."""
        x, other, batch = operand(step, 0), operand(step, 1), step.outputs[0].dims[:-2]
        left = Matrices.of(x.dims, bool(step.params["transpose_in0"]), batch)
        right = Matrices.of(other.dims, bool(step.params["transpose_in1"]), batch)
        pairs = -(-left.columns // 2)
        chunks = -(-pairs // _CHUNK)

        def cost(tile: tuple[int, int]) -> int:
            """Return the number of results computed, including those beyond the edges of the matrix."""
            rows, vectors = tile
            return -(-left.rows // rows) * rows * -(-right.columns // (vectors * target.lanes)) * vectors

        return _Multiplication(left, right, min(products.tiles_of(target), key=cost), chunks, -(-pairs // chunks))

    def work_bytes(self, target: Target) -> int:
        """Return a thread's work space: a panel of the right matrix and rows of the left one."""
        rows, vectors = self.tile
        pitch = 4 * self.chunks * self.groups
        work = vectors * target.lanes * (HEAD_BYTES["w16"] + pitch) + rows * pitch
        return -(-work // 64) * 64


def _covers_multiplication(step: Step) -> bool:
    """Return whether a step multiplies two matrices of fixed point, 16 bits by 8 or 16, without a bias."""
    tensors = (*step.inputs[:2], *step.outputs)
    if len(step.inputs) > 2 and step.inputs[2] is not None:
        return False
    if not all(t is not None and t.elements and t.rank >= 2 for t in tensors) or step.part is not None:
        return False
    right = is_sixteen_bit(step.inputs[1]) or is_eight_bit(step.inputs[1])
    depth = operand(step, 0).dims[-2 if step.params["transpose_in0"] else -1]
    return is_sixteen_bit(step.inputs[0]) and right and is_sixteen_bit(step.outputs[0]) and depth <= _MAX_DEPTH


def _multiplication_work(step: Step, target: Target, threads: int) -> int:
    return _Multiplication.of(step, target).work_bytes(target) * threads


def _emit_multiplication(step: Step, e: Emitter) -> None:
    x, other, output = operand(step, 0), operand(step, 1), step.outputs[0]
    sizes = _Multiplication.of(step, e.target)
    left, right, size = sizes.left, sizes.right, other.dtype.itemsize
    batches = np.stack([left.batch * left.elements * 2, right.batch * right.elements * size], axis=1)
    rows, vectors = sizes.tile
    scale = fixed_point.scale_of(x) * fixed_point.scale_of(other) / fixed_point.scale_of(output)
    e.emit(
        f"quantized_convolution:multiply_wide.{rows}x{vectors}", left=e.at(x), right=e.at(other), y=e.at(output),
        batches=e.offset_table(batches), batch_count=len(batches), rows=left.rows, depth=left.columns,
        columns=right.columns, left_row=2 * left.row_step, left_column=2 * left.column_step,
        right_row=size * right.row_step, right_column=size * right.column_step, right_size=size,
        **fixed_point.operand_words(x, "left"), **fixed_point.operand_words(other, "right"), work=e.work(),
        work_bytes=sizes.work_bytes(e.target), offsets=e.offset_table(4 * sizes.groups * np.arange(sizes.chunks)),
        chunks=sizes.chunks, groups=sizes.groups, scale=scale, **fixed_point.result_words(step, output),
    )  # fmt: skip


# -- depthwise ---------------------------------------------------------------------------------------------------------


def _depthwise_product(step: Step) -> QuantizedProduct:
    """Return a depthwise product with all channels in one group; a tap is one pixel."""
    channels = operand(step, 0).dims[-1]
    return replace(_product_of(step), channels=2 * channels, columns=channels, groups=1)


def _depthwise_plan(step: Step, target: Target, threads: int) -> products.ProductBlocking:
    """Return the blocking: rows are always copied, and vectors of channels may reach beyond the last one."""
    product = _depthwise_product(step)
    plan = products.cut(product, products.row_form(operand(step, 0), target) or 1, target, threads, (DEPTHWISE_ROWS, 2))
    return replace(plan, groups=1, work_bytes=plan.work_bytes + 4 * target.lanes)


def _order(target: Target, channels: int) -> np.ndarray:
    """Return the channels of all panels, in the order of interleaved vectors; -1 where there is none."""
    width = 2 * target.lanes
    within = np.arange(width).reshape(-1, 2, 4).transpose(1, 0, 2).reshape(-1)
    order = (np.arange(0, -(-channels // width) * width, width)[:, None] + within).reshape(-1)
    return np.where(order < channels, order, -1)


def _depthwise_panels(bias: np.ndarray, scales: np.ndarray, weights: _Weights, target: Target) -> np.ndarray:
    """Return packed panels of two vectors of channels; `weights` have one number for each tap and channel."""
    taps, _, channels = weights.stored.shape
    order = _order(target, channels)
    matrix, *heads = (
        np.where(order >= 0, array[..., order], array.dtype.type(0))
        for array in (weights.stored[:, 0], *_heads(bias, scales, weights))
    )
    return products.panels(matrix.reshape(taps // 2, 2, -1), heads, 2 * target.lanes, target.lanes, 2, weights.dtype)


def _depthwise_work(step: Step, target: Target, threads: int) -> int:
    return _depthwise_plan(step, target, threads).work_bytes * threads


def _emit_depthwise(step: Step, e: Emitter) -> None:
    x, output, product = operand(step, 0), step.outputs[0], _depthwise_product(step)
    plan, channels = _depthwise_plan(step, e.target, e.threads), product.columns
    origin = products.origin_of(x, products.row_form(x, e.target))
    data = operand(step, 1).data
    assert data is not None
    weights = _weights_of(step, data.reshape(-1, 1, channels), channels)
    (kernel_h, kernel_w), pixel = product.kernel, product.channels
    starts = [i * plan.pitch + j * product.dilation[1] * pixel for i in range(kernel_h) for j in range(kernel_w)]
    if len(starts) % 2:
        # Taps are multiplied in pairs; the missing one gets weights that mean 0.
        starts.append(starts[-1])
        nothing = np.broadcast_to(-weights.addends, (1, 1, channels))
        weights = replace(weights, stored=np.concatenate([weights.stored, nothing]))
    corrected = _bias(step, channels) - origin * weights.values.sum((0, 1))
    weights, scales = _in_integers(step, weights, _scales(step, channels), _bias(step, channels), e)
    block = max(_block(weights) // 2 * 2, 2)
    columns = 2 * e.target.lanes
    panel_bytes = columns * (HEAD_BYTES[weights.width] + GROUP_BYTES[weights.width] * (len(starts) // 2))
    e.emit(
        f"quantized_convolution:convolve_wide_depthwise.{weights.width}", x=e.at(x), y=e.at(output),
        weights=e.constant(_depthwise_panels(corrected, scales, weights, e.target)),
        offsets=e.offset_table(np.array(starts, np.int64)), work=e.work(), work_bytes=plan.work_bytes,
        **products.geometry_words(product, plan, len(starts), panel_bytes), padding=origin & 0xFFFF,
        **result_limits(step), few_rows=0, out_row=product.out_width * product.out_pixel, block=block,
        blocks=-(-len(starts) // block),
    )  # fmt: skip


# -- transposed --------------------------------------------------------------------------------------------------------


def _phase_product(step: Step, phase: Phase) -> QuantizedProduct:
    """Return the plain convolution of one phase for one image, with all distances in bytes."""
    window = phase.window
    pixel = 2 * window.channels
    return QuantizedProduct(
        window.out[1], window.size[1], window.size[2], pixel, pixel // window.groups, window.out[1], window.out[2],
        2 * window.filters * fixed_point.pair(step, "stride")[1], window.filters // window.groups, window.kernel[1:],
        (1, 1), window.dilation[1:], window.pad[1], window.pad[2], window.groups,
    )  # fmt: skip


def _emit_transposed(step: Step, e: Emitter) -> None:
    """Emit a plain convolution for each phase of the stride and each image."""
    x, output, data = operand(step, 0), step.outputs[0], operand(step, 1).data
    assert data is not None
    groups, channels, filters = int(step.params["group"]), x.dims[-1], output.dims[-1]
    kernel = data.shape[:2]
    grouped = data.reshape(*kernel, groups, channels // groups, filters // groups)
    plain = np.moveaxis(grouped, 2, 3).reshape(*kernel, channels // groups, filters)
    row = 2 * output.dims[2] * filters
    for phase in phases(step):
        product = _phase_product(step, phase)
        if all(phase.kernel_index):
            taps = plain[np.ix_(*phase.kernel_index[1:])]
            weights = _weights_of(step, taps.reshape(product.taps, -1, filters), filters)
        else:
            # A phase without taps writes only the bias: its window has one tap, far outside the input.
            shape = (product.taps, product.run_pixels * channels // groups, filters)
            weights = _weights_of(step, np.zeros(shape, np.int64), filters)
            weights = replace(weights, stored=np.broadcast_to(-weights.addends, shape))
        first = phase.first[1] * row + phase.first[2] * 2 * filters
        for image in range(x.dims[0]):
            places = (2 * image * math.prod(x.dims[1:]), 2 * image * math.prod(output.dims[1:]) + first)
            _emit_product(step, e, product, weights, places, row * fixed_point.pair(step, "stride")[0])


def _transposed_work(step: Step, target: Target, threads: int) -> int:
    """Return the work space of the phase that needs most; phases use it one after the other."""
    x = operand(step, 0)
    plans = [_chunking(_phase_product(step, phase), x, target, threads)[0] for phase in phases(step)]
    return max(plan.work_bytes for plan in plans) * threads


def _covers_transposed(step: Step) -> bool:
    axis = 3 if step.params["group"] == 1 else None
    return step.part is None and _covers_weights(step, axis)


_DENSE = Lowering(_emit, _work, effort=_effort)
_MULTIPLICATION = Lowering(_emit_multiplication, _multiplication_work)
_DEPTHWISE = Lowering(_emit_depthwise, _depthwise_work)
FIXED16 = {
    "TransposeConv2d": (_covers_transposed, Lowering(_emit_transposed, _transposed_work)),
    "Conv2d": (_COVERS["Conv2d"], _DENSE),
    "FullyConnected": (_COVERS["FullyConnected"], _DENSE),
    "MatMul": (
        lambda step: _COVERS["MatMul"](step) or _covers_multiplication(step),
        choose(_COVERS["MatMul"], _DENSE, _MULTIPLICATION),
    ),
    "DepthWiseConv2d": (_COVERS["Conv2d"], choose(products.multiplies_channels, _DENSE, _DEPTHWISE)),
}
"""For each operation, a test of which steps its 16-bit lowering covers, and that lowering."""
