"""Reference computations that move data; they work on stored elements of any type."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.graph.evaluation import Computation, Outputs, Params, Values
from isthmus.graph.ops.movement import ADD, CONSTANT, EDGE, MAX, MIN, MIRROR_REFLECT, MIRROR_SYMMETRIC, MUL


def within(indices: np.ndarray, size: int | np.ndarray, from_end: bool = True) -> np.ndarray:
    """Return indices into `size` elements, after a check; negative ones count from the end if `from_end`."""
    indices = indices.astype(np.int64)
    if ((indices < -np.asarray(size) * from_end) | (indices >= size)).any():
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, "indices", f"they must be within {np.asarray(size).tolist()}")
    return np.where(indices < 0, indices + size, indices)


def _reshape(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    return values[0].reshape(outputs[0].dims)


def _split(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    return np.split(values[0], params["split_index"].reshape(-1), params["axis"])


def _unpack(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    return list(np.moveaxis(values[0], params["axis"], 0))


def _strided_slice(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    # A range never begins below 0: it would have no elements, and empty results are not computed.
    slices = tuple(slice(b, None if e < 0 else e, s) for b, e, s in params["ranges"].tolist())
    return values[0][slices].reshape(outputs[0].dims)


_PAD_MODES: dict[int, Any] = {MIRROR_SYMMETRIC: "symmetric", MIRROR_REFLECT: "reflect", EDGE: "edge"}


def _pad(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    x, pads, scheme = values[0], params["pad_amount"].tolist(), params["scheme"]
    if scheme == CONSTANT:
        return np.pad(x, pads, constant_values=params["pad_constant_value"])
    return np.pad(x, pads, _PAD_MODES[scheme])


def _gather(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    axis = params["axis"]
    return np.take(values[0], within(values[1], values[0].shape[axis], params["from_end"]), axis)


def _gather_elements(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Take x at the position of each index, with the index replacing the coordinate along the axis."""
    x, indices = values
    axis = params["axis"]
    positions = list(np.indices(indices.shape, sparse=True))
    positions[axis] = within(indices, x.shape[axis], params["from_end"])
    return x[tuple(positions)]


def _gather_nd(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Take x at tuples of indices, within each batch."""
    x, indices = values
    batch, depth = params["batch_dims"], indices.shape[-1]
    positions = within(indices, np.asarray(x.shape[batch : batch + depth]), params["from_end"])
    # Along batch axes, each index selects from its own batch.
    grid = np.indices(indices.shape[:-1], sparse=True)[:batch]
    index = (*grid, *np.moveaxis(positions, -1, 0))
    return x[index]


_REDUCTIONS = {ADD: np.add, MUL: np.multiply, MAX: np.maximum, MIN: np.minimum}


def _scatter(x: np.ndarray, positions: tuple[Any, ...], updates: np.ndarray, reduction: int) -> np.ndarray:
    """Write updates to positions of a copy of x, or combine them with what is there."""
    out = x.copy()
    if reduction in _REDUCTIONS:
        _REDUCTIONS[reduction].at(out, positions, updates)
    else:
        out[positions] = updates
    return out


def _scatter_elements(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    x, indices, updates = values
    positions = list(np.indices(indices.shape, sparse=True))
    positions[params["axis"]] = within(indices, x.shape[params["axis"]], params["from_end"])
    return _scatter(x, tuple(positions), updates, params["reduction"])


def _scatter_nd(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    x, indices, updates = values
    positions = within(indices, np.asarray(x.shape[: indices.shape[-1]]), params["from_end"])
    return _scatter(x, tuple(np.moveaxis(positions, -1, 0)), updates, params["reduction"])


def _depth_to_space(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Move blocks from the depth to height and width: of depth [block, channel] in mode 0, [channel, block] in 1."""
    x = values[0]
    n, h, w, c = x.shape
    bh, bw = params["block_size"].tolist()
    if params["mode"] == 0:
        x = x.reshape(n, h, w, bh, bw, c // (bh * bw)).transpose(0, 1, 3, 2, 4, 5)
    else:
        x = x.reshape(n, h, w, c // (bh * bw), bh, bw).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(outputs[0].dims)


def _space_to_depth(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Move blocks from height and width to the depth: as [block, channel] in mode 0, [channel, block] in 1."""
    n, h, w, c = values[0].shape
    bh, bw = params["block_size"].tolist()
    order = (0, 1, 3, 2, 4, 5) if params["mode"] == 0 else (0, 1, 3, 5, 2, 4)
    return values[0].reshape(n, h // bh, bh, w // bw, bw, c).transpose(order).reshape(outputs[0].dims)


def _space_to_batch(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    bh, bw = params["block_size"].tolist()
    fill = params["pad_constant_value"]
    x = np.pad(values[0], [(0, 0), *params["pad_amount"].tolist(), (0, 0)], constant_values=fill)
    n, h, w, c = x.shape
    x = x.reshape(n, h // bh, bh, w // bw, bw, c).transpose(2, 4, 0, 1, 3, 5)
    return x.reshape(outputs[0].dims)


def _batch_to_space(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    n, h, w, c = values[0].shape
    bh, bw = params["block_size"].tolist()
    (top, _), (left, _) = params["crops"].tolist()
    x = values[0].reshape(bh, bw, n // (bh * bw), h, w, c).transpose(2, 3, 0, 4, 1, 5)
    x = x.reshape(n // (bh * bw), h * bh, w * bw, c)
    _, height, width, _ = outputs[0].dims
    return x[:, top : top + height, left : left + width]


def _channel_shuffle(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Exchange groups and channels of a group along the axis."""
    x, axis = values[0], params["axis"]
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    x = x.reshape(*before, params["num_groups"], -1, *after) if x.size else x
    return x.swapaxes(axis, axis + 1).reshape(outputs[0].dims) if x.size else x


def _reverse_sequence(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    x = np.moveaxis(values[0], (params["batch_axis"], params["time_axis"]), (0, 1))
    out = x.copy()
    for row, length in enumerate(values[1].tolist()):
        if not 0 <= length <= x.shape[1]:
            rule = f"length {length} is outside 0..{x.shape[1]}"
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, "ReverseSequence", rule)
        out[row, :length] = x[row, :length][::-1]
    return np.moveaxis(out, (0, 1), (params["batch_axis"], params["time_axis"]))


COMPUTATIONS: dict[str, Computation] = {
    "Reshape": _reshape,
    "Squeeze": _reshape,
    "ExpandDims": _reshape,
    "Transpose": lambda v, p, o: v[0].transpose(p["perm"]),
    "Concat": lambda v, p, o: np.concatenate(v, p["axis"]),
    "Pack": lambda v, p, o: np.stack(v, p["axis"]),
    "UnPack": _unpack,
    "Split": _split,
    "StridedSlice": _strided_slice,
    "Pad": _pad,
    "Tile": lambda v, p, o: np.tile(v[0], p["multiples"]),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherNd": _gather_nd,
    "ScatterElements": _scatter_elements,
    "ScatterNd": _scatter_nd,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "SpaceToBatch": _space_to_batch,
    "BatchToSpace": _batch_to_space,
    "ChannelShuffle": _channel_shuffle,
    "Reverse": lambda v, p, o: np.flip(v[0], tuple(p["axes"])),
    "ReverseSequence": _reverse_sequence,
}
