"""Compositions of rotary embedding and attention."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from isthmus.graph import Tensor
from isthmus.graph.ops.attention import COSINES, KEY, LAST_POSITIONS, PAST_KEY, PAST_VALUE, QUERY, SINES, VALUE
from isthmus.prepare.compositions.composer import INTEGER, Composition, StepComposer

# The score of a key that a query does not see: its weight is exactly 0.
_HIDDEN = -3.0e38


def rotate(c: StepComposer, x: Tensor, cosines: Tensor, sines: Tensor, interleaved: bool) -> Tensor:
    """Return vectors [batch, heads, positions, size] with their pairs rotated; elements beyond the pairs stay.

    `cosines` and `sines` are [batch or 1, 1, positions, pairs].
    """
    axis, pairs = x.rank - 1, cosines.dims[-1]
    if interleaved:
        first, second = (c.slice(x, axis, start, 2 * pairs, 2) for start in (0, 1))
    else:
        first, second = (c.slice(x, axis, start, start + pairs) for start in (0, pairs))
    turned = [
        c(op, c("ElementWiseMultiply", first, one), c("ElementWiseMultiply", second, other))
        for op, one, other in (("ElementWiseSubtract", cosines, sines), ("ElementWiseAdd", sines, cosines))
    ]
    if interleaved:
        turned = [c.reshape(c("Pack", *turned, axis=x.rank), *x.dims[:-1], 2 * pairs)]
    if 2 * pairs < x.dims[-1]:
        turned.append(c.slice(x, axis, 2 * pairs, x.dims[-1]))
    return turned[0] if len(turned) == 1 else c("Concat", *turned, axis=axis)


def _rotary_embedding(c: StepComposer) -> list[Tensor]:
    x, tables = c.real(0), [c.real(1), c.real(2)]
    if c.given(3) is not None:
        tables = [c("Gather", table, c.whole(3), axis=0) for table in tables]
    cosines, sines = (c.reshape(t, t.dims[0] if t.rank == 3 else 1, 1, *t.dims[-2:]) for t in tables)
    return [rotate(c, x, cosines, sines, c.params["interleaved"])]


def _positions(c: StepComposer, batch: int, length: int) -> Tensor:
    """Return the position of each query, [batch or 1, length]."""
    steps = c.constant(np.arange(length)[None], INTEGER)
    if c.given(LAST_POSITIONS) is None:
        return steps
    last = c.reshape(c.whole(LAST_POSITIONS), batch, 1)
    first = c("ElementWiseAdd", last, c.constant([[1 - length]], INTEGER))
    return c("ElementWiseAdd", c("ElementWiseMaximum", first, c.constant([[0]], INTEGER)), steps)


def _extend_cache(c: StepComposer, new: Tensor, past: int, positions: Tensor, room: int) -> Tensor:
    """Return the cache [batch, groups, room, size] with new rows at their positions; the rows alone without a cache."""
    if c.given(past) is None:
        return new
    old = c.real(past)
    batch, groups, length, size = new.dims
    if old.dims[2] < room:
        old = c("Concat", old, c.zeros((batch, groups, room - old.dims[2], size), old), axis=2)
    # The coordinates of each new row: batch, group, position.
    shape = (batch, groups, length)
    places = [
        *(c.constant(index, INTEGER) for index in np.indices(shape)[:2]),
        c("ElementWiseAdd", c.reshape(positions, batch, 1, length), c.constant(np.zeros(shape), INTEGER)),
    ]
    return c("ScatterNd", old, c("Pack", *places, axis=3), new)


def _group_query_attention(c: StepComposer) -> list[Tensor]:
    """Compute attention with the queries of a group as rows of one matrix, so that keys are not repeated."""
    heads, groups = c.params["num_heads"], c.params["kv_num_heads"]
    query = c.real(QUERY)
    batch, length, width = query.dims
    if c.given(KEY) is None:
        size = width // (heads + 2 * groups)
        ends = [0, heads * size, (heads + groups) * size, width]
        parts = [c.slice(query, 2, first, last) for first, last in pairwise(ends)]
    else:
        size, parts = width // heads, [query, c.real(KEY), c.real(VALUE)]
    query, key, value = (
        c("Transpose", c.reshape(part, batch, length, part.dims[2] // size, size), perm=[0, 2, 1, 3]) for part in parts
    )
    positions = _positions(c, batch, length)
    if c.params["do_rotary"]:
        tables = [c("Gather", c.real(index), positions, axis=0) for index in (COSINES, SINES)]
        cosines, sines = (c.reshape(t, t.dims[0], 1, *t.dims[1:]) for t in tables)
        query, key = (rotate(c, x, cosines, sines, interleaved=False) for x in (query, key))
    past = c.given(PAST_KEY)
    room = length if past is None else c.outputs[1].dims[2] if len(c.outputs) > 1 else past.dims[2]
    keys = _extend_cache(c, key, PAST_KEY, positions, room)
    values = _extend_cache(c, value, PAST_VALUE, positions, room)
    rows = c.reshape(query, batch, groups, heads // groups * length, size)
    scale = c.params["scale"] or 1 / np.sqrt(size)
    scores = c("MatMul", c("ElementWiseMultiply", rows, c.constant([scale])), keys, transpose_in1=True)
    shape = (batch, groups, heads // groups, length, room)
    last = c.reshape(positions, positions.dims[0], 1, 1, length, 1)
    seen = c("ElementWiseLessEqual", c.constant(np.arange(room).reshape(1, 1, 1, 1, room), INTEGER), last)
    scores = c("ElementWiseSelect", seen, c.reshape(scores, *shape), c.constant([_HIDDEN]))
    weights = c.reshape(c("Softmax", scores), batch, groups, heads // groups * length, room)
    attention = c.reshape(c("MatMul", weights, values), batch, heads, length, size)
    attention = c.reshape(c("Transpose", attention, perm=[0, 2, 1, 3]), batch, length, heads * size)
    return [attention, keys, values]


COMPOSITIONS: dict[str, Composition] = {
    "RotaryEmbedding": _rotary_embedding,
    "GroupQueryAttention": _group_query_attention,
}
