"""Lowering of arithmetic on 8-bit fixed-point tensors: tables, sums, products, means, pools, softmax, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from isthmus.engine.native.lowering import quantized_convolution, quantized_depthwise
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.fixed_point import (
    STORED,
    emit_dequantize,
    emit_lookup,
    emit_quantize,
    no_reals_of,
    not_from_reals,
    rounding_kernel,
    signed_result,
)
from isthmus.engine.native.lowering.tables import function_codes
from isthmus.engine.native.target import Target
from isthmus.graph import DataType, Quantization, Tensor
from isthmus.graph.ops import having
from isthmus.graph.rounding import HEXAGON
from isthmus.prepare.geometry.byte_arithmetic import WeightedSum, byte_product, weighted_sum
from isthmus.prepare.geometry.fixed_point import is_eight_bit, is_sixteen_bit, quantization_of, stored_limits
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

Covers = Callable[[Step], bool]
"""A test of whether an 8-bit lowering supports a step."""


# -- functions of one element ------------------------------------------------------------------------------------------

_FUNCTIONS = having(
    lambda operation: (
        operation.traits.element_wise
        and operation.traits.fixed_point
        and (operation.inputs == (1, 1) or operation.traits.coefficients)
    )
)
"""Functions of one real, each lowered to a table of the 256 values of a byte."""


def _covers_function(step: Step) -> bool:
    """Return whether a table of 256 bytes can replace a function; a second operand must be one constant number."""
    slope_is_one_number = len(step.inputs) < 2 or (operand(step, 1).is_static and operand(step, 1).elements == 1)
    return is_eight_bit(step.inputs[0]) and is_eight_bit(step.outputs[0]) and slope_is_one_number


def _emit_function(step: Step, e: Emitter) -> None:
    x, output = operand(step, 0), step.outputs[0]
    emit_lookup(e, x, e.at(output), function_codes(step, e.numerics), step, output)


# -- sums and products -------------------------------------------------------------------------------------------------


def _modes(output: Tensor, dims: list[tuple[int, ...]]) -> tuple[int, list[bool]]:
    """Return how the axes are divided into runs: the first axis of a run, and whether each operand moves in a run.

    A run is the longest tail of axes on which an operand either moves with the output or stays at one element. `dims`
    are the operands' dimensions, with as many axes as the output.
    """
    # For each operand, whether it moves; None while all axes have one element.
    modes: list[bool | None] = [None, None]
    axis = output.rank
    while axis > 0:
        size = output.dims[axis - 1]
        wanted = [None if size == 1 else d[axis - 1] == size for d in dims]
        clash = any(w is not None and m is not None and w != m for w, m in zip(wanted, modes, strict=True))
        if clash:
            break
        modes = [m if w is None else w for w, m in zip(wanted, modes, strict=True)]
        axis -= 1
    return axis, [m is not False for m in modes]


def _emit_runs(kernel: str, step: Step, e: Emitter, parameters: Callable[[int, int], dict[str, int | float]]) -> None:
    """Emit one instruction over runs (see `_modes`); an operand that is fixed within a run comes second.

    `parameters` returns the words that only this kernel has, given the indices of the first and the second operand.
    """
    operands, output = [operand(step, 0), operand(step, 1)], step.outputs[0]
    rank = output.rank
    dims = [(1,) * (rank - t.rank) + t.dims for t in operands]
    axis, moves = _modes(output, dims)
    # For each operand, the offset of each run.
    offsets = []
    for shape in dims:
        tail = math.prod(shape[axis:])
        index = np.arange(math.prod(shape[:axis])).reshape(shape[:axis]) * tail
        offsets.append(e.constant(np.broadcast_to(index, output.dims[:axis]).astype(np.int32)))
    first, second = (0, 1) if moves[0] else (1, 0)
    e.emit(
        kernel, a=e.at(operands[first]), b=e.at(operands[second]), y=e.at(output), rows=math.prod(output.dims[:axis]),
        inner=math.prod(output.dims[axis:]), a_offsets=offsets[first], b_offsets=offsets[second],
        b_fixed=int(not all(moves)), **signed_result(step, output), **parameters(first, second),
    )  # fmt: skip


def _sum_of(step: Step) -> WeightedSum | None:
    """Return an addition or subtraction as a weighted sum of bytes; None if it cannot be one."""
    return weighted_sum(step, step.op == "ElementWiseSubtract")


def _emit_add(step: Step, e: Emitter) -> None:
    weighted = _sum_of(step)
    assert weighted is not None

    def parameters(first: int, second: int) -> dict[str, int | float]:
        factors = {"a_factor": weighted.factors[first], "b_factor": weighted.factors[second]}
        return {**factors, "bias": weighted.bias, "shift": weighted.shift}

    # Sums in fixed point round up in every mode.
    _emit_runs(f"quantized_binary:add.{STORED[step.outputs[0].dtype]}", step, e, parameters)


def _emit_multiply(step: Step, e: Emitter) -> None:
    product = byte_product(step)
    assert product is not None

    def parameters(first: int, second: int) -> dict[str, int | float]:
        return {"a_zero": product.zeros[first], "b_zero": product.zeros[second], "scale": float(product.scale)}

    stored = STORED[step.outputs[0].dtype]
    _emit_runs(rounding_kernel(e, step.op, "quantized_binary:multiply", stored), step, e, parameters)


# -- many elements into one --------------------------------------------------------------------------------------------


def _covers_one_type(step: Step) -> bool:
    """Return whether input and output are bytes of the same type."""
    x, output = step.inputs[0], step.outputs[0]
    return is_eight_bit(x) and is_eight_bit(output) and operand(step, 0).dtype is output.dtype


def _mean_extents(step: Step) -> tuple[int, int, int] | None:
    """Return the elements before, along and after the reduced axes; None if these are not neighbours."""
    dims = operand(step, 0).dims
    axes = sorted({int(a) % len(dims) for a in np.asarray(step.params["axes"]).reshape(-1)} or set(range(len(dims))))
    if axes != list(range(axes[0], axes[-1] + 1)):
        return None
    return math.prod(dims[: axes[0]]), math.prod(dims[axes[0] : axes[-1] + 1]), math.prod(dims[axes[-1] + 1 :])


def _covers_mean(step: Step) -> bool:
    return _covers_one_type(step) and _mean_extents(step) is not None


def _mean_work(step: Step, target: Target, threads: int) -> int:
    """Return the bytes for a 32-bit sum of each inner element, for each thread."""
    extents = _mean_extents(step)
    assert extents is not None
    return 4 * extents[2] * threads


def _emit_mean(step: Step, e: Emitter) -> None:
    x, output = operand(step, 0), step.outputs[0]
    extents = _mean_extents(step)
    assert extents is not None
    outer, count, inner = extents
    qx = quantization_of(x)
    e.emit(
        rounding_kernel(e, step.op, "quantized_reduction:mean", STORED[output.dtype]), x=e.at(x), y=e.at(output),
        outer_count=outer, count=count, inner=inner, work=e.work(), **_rounding_of_mean(step, e, qx, count),
    )  # fmt: skip


def _rounding_of_mean(step: Step, e: Emitter, qx: Quantization, count: int) -> dict[str, int | float]:
    """Return the words that turn sums of `count` stored values into a mean.

    `qx` is the quantization of these values.
    """
    output = step.outputs[0]
    qy = quantization_of(output)
    ratio = np.float32(qx.scale) / np.float32(qy.scale)
    if e.numerics == "litert":
        # Both zero points are added in float, before the only rounding.
        offset, zero = 0, 0
        bias = np.float32(qy.zero_point) - np.float32(qx.zero_point) * ratio
    else:
        offset, zero, bias = count * qx.zero_point, qy.zero_point, np.float32(0)
    least, most = stored_limits(step, output)
    scale = float(ratio / np.float32(count))
    return {"scale": scale, "offset": offset, "bias": float(bias), "zero": zero, "least": least, "most": most}


def is_mean_of_tile(step: Step) -> bool:
    """Return whether a step is a mean over all pixels of bytes that are added up tile by tile."""
    fixed = any(t is not None and t.dtype.is_fixed_point for t in (*step.inputs, *step.outputs))
    return fixed and step.part is not None and step.part.pixels > 0


def _emit_mean_of_tile(step: Step, e: Emitter) -> None:
    """Add the pixels of a tile to sums; or, for the last step, whose input are these sums, compute the mean."""
    x, output, part = operand(step, 0), step.outputs[0], step.part
    assert part is not None
    channels = output.dims[-1]
    if x.dtype is not DataType.INT_32:
        e.emit(
            f"tiles:add_bytes.{STORED[x.dtype]}", sums=e.at(output), x=e.at(x), pixels=x.elements // channels,
            channels=channels, goes_on=int(part.source_first > 0),
        )  # fmt: skip
        return
    e.emit(
        rounding_kernel(e, step.op, "tiles:mean_of_sums", STORED[output.dtype]), sums=e.at(x), y=e.at(output),
        channels=channels, **_rounding_of_mean(step, e, quantization_of(x), part.pixels),
    )  # fmt: skip


def _pool_work(step: Step, target: Target, threads: int) -> int:
    """Return the bytes for a sum of each channel, in 32 bits or 64, for each thread."""
    x = operand(step, 0)
    return 4 * x.dtype.itemsize * x.dims[3] * threads


def _emit_average_pool(step: Step, e: Emitter) -> None:
    x, output = operand(step, 0), step.outputs[0]
    qx, qy = quantization_of(x), quantization_of(output)
    (kh, kw), (sh, sw) = (np.asarray(step.params[n]).reshape(2).tolist() for n in ("filter_size", "stride"))
    (top, bottom), (left, right) = np.asarray(step.params["pad_amount"]).reshape(2, 2).tolist()
    batch, height, width, channels = x.dims
    # Within one quantization, the mean of stored values is the result, rounded as the model asks.
    ties_away = bool(step.params.get("ties_away_from_zero")) and qx == qy and e.numerics != HEXAGON
    # ONNX Runtime adds up reals, whose rounding moves exact halves. A chip adds up stored values, which is exact.
    scales, ratio = (qx.scale, qy.scale), np.float32(qy.scale) / np.float32(qx.scale)
    if is_sixteen_bit(x):
        ties_away = ties_away and qx.zero_point == 0
        scales = 1.0, float(np.float32(qx.scale)) / float(np.float32(qy.scale))
    elif e.numerics == HEXAGON and 0 < ratio < np.inf:
        scales = 1.0, float(ratio)
    least, most = stored_limits(step, output)
    kinds = "_".join(dict.fromkeys(STORED[tensor.dtype] for tensor in (x, output)))
    e.emit(
        rounding_kernel(e, step.op, "quantized_reduction:average_pool", kinds, step.params),
        x=e.at(x), y=e.at(output), batch=batch, height=height, width=width, channels=channels,
        out_height=output.dims[1], out_width=output.dims[2], kernel_h=kh, kernel_w=kw, stride_h=sh, stride_w=sw,
        top=top, left=left, bottom=bottom, right=right, padding_counts=int(step.params["count_pad_for_edges"]),
        work=e.work(), ties_away=int(ties_away), scale_in=scales[0], scale_out=scales[1],
        zero_in=qx.zero_point, zero_out=qy.zero_point, least=least, most=most,
    )  # fmt: skip


def _covers_softmax(step: Step) -> bool:
    return _covers_one_type(step) and int(step.params["axis"]) in (-1, operand(step, 0).rank - 1)


_MIN_SCALE = 2.0**-31
"""The scale of a result must be larger than this for its inverse to be an integer of 31 bits."""


def _emit_softmax(step: Step, e: Emitter) -> None:
    x, output = operand(step, 0), step.outputs[0]
    qx, qy = quantization_of(x), quantization_of(output)
    if e.numerics == "onnxruntime" and qy.scale > _MIN_SCALE:
        _emit_integer_softmax(step, e)
        return
    # The exponential of how far a stored value is below the largest one of its row.
    table = np.exp(-np.arange(256, dtype=np.float64) * qx.scale * float(step.params["beta"])).astype(np.float32)
    length = x.dims[-1]
    least, most = stored_limits(step, output)
    e.emit(
        f"quantized_reduction:softmax.{STORED[output.dtype]}", x=e.at(x), y=e.at(output), rows=x.elements // length,
        length=length, table=e.constant(table), inverse=min(1.0 / qy.scale, float(np.finfo(np.float32).max)),
        zero=qy.zero_point, least=least, most=most,
    )  # fmt: skip


def _emit_integer_softmax(step: Step, e: Emitter) -> None:
    """Emit a softmax in ONNX Runtime's integer arithmetic.

    Exponentials have up to 23 bits, so that sums fit 32. The inverse of the output's scale is truncated.
    """
    x, output = operand(step, 0), step.outputs[0]
    qx, qy = quantization_of(x), quantization_of(output)
    length = x.dims[-1]
    largest = min(float(0xFFFFFFFF) / length, float(0x7FFFFF))
    table = np.rint(largest * np.exp(-np.arange(256) * float(np.float32(qx.scale)) * float(step.params["beta"])))
    factor = int(np.floor(np.float32(1) / np.float32(qy.scale)))
    least, most = stored_limits(step, output)
    e.emit(
        f"quantized_reduction:softmax_of_integers.{STORED[output.dtype]}", x=e.at(x), y=e.at(output),
        rows=x.elements // length, length=length, table=e.constant(table.astype(np.int32)), factor=factor,
        zero=qy.zero_point, least=least, most=most,
    )  # fmt: skip


def _covers_resize(step: Step) -> bool:
    if not _covers_one_type(step) or step.clamp is not None:
        return False
    return quantization_of(operand(step, 0)) == quantization_of(step.outputs[0])


def _neighbours(size: int, out: int, align_corners: bool, half_pixel_centers: bool) -> np.ndarray:
    """Return, for each output index, the input indices before and after it, and the latter's weight in 11 bits.

    `size` and `out` are the lengths of the axis in the input and the output.
    """
    corner = int(align_corners and out > 1)
    scale = np.float32(size - corner) / np.float32(out - corner)
    position = np.arange(out, dtype=np.float32) * scale
    if half_pixel_centers:
        position = np.clip(position + (np.float32(0.5) * scale - np.float32(0.5)), np.float32(0), np.float32(size - 1))
    before = np.minimum(position.astype(np.int32), size - 1)
    weight = np.rint((position - before.astype(np.float32)) * np.float32(1 << 11))
    return np.stack([before, np.minimum(before + 1, size - 1), weight.astype(np.int32)], axis=1)


def _tile_of_neighbours(step: Step, axis: int, *modes: bool) -> np.ndarray:
    """Return `_neighbours` along an axis of a step; for a tile, its rows of the whole table, with input indices
    counted from the first available row. `modes` are the last parameters of `_neighbours`.
    """
    x, output, part = operand(step, 0), step.outputs[0], step.part
    if part is None or part.axis != axis:
        return _neighbours(x.dims[axis], output.dims[axis], *modes)
    rows = _neighbours(part.source_height, part.height, *modes)[part.first : part.first + output.dims[axis]]
    rows[:, :2] -= np.int32(part.source_first)
    return rows


def _emit_resize(step: Step, e: Emitter) -> None:
    x, output = operand(step, 0), step.outputs[0]
    modes = bool(step.params["align_corners"]), bool(step.params["half_pixel_centers"])
    rows, columns = (e.constant(_tile_of_neighbours(step, axis, *modes)) for axis in (1, 2))
    batch, height, width, channels = x.dims
    e.emit(
        f"quantized_reduction:resize_bilinear.{STORED[output.dtype]}", x=e.at(x), y=e.at(output), batch=batch,
        height=height, width=width, channels=channels, out_height=output.dims[1], out_width=output.dims[2], rows=rows,
        columns=columns,
    )  # fmt: skip


# -- to and from reals -------------------------------------------------------------------------------------------------


def _emit_dequantize(step: Step, e: Emitter) -> None:
    emit_dequantize(e, operand(step, 0), e.at(step.outputs[0]))


def _emit_quantize(step: Step, e: Emitter) -> None:
    emit_quantize(e, e.at(operand(step, 0)), step.outputs[0], step.op)


def _refuses_dequantize(step: Step) -> str | None:
    return no_reals_of(operand(step, 0)) or _not_float(step.outputs[0])


def _refuses_quantize(step: Step) -> str | None:
    return not_from_reals(step.outputs[0]) or _not_float(operand(step, 0))


def _not_float(tensor: Tensor) -> str | None:
    """Return why a tensor cannot hold the reals of a conversion, or None."""
    return None if tensor.dtype is DataType.FLOAT_32 else f"{tensor.describe()} must be float32"


def _always(step: Step) -> bool:
    return True


AVERAGE_POOL = Lowering(_emit_average_pool, _pool_work)
"""The lowering of average pools of 8 and of 16 bits."""
MEAN_OF_TILE = Lowering(_emit_mean_of_tile)
"""The lowering of the steps that `is_mean_of_tile` selects."""
QUANTIZED: dict[str, tuple[Covers, Lowering]] = {
    **quantized_convolution.QUANTIZED,
    **quantized_depthwise.QUANTIZED,
    **{op: (_covers_function, Lowering(_emit_function)) for op in _FUNCTIONS},
    "ElementWiseAdd": (lambda step: _sum_of(step) is not None, Lowering(_emit_add)),
    "ElementWiseSubtract": (lambda step: _sum_of(step) is not None, Lowering(_emit_add)),
    "ElementWiseMultiply": (lambda step: byte_product(step) is not None, Lowering(_emit_multiply)),
    "ReduceMean": (_covers_mean, Lowering(_emit_mean, _mean_work)),
    "PoolAvg2d": (_covers_one_type, AVERAGE_POOL),
    "ResizeBilinear": (_covers_resize, Lowering(_emit_resize)),
    "Softmax": (_covers_softmax, Lowering(_emit_softmax)),
    "Dequantize": (_always, Lowering(_emit_dequantize, refuses=_refuses_dequantize)),
    "Quantize": (_always, Lowering(_emit_quantize, refuses=_refuses_quantize)),
}
"""For each operation, a test of which steps its 8-bit lowering covers, and that lowering."""
