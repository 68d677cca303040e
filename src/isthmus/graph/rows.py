"""The row rules of tiling: which rows of its operands an operation needs for some rows of its result.

Rows are indices along one axis of the result: the height of an image, its width, the tokens of a text. A `RowRule` is
only geometry and also describes nodes of model files. A `RowMap` adds what a call of the graph computes for a tile.
Both are about shapes; whether a tile has the same bits as the whole depends on the engine or runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from isthmus.graph.evaluation.sampling import axis_taps, image_resize_params
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS, having
from isthmus.graph.ops.movement import CONSTANT
from isthmus.graph.ops.sampling import LINEAR, NEAREST
from isthmus.graph.tensor import Tensor

Rows = tuple[int, int]
"""A range of rows: the first, and the one after the last."""
Params = dict[str, Any]
"""The parameters of a node, by name."""
Rate = int | Fraction
"""Rows of the operands per row of the result."""


def _no_edges(rows: Rows, source: Rows) -> Rows:
    """Return the padding of a tile that has none above or below."""
    return 0, 0


@dataclass(frozen=True)
class RowRule:
    """Dependence of the rows of a result on the rows of its operands.

    Rows ``a`` to ``b`` (not included) of the result need at most the rows ``a * rate - before`` to
    ``b * rate + after`` (not included) of the operands.

    - `height`: the number of rows of the operands.
    - `rate`: the step in rows of the operands from one row of the result to the next.
    - `before`, `after`: the rows of the operands that are needed beyond those that the rate gives.
    - `need`: the rows of the operands that rows ``a`` to ``b`` of the result need; the range is empty if the first is
      not below the second.
    - `edges`: the rows of padding above and below the operands, as a function of the rows of the result and of the
      operands.
    - `grain`: the number of rows of the result that must be computed together.
    """

    height: int
    rate: Rate
    before: Rate
    after: Rate
    need: Callable[[int, int], Rows]
    edges: Callable[[Rows, Rows], Rows] = _no_edges
    grain: int = 1


def same_rows(height: int) -> RowRule:
    """Describe a result in which each row needs the same row of the operands."""
    return RowRule(height, 1, 0, 0, lambda a, b: (a, b))


def window_rows(height: int, kernel: int, stride: int, dilation: int, top: int, bottom: int) -> RowRule:
    """Describe windows over an operand that is padded above and below.

    - `height`: the number of rows of the operand, without padding.
    - `kernel`, `stride`, `dilation`: the window's number of rows, the step between windows, and the step between rows
      of one window.
    - `top`, `bottom`: the rows of padding above and below the operand.
    """
    reach = (kernel - 1) * dilation + 1

    def need(a: int, b: int) -> Rows:
        return max(0, a * stride - top), min(height, (b - 1) * stride - top + reach)

    def edges(rows: Rows, source: Rows) -> Rows:
        first, last = rows[0] * stride - top, (rows[1] - 1) * stride - top + reach
        # Padding that rounding up adds after the last row does not count.
        return source[0] - first, min(bottom, max(0, last - source[1]))

    return RowRule(height, stride, top, reach - stride - top, need, edges)


def padded_rows(height: int, top: int, bottom: int) -> RowRule:
    """Describe an operand with rows of padding above and below."""

    def edges(rows: Rows, source: Rows) -> Rows:
        return max(0, top - rows[0]), max(0, rows[1] - top - height)

    return RowRule(height, 1, top, -top, lambda a, b: (max(0, a - top), min(height, b - top)), edges)


def enlarged_rows(height: int, times: int) -> RowRule:
    """Describe a result with `times` rows for each row of the operand."""
    return RowRule(height, Fraction(1, times), 0, 0, lambda a, b: (a // times, -(-b // times)), grain=times)


def reduced_rows(height: int, block: int) -> RowRule:
    """Describe a result with one row for each `block` rows of the operand."""
    return RowRule(height, block, 0, 0, lambda a, b: (a * block, b * block))


@dataclass(frozen=True)
class RowMap(RowRule):
    """The row rule of a call, with the parameters of its tiles.

    - `sliced`: pairs of the index of an operand that is sliced by rows and the axis of its rows. Other operands are
      used as they are.
    - `params`: the parameters for a tile, as a function of the rows of the result and of the operands.
    - `form`: the properties of a tile that do not follow from its number of rows. Tiles of equal form are the same
      computation.
    - `regular`: whether tiles far from the edges have equal forms.
    - `reduces`: whether all rows are reduced. The result then has no rows, and rows are those of the operand.
    """

    sliced: tuple[tuple[int, int], ...] = ()
    params: Callable[[Rows, Rows], Params] = lambda rows, source: {}
    form: Callable[[Rows, Rows], Hashable] = _no_edges
    regular: bool = True
    reduces: bool = False


def _map_rows(
    call: Call,
    rule: RowRule,
    *sliced: tuple[int, int],
    params: Callable[[Rows, Rows], Params] | None = None,
    form: Callable[[Rows, Rows], Hashable] | None = None,
    regular: bool = True,
) -> RowMap:
    """Map the rows of a call by a rule. The parameters default to the call's own, the form to the edges."""
    return RowMap(
        **vars(rule), sliced=sliced, params=params or (lambda rows, source: dict(call.params)),
        form=form or rule.edges, regular=regular,
    )  # fmt: skip


# Maps the rows of a call, given its result and an axis of it; returns None if it cannot be computed by rows.
_Mapper = Callable[[Call, Tensor, int], RowMap | None]


def row_map(call: Call, axis: int) -> RowMap | None:
    """Map the rows of a call along an axis of its result; return None if it cannot be computed by rows."""
    if call.declared is None or len(call.declared) != 1:
        return None
    result = call.declared[0]
    mapper = _MAPPERS.get(call.op)
    if mapper is None or not result.elements or not 0 <= axis < max(result.rank, 1):
        return None
    rows = mapper(call, result, axis)
    # Without a sliced operand, no tile would need less than the whole.
    return rows if rows is not None and rows.sliced else None


def mean_map(call: Call, axis: int) -> RowMap | None:
    """Map a mean over all pixels along an axis of its operand; return None if the call is not such a mean."""
    source = call.optional(0)
    if source is None or not _dynamic(source) or source.rank != 4 or source.dims[0] != 1 or axis not in (1, 2):
        return None
    if call.op == "ReduceMean":
        is_over_all_pixels = sorted(int(a) % 4 for a in np.asarray(call.params["axes"]).reshape(-1)) == [1, 2]
    elif call.op == "PoolAvg2d":
        window = [int(v) for v in call.params["filter_size"]]
        is_over_all_pixels = window == list(source.dims[1:3]) and not np.any(call.params["pad_amount"])
    else:
        return None
    if not is_over_all_pixels or source.dims[axis] < 2:
        return None
    return replace(_same_rows(call, (0, axis), height=source.dims[axis]), reduces=True)


def _dynamic(tensor: Tensor | None) -> bool:
    """Return whether a tensor is present and computed at run time."""
    return tensor is not None and not tensor.is_static


def _same_rows(call: Call, *sliced: tuple[int, int], height: int) -> RowMap:
    """Map a call in which each row of the result needs the same row of the sliced operands."""
    return _map_rows(call, same_rows(height), *sliced)


def _element_wise(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map an elementwise call. An operand that is broadcast along the axis is not sliced."""
    # A constant with rows is refused, since tiles would need different slices of it. Coefficients must be one number or
    # one per channel.
    height = result.dims[axis]
    coefficients = OPERATIONS[call.op].traits.coefficients
    sliced = []
    for index, tensor in enumerate(call.inputs):
        if tensor is None or (coefficients and index):
            if tensor is not None and prod(tensor.dims) not in (1, *tensor.dims[-1:]):
                return None
            continue
        own_axis = axis - (result.rank - tensor.rank)
        if own_axis < 0 or tensor.dims[own_axis] == 1:
            continue
        if tensor.is_static:
            return None
        sliced.append((index, own_axis))
    return _same_rows(call, *sliced, height=height) if height > 1 else None


def _coefficients_are_of_channels(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map Prelu and Batchnorm, whose coefficients have no rows."""
    return _element_wise(call, result, axis) if axis != result.rank - 1 else None


def _windows(call: Call, axis: int, kernel: int, dilation: int) -> RowMap | None:
    """Map a call that reads in[0] by windows, with `kernel` and `dilation` along the axis of the rows."""
    source = call.tensor(0)
    if not _dynamic(source):
        return None
    pads = np.asarray(call.params["pad_amount"]).reshape(-1, 2)
    top, bottom = (int(n) for n in pads[axis - 1])
    rule = window_rows(source.dims[axis], kernel, _per_axis(call, "stride", axis), dilation, top, bottom)

    def params(rows: Rows, source: Rows) -> Params:
        # A tile is padded only where it touches the edge of the image.
        tile_pads = pads.copy()
        tile_pads[axis - 1] = rule.edges(rows, source)
        return {**call.params, "pad_amount": tile_pads.reshape(np.shape(call.params["pad_amount"]))}

    return _map_rows(call, rule, (0, axis), params=params)


def _per_axis(call: Call, name: str, axis: int) -> int:
    """Return an element of a parameter with one number per spatial axis; `axis` counts the batch as axis 0."""
    return int(np.asarray(call.params[name]).reshape(-1)[axis - 1])


def _convolution(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map a convolution with constant weights along a spatial axis."""
    if any(_dynamic(t) for t in call.inputs[1:]) or not 1 <= axis < result.rank - 1:
        return None
    return _windows(call, axis, call.tensor(1).dims[axis - 1], _per_axis(call, "dilation", axis))


def _pool(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map pooling along a spatial axis."""
    return _windows(call, axis, _per_axis(call, "filter_size", axis), 1) if 1 <= axis < result.rank - 1 else None


def _transposed_convolution(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map a transposed convolution with constant weights along a spatial axis."""
    # A tile computes all rows that its rows of the operand reach, and crops those that are not its own by its padding.
    source, weights = call.tensor(0), call.tensor(1)
    if not _dynamic(source) or any(_dynamic(t) for t in call.inputs[1:]) or not 1 <= axis < result.rank - 1:
        return None
    pads = np.asarray(call.params["pad_amount"]).reshape(-1, 2)
    height, kernel = source.dims[axis], weights.dims[axis - 1]
    stride, top = _per_axis(call, "stride", axis), int(pads[axis - 1, 0])
    dilation = _per_axis(call, "dilation", axis) if "dilation" in call.params else 1
    reach = (kernel - 1) * dilation

    def need(a: int, b: int) -> Rows:
        # Filter element k maps row i to row o of the result with o + top = i * stride + k * dilation. A row that no
        # element reaches, because the filter is shorter than the stride, is assigned to the row before it.
        first = min(-(-(a + top - reach) // stride), (a + top) // stride)
        return max(0, first), min(height, (b - 1 + top) // stride + 1)

    def shift(rows: Rows, source: Rows) -> int:
        """Return how many rows that the tile's operand reaches lie above the tile."""
        return top + rows[0] - source[0] * stride

    extra = np.asarray(call.params["output_padding"]).reshape(-1)

    def params(rows: Rows, source: Rows) -> Params:
        tile_pads, tile_extra = pads.copy(), extra.copy()
        first = shift(rows, source)
        # The rows that the operand reaches below the tile are cropped; if it reaches too few, rows are added.
        spare = (source[1] - source[0] - 1) * stride + reach + 1 - first - (rows[1] - rows[0])
        tile_pads[axis - 1], tile_extra[axis - 1] = (first, max(0, spare)), max(0, -spare)
        shaped = {"pad_amount": tile_pads, "output_padding": tile_extra}
        return {**call.params, **{name: value.reshape(np.shape(call.params[name])) for name, value in shaped.items()}}

    before, after = Fraction(max(reach, stride - 1) - top, stride), Fraction(top, stride) + 1
    rule = RowRule(height, Fraction(1, stride), before, after, need)
    return _map_rows(call, rule, (0, axis), params=params, form=shift)


def _resize(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map a resize along any axis, by the positions that each row of the result reads."""
    source = call.tensor(0)
    if not _dynamic(source) or source.rank != result.rank:
        return None
    size, count = source.dims[axis], result.dims[axis]
    modes = {"ResizeBilinear": LINEAR, "ResizeNearestNeighbor": NEAREST}
    params = image_resize_params(call.params, modes[call.op]) if call.op in modes else call.params
    changed = {a for a in range(source.rank) if source.dims[a] != result.dims[a]}
    # Rows and columns of an image are interpolated together. If only one of them changes, the other reads its next
    # position too, with weight 0.
    is_2d = params["interpolation_mode"] == LINEAR and source.rank == 4 and axis in (1, 2) and changed in ({1}, {2})
    if size == count and not is_2d:
        return _same_rows(call, (0, axis), height=size)
    positions, weights = axis_taps(size, count, params)
    # An engine may round coordinates in another precision, and so read one row more.
    spare = int(weights.shape[1] > 1 and size != count)
    low, high = positions.min(1), positions.max(1)
    rate = Fraction(size, count)
    row = np.arange(count)
    before = max(int(np.ceil((row * size / count - low).max())), 0) + spare
    after = max(int(np.ceil((high + 1 - (row + 1) * size / count).max())), 0) + spare
    # Only with ratios of powers of two are positions and weights the same from one tile to the next in every precision.
    exact = not call.params.get("align_corners") and rate.numerator & (rate.numerator - 1) == 0
    exact = size == count or (exact and rate.denominator & (rate.denominator - 1) == 0)

    def need(a: int, b: int) -> Rows:
        return max(0, int(low[a:b].min()) - spare), min(size, int(high[a:b].max()) + 1 + spare)

    def form(rows: Rows, source: Rows) -> Hashable:
        if not exact:
            return rows[0]
        tile = slice(*rows)
        return (positions[tile] - source[0]).tobytes(), weights[tile].tobytes()

    return _map_rows(call, RowRule(size, rate, before, after, need), (0, axis), form=form, regular=exact)


def _blocks(rule: Callable[[int, int], RowRule]) -> _Mapper:
    """Make the mapper of DepthToSpace or SpaceToDepth; `rule` takes the operand's height and the block's."""

    def mapper(call: Call, result: Tensor, axis: int) -> RowMap | None:
        if not _dynamic(call.tensor(0)) or axis not in (1, 2):
            return None
        return _map_rows(call, rule(call.tensor(0).dims[axis], _per_axis(call, "block_size", axis)), (0, axis))

    return mapper


def _transpose(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map a transposition: rows along an axis of the result are rows along another axis of the operand."""
    if not _dynamic(call.tensor(0)):
        return None
    own_axis = int(np.asarray(call.params["perm"]).reshape(-1)[axis])
    return _same_rows(call, (0, own_axis), height=result.dims[axis])


def _pad(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map a Pad; along a padded axis, only padding with a constant."""
    source = call.tensor(0)
    if not _dynamic(source):
        return None
    amounts = np.asarray(call.params["pad_amount"]).reshape(source.rank, 2)
    top, bottom = (int(n) for n in amounts[axis])
    if (top or bottom) and call.params["scheme"] != CONSTANT:
        return None
    rule = padded_rows(source.dims[axis], top, bottom)

    def params(rows: Rows, source: Rows) -> Params:
        tile_amounts = amounts.copy()
        tile_amounts[axis] = rule.edges(rows, source)
        return {**call.params, "pad_amount": tile_amounts}

    return _map_rows(call, rule, (0, axis), params=params)


def _slice(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map a StridedSlice that takes all rows of the axis and keeps all axes."""
    source, params = call.tensor(0), call.params
    if not _dynamic(source) or any(params[name] for name in ("shrink_axes", "new_axes_mask", "begin_mask", "end_mask")):
        return None
    ranges = np.asarray(params["ranges"]).reshape(-1, 3)
    if source.rank != result.rank or tuple(ranges[axis].tolist()) != (0, source.dims[axis], 1):
        return None

    def tile_params(rows: Rows, source: Rows) -> Params:
        tile_ranges = ranges.copy()
        tile_ranges[axis] = 0, source[1] - source[0], 1
        return {**params, "ranges": tile_ranges}

    return _map_rows(call, same_rows(source.dims[axis]), (0, axis), params=tile_params)


def _concat(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map a Concat along another axis than the rows."""
    parts = [t for t in call.inputs if t is not None]
    if int(call.params["axis"]) % result.rank == axis or any(t.is_static for t in parts):
        return None
    return _same_rows(call, *((i, axis) for i in range(len(parts))), height=result.dims[axis])


def _along_axis(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map functions of lines along one axis, which must not be the axis of the rows."""
    if not _dynamic(call.tensor(0)) or int(call.params["axis"]) % result.rank == axis:
        return None
    return _same_rows(call, (0, axis), height=result.dims[axis])


def _along_axes(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map normalizations over several axes, which must not contain the axis of the rows."""
    axes = {int(a) % result.rank for a in np.asarray(call.params["axes"]).reshape(-1)}
    if not _dynamic(call.tensor(0)) or axis in axes or any(_dynamic(t) for t in call.inputs[1:]):
        return None
    return _same_rows(call, (0, axis), height=result.dims[axis])


def _fully_connected(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map a fully connected layer with constant weights along an axis before the features."""
    # If the result has not the operand's rank, it is a matrix. Its rows are then those of the operand's only axis
    # before the features that is larger than 1.
    source = call.tensor(0)
    if not _dynamic(source) or any(_dynamic(t) for t in call.inputs[1:]) or axis == result.rank - 1:
        return None
    if source.rank == result.rank and source.dims[:-1] == result.dims[:-1]:
        return _same_rows(call, (0, axis), height=result.dims[axis])
    own_axis = next((i for i in range(source.rank - 1) if source.dims[i] == prod(source.dims[:-1])), None)
    if axis or own_axis is None or source.dims[-1] != call.dims(1)[1]:
        return None
    return _same_rows(call, (0, own_axis), height=result.dims[0])


def _matmul(call: Call, result: Tensor, axis: int) -> RowMap | None:
    """Map a matrix product along the rows of the left matrices or along a batch axis."""
    left, right = call.tensor(0), call.tensor(1)
    height = result.dims[axis]
    if not _dynamic(left) or axis == result.rank - 1:
        return None
    if axis == result.rank - 2:
        return _same_rows(call, (0, left.rank - (1 if call.params["transpose_in0"] else 2)), height=height)
    sliced = []
    for index, tensor in enumerate((left, right)):
        own_axis = axis - (result.rank - tensor.rank)
        if own_axis >= 0 and tensor.dims[own_axis] > 1:
            if tensor.is_static:
                return None
            sliced.append((index, own_axis))
    return _same_rows(call, *sliced, height=height)


_MAPPERS: Mapping[str, _Mapper] = {
    **dict.fromkeys(having(lambda operation: operation.traits.element_wise), _element_wise),
    **dict.fromkeys(("Quantize", "Dequantize"), _element_wise),
    **dict.fromkeys(("Prelu", "Batchnorm"), _coefficients_are_of_channels),
    **dict.fromkeys(("Conv1d", "Conv2d", "DepthWiseConv1d", "DepthWiseConv2d"), _convolution),
    **dict.fromkeys(("PoolMax2d", "PoolAvg2d", "L2Pool2d"), _pool),
    **dict.fromkeys(("TransposeConv1d", "TransposeConv2d"), _transposed_convolution),
    **dict.fromkeys(("Resize", "ResizeBilinear", "ResizeNearestNeighbor"), _resize),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _along_axis),
    **dict.fromkeys(("LayerNorm", "RmsNorm", "L2Norm"), _along_axes),
    "DepthToSpace": _blocks(enlarged_rows),
    "SpaceToDepth": _blocks(reduced_rows),
    "Transpose": _transpose,
    "Pad": _pad,
    "StridedSlice": _slice,
    "Concat": _concat,
    "FullyConnected": _fully_connected,
    "MatMul": _matmul,
}
