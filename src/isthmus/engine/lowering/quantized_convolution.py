"""Lowering of 8-bit convolutions and products with constant weights: tiles chosen, weights packed, bias corrected."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isthmus.engine.lowering.emitter import Emitter, Lowering
from isthmus.engine.lowering.fixed_point import (
    bias_of,
    centred_weights,
    is_eight_bit,
    pair,
    quantization_of,
    signed_result,
    sums_fit,
    weight_scales,
)
from isthmus.engine.lowering.layout import operand
from isthmus.engine.target import Target
from isthmus.graph import DataType
from isthmus.prepare.schedule import Step

_TILES = {
    16: ((1, 4), (8, 3), (7, 3), (14, 2)),
    8: ((1, 4), (5, 2), (10, 1)),
    4: ((1, 4), (5, 2)),
}
"""Rows by vectors of results that a tile keeps in registers, by lanes of the target."""
_LATENCY = 5
_L1_SHARE = 16 << 10
_ROW_FORMS = {"vnni": "u8", "avxvnni": "u8", "sdot": "s8", "none": "s16"}


@dataclass(frozen=True)
class Product:
    """A convolution, or a matrix product in the form of one; extents are of one group of channels.

    Parameters
    ----------
    rows
        Image rows of results, of all images.
    pixel, out_pixel
        Bytes between neighbouring pixels.
    """

    rows: int
    height: int
    width: int
    pixel: int
    channels: int
    out_height: int
    out_width: int
    out_pixel: int
    columns: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    top: int = 0
    left: int = 0
    groups: int = 1

    @property
    def span(self) -> int:
        """Input columns under a result."""
        return (self.kernel[1] - 1) * self.dilation[1] + 1

    @property
    def stays_inside(self) -> bool:
        """Whether no window leaves the image."""
        down = (self.out_height - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilation[0] + 1
        across = (self.out_width - 1) * self.stride[1] + self.span
        return not self.top and not self.left and down <= self.height and across <= self.width

    @property
    def run_pixels(self) -> int:
        """Neighbouring pixels that are one tap: a row of the kernel, unless it is spread."""
        return self.kernel[1] if self.dilation[1] == 1 else 1

    @property
    def taps(self) -> int:
        """How many runs of input make a result."""
        return self.kernel[0] * self.kernel[1] // self.run_pixels


def product_of(step: Step) -> Product:
    """The product that a step computes. A depthwise convolution is one with a group for each input channel."""
    x, weights, output = operand(step, 0), operand(step, 1), step.outputs[0]
    if step.op in ("FullyConnected", "MatMul"):
        width = output.dims[-1] if step.op == "MatMul" else weights.dims[0]
        depth = weights.elements // width
        count = x.elements // depth
        return Product(1, 1, count, depth, depth, 1, count, width, width)
    batch, height, total_width, channels = x.dims
    _, out_height, out_width, filters = output.dims
    group = int(step.params["group"]) if step.op == "Conv2d" else channels
    (top, _), (left, _) = np.asarray(step.params["pad_amount"]).reshape(2, 2).tolist()
    stride, dilation = pair(step, "stride"), pair(step, "dilation")
    product = Product(
        batch * out_height, height, total_width, channels, channels // group, out_height, out_width, filters,
        filters // group, (weights.dims[0], weights.dims[1]), stride, dilation, top, left, group,
    )  # fmt: skip
    if product.kernel == stride == (1, 1) and product.stays_inside:
        pixels = batch * height * total_width
        return Product(1, 1, pixels, channels, product.channels, 1, pixels, filters, product.columns, groups=group)
    return product


@dataclass(frozen=True)
class Cut:
    """How a product is cut for a target: the tile, how rows are read, the segment, and what follows from them.

    Parameters
    ----------
    staged
        0 to read rows in place, else the number of the form that they are copied in.
    size
        Bytes of an element as it is multiplied.
    groups
        Groups of four bytes in a tap.
    """

    rows: int
    vectors: int
    staged: int
    size: int
    groups: int
    segment: int
    pitch: int
    work_bytes: int


def _tile(product: Product, groups: int, target: Target) -> tuple[int, int]:
    """The tile that computes a product in the least time."""
    vectors = -(-product.columns // target.lanes)

    def cost(tile: tuple[int, int]) -> float:
        rows, width = tile
        whole, rest = divmod(vectors, width)
        total = 0.0
        for count, v in ((whole, width), (1, rest)):
            if count and v:
                group = max(rows * v / 2, (rows + v) / 2, _LATENCY)
                total += count * (product.taps * groups * group + 4 * rows * v + 20)
        return -(-product.out_width // rows) * total

    return min(_TILES[target.lanes], key=cost)


def _form(signed: bool, target: Target) -> int:
    """How the kernel is told to bring rows into the form that the target multiplies; 0 where they have it."""
    wanted = _ROW_FORMS[target.dot]
    if wanted == "s16":
        return 3 if signed else 4
    return 0 if signed == (wanted == "s8") else 2


def cut(product: Product, signed: bool, target: Target, threads: int) -> Cut:
    """Cut a product whose input is signed or unsigned bytes."""
    form = _form(signed, target)
    size = 2 if form >= 3 else 1
    run = product.run_pixels * product.channels * size
    groups = -(-run // 4)
    rows, vectors = _tile(product, groups, target)
    contiguous = product.pixel == product.channels or product.run_pixels == 1
    in_place = form == 0 and product.stays_inside and contiguous and run % 4 == 0 and product.out_width >= rows
    under_result = product.kernel[0] * product.stride[1] * product.channels * size
    wanted = min(_L1_SHARE // under_result, -(-product.out_width * product.rows // (4 * threads)))
    segment = min(max(wanted // rows, 1) * rows, product.out_width)
    if in_place:
        return Cut(rows, vectors, 0, size, groups, segment, 0, 0)

    def row_bytes(results: int) -> int:
        return ((results - 1) * product.stride[1] + product.span) * product.channels * size

    pitch = -(-row_bytes(segment) // 4) * 4
    # The last tile reads rows that are not there, and the last group of a tap bytes beyond it.
    work = (product.kernel[0] - 1) * pitch + row_bytes(-(-segment // rows) * rows) + 4
    return Cut(rows, vectors, form or 1, size, groups, segment, pitch, -(-work // 64) * 64)


def _panels(
    matrix: np.ndarray, bias: np.ndarray, scales: np.ndarray, columns: int, lanes: int, per_group: int
) -> np.ndarray:
    """Panels of `columns` columns: bias, scales, then the groups of each tap. The last panel may be narrower."""
    taps, depth, width = matrix.shape
    groups = -(-depth // per_group)
    parts = []
    for start in range(0, width, columns):
        wanted = min(columns, width - start)
        padded_width = -(-wanted // lanes) * lanes
        part = np.zeros((taps, groups * per_group, padded_width), np.int8 if per_group == 4 else np.int16)
        part[:, :depth, :wanted] = matrix[:, :, start : start + wanted]
        cells = part.reshape(taps, groups, per_group, padded_width).transpose(0, 1, 3, 2)
        heads = np.zeros((2, padded_width), np.int32)
        heads[0, :wanted] = bias[start : start + wanted]
        heads[1, :wanted] = scales[start : start + wanted].astype(np.float32).view(np.int32)
        parts += [heads.reshape(-1).view(np.uint8), np.ascontiguousarray(cells).view(np.uint8).reshape(-1)]
    return np.concatenate(parts)


def _matrix(step: Step, product: Product) -> np.ndarray:
    """The centred weights as [taps, depth, columns], all groups of columns side by side."""
    centred = centred_weights(operand(step, 1))
    assert centred is not None
    if step.op == "FullyConnected":
        return centred.T[None]
    if step.op == "MatMul":
        square = centred.reshape(centred.shape[-2:])
        return (square.T if step.params["transpose_in1"] else square)[None]
    return centred.reshape(product.taps, -1, centred.shape[-1])


def _offsets(product: Product, cut: Cut) -> np.ndarray:
    """Where each tap begins, in bytes from the first."""
    down = cut.pitch if cut.staged else product.dilation[0] * product.width * product.pixel
    pixel = product.channels * cut.size if cut.staged else product.pixel
    across = range(0, product.kernel[1] * product.dilation[1], product.dilation[1])
    return np.array(
        [i * down + j * pixel for i in range(product.kernel[0]) for j in (across if product.run_pixels == 1 else (0,))],
        np.int64,
    )


def work_of(step: Step, target: Target, threads: int) -> int:
    """Scratch for rows that cannot be read in place."""
    signed = operand(step, 0).dtype is DataType.SFIXED_POINT_8
    return cut(product_of(step), signed, target, threads).work_bytes * threads


def emit(step: Step, e: Emitter) -> None:
    """One instruction for each group of channels."""
    x, output, product = operand(step, 0), step.outputs[0], product_of(step)
    qx, qy = quantization_of(x), quantization_of(output)
    plan = cut(product, x.dtype is DataType.SFIXED_POINT_8, e.target, e.threads)
    # What an element that means 0 is as it is multiplied.
    origin = {"u8": qx.zero_point % 256, "s8": qx.zero_point, "s16": 0}[_ROW_FORMS[e.target.dot]]
    if plan.staged == 2:
        origin = qx.zero_point + (128 if x.dtype is DataType.SFIXED_POINT_8 else -128)
    total = product.columns * product.groups
    scales = np.float32(qx.scale) * weight_scales(operand(step, 1), total) / np.float32(qy.scale)
    matrix, bias = _matrix(step, product), bias_of(step, total)
    columns = plan.vectors * e.target.lanes
    panel_bytes = columns * (8 + 4 * product.taps * plan.groups)
    distance = product.stride[1] * (product.channels * plan.size if plan.staged else product.pixel)
    # Threads share columns rather than rows where the weights are the larger operand.
    favour_columns = int(matrix.size > x.elements)
    for group in range(product.groups):
        part = slice(group * product.columns, (group + 1) * product.columns)
        weights = matrix[:, :, part]
        corrected = bias[part] - origin * weights.sum((0, 1), dtype=np.int64)
        panels = _panels(weights, corrected, scales[part], columns, e.target.lanes, 4 // plan.size)
        e.emit(
            f"quantized_convolution:convolve.{plan.rows}x{plan.vectors}",
            e.at(x, group * product.channels), e.at(output, group * product.columns), e.constant(panels),
            e.constant(_offsets(product, plan)), e.work(), plan.work_bytes,
            product.rows, product.height, product.width, product.pixel, product.channels, product.out_height,
            product.out_width, product.out_pixel, product.columns,
            product.kernel[0], product.span, *product.stride, product.dilation[0], product.top, product.left,
            product.taps, plan.groups, panel_bytes, plan.segment, plan.staged, plan.pitch, distance,
            origin & 0xFF, qx.zero_point, *signed_result(step, output), favour_columns,
        )  # fmt: skip


def _covers_weights(step: Step, *column_axes: int | None) -> bool:
    """Whether a step multiplies bytes by constant bytes, scaled by tensor or along one of the axes."""
    x, weights = step.inputs[0], step.inputs[1]
    bias = step.inputs[2] if len(step.inputs) > 2 else None
    if not (is_eight_bit(x) and is_eight_bit(step.outputs[0]) and weights is not None and weights.is_static):
        return False
    if centred_weights(weights) is None or not (bias is None or bias.is_static):
        return False
    if quantization_of(weights).axis not in (None, *column_axes):
        return False
    columns = step.outputs[0].dims[-1]
    return sums_fit(step, columns, weights.elements // columns)


def covers_convolution(step: Step) -> bool:
    """Whether a step convolves bytes with constant bytes scaled by tensor or by filter."""
    return _covers_weights(step, 3)


def _covers_fully_connected(step: Step) -> bool:
    return _covers_weights(step, 0)


def _covers_matmul(step: Step) -> bool:
    weights = operand(step, 1)
    if step.params["transpose_in0"] or weights.rank < 2 or math.prod(weights.dims[:-2]) != 1:
        return False
    return _covers_weights(step, weights.rank - (2 if step.params["transpose_in1"] else 1))


QUANTIZED = {
    "Conv2d": (covers_convolution, Lowering(emit, work_of)),
    "FullyConnected": (_covers_fully_connected, Lowering(emit, work_of)),
    "MatMul": (_covers_matmul, Lowering(emit, work_of)),
}
"""For each operation, which steps its 8-bit lowering covers, and that lowering."""
