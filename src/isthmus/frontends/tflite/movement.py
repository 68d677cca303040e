"""Operators that move data: reshape, slice, join, gather, pad. Only data and indices need not be constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isthmus.frontends.tflite.elementwise import Converter
from isthmus.frontends.tflite.operator_context import OperatorContext, data_type
from isthmus.graph import DataType, Tensor
from isthmus.graph.ops.movement import ADD, CONSTANT, MIRROR_REFLECT, MIRROR_SYMMETRIC


def _reshape(node: OperatorContext) -> list[Tensor]:
    """Convert a Reshape to a constant shape, an operand or an option; -1 takes the rest."""
    x = node.input(0)
    shape = node.integers(1) if node.optional(1) is not None else node.options["new_shape"]
    if shape is None:
        node.refuse("the new shape is missing")
    if shape == [0] and x.elements == 1:  # old converters wrote a scalar this way
        shape = []
    dims = list(shape)
    if dims.count(-1) == 1:
        product = math.prod(d for d in dims if d != -1)
        if product < 1 or x.elements % product:
            node.refuse(f"{x.elements} elements cannot take the shape {shape}")
        dims[dims.index(-1)] = x.elements // product
    if any(d < 0 for d in dims) or math.prod(dims) != x.elements:
        node.refuse(f"{list(x.dims)} cannot take the shape {shape}")
    return node.finish(x, dims)


def _expand_dims(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    axis = node.axis(node.integer(1), x.rank + 1)
    return node.finish(x, (*x.dims[:axis], 1, *x.dims[axis:]))


def _squeeze(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    requested = node.options["squeeze_dims"]
    axes = {node.axis(a, x.rank) for a in requested} if requested else {a for a, d in enumerate(x.dims) if d == 1}
    if any(x.dims[a] != 1 for a in axes):
        node.refuse(f"axes {sorted(axes)} of {list(x.dims)} are not all of size 1")
    return node.finish(x, [d for a, d in enumerate(x.dims) if a not in axes])


def _transpose(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    return [node.emit("Transpose", [x], {"perm": [node.axis(p, x.rank) for p in node.integers(1)]})]


def _emit_slice(
    node: OperatorContext, x: Tensor, ranges: list[tuple[int, int, int]], dims: Sequence[int] | None
) -> list[Tensor]:
    """Slice, then reshape to `dims` if axes are added or removed; a slice of everything is only a reshape."""
    if all(r == (0, d, 1) for r, d in zip(ranges, x.dims, strict=True)):
        return node.finish(x, dims)
    params = {"ranges": np.asarray(ranges, np.int64).reshape(-1, 3)}
    if dims is None:
        return [node.emit("StridedSlice", [x], params)]
    return node.finish(node.step("StridedSlice", [x], params), dims)


def _slice(node: OperatorContext) -> list[Tensor]:
    """Slice from a begin by a size on each axis; a size of -1 takes the rest."""
    x = node.input(0)
    begins, sizes = node.integers(1), node.integers(2)
    if len(begins) != x.rank or len(sizes) != x.rank:
        node.refuse(f"begin {begins} and size {sizes} must have {x.rank} elements")
    ranges = []
    for begin, size, dim in zip(begins, sizes, x.dims, strict=True):
        end = dim if size == -1 else begin + size
        if not 0 <= begin <= end <= dim:
            node.refuse(f"begin {begins} and size {sizes} are not in {list(x.dims)}")
        ranges.append((begin, end, 1))
    return _emit_slice(node, x, ranges, None)


def _strided_slice(node: OperatorContext) -> list[Tensor]:
    """Convert to a StridedSlice, then a Reshape if axes are added or removed."""
    # `ranges` has one range per axis of the input, `dims` one size per axis of the result. An ellipsis takes all axes
    # that no other position takes.
    x = node.input(0)
    begins, ends, strides = (node.integers(i) for i in (1, 2, 3))
    if not len(begins) == len(ends) == len(strides) <= 32:
        node.refuse(f"begin {begins}, end {ends} and strides {strides} must have the same number of elements")

    def is_marked(mask: str, position: int) -> bool:
        """Return whether a mask among the options has the bit of a position in begin, end and strides."""
        return bool(node.options[mask] >> position & 1)

    taken = sum(not (is_marked("new_axis_mask", p) or is_marked("ellipsis_mask", p)) for p in range(len(begins)))
    if taken > x.rank:
        node.refuse(f"it slices {taken} axes, its input has rank {x.rank}")
    ranges: list[tuple[int, int, int]] = []
    dims: list[int] = []

    def take_whole(count: int) -> None:
        """Take the next axes of the input without slicing them."""
        for _ in range(count):
            dims.append(x.dims[len(ranges)])
            ranges.append((0, x.dims[len(ranges)], 1))

    for position, (begin, end, stride) in enumerate(zip(begins, ends, strides, strict=True)):
        if is_marked("ellipsis_mask", position):
            take_whole(x.rank - taken)
            taken = x.rank
        elif is_marked("new_axis_mask", position):
            dims.append(1)
        else:
            size = x.dims[len(ranges)]
            if is_marked("shrink_axis_mask", position):
                index = 0 if is_marked("begin_mask", position) else begin + size if begin < 0 else begin
                if not 0 <= index < size:
                    node.refuse(f"index {begin} is outside axis {len(ranges)} of {list(x.dims)}")
                ranges.append((index, index + 1, 1))
                continue
            if stride == 0:
                node.refuse("a stride of 0 takes nothing")
            if node.options["offset"]:
                end += begin
            # The bounds of begin and end: an end of -1 with a negative stride takes in element 0.
            low, high = (0, size) if stride > 0 else (-1, size - 1)
            first, last = (low, high) if stride > 0 else (high, low)
            begin = first if is_marked("begin_mask", position) else _clamp(begin, size, low, high)
            end = last if is_marked("end_mask", position) else _clamp(end, size, low, high)
            ranges.append((begin, end, stride))
            dims.append(max(0, -((begin - end) // stride)))
    take_whole(x.rank - len(ranges))
    plain = not (node.options["new_axis_mask"] or node.options["shrink_axis_mask"])
    return _emit_slice(node, x, ranges, None if plain else dims)


def _clamp(index: int, size: int, low: int, high: int) -> int:
    """Return an index, which counts from the end if it is negative, limited to a range."""
    return min(max(index + size if index < 0 else index, low), high)


def _concatenation(node: OperatorContext) -> list[Tensor]:
    tensors = [node.input(i) for i in range(len(node.inputs))]
    axis = node.axis(node.options["axis"], node.input(0).rank)
    # Empty tensors contribute nothing. Loops that collect their steps start with such tensors.
    non_empty = [t for t in tensors if t.elements] or tensors
    if len(non_empty) == 1:
        return node.emit_activated("Reshape", non_empty, dims=non_empty[0].dims)
    return node.emit_activated("Concat", non_empty, {"axis": axis})


def _pack(node: OperatorContext) -> list[Tensor]:
    tensors = [node.input(i) for i in range(len(node.inputs))]
    x = node.input(0)
    axis = node.axis(node.options["axis"], x.rank + 1)
    if len(tensors) == 1:
        return node.finish(x, (*x.dims[:axis], 1, *x.dims[axis:]))
    return [node.emit("Pack", tensors, {"axis": axis})]


def _unpack(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    axis = node.axis(node.options["axis"], x.rank)
    if x.dims[axis] != len(node.outputs):
        node.refuse(f"it has {len(node.outputs)} outputs for {x.dims[axis]} elements of axis {axis}")
    if len(node.outputs) == 1:
        return node.finish(x, (*x.dims[:axis], *x.dims[axis + 1 :]))
    return node.emit_all("UnPack", [x], {"axis": axis})


def _split_at(node: OperatorContext, x: Tensor, axis: int, sizes: list[int]) -> list[Tensor]:
    """Split an axis into parts of these sizes, one for each output."""
    if len(sizes) != len(node.outputs) or sum(sizes) != x.dims[axis] or min(sizes, default=0) < 0:
        node.refuse(f"axis {axis} of {list(x.dims)} cannot be split into {sizes} for {len(node.outputs)} outputs")
    if len(sizes) == 1:
        return node.finish(x)
    cuts = np.cumsum(sizes[:-1])
    return node.emit_all("Split", [x], {"axis": axis, "split_index": cuts})


def _split(node: OperatorContext) -> list[Tensor]:
    x, parts = node.input(1), len(node.outputs)
    axis = node.axis(node.integer(0), x.rank)
    if not parts or x.dims[axis] % parts:
        node.refuse(f"{x.dims[axis]} elements of axis {axis} cannot be split into {parts} equal parts")
    return _split_at(node, x, axis, [x.dims[axis] // parts] * parts)


def _split_v(node: OperatorContext) -> list[Tensor]:
    """Split into parts of constant sizes, one of which may be -1 for the rest."""
    x, sizes = node.input(0), node.integers(1)
    axis = node.axis(node.integer(2), x.rank)
    if sizes.count(-1) == 1:
        # A size of -1 takes the rest; the sum of the sizes includes it.
        sizes[sizes.index(-1)] = x.dims[axis] - sum(sizes) - 1
    return _split_at(node, x, axis, sizes)


def _indices(node: OperatorContext, index: int) -> Tensor:
    """Return an operand of indices. 64-bit indices stay 64-bit, since a cast would change large ones."""
    indices = node.input(index)
    return indices if indices.dtype is DataType.INT_64 else node.cast(indices, DataType.INT_32)


def _gather(node: OperatorContext) -> list[Tensor]:
    """Convert to a Gather, to a GatherNd if there are batch axes, or to a slice if there is one constant index."""
    x = node.input(0)
    if x.dtype.is_fixed_point and not data_type(node.output()).is_fixed_point:
        x = node.real(x)
    axis, batch = node.axis(node.options["axis"], x.rank), node.options["batch_dims"]
    indices = _indices(node, 1)
    if batch < 0:
        batch += indices.rank
    if batch:
        if axis != batch or not 0 <= batch <= indices.rank:
            node.unsupported("batch_dims that are not all axes before the gathered one are not supported")
        indices = node.reshape(indices, (*indices.dims, 1))
        return [node.emit("GatherNd", [x, indices], {"batch_dims": batch, "from_end": False})]
    if indices.is_static and indices.rank == 0:
        position = node.integer(1)
        if not 0 <= position < x.dims[axis]:
            node.refuse(f"index {position} is outside axis {axis} of {list(x.dims)}")
        ranges = [(position, position + 1, 1) if a == axis else (0, d, 1) for a, d in enumerate(x.dims)]
        return _emit_slice(node, x, ranges, (*x.dims[:axis], *x.dims[axis + 1 :]))
    return [node.emit("Gather", [x, indices], {"axis": axis, "from_end": False})]


def _embedding_lookup(node: OperatorContext) -> list[Tensor]:
    """Gather rows of a table (operand 1); a quantized table of a float result is dequantized."""
    table = node.input(1)
    if not data_type(node.output()).is_fixed_point:
        table = node.real(table) if table.dtype.is_fixed_point else table
    return [node.emit("Gather", [table, _indices(node, 0)], {"axis": 0, "from_end": False})]


def _scatter_nd(node: OperatorContext) -> list[Tensor]:
    """Convert to a ScatterNd into zeros; updates of the same position are added."""
    updates = node.input(1)
    dims = node.check_size(node.integers(2), updates.dtype.itemsize)
    if updates.dtype.is_fixed_point:
        node.unsupported("scattering quantized values is not supported")
    zeros = node.constant(np.zeros(dims, updates.dtype.numpy), "zeros")
    return [node.emit("ScatterNd", [zeros, _indices(node, 0), updates], {"reduction": ADD, "from_end": False})]


def _dynamic_update_slice(node: OperatorContext) -> list[Tensor]:
    """Convert to a ScatterNd; the update is moved inside the operand if it would extend beyond it."""
    x, update, begins = node.input(0), node.input(1), node.integers(2)
    if update.rank != x.rank or len(begins) != x.rank or any(u > d for u, d in zip(update.dims, x.dims, strict=True)):
        node.refuse(f"an update {list(update.dims)} at {begins} does not fit {list(x.dims)}")
    node.check_size((update.elements, max(x.rank, 1)))
    corner = [min(max(b, 0), d - u) for b, d, u in zip(begins, x.dims, update.dims, strict=True)]
    positions = np.moveaxis(np.indices(update.dims), 0, -1) + np.asarray(corner)
    return [node.emit("ScatterNd", [x, node.constant(positions.astype(np.int32), "places"), update])]


def _pads(node: OperatorContext, rank: int) -> np.ndarray:
    """Return the constant amounts of padding before and after each axis (operand 1)."""
    pads = np.asarray(node.integers(1), np.int64)
    if pads.size != 2 * rank or (pads.size and pads.min() < 0):
        node.refuse(f"paddings {pads.tolist()} must be {rank} pairs of numbers that are not negative")
    return pads.reshape(rank, 2)


def _pad(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    params = {"scheme": CONSTANT, "pad_amount": _pads(node, x.rank)}
    if node.optional(2) is not None:
        value, quantization = node.value(2), node.input(2).quantization
        if value.size != 1:
            node.refuse(f"the value to pad with must be one number, has {value.size} elements")
        # QNN takes the value as a real number, even for fixed-point tensors.
        real = value if quantization is None else quantization.dequantize(value)
        params["pad_constant_value"] = real.reshape(()).item()
    return [node.emit("Pad", [x], params)]


def _mirror_pad(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    scheme = {0: MIRROR_REFLECT, 1: MIRROR_SYMMETRIC}.get(node.options["mode"])
    if scheme is None:
        node.refuse(f"mode {node.options['mode']} is unknown")
    return [node.emit("Pad", [x], {"scheme": scheme, "pad_amount": _pads(node, x.rank)})]


def _broadcast(node: OperatorContext, x: Tensor, dims: Sequence[int]) -> list[Tensor]:
    """Broadcast `x` to `dims`."""
    padded_dims = (1,) * (len(dims) - x.rank) + x.dims
    if len(padded_dims) != len(dims) or any(s not in (1, d) for s, d in zip(padded_dims, dims, strict=True)):
        node.refuse(f"{list(x.dims)} does not broadcast to {list(dims)}")
    if x.is_static:
        node.check_size(dims, x.dtype.itemsize)
    multiples = [d if s == 1 else 1 for s, d in zip(padded_dims, dims, strict=True)]
    if not dims or all(m == 1 for m in multiples):
        return node.finish(x, dims)
    return [node.emit("Tile", [node.reshape(x, padded_dims)], {"multiples": multiples})]


def _fill(node: OperatorContext) -> list[Tensor]:
    value = node.input(1)
    if value.elements != 1:
        node.refuse(f"the value to fill with must be one number, is {list(value.dims)}")
    return _broadcast(node, node.reshape(value, ()), node.integers(0))


def _broadcast_args(node: OperatorContext) -> list[Tensor]:
    """Return the shape that two constant shapes broadcast to."""
    left, right = node.integers(0), node.integers(1)
    try:
        dims = np.broadcast_shapes(tuple(left), tuple(right))
    except ValueError:
        node.refuse(f"{left} and {right} do not broadcast")
    return node.emit_constant(np.asarray(dims))


def _range(node: OperatorContext) -> list[Tensor]:
    start, limit, delta = (node.value(i).reshape(-1) for i in range(3))
    if not start.size == limit.size == delta.size == 1 or not delta[0] or not np.isfinite([start, limit, delta]).all():
        node.refuse("a range needs one finite start, limit and step, and the step must not be 0")
    count = math.ceil((float(limit[0]) - float(start[0])) / float(delta[0]))
    node.check_size((max(count, 0),))
    return node.emit_constant(np.arange(max(count, 0)) * delta[0] + start[0])


def _one_hot(node: OperatorContext) -> list[Tensor]:
    x, depth = _indices(node, 0), node.integer(1)
    on, off = (node.value(i) for i in (2, 3))
    if on.size != 1 or off.size != 1 or depth < 0:
        node.refuse("it needs one depth, one value for on and one for off")
    axis = node.axis(node.options["axis"], x.rank + 1)
    params = {"depth": depth, "axis": axis, "on_value": on.reshape(()).item(), "off_value": off.reshape(()).item()}
    return [node.emit("OneHot", [x], params | {"from_end": False})]


def _reverse(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    return [node.emit("Reverse", [x], {"axes": node.axes(1, x.rank)})]


def _reverse_sequence(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    batch, time = (node.axis(node.options[name], x.rank) for name in ("batch_dim", "seq_dim"))
    return [node.emit("ReverseSequence", [x, _indices(node, 1)], {"batch_axis": batch, "time_axis": time})]


def _densify(node: OperatorContext) -> list[Tensor]:
    """Return the expanded constant."""
    node.value(0)  # sparse constants are expanded when they are read
    return node.finish(node.input(0))


CONVERTERS: dict[str, Converter] = {
    "BROADCAST_ARGS": _broadcast_args,
    "BROADCAST_TO": lambda node: _broadcast(node, node.input(0), node.integers(1)),
    "CONCATENATION": _concatenation,
    "DENSIFY": _densify,
    "DYNAMIC_UPDATE_SLICE": _dynamic_update_slice,
    "EMBEDDING_LOOKUP": _embedding_lookup,
    "EXPAND_DIMS": _expand_dims,
    "FILL": _fill,
    "GATHER": _gather,
    "GATHER_ND": lambda node: [node.emit("GatherNd", [node.input(0), _indices(node, 1)], {"from_end": False})],
    "MIRROR_PAD": _mirror_pad,
    "ONE_HOT": _one_hot,
    "PACK": _pack,
    "PAD": _pad,
    "PADV2": _pad,
    "RANGE": _range,
    "RANK": lambda node: node.emit_constant(np.asarray(node.input(0).rank)),
    "RESHAPE": _reshape,
    "REVERSE_SEQUENCE": _reverse_sequence,
    "REVERSE_V2": _reverse,
    "SCATTER_ND": _scatter_nd,
    "SHAPE": lambda node: node.emit_constant(np.asarray(node.input(0).dims, np.int64)),
    "SLICE": _slice,
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "SQUEEZE": _squeeze,
    "STRIDED_SLICE": _strided_slice,
    "TILE": lambda node: [node.emit("Tile", [node.input(0)], {"multiples": node.integers(1)})],
    "TRANSPOSE": _transpose,
    "UNPACK": _unpack,
}
