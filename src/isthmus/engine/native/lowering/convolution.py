"""Convolutions of floats: plain, depth-wise and transposed, over one to three spatial axes.

A transposed convolution is computed as one plain convolution per phase of its stride; each writes every stride-th
pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isthmus.engine.native.lowering import winograd
from isthmus.engine.native.lowering.depthwise import depth_wise_effort, depth_wise_work, emit_depth_wise, is_depth_wise
from isthmus.engine.native.lowering.emitter import Effort, Emitter, Lowering
from isthmus.engine.native.lowering.float_nibbles import (
    FloatNibbles,
    float_nibbles,
    scale_block,
    stays_packed,
    work_bytes,
)
from isthmus.engine.native.lowering.grouped_convolution import emit_grouped, grouped_work, suits_groups
from isthmus.engine.native.lowering.matmul import (
    MatrixProduct,
    emit_product,
    product_work,
    stored_bias,
    without_common_floats,
)
from isthmus.engine.native.lowering.panels import PanelTile, choose_tile, form_ending, limits, pack_groups
from isthmus.engine.native.program import Operand
from isthmus.engine.native.signatures.elementwise import KINDS, SIZES
from isthmus.engine.native.target import Target
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.matrices import Matrices
from isthmus.prepare.geometry.phases import Phase, phases
from isthmus.prepare.geometry.windows import ConvWindow, triple, window_of
from isthmus.prepare.schedule import Step

# The number of channels from which single pixels are long enough runs of memory to be read one by one as taps.
_LONG_RUN = 32
_LIST_BYTES = 64 << 10
# The largest sizes of a thread's lists of addresses and of its copies of windows.
_COPY_BYTES = 256 << 10
# The divisor of `_LIST_BYTES` and `_COPY_BYTES` for tiles of a fused region, where little memory should be alive.
_LESS_FOR_TILES = 4


@dataclass(frozen=True)
class ConvBlocking:
    """The blocking of a convolution whose kernel reads taps through lists of addresses.

    Parameters
    ----------
    block
        The number of tiles for which lists are made at a time.
    whole_rows
        Whether a tap is a whole row of the kernel; else it is one pixel.
    work_bytes
        The size of a thread's work space: for lists, for copies of windows that cross an edge of the input, and for
        windows that are converted from smaller floats.
    """

    tile: PanelTile
    block: int
    whole_rows: bool
    work_bytes: int

    @staticmethod
    def of(window: ConvWindow, target: Target, size: int = 4) -> ConvBlocking:
        """Return the blocking of a window over elements of `size` bytes."""
        filters = window.filters // window.groups
        tile = choose_tile(window.whole_pixels, filters, target)
        kernel, crossing = window.kernel, window.crossing()
        # A whole row of the kernel is one run of memory. If that run crosses the edge of the input it must be copied,
        # which only pays if the alternative is many short runs.
        whole_rows = (
            window.groups == 1
            and window.dilation[2] == 1
            and kernel[2] > 1
            and (window.channels < _LONG_RUN or crossing == 0)
        )
        taps = kernel[0] * kernel[1] * (1 if whole_rows else kernel[2])
        list_bytes = (taps + 1) * tile.rows * 8
        copy_bytes = window.depth * size if whole_rows and crossing else 0
        row_bytes = window.channels * 4 * math.prod(window.stride)
        divisor = 1 if window.whole is None else _LESS_FOR_TILES
        block = min(
            tile.block(window.depth, filters, row_bytes, target),
            max(1, _LIST_BYTES // divisor // list_bytes),
            max(1, _COPY_BYTES // divisor // max(1, copy_bytes * tile.rows)),
            -(-window.pixels // tile.rows),
        )
        if size < 4:
            block = min(block, tile.staged_block(window.pixels, window.depth, filters, target))
        pixels = block * tile.rows
        # At most `crossing` windows of each output row that the block touches.
        copies = min(pixels, crossing * ((pixels - 2) // window.out[2] + 2)) if copy_bytes else 0
        # Each window in float32, and its address, after what it takes to align them.
        staged = pixels * (window.depth * 4 + 8) + 64 if size < 4 else 0
        nbytes = block * list_bytes + copies * copy_bytes + staged
        return ConvBlocking(tile, block, whole_rows, -(-nbytes // 64) * 64)


def _bias(step: Step) -> np.ndarray | None:
    return stored_bias(step.inputs[2] if len(step.inputs) > 2 else None)


def _refuses(step: Step) -> str | None:
    reason = without_common_floats(*step.inputs, *step.outputs)
    if reason is not None:
        return reason
    if any(t is not None and not t.is_static for t in step.inputs[1:]):
        return "weights and bias must be constants"
    if step.outputs[0].elements and not all(t is not None and t.elements for t in step.inputs[:2]):
        return "a convolution over no elements is not supported"
    return None


def _emit_window(
    e: Emitter, window: ConvWindow, weights: np.ndarray | FloatNibbles, bias: np.ndarray | None, source: Operand,
    result: Operand, steps: tuple[int, int, int, int], clamp: tuple[float, float] | None, kind: str,
) -> None:  # fmt: skip
    """Emit a convolution by address lists, of elements of a kind: f32, f16 or bf16."""
    # `steps` are the bytes between batches, planes, rows and pixels of the result, which need not be dense: a phase of
    # a transposed convolution writes only some pixels.
    size = SIZES[kind]
    cut, groups = ConvBlocking.of(window, e.target, size), window.groups
    filters, channels = window.filters // groups, window.channels // groups
    panels, group_bytes = _panels(e, weights, window, bias, cut.tile)
    run = channels * (window.kernel[2] if cut.whole_rows else 1)
    least, most = limits(clamp)
    # The sums of 16-bit results are not divided: they would wait in the result, and be rounded there.
    divided = cut.tile.depth_block(window.depth, run, e.target)
    nibbles = weights if isinstance(weights, FloatNibbles) else None
    e.emit(
        f"convolution:indirect.{cut.tile.variant}{form_ending(kind, nibbles is not None)}", x=source,
        panels=panels, result=result, zeros=e.constant(np.zeros(run * size, np.uint8)),
        work=e.work(), work_bytes=_window_work(window, e.target, size, nibbles is not None), tile_block=cut.block,
        batches=window.batches, size=window.size, out=window.out, kernel=window.kernel, stride=window.stride,
        dilation=window.dilation, pad=window.pad, pixel=window.channels * size, channels=channels, groups=groups,
        x_group=channels * size, panel_group=group_bytes, y_group=filters * size, columns=filters,
        y_strides=steps, whole_rows=int(cut.whole_rows),
        tap_block=divided if kind == "f32" else -(-window.depth // run),
        block=scale_block(nibbles, window.depth), floats=cut.work_bytes, least=least, most=most,
    )  # fmt: skip


def _panels(
    e: Emitter, weights: np.ndarray | FloatNibbles, window: ConvWindow, bias: np.ndarray | None, tile: PanelTile
) -> tuple[Operand, int]:
    """Pack the weights of each group of filters into panels; return them, and the bytes of a group."""
    width, columns = tile.width(e.target), window.filters // window.groups
    if isinstance(weights, np.ndarray):
        matrix = weights.reshape(window.depth, -1)
        nbytes = tile.matrix_bytes(window.depth, columns, e.target, min(4, matrix.itemsize))
        return e.packed(pack_groups, matrix, bias, window.groups, width), nbytes
    packed = []
    for first in range(0, window.filters, columns):
        part = slice(first, first + columns)
        own = weights.rearrange(lambda a, part=part: a.reshape(window.depth, -1)[:, part])  # type: ignore[misc]
        packed.append(own.panels(None if bias is None else bias[part], width))
    return e.constant(np.stack(packed)), packed[0].nbytes


def _has_nibbles(step: Step) -> bool:
    """Return whether the weights of a convolution are stored as 4-bit ones."""
    weights = operand(step, 1)
    # The input channels of all groups are one axis of the weights of a transposed convolution.
    if step.op.startswith("Transpose") and int(step.params["group"]) > 1:
        return False
    return stays_packed(weights, weights.rank - 2, weights.rank - 1)


def _nibbles(step: Step) -> FloatNibbles | None:
    """Return the weights of a convolution as 4-bit ones, if they are stored so."""
    return float_nibbles(operand(step, 1)) if _has_nibbles(step) else None


def _window_work(window: ConvWindow, target: Target, size: int, nibbles: bool) -> int:
    """Return a thread's work space for a convolution by address lists of elements of `size` bytes."""
    # With `nibbles`, parts of 4-bit weights follow the lists as floats.
    cut = ConvBlocking.of(window, target, size)
    if not nibbles:
        return cut.work_bytes
    run = window.channels // window.groups * (window.kernel[2] if cut.whole_rows else 1)
    return cut.work_bytes + work_bytes(cut.tile.depth_block(window.depth, run, target) * run, cut.tile.width(target))


def _result_steps(out: tuple[int, ...], pixel: int) -> tuple[int, int, int, int]:
    """Return the bytes between batches, planes, rows and pixels of a dense result; a pixel has `pixel` bytes."""
    return math.prod(out) * pixel, out[1] * out[2] * pixel, out[2] * pixel, pixel


def _emit(step: Step, e: Emitter) -> None:
    """Emit a convolution by Winograd's or the depth-wise kernels, as a matrix product, or by address lists."""
    source, result = step.inputs[0], step.outputs[0]
    if result.elements == 0:
        return
    if step.winograd:
        winograd.emit(step, e)
        return
    window, weights, nibbles, bias = window_of(step), operand(step, 1).data, _nibbles(step), _bias(step)
    assert weights is not None
    kind = KINDS[result.dtype]
    if is_depth_wise(window):
        emit_depth_wise(e, window, weights, bias, e.at(source), e.at(result), step.clamp, kind)
    elif nibbles is None and kind == "f32" and suits_groups(window, e.target):
        emit_grouped(step, e, bias)
    elif window.is_product:
        product = _as_product(window, e.target, kind)
        panels, _ = _panels(e, weights if nibbles is None else nibbles, window, bias, product.tile)
        emit_product(e, product, e.at(source), panels, e.at(result), step.clamp, e.work(), nibbles)
    else:
        steps = _result_steps(window.out, window.filters * SIZES[kind])
        packed = weights if nibbles is None else nibbles
        _emit_window(e, window, packed, bias, e.at(source), e.at(result), steps, step.clamp, kind)


def _as_product(window: ConvWindow, target: Target, kind: str) -> MatrixProduct:
    """Return a convolution without overlapping windows as the product of its pixels and its weights."""
    one = np.zeros(1, np.int64)
    left = Matrices(one, window.pixels, window.depth, window.depth, 1)
    right = Matrices(one, window.depth, window.filters, window.filters, 1)
    return MatrixProduct.of(left, right, target, None if window.whole is None else (1, window.whole_pixels), kind)


def _work(step: Step, target: Target, threads: int) -> int:
    window = window_of(step)
    if window.pixels == 0:
        return 0
    if step.winograd:
        return winograd.work_bytes(step, target, threads)
    if is_depth_wise(window):
        return depth_wise_work(window, target, threads)
    kind, nibbles = KINDS[step.outputs[0].dtype], _has_nibbles(step)
    if not nibbles and kind == "f32" and suits_groups(window, target):
        return grouped_work(window, target) * threads
    if window.is_product:
        return product_work(_as_product(window, target, kind), target, nibbles) * threads
    return _window_work(window, target, SIZES[kind], nibbles) * threads


def _effort(step: Step, axis: int, target: Target) -> Effort | None:
    """Return the cost of a fused region's tiles; the kernel's own tiles run over all pixels."""
    window = window_of(step)
    if window.pixels == 0:
        return None
    if is_depth_wise(window):
        return depth_wise_effort(window, axis == step.outputs[0].rank - 2)
    tile = choose_tile(window.whole_pixels, window.filters // window.groups, target)
    pixels = window.pixels // step.outputs[0].dims[axis]
    return lambda rows: tile.effort(rows * pixels)


def _emit_transposed(step: Step, e: Emitter) -> None:
    """Emit a plain convolution for each phase of the stride, with the taps of the kernel that this phase uses."""
    source, result, weights = step.inputs[0], step.outputs[0], operand(step, 1).data
    assert source is not None
    assert weights is not None
    if result.elements == 0:
        return
    groups, channels, filters = int(step.params["group"]), source.dims[-1], result.dims[-1]
    kernel, nibbles, kind = triple(weights.shape[:-2]), _nibbles(step), KINDS[result.dtype]

    def taps_of(phase: Phase) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that arranges weights as those of a plain convolution and takes the taps of a phase."""

        def arranged(array: np.ndarray) -> np.ndarray:
            grouped = array.reshape(*kernel, groups, channels // groups, filters // groups)
            plain = np.moveaxis(grouped, 3, 4).reshape(*kernel, channels // groups, filters)
            return plain[np.ix_(*phase.kernel_index)]

        return arranged

    batch, plane, row, pixel = _result_steps(triple(result.dims[1:-1]), filters * SIZES[kind])
    stride = triple(step.params["stride"])
    for phase in phases(step):
        # A phase without taps writes only the bias: its window has one tap, far outside the input.
        taps: np.ndarray | FloatNibbles
        if all(phase.kernel_index):
            taps = taps_of(phase)(weights) if nibbles is None else nibbles.rearrange(taps_of(phase))
        else:
            taps = np.zeros((*phase.window.kernel, channels // groups, filters), weights.dtype)
        offset = phase.first[0] * plane + phase.first[1] * row + phase.first[2] * pixel
        steps = (batch, plane * stride[0], row * stride[1], pixel * stride[2])
        _emit_window(e, phase.window, taps, _bias(step), e.at(source), e.at(result, offset), steps, step.clamp, kind)


def _transposed_work(step: Step, target: Target, threads: int) -> int:
    """Return the work space of the phase that needs most; phases use it one after the other."""
    size, nibbles = step.outputs[0].dtype.itemsize, _has_nibbles(step)
    sizes = [_window_work(p.window, target, size, nibbles) for p in phases(step) if p.window.pixels]
    return max(sizes, default=0) * threads


_PLAIN, _TRANSPOSED = Lowering(_emit, _work, _refuses, _effort), Lowering(_emit_transposed, _transposed_work, _refuses)
LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "DepthWiseConv1d", "DepthWiseConv2d"), _PLAIN),
    **dict.fromkeys(("TransposeConv1d", "TransposeConv2d", "TransposeConv3d"), _TRANSPOSED),
}
