"""Lowering of 8-bit depthwise convolutions: channels are divided into blocks, weights packed in groups of rows.

A dot product adds up a group: bytes of one channel and column from neighbouring rows. The kernel first collects the
groups of input rows in work space.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isthmus.engine.native.lowering import fixed_point, quantized_convolution
from isthmus.engine.native.lowering.emitter import Effort, Emitter, Lowering, choose
from isthmus.engine.native.lowering.packed_weights import fits_unit, has_middle_zero
from isthmus.engine.native.lowering.quantized_product import multiplies_channels
from isthmus.engine.native.signatures.quantized_depthwise import block_kinds
from isthmus.engine.native.target import Target
from isthmus.graph import DataType
from isthmus.prepare.geometry.fixed_point import quantization_of
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

# The share of the L1 cache for groups, in bytes.
_L1_SHARE = 24 << 10
# The share of the L1 cache for tiles of a fused region: smaller, because little memory should be alive there.
_L1_SHARE_OF_TILE = 12 << 10
# The number of neighbouring results of a row that the kernel computes in one tile.
_MAX_OUTPUTS = 4
# The channels of the narrowest block.
_MIN_WIDTH = 16
# The largest number of input channels with several filters each, since each channel is an instruction of its own.
_MAX_GROUPS = 64

# The time for grouping the bytes of rows, relative to computing the rows.
_GROUPING = 0.3


@dataclass(frozen=True)
class _Blocking:
    """The blocking of a convolution for a target.

    Parameters
    ----------
    group_rows
        The number of input rows in a group.
    row_groups
        The number of groups above each other, for all rows of the kernel.
    together
        The number of output rows that share groups.
    needed_rows
        The number of input rows under those output rows.
    span
        The number of input columns under a result.
    segment
        The number of results of a row that are computed together.
    pitch
        The columns of work space for a row of groups.
    work_bytes
        The size of a thread's work space.
    """

    group_rows: int
    row_groups: int
    together: int
    needed_rows: int
    span: int
    segment: int
    pitch: int
    work_bytes: int

    def words(self) -> dict[str, int]:
        """Return the words of the instruction that have these names."""
        return {name: number for name, number in vars(self).items() if name != "group_rows"}


def _cut(step: Step, target: Target) -> _Blocking:
    """Choose the blocking of a convolution."""
    kernel_h, kernel_w = operand(step, 1).dims[:2]
    (stride_h, stride_w), (dilation_h, dilation_w) = (fixed_point.pair(step, name) for name in ("stride", "dilation"))
    group_rows = 2 if target.dot == "none" else 4
    row_groups = -(-kernel_h // group_rows)
    # Groups may have more rows than the kernel. The rest serves output rows further down.
    together = 1 if dilation_h > 1 else (group_rows * row_groups - kernel_h) // stride_h + 1
    needed_rows = (together - 1) * stride_h + kernel_h
    span = (kernel_w - 1) * dilation_w + 1
    out_width, channels = step.outputs[0].dims[2:]
    share = _L1_SHARE if step.part is None else _L1_SHARE_OF_TILE
    # The results of a row whose groups fit that share.
    fitting = share // (4 * target.vector_bytes * row_groups * stride_w)
    segment = min(max(fitting // _MAX_OUTPUTS, 2) * _MAX_OUTPUTS, out_width)
    # A tile of several results also reads the columns under results that are missing at the end.
    results = -(-segment // _MAX_OUTPUTS) * _MAX_OUTPUTS if segment > 1 else 1
    pitch = (results - 1) * stride_w + span
    _, widest, _ = _blocks(channels, target.lanes)[0]
    work_bytes = row_groups * pitch * 4 * widest
    return _Blocking(group_rows, row_groups, together, needed_rows, span, segment, pitch, work_bytes)


def _work(step: Step, target: Target, threads: int) -> int:
    return _cut(step, target).work_bytes * threads


def _blocks(channels: int, lanes: int) -> list[tuple[int, int, int]]:
    """Return first channel, width and kind (see `block_kinds`) of each block, the widest blocks first."""
    # The last block may overlap an earlier one, which then computes the same results.
    widths = block_kinds(lanes)
    if channels < _MIN_WIDTH:
        return [(0, _MIN_WIDTH, len(widths))]
    blocks, start = [], 0
    for kind, width in enumerate(widths):
        while channels - start >= width:
            blocks.append((start, width, kind))
            start += width
    if start < channels:
        blocks.append((channels - _MIN_WIDTH, _MIN_WIDTH, len(widths) - 1))
    return blocks


def _group_rows(weights: np.ndarray, cut: _Blocking, stride_h: int) -> np.ndarray:
    """Arrange weights as [rows together, row groups, kernel width, channels, rows of a group]."""
    kernel_h, kernel_w, channels = weights.shape
    # An output row reads the shared groups from its own first row on; its weights for other rows are zero.
    result = np.zeros((cut.together, cut.row_groups * cut.group_rows, kernel_w, channels), weights.dtype)
    for row in range(cut.together):
        result[row, row * stride_h : row * stride_h + kernel_h] = weights
    shaped = result.reshape(cut.together, cut.row_groups, cut.group_rows, kernel_w, channels)
    return shaped.transpose(0, 1, 3, 4, 2)


def _order(width: int) -> np.ndarray:
    """Return the channels of a block in the order that results from interleaving bytes within 128 bits."""
    lanes = width // 4
    return np.array([16 * (d // 4) + 4 * k + d % 4 for k in range(4) for d in range(lanes)])


def _pack_nibbles(body: np.ndarray) -> np.ndarray:
    """Pack 4-bit weights [..., channels of a block, rows of a group] into words."""
    # A step multiplies the channels in four vectors. A word has the groups of two of these vectors, of four bytes each,
    # or those of all four, of two 16-bit numbers each.
    *outer, channels, rows = body.shape
    together = 2 if rows == 4 else 4
    grouped = body.reshape(*outer, 4 // together, together, channels // 4, rows).astype(np.int64) & 15
    bits = np.arange(together)[:, None, None] * 4 + np.arange(rows) * (32 // rows)
    return np.bitwise_or.reduce(np.bitwise_or.reduce(grouped << bits, axis=-1), axis=-2).astype(np.uint32)


def _emit(step: Step, e: Emitter) -> None:
    """Emit one instruction; weights are packed block by block, each after the biases and scales of its channels."""
    x, weights, output = operand(step, 0), operand(step, 1), step.outputs[0]
    qx = quantization_of(x)
    batch, height, width, channels = x.dims
    kernel_h, kernel_w = weights.dims[:2]
    stride, dilation = fixed_point.pair(step, "stride"), fixed_point.pair(step, "dilation")
    (top, _), (left, _) = np.asarray(step.params["pad_amount"]).reshape(2, 2).tolist()
    cut = _cut(step, e.target)
    signed, wants_signed = x.dtype is DataType.SFIXED_POINT_8, e.target.dot == "sdot"
    # The element that means 0, in the form in which the target multiplies it. The bias includes its products.
    origin = qx.zero_point + (0 if signed == wants_signed else 128 if signed else -128)
    centred = fixed_point.without_zero_points(weights).reshape(kernel_h, kernel_w, channels)
    bias = fixed_point.bias_of(step, channels) - origin * centred.sum((0, 1), dtype=np.int64)
    scales = fixed_point.result_scales(e, step, channels)
    # Sums of unpacked bytes are multiples of 16 (see `kernels.nibbles`).
    unit = 16 if cut.group_rows == 4 else 1
    packs = weights.is_four_bit and has_middle_zero(weights) and fits_unit(unit, bias, scales, kernel_h * kernel_w)
    if packs:
        bias, scales = bias * unit, scales / np.float32(unit)
    # Nine-bit weights are the sum of two bytes; each step then occurs twice (see `quantized_convolution`).
    pieces = fixed_point.byte_parts(centred) if cut.group_rows == 4 else [centred]
    grouped = np.concatenate([_group_rows(piece, cut, stride[0]) for piece in pieces], axis=1)
    # The packed blocks, the row of each in the table, and their size so far.
    parts, table, packed = [], [], 0
    for start, block, kind in _blocks(channels, e.target.lanes):
        order = start + _order(block)
        # With fewer channels than a block has, the others repeat the last one with weights of zero.
        exists = order < channels
        order = np.minimum(order, channels - 1)
        head = np.stack([bias[order].astype(np.int32), scales[order].astype(np.float32).view(np.int32)])
        body = grouped[..., order, :] * exists[:, None]
        body = _pack_nibbles(body) if packs else body.astype(np.int8 if cut.group_rows == 4 else np.int16)
        parts += [np.ascontiguousarray(a).view(np.uint8).reshape(-1) for a in (head, body)]
        table.append((start, kind, packed))
        packed += parts[-2].size + parts[-1].size
    offsets = [g * cut.pitch + j * dilation[1] for g in range(cut.row_groups) for j in range(kernel_w)] * len(pieces)
    form = "" if not packs else "nibbles_bytes" if cut.group_rows == 4 else "nibbles_pairs"
    e.emit(
        fixed_point.rounding_kernel(e, step.op, "quantized_depthwise:convolve", form), x=e.at(x), y=e.at(output),
        weights=e.constant(np.concatenate(parts)), blocks=e.offset_table(np.array(table, np.int64)),
        offsets=e.offset_table(np.array(offsets, np.int64)),
        blank=e.constant(np.full(64, qx.zero_point & 0xFF, np.uint8)), work=e.work(), batch=batch, height=height,
        width=width, channels=channels, out_height=output.dims[1], out_width=output.dims[2], stride_h=stride[0],
        stride_w=stride[1], dilation_h=dilation[0], top=top, left=left, steps=len(offsets), block_count=len(table),
        input_flip=0 if signed == wants_signed else 0x80, **cut.words(), **fixed_point.signed_result(step, output),
    )  # fmt: skip


def _covers(step: Step) -> bool:
    """Return whether the 8-bit kernels support a step."""
    few = operand(step, 0).dims[3] <= _MAX_GROUPS
    return quantized_convolution.COVERS["Conv2d"](step) and (few or not multiplies_channels(step))


def _effort(step: Step, axis: int, target: Target) -> Effort | None:
    """Return the cost of tiles: grouping costs the same for fewer rows than are computed together."""
    together = _cut(step, target).together
    return (lambda rows: rows + _GROUPING * together * -(-rows // together)) if axis == 1 else None


_ONE_FILTER = Lowering(_emit, _work, effort=_effort)
QUANTIZED = {"DepthWiseConv2d": (_covers, choose(multiplies_channels, quantized_convolution.DENSE, _ONE_FILTER))}
"""For each operation, a test of which steps its 8-bit lowering covers, and that lowering."""
