"""Reference computations of rotary embedding and attention."""

from __future__ import annotations

import numpy as np

from isthmus.graph.evaluation import Computation, Outputs, Params, Values, absent, wide
from isthmus.graph.ops.attention import COSINES, KEY, LAST_POSITIONS, PAST_KEY, PAST_VALUE, QUERY, SINES, VALUE


def _rotate(x: np.ndarray, cosines: np.ndarray, sines: np.ndarray, interleaved: bool) -> np.ndarray:
    """Rotate pairs of the last axis; a pair is neighbours, or elements half of the rotated part apart."""
    # `cosines` and `sines` broadcast to [batch, heads, positions, pairs]; what is beyond the pairs stays.
    pairs = cosines.shape[-1]
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    out = x.copy()
    out[..., first] = x[..., first] * cosines - x[..., second] * sines
    out[..., second] = x[..., first] * sines + x[..., second] * cosines
    return out


def _rotary_embedding(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    x, cosines, sines = (wide(value) for value in values[:3])
    if not absent(values, 3):
        positions = values[3].astype(np.int64)
        cosines, sines = cosines[positions], sines[positions]
    # A table without a batch is that of every batch; heads share it.
    cosines, sines = (np.expand_dims(t.reshape(-1, *t.shape[-2:]), 1) for t in (cosines, sines))
    return _rotate(x, cosines, sines, params["interleaved"])


def _group_query_attention(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    """Compute attention of each query to the keys up to its own position; a group of heads shares keys and values."""
    heads, groups = params["num_heads"], params["kv_num_heads"]
    query = wide(values[QUERY])
    batch, length, width = query.shape
    if absent(values, KEY):
        size = width // (heads + 2 * groups)
        query, key, value = np.split(query, [heads * size, (heads + groups) * size], -1)
    else:
        size = width // heads
        key, value = wide(values[KEY]), wide(values[VALUE])
    query, key, value = (x.reshape(batch, length, -1, size).transpose(0, 2, 1, 3) for x in (query, key, value))
    first = np.zeros(batch, np.int64)
    if not absent(values, LAST_POSITIONS):
        first = np.maximum(values[LAST_POSITIONS].reshape(-1).astype(np.int64) + 1 - length, 0)
    positions = first[:, None] + np.arange(length)
    if params["do_rotary"]:
        cosines, sines = (np.expand_dims(wide(values[index])[positions], 1) for index in (COSINES, SINES))
        query, key = (_rotate(x, cosines, sines, interleaved=False) for x in (query, key))
    caches = []
    for new, past in ((key, PAST_KEY), (value, PAST_VALUE)):
        cache = new
        if not absent(values, past):
            room = outputs[1].dims[2] if len(outputs) > 1 else values[past].shape[2]
            cache = np.zeros((batch, groups, room, size))
            cache[:, :, : values[past].shape[2]] = values[past]
            for index in range(batch):
                cache[index][:, positions[index]] = new[index]
        caches.append(cache)
    keys, values_ = (np.repeat(cache, heads // groups, 1) for cache in caches)
    scores = query @ keys.swapaxes(-1, -2) * (params["scale"] or 1 / np.sqrt(size))
    visible = np.arange(keys.shape[2]) <= positions[:, None, :, None]
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    attention = weights / weights.sum(-1, keepdims=True) @ values_
    return [attention.transpose(0, 2, 1, 3).reshape(batch, length, -1), *caches]


COMPUTATIONS: dict[str, Computation] = {
    "RotaryEmbedding": _rotary_embedding,
    "GroupQueryAttention": _group_query_attention,
}
