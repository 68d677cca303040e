"""Operations that only move data: reshapes, slices, joins, gathers, scatters, blocks and shuffles."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from isthmus.graph.datatypes import INDICES, DataType
from isthmus.graph.operation import ISTHMUS, Call, Dims, Param, define, optional, options, own, required
from isthmus.graph.traits import Movement, Picks, Traits

CONSTANT, MIRROR_SYMMETRIC, MIRROR_REFLECT, EDGE = range(4)
"""Values of Pad's scheme."""
NONE, ADD, MUL, MAX, MIN = range(5)
"""Values of a scatter's reduction."""
MAX_OUTPUTS = 1 << 16
"""The most outputs of one node."""


def _reshape(call: Call) -> list[Dims]:
    dims = call.declared_dims()
    if math.prod(dims) != call.tensor(0).elements:
        call.refuse(f"in[0] {list(call.dims(0))} and out[0] {list(dims)} must have the same number of elements")
    return [dims]


def _squeeze(call: Call) -> list[Dims]:
    """Return in[0]'s dimensions without the axes of the parameter; without that, check the declared output."""
    dims = call.dims(0)
    if call.params["axes"] is not None:
        axes = call.axes()
        if any(dims[axis] != 1 for axis in axes):
            call.refuse(f"axes {list(axes)} of in[0] {list(dims)} must have size 1")
        return [tuple(size for axis, size in enumerate(dims) if axis not in axes)]
    out = call.declared_dims()
    # The number of sizes of the output that were matched so far.
    matched = 0
    for size in dims:
        if matched < len(out) and size == out[matched]:
            matched += 1
        elif size != 1:
            call.refuse(f"out[0] {list(out)} must be in[0] {list(dims)} without some sizes of 1")
    if matched != len(out):
        call.refuse(f"out[0] {list(out)} must be in[0] {list(dims)} without some sizes of 1")
    return [out]


def _expand_dims(call: Call) -> list[Dims]:
    dims = call.dims(0)
    axis = call.axis(rank=len(dims) + 1)
    return [(*dims[:axis], 1, *dims[axis:])]


def _transpose(call: Call) -> list[Dims]:
    dims = call.dims(0)
    perm = call.numbers("perm", len(dims))
    if sorted(perm.tolist()) != list(range(len(dims))):
        call.refuse(f"perm {perm.tolist()} must name each axis of {list(dims)} once")
    return [tuple(dims[p] for p in perm)]


def _concat(call: Call) -> list[Dims]:
    first = call.dims(0)
    axis = call.axis()
    total = 0
    for index in range(len(call.inputs)):
        call.check_same_type(0, index)
        dims = call.dims(index)
        if len(dims) != len(first) or dims[:axis] != first[:axis] or dims[axis + 1 :] != first[axis + 1 :]:
            call.refuse(f"in[{index}] {list(dims)} must equal in[0] {list(first)} except along axis {axis}")
        total += dims[axis]
    return [(*first[:axis], total, *first[axis + 1 :])]


def _pack(call: Call) -> list[Dims]:
    dims = call.dims(0)
    axis = call.axis(rank=len(dims) + 1)
    for index in range(1, len(call.inputs)):
        call.check_same_type(0, index)
        if call.dims(index) != dims:
            call.refuse(f"in[{index}] {list(call.dims(index))} must have the dimensions of in[0], {list(dims)}")
    return [(*dims[:axis], len(call.inputs), *dims[axis:])]


def _unpack(call: Call) -> list[Dims]:
    dims = call.dims(0)
    axis = call.axis()
    if not 1 <= dims[axis] <= MAX_OUTPUTS:
        call.refuse(f"axis {axis} of in[0] {list(dims)} must have 1 to {MAX_OUTPUTS} elements")
    return [(*dims[:axis], *dims[axis + 1 :])] * dims[axis]


def _split(call: Call) -> list[Dims]:
    """Check a split of an axis at ascending indices."""
    dims = call.dims(0)
    axis = call.axis()
    cuts = np.asarray(call.params["split_index"]).reshape(-1).tolist()
    edges = [0, *cuts, dims[axis]]
    if edges != sorted(edges):
        call.refuse(f"split_index {cuts} must ascend from 0 to the {dims[axis]} elements of axis {axis}")
    return [(*dims[:axis], b - a, *dims[axis + 1 :]) for a, b in itertools.pairwise(edges)]


def _strided_slice(call: Call) -> list[Dims]:
    """Check ranges of (begin, end, stride), one per axis; bit i of a mask is for axis i."""
    # begin_mask and end_mask take an axis from its first or to its last element. With a positive stride, negative
    # bounds count from the end. shrink_axes takes the element at begin, whatever the end and the stride, and removes
    # the axis. The ranges are replaced by resolved ones without masks.
    dims = call.dims(0)
    ranges = call.numbers("ranges", len(dims), 3, least=-(2**31))
    if call.params["new_axes_mask"]:
        call.refuse("new_axes_mask is not supported; use ExpandDims")
    out = []
    for axis, size in enumerate(dims):
        begin, end, stride = ranges[axis].tolist()
        if call.params["shrink_axes"] >> axis & 1:
            at = 0 if call.params["begin_mask"] >> axis & 1 else begin + size * (begin < 0)
            if not 0 <= at < size:
                call.refuse(f"axis {axis} cannot be shrunk to element {begin}: it has {size} ({list(dims)})")
            ranges[axis] = at, at + 1, 1
            continue
        if stride == 0:
            call.refuse(f"the stride along axis {axis} must not be 0")
        if stride > 0:
            begin, end = (bound + size * (bound < 0) for bound in (begin, end))
        # The bounds of begin and end: an end of -1 with a negative stride takes in element 0.
        lowest, highest = (0, size) if stride > 0 else (-1, size - 1)
        if call.params["begin_mask"] >> axis & 1:
            begin = lowest if stride > 0 else highest
        if call.params["end_mask"] >> axis & 1:
            end = highest if stride > 0 else lowest
        if not (lowest <= begin <= highest and lowest <= end <= highest):
            call.refuse(f"range {begin}:{end}:{stride} of axis {axis} must be in {lowest}..{highest} ({list(dims)})")
        ranges[axis] = begin, end, stride
        # (end - begin) / stride, rounded up.
        out.append(max(0, -((begin - end) // stride)))
    call.params |= {"ranges": ranges, "begin_mask": 0, "end_mask": 0}
    return [tuple(out)]


def _pad(call: Call) -> list[Dims]:
    dims = call.dims(0)
    pads = call.numbers("pad_amount", len(dims), 2)
    scheme = call.number("scheme", below=4)
    # A mirror cannot extend further than the input. A reflection does not repeat the edge, so it has one element less.
    # `margin` is this limit relative to the size; None if there is no limit.
    margin = {MIRROR_SYMMETRIC: 0, MIRROR_REFLECT: -1}.get(scheme)
    for axis, size in enumerate(dims):
        widest = int(pads[axis].max())
        if (margin is not None and widest > max(size + margin, 0)) or (scheme == EDGE and widest and not size):
            call.refuse(f"pad_amount {pads[axis].tolist()} of axis {axis} mirrors more than its {size} elements")
    return [tuple(d + int(p.sum()) for d, p in zip(dims, pads, strict=True))]


def _tile(call: Call) -> list[Dims]:
    dims = call.dims(0)
    return [tuple(d * int(m) for d, m in zip(dims, call.numbers("multiples", len(dims)), strict=True))]


def _check_indices(call: Call, index: int, *sizes: int) -> None:
    """Refuse constant indices outside their axis; for several axes, the last axis of the indices has one each."""
    indices = call.tensor(index)
    if indices.data is None or not indices.is_static or not indices.elements:
        return
    values, limits = indices.data.astype(np.int64), np.array(sizes if len(sizes) > 1 else sizes[0])
    outside = (values >= limits) | (values < (-limits if call.params["from_end"] else 0))
    if outside.any():
        call.refuse(f"index {values[outside][0]} is outside an axis of {limits.tolist()} elements")


def _gather(call: Call) -> list[Dims]:
    """Replace an axis of in[0] by the axes of the indices."""
    dims = call.dims(0)
    axis = call.axis()
    _check_indices(call, 1, dims[axis])
    return [(*dims[:axis], *call.dims(1), *dims[axis + 1 :])]


def _check_elements(call: Call, axis: int) -> None:
    """Check the indices of GatherElements or ScatterElements: no larger than in[0] except along `axis`."""
    dims, indices = call.dims(0), call.dims(1)
    if len(dims) != len(indices) or any(i > d for a, (d, i) in enumerate(zip(dims, indices, strict=True)) if a != axis):
        call.refuse(f"indices {list(indices)} must have the rank of in[0] {list(dims)} and be within it")
    _check_indices(call, 1, dims[axis])


def _gather_elements(call: Call) -> list[Dims]:
    _check_elements(call, call.axis())
    return [call.dims(1)]


def _gather_nd(call: Call) -> list[Dims]:
    """Check tuples of indices along the last axis of in[1]; leading batch axes are those of both operands."""
    dims, indices = call.dims(0), call.dims(1)
    batch = call.number("batch_dims")
    if not indices or batch >= min(len(dims), len(indices)):
        call.refuse(f"batch_dims {batch} must be below the ranks of {list(dims)} and {list(indices)}")
    if dims[:batch] != indices[:batch]:
        call.refuse(f"in[0] {list(dims)} and in[1] {list(indices)} must agree in {batch} batch dimensions")
    depth = indices[-1]
    if not 1 <= depth <= len(dims) - batch:
        call.refuse(f"indices of {depth} coordinates do not fit {list(dims)} after {batch} batch dimensions")
    _check_indices(call, 1, *dims[batch : batch + depth])
    return [(*indices[:-1], *dims[batch + depth :])]


def _scatter_elements(call: Call) -> list[Dims]:
    call.number("reduction", below=5)
    call.check_same_type(0, 2)
    _check_elements(call, call.axis())
    call.check_dims(2, *call.dims(1))
    return [call.dims(0)]


def _scatter_nd(call: Call) -> list[Dims]:
    """Check tuples of indices along the last axis of in[1], and updates of the elements or slices that they name."""
    dims, indices = call.dims(0), call.dims(1)
    call.number("reduction", below=5)
    call.check_same_type(0, 2)
    if not indices or not 1 <= indices[-1] <= len(dims):
        call.refuse(f"indices {list(indices)} must end in 1 to {len(dims)} coordinates of {list(dims)}")
    call.check_dims(2, *indices[:-1], *dims[indices[-1] :])
    _check_indices(call, 1, *dims[: indices[-1]])
    return [dims]


def _block(call: Call) -> tuple[int, int]:
    """Return the height and width of parameter block_size; in[0] must be a batch of images."""
    call.check_rank(0, 4)
    height, width = call.numbers("block_size", 2, least=1).tolist()
    return height, width


def _depth_to_space(call: Call) -> list[Dims]:
    bh, bw = _block(call)
    call.number("mode", below=2)
    n, h, w, c = call.dims(0)
    if c % (bh * bw):
        call.refuse(f"{c} channels are not a multiple of block {bh}x{bw}")
    return [(n, h * bh, w * bw, c // (bh * bw))]


def _space_to_depth(call: Call) -> list[Dims]:
    bh, bw = _block(call)
    call.number("mode", below=2)
    n, h, w, c = call.dims(0)
    if h % bh or w % bw:
        call.refuse(f"{h}x{w} is not a multiple of block {bh}x{bw}")
    return [(n, h // bh, w // bw, c * bh * bw)]


def _space_to_batch(call: Call) -> list[Dims]:
    """Check images whose pixels are divided among bh * bw batches, after padding."""
    bh, bw = _block(call)
    pads = call.numbers("pad_amount", 2, 2)
    n, h, w, c = call.dims(0)
    h, w = h + int(pads[0].sum()), w + int(pads[1].sum())
    if h % bh or w % bw:
        call.refuse(f"padded {h}x{w} is not a multiple of block {bh}x{bw}")
    return [(n * bh * bw, h // bh, w // bw, c)]


def _batch_to_space(call: Call) -> list[Dims]:
    """Check the inverse of SpaceToBatch, with crops instead of pads."""
    bh, bw = _block(call)
    crops = call.numbers("crops", 2, 2)
    n, h, w, c = call.dims(0)
    if n % (bh * bw):
        call.refuse(f"batch {n} is not a multiple of block {bh}x{bw}")
    h, w = h * bh - int(crops[0].sum()), w * bw - int(crops[1].sum())
    if h < 0 or w < 0:
        call.refuse(f"crops {crops.tolist()} cut more than there is")
    return [(n // (bh * bw), h, w, c)]


def _channel_shuffle(call: Call) -> list[Dims]:
    groups = call.number("num_groups", least=1)
    axis = call.axis()
    if call.dims(0)[axis] % groups:
        call.refuse(f"num_groups {groups} must divide the {call.dims(0)[axis]} channels")
    return [call.dims(0)]


def _one_hot(call: Call) -> list[Dims]:
    dims = call.dims(0)
    depth = call.number("depth")
    axis = call.axis(rank=len(dims) + 1)
    return [(*dims[:axis], depth, *dims[axis:])]


def _constant_of_shape(call: Call) -> list[Dims]:
    """Return the dimensions that a constant in[0] names, or the declared ones."""
    shape = call.tensor(0)
    call.check_rank(0, 1)
    if shape.data is None or not shape.is_static:
        return [call.declared_dims()]
    dims = tuple(int(d) for d in shape.data)
    if any(d < 0 for d in dims):
        call.refuse(f"the shape {list(dims)} must not be negative")
    return [dims]


def _shape(call: Call) -> list[Dims]:
    rank = len(call.dims(0))
    end = rank if call.params["end"] is None else call.number("end")
    start = call.number("start")
    if not start <= end <= rank:
        call.refuse(f"start {start} and end {end} must be within rank {rank}")
    call.params["end"] = end
    return [(end - start,)]


def _reverse(call: Call) -> list[Dims]:
    call.axes()
    return [call.dims(0)]


def _reverse_sequence(call: Call) -> list[Dims]:
    batch, time = call.axis("batch_axis"), call.axis("time_axis")
    if batch == time:
        call.refuse("batch_axis and time_axis must differ")
    call.check_dims(1, call.dims(0)[batch])
    return [call.dims(0)]


_MOVES = Traits(moves=Movement(Picks.PLACE))
_FILLS = Traits(moves=Movement(Picks.PLACE, fills=True))
_JOINS = Traits(moves=Movement(Picks.PLACE, sources=()))
# Traits of scatters; with a reduction they also compute.
_SCATTERS = Traits(moves=Movement(Picks.PLACE, sources=(0, 2)), updates=True)
# What gathers have in common: their inputs are data and indices.
_GATHER: dict[str, Any] = {"inputs": 2, "types": (None, INDICES), "traits": _MOVES}
# What scatters have in common: their inputs are data, indices and updates.
_SCATTER: dict[str, Any] = {"inputs": 3, "types": (None, INDICES), "traits": _SCATTERS}
_SIZES = (DataType.UINT_32, DataType.INT_32, DataType.INT_64)
_AXIS = Param("axis", "u32")
_LAST_AXIS = optional("axis", "u32")
_FIRST_AXIS = optional("axis", "u32", 0)
_REDUCTION = optional("reduction", "u32", NONE)
_BLOCK_SIZE = Param("block_size", "u32[]")
# How a block is stored along the depth: 0 as [block, channel], 1 as [channel, block].
_MODE = optional("mode", "u32", 0)
# Whether a negative index counts from the end, as in ONNX. In TFLite it is out of range.
_FROM_END = own("from_end", "bool", True)
_NO_PADS = [[0, 0], [0, 0]]

OPERATIONS = (
    define("Reshape", _reshape, traits=_MOVES),
    define("Squeeze", _squeeze, optional("axes", "u32[]"), traits=_MOVES),
    define("ExpandDims", _expand_dims, _AXIS, traits=_MOVES),
    define("Transpose", _transpose, Param("perm", "u32[]"), traits=_MOVES),
    define("Concat", _concat, _LAST_AXIS, inputs=(1, None), traits=replace(_JOINS, fixed_point=True)),
    define("Pack", _pack, _AXIS, inputs=(1, None), traits=_JOINS),
    define("UnPack", _unpack, _AXIS, outputs=(1, None), traits=_MOVES),
    define("Split", _split, _AXIS, Param("split_index", "u32[]"), outputs=(1, None), traits=_MOVES),
    define(
        "StridedSlice",
        _strided_slice,
        Param("ranges", "i32[]"),
        *options("u32", begin_mask=0, end_mask=0, shrink_axes=0, new_axes_mask=0),
        traits=_MOVES,
    ),
    define(
        "Pad",
        _pad,
        Param("scheme", "u32"),
        Param("pad_amount", "u32[]"),
        optional("pad_constant_value", "scalar", 0),
        traits=replace(_FILLS, fixed_point=True),
    ),
    define("Tile", _tile, Param("multiples", "u32[]"), traits=_MOVES),
    define("Gather", _gather, Param("axis", "i32"), _FROM_END, **_GATHER),
    define("GatherElements", _gather_elements, _FIRST_AXIS, _FROM_END, **_GATHER),
    define("GatherNd", _gather_nd, optional("batch_dims", "u32", 0), _FROM_END, **_GATHER),
    define("ScatterElements", _scatter_elements, _FIRST_AXIS, _REDUCTION, _FROM_END, **_SCATTER),
    define("ScatterNd", _scatter_nd, _REDUCTION, _FROM_END, **_SCATTER),
    define("DepthToSpace", _depth_to_space, _BLOCK_SIZE, _MODE, traits=_MOVES),
    define("SpaceToDepth", _space_to_depth, _BLOCK_SIZE, _MODE, traits=_MOVES),
    define("SpaceToBatch", _space_to_batch, _BLOCK_SIZE, optional("pad_amount", "u32[]", _NO_PADS), traits=_FILLS),
    define("BatchToSpace", _batch_to_space, _BLOCK_SIZE, optional("crops", "u32[]", _NO_PADS), traits=_MOVES),
    define("ChannelShuffle", _channel_shuffle, Param("num_groups", "u32"), _LAST_AXIS, traits=_MOVES),
    define(
        "OneHot",
        _one_hot,
        Param("depth", "u32"),
        _LAST_AXIS,
        *options("scalar", on_value=1, off_value=0),
        _FROM_END,
        types=(INDICES,),
        output_types={0: None},
    ),
    define("ConstantOfShape", _constant_of_shape, Param("value", "scalar"), types=(INDICES,), output_types={0: None}),
    define("Shape", _shape, optional("start", "u32", 0), optional("end", "u32"), output_types={0: _SIZES}),
    define("Reverse", _reverse, Param("axes", "u32[]"), package=ISTHMUS, traits=_MOVES),
    define(
        "ReverseSequence",
        _reverse_sequence,
        *required("u32", "batch_axis", "time_axis"),
        inputs=2,
        types=(None, INDICES),
        package=ISTHMUS,
        traits=_MOVES,
    ),
)
