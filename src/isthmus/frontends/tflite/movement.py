"""Operators that move data: reshape, slice, join, gather, pad. Only data and indices need not be constants.

Functions in `CONVERTERS` take an operator's context, emit operations, and return the results (see `Converter`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isthmus.frontends.tflite.elementwise import Converter
from isthmus.frontends.tflite.operator_context import OperatorContext, data_type
from isthmus.graph import DataType, Tensor
from isthmus.graph.ops.movement import ADD, CONSTANT, MIRROR_REFLECT, MIRROR_SYMMETRIC


def _reshape(site: OperatorContext) -> list[Tensor]:
    """Convert a Reshape to a constant shape, an operand or an option; -1 takes the rest."""
    x = site.input(0)
    shape = site.integers(1) if site.given(1) is not None else site.options["new_shape"]
    if shape is None:
        site.refuse("the new shape is missing")
    if shape == [0] and x.elements == 1:  # old converters wrote a scalar this way
        shape = []
    dims = list(shape)
    if dims.count(-1) == 1:
        known = math.prod(d for d in dims if d != -1)
        if known < 1 or x.elements % known:
            site.refuse(f"{x.elements} elements cannot take the shape {shape}")
        dims[dims.index(-1)] = x.elements // known
    if any(d < 0 for d in dims) or math.prod(dims) != x.elements:
        site.refuse(f"{list(x.dims)} cannot take the shape {shape}")
    return site.finish(x, dims)


def _expand_dims(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    axis = site.axis(site.integer(1), x.rank + 1)
    return site.finish(x, (*x.dims[:axis], 1, *x.dims[axis:]))


def _squeeze(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    requested = site.options["squeeze_dims"]
    axes = {site.axis(a, x.rank) for a in requested} if requested else {a for a, d in enumerate(x.dims) if d == 1}
    if any(x.dims[a] != 1 for a in axes):
        site.refuse(f"axes {sorted(axes)} of {list(x.dims)} are not all of size 1")
    return site.finish(x, [d for a, d in enumerate(x.dims) if a not in axes])


def _transpose(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    return [site.emit("Transpose", [x], {"perm": [site.axis(p, x.rank) for p in site.integers(1)]})]


def _sliced(
    site: OperatorContext, x: Tensor, ranges: list[tuple[int, int, int]], dims: Sequence[int] | None
) -> list[Tensor]:
    """Slice, then reshape to `dims` if axes are added or removed; a slice of everything is only a reshape."""
    if all(r == (0, d, 1) for r, d in zip(ranges, x.dims, strict=True)):
        return site.finish(x, dims)
    params = {"ranges": np.asarray(ranges, np.int64).reshape(-1, 3)}
    if dims is None:
        return [site.emit("StridedSlice", [x], params)]
    return site.finish(site.step("StridedSlice", [x], params), dims)


def _slice(site: OperatorContext) -> list[Tensor]:
    """Slice from a begin by a size on each axis; a size of -1 takes the rest."""
    x = site.input(0)
    begins, sizes = site.integers(1), site.integers(2)
    if len(begins) != x.rank or len(sizes) != x.rank:
        site.refuse(f"begin {begins} and size {sizes} must have {x.rank} elements")
    ranges = []
    for begin, size, dim in zip(begins, sizes, x.dims, strict=True):
        end = dim if size == -1 else begin + size
        if not 0 <= begin <= end <= dim:
            site.refuse(f"begin {begins} and size {sizes} are not in {list(x.dims)}")
        ranges.append((begin, end, 1))
    return _sliced(site, x, ranges, None)


def _strided_slice(site: OperatorContext) -> list[Tensor]:
    """Convert to a StridedSlice, then a Reshape if axes are added or removed.

    `ranges` has one range per axis of the input, `dims` one size per axis of the result. An ellipsis takes all axes
    that no other position takes.
    """
    x = site.input(0)
    begins, ends, strides = (site.integers(i) for i in (1, 2, 3))
    if not len(begins) == len(ends) == len(strides) <= 32:
        site.refuse(f"begin {begins}, end {ends} and strides {strides} must have the same number of elements")

    def marked(mask: str, position: int) -> bool:
        """Return whether a mask among the options has the bit of a position in begin, end and strides."""
        return bool(site.options[mask] >> position & 1)

    taken = sum(not (marked("new_axis_mask", p) or marked("ellipsis_mask", p)) for p in range(len(begins)))
    if taken > x.rank:
        site.refuse(f"it slices {taken} axes, its input has rank {x.rank}")
    ranges: list[tuple[int, int, int]] = []
    dims: list[int] = []

    def take_whole(count: int) -> None:
        """Take the next axes of the input without slicing them."""
        for _ in range(count):
            dims.append(x.dims[len(ranges)])
            ranges.append((0, x.dims[len(ranges)], 1))

    for position, (begin, end, stride) in enumerate(zip(begins, ends, strides, strict=True)):
        if marked("ellipsis_mask", position):
            take_whole(x.rank - taken)
            taken = x.rank
        elif marked("new_axis_mask", position):
            dims.append(1)
        else:
            size = x.dims[len(ranges)]
            if marked("shrink_axis_mask", position):
                index = 0 if marked("begin_mask", position) else begin + size if begin < 0 else begin
                if not 0 <= index < size:
                    site.refuse(f"index {begin} is outside axis {len(ranges)} of {list(x.dims)}")
                ranges.append((index, index + 1, 1))
                continue
            if stride == 0:
                site.refuse("a stride of 0 takes nothing")
            if site.options["offset"]:
                end += begin
            # The bounds of begin and end: an end of -1 with a negative stride takes in element 0.
            low, high = (0, size) if stride > 0 else (-1, size - 1)
            first, last = (low, high) if stride > 0 else (high, low)
            begin = first if marked("begin_mask", position) else _clamped(begin, size, low, high)
            end = last if marked("end_mask", position) else _clamped(end, size, low, high)
            ranges.append((begin, end, stride))
            dims.append(max(0, -((begin - end) // stride)))
    take_whole(x.rank - len(ranges))
    plain = not (site.options["new_axis_mask"] or site.options["shrink_axis_mask"])
    return _sliced(site, x, ranges, None if plain else dims)


def _clamped(index: int, size: int, low: int, high: int) -> int:
    """Return an index, which counts from the end if it is negative, limited to a range."""
    return min(max(index + size if index < 0 else index, low), high)


def _concatenation(site: OperatorContext) -> list[Tensor]:
    tensors = [site.input(i) for i in range(len(site.inputs))]
    axis = site.axis(site.options["axis"], site.input(0).rank)
    # Empty tensors contribute nothing. Loops that collect their steps start with such tensors.
    non_empty = [t for t in tensors if t.elements] or tensors
    if len(non_empty) == 1:
        return site.activated("Reshape", non_empty, dims=non_empty[0].dims)
    return site.activated("Concat", non_empty, {"axis": axis})


def _pack(site: OperatorContext) -> list[Tensor]:
    tensors = [site.input(i) for i in range(len(site.inputs))]
    x = site.input(0)
    axis = site.axis(site.options["axis"], x.rank + 1)
    if len(tensors) == 1:
        return site.finish(x, (*x.dims[:axis], 1, *x.dims[axis:]))
    return [site.emit("Pack", tensors, {"axis": axis})]


def _unpack(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    axis = site.axis(site.options["axis"], x.rank)
    if x.dims[axis] != len(site.outputs):
        site.refuse(f"it has {len(site.outputs)} outputs for {x.dims[axis]} elements of axis {axis}")
    if len(site.outputs) == 1:
        return site.finish(x, (*x.dims[:axis], *x.dims[axis + 1 :]))
    return site.emit_all("UnPack", [x], {"axis": axis})


def _split_at(site: OperatorContext, x: Tensor, axis: int, sizes: list[int]) -> list[Tensor]:
    """Split an axis into parts of these sizes, one for each output."""
    if len(sizes) != len(site.outputs) or sum(sizes) != x.dims[axis] or min(sizes, default=0) < 0:
        site.refuse(f"axis {axis} of {list(x.dims)} cannot be split into {sizes} for {len(site.outputs)} outputs")
    if len(sizes) == 1:
        return site.finish(x)
    cuts = np.cumsum(sizes[:-1])
    return site.emit_all("Split", [x], {"axis": axis, "split_index": cuts})


def _split(site: OperatorContext) -> list[Tensor]:
    x, parts = site.input(1), len(site.outputs)
    axis = site.axis(site.integer(0), x.rank)
    if not parts or x.dims[axis] % parts:
        site.refuse(f"{x.dims[axis]} elements of axis {axis} cannot be split into {parts} equal parts")
    return _split_at(site, x, axis, [x.dims[axis] // parts] * parts)


def _split_v(site: OperatorContext) -> list[Tensor]:
    """Split into parts of constant sizes, one of which may be -1 for the rest."""
    x, sizes = site.input(0), site.integers(1)
    axis = site.axis(site.integer(2), x.rank)
    if sizes.count(-1) == 1:
        # A size of -1 takes the rest; the sum of the sizes includes it.
        sizes[sizes.index(-1)] = x.dims[axis] - sum(sizes) - 1
    return _split_at(site, x, axis, sizes)


def _indices(site: OperatorContext, index: int) -> Tensor:
    """Return an operand of indices. 64-bit indices stay 64-bit, since a cast would change large ones."""
    indices = site.input(index)
    return indices if indices.dtype is DataType.INT_64 else site.cast(indices, DataType.INT_32)


def _gather(site: OperatorContext) -> list[Tensor]:
    """Convert to a Gather, to a GatherNd if there are batch axes, or to a slice if there is one constant index."""
    x = site.input(0)
    if x.dtype.is_fixed_point and not data_type(site.output()).is_fixed_point:
        x = site.real(x)
    axis, batch = site.axis(site.options["axis"], x.rank), site.options["batch_dims"]
    indices = _indices(site, 1)
    if batch < 0:
        batch += indices.rank
    if batch:
        if axis != batch or not 0 <= batch <= indices.rank:
            site.unsupported("batch_dims that are not all axes before the gathered one are not supported")
        indices = site.reshape(indices, (*indices.dims, 1))
        return [site.emit("GatherNd", [x, indices], {"batch_dims": batch, "from_end": False})]
    if indices.is_static and indices.rank == 0:
        position = site.integer(1)
        if not 0 <= position < x.dims[axis]:
            site.refuse(f"index {position} is outside axis {axis} of {list(x.dims)}")
        ranges = [(position, position + 1, 1) if a == axis else (0, d, 1) for a, d in enumerate(x.dims)]
        return _sliced(site, x, ranges, (*x.dims[:axis], *x.dims[axis + 1 :]))
    return [site.emit("Gather", [x, indices], {"axis": axis, "from_end": False})]


def _embedding_lookup(site: OperatorContext) -> list[Tensor]:
    """Gather rows of a table (operand 1); a quantized table of a float result is dequantized."""
    table = site.input(1)
    if not data_type(site.output()).is_fixed_point:
        table = site.real(table) if table.dtype.is_fixed_point else table
    return [site.emit("Gather", [table, _indices(site, 0)], {"axis": 0, "from_end": False})]


def _gather_nd(site: OperatorContext) -> list[Tensor]:
    return [site.emit("GatherNd", [site.input(0), _indices(site, 1)], {"from_end": False})]


def _scatter_nd(site: OperatorContext) -> list[Tensor]:
    """Convert to a ScatterNd into zeros; updates of the same position are added."""
    updates = site.input(1)
    dims = site.limited(site.integers(2), updates.dtype.itemsize)
    if updates.dtype.is_fixed_point:
        site.unsupported("scattering quantized values is not supported")
    zeros = site.constant(np.zeros(dims, updates.dtype.numpy), "zeros")
    return [site.emit("ScatterNd", [zeros, _indices(site, 0), updates], {"reduction": ADD, "from_end": False})]


def _dynamic_update_slice(site: OperatorContext) -> list[Tensor]:
    """Convert to a ScatterNd; the update is moved inside the operand if it would extend beyond it."""
    x, update, begins = site.input(0), site.input(1), site.integers(2)
    if update.rank != x.rank or len(begins) != x.rank or any(u > d for u, d in zip(update.dims, x.dims, strict=True)):
        site.refuse(f"an update {list(update.dims)} at {begins} does not fit {list(x.dims)}")
    site.limited((update.elements, max(x.rank, 1)))
    corner = [min(max(b, 0), d - u) for b, d, u in zip(begins, x.dims, update.dims, strict=True)]
    positions = np.moveaxis(np.indices(update.dims), 0, -1) + np.asarray(corner)
    return [site.emit("ScatterNd", [x, site.constant(positions.astype(np.int32), "places"), update])]


def _pads(site: OperatorContext, rank: int) -> np.ndarray:
    """Return the constant amounts of padding before and after each axis (operand 1)."""
    pads = np.asarray(site.integers(1), np.int64)
    if pads.size != 2 * rank or (pads.size and pads.min() < 0):
        site.refuse(f"paddings {pads.tolist()} must be {rank} pairs of numbers that are not negative")
    return pads.reshape(rank, 2)


def _pad(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    params = {"scheme": CONSTANT, "pad_amount": _pads(site, x.rank)}
    if site.given(2) is not None:
        value, quantization = site.value(2), site.input(2).quantization
        if value.size != 1:
            site.refuse(f"the value to pad with must be one number, has {value.size} elements")
        # QNN takes the value as a real number, even for fixed-point tensors.
        real = value if quantization is None else quantization.dequantize(value)
        params["pad_constant_value"] = real.reshape(()).item()
    return [site.emit("Pad", [x], params)]


def _mirror_pad(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    scheme = {0: MIRROR_REFLECT, 1: MIRROR_SYMMETRIC}.get(site.options["mode"])
    if scheme is None:
        site.refuse(f"mode {site.options['mode']} is unknown")
    return [site.emit("Pad", [x], {"scheme": scheme, "pad_amount": _pads(site, x.rank)})]


def _tile(site: OperatorContext) -> list[Tensor]:
    return [site.emit("Tile", [site.input(0)], {"multiples": site.integers(1)})]


def _broadcast(site: OperatorContext, x: Tensor, dims: Sequence[int]) -> list[Tensor]:
    """Broadcast `x` to `dims`."""
    padded_dims = (1,) * (len(dims) - x.rank) + x.dims
    if len(padded_dims) != len(dims) or any(s not in (1, d) for s, d in zip(padded_dims, dims, strict=True)):
        site.refuse(f"{list(x.dims)} does not broadcast to {list(dims)}")
    if x.is_static:
        site.limited(dims, x.dtype.itemsize)
    multiples = [d if s == 1 else 1 for s, d in zip(padded_dims, dims, strict=True)]
    if not dims or all(m == 1 for m in multiples):
        return site.finish(x, dims)
    return [site.emit("Tile", [site.reshape(x, padded_dims)], {"multiples": multiples})]


def _broadcast_to(site: OperatorContext) -> list[Tensor]:
    return _broadcast(site, site.input(0), site.integers(1))


def _fill(site: OperatorContext) -> list[Tensor]:
    value = site.input(1)
    if value.elements != 1:
        site.refuse(f"the value to fill with must be one number, is {list(value.dims)}")
    return _broadcast(site, site.reshape(value, ()), site.integers(0))


def _broadcast_args(site: OperatorContext) -> list[Tensor]:
    """Return the shape that two constant shapes broadcast to."""
    left, right = site.integers(0), site.integers(1)
    try:
        dims = np.broadcast_shapes(tuple(left), tuple(right))
    except ValueError:
        site.refuse(f"{left} and {right} do not broadcast")
    return site.known(np.asarray(dims))


def _shape(site: OperatorContext) -> list[Tensor]:
    return site.known(np.asarray(site.input(0).dims, np.int64))


def _rank(site: OperatorContext) -> list[Tensor]:
    return site.known(np.asarray(site.input(0).rank))


def _range(site: OperatorContext) -> list[Tensor]:
    start, limit, delta = (site.value(i).reshape(-1) for i in range(3))
    if not start.size == limit.size == delta.size == 1 or not delta[0] or not np.isfinite([start, limit, delta]).all():
        site.refuse("a range needs one finite start, limit and step, and the step must not be 0")
    count = math.ceil((float(limit[0]) - float(start[0])) / float(delta[0]))
    site.limited((max(count, 0),))
    return site.known(np.arange(max(count, 0)) * delta[0] + start[0])


def _one_hot(site: OperatorContext) -> list[Tensor]:
    x, depth = _indices(site, 0), site.integer(1)
    on, off = (site.value(i) for i in (2, 3))
    if on.size != 1 or off.size != 1 or depth < 0:
        site.refuse("it needs one depth, one value for on and one for off")
    axis = site.axis(site.options["axis"], x.rank + 1)
    params = {"depth": depth, "axis": axis, "on_value": on.reshape(()).item(), "off_value": off.reshape(()).item()}
    return [site.emit("OneHot", [x], params | {"from_end": False})]


def _reverse(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    return [site.emit("Reverse", [x], {"axes": site.axes(1, x.rank)})]


def _reverse_sequence(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    batch, time = (site.axis(site.options[name], x.rank) for name in ("batch_dim", "seq_dim"))
    return [site.emit("ReverseSequence", [x, _indices(site, 1)], {"batch_axis": batch, "time_axis": time})]


def _densify(site: OperatorContext) -> list[Tensor]:
    """Return the expanded constant."""
    site.value(0)  # sparse constants are expanded when they are read
    return site.finish(site.input(0))


CONVERTERS: dict[str, Converter] = {
    "BROADCAST_ARGS": _broadcast_args,
    "BROADCAST_TO": _broadcast_to,
    "CONCATENATION": _concatenation,
    "DENSIFY": _densify,
    "DYNAMIC_UPDATE_SLICE": _dynamic_update_slice,
    "EMBEDDING_LOOKUP": _embedding_lookup,
    "EXPAND_DIMS": _expand_dims,
    "FILL": _fill,
    "GATHER": _gather,
    "GATHER_ND": _gather_nd,
    "MIRROR_PAD": _mirror_pad,
    "ONE_HOT": _one_hot,
    "PACK": _pack,
    "PAD": _pad,
    "PADV2": _pad,
    "RANGE": _range,
    "RANK": _rank,
    "RESHAPE": _reshape,
    "REVERSE_SEQUENCE": _reverse_sequence,
    "REVERSE_V2": _reverse,
    "SCATTER_ND": _scatter_nd,
    "SHAPE": _shape,
    "SLICE": _slice,
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "SQUEEZE": _squeeze,
    "STRIDED_SLICE": _strided_slice,
    "TILE": _tile,
    "TRANSPOSE": _transpose,
    "UNPACK": _unpack,
}
