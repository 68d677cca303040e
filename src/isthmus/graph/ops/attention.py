"""Operations of transformers: rotary embedding and attention of groups of heads with a cache of keys and values."""

from __future__ import annotations

from isthmus.graph.datatypes import INDICES, REALS
from isthmus.graph.operation import Call, Dims, define, optional, required

QUERY, KEY, VALUE, PAST_KEY, PAST_VALUE, LAST_POSITIONS, TOTAL_LENGTH, COSINES, SINES = range(9)
"""The inputs of GroupQueryAttention. LAST_POSITIONS has the position of the last key of each batch."""


def _rotary_embedding(call: Call) -> list[Dims]:
    """Check vectors [batch, heads, positions, size], and cosines and sines of the angles of their pairs."""
    # Cosines and sines are [batch or 1, positions, pairs] or [positions, pairs]. With in[3], the positions of the
    # vectors [batch, positions], they are a table [all positions, pairs].
    call.check_rank(0, 4)
    batch, _, length, size = call.dims(0)
    rotated = call.number("rotary_embedding_dim") or size
    call.params["rotary_embedding_dim"] = rotated
    if rotated % 2 or rotated > size:
        call.refuse(f"rotary_embedding_dim {rotated} must be even and at most {size}")
    angles = call.dims(1)
    call.check_dims(2, *angles)
    positions = call.optional(3)
    if positions is not None:
        call.check_rank(1, 2)
        call.check_dims(3, batch, length)
        rows: tuple[Dims, ...] = (angles[:1],)
    else:
        rows = ((batch, length), (1, length), (length,))
    if angles[-1:] != (rotated // 2,) or angles[:-1] not in rows:
        call.refuse(f"in[1] {list(angles)} must have {rotated // 2} cosines for each position of in[0]")
    return [call.dims(0)]


def _group_query_attention(call: Call) -> list[Dims]:
    """Check queries, keys and values [batch, positions, heads * size]; caches are [batch, heads, room, size]."""
    # Without keys and values, in[0] has queries, keys and values one after the other. The results are the attention,
    # and the caches with the new keys and values.
    call.check_rank(QUERY, 3)
    heads, groups = call.number("num_heads", least=1), call.number("kv_num_heads", least=1)
    batch, length, width = call.dims(QUERY)
    packed = call.optional(KEY) is None
    count = heads + 2 * groups if packed else heads
    if heads % groups or width % count or not width or not length:
        call.refuse(f"in[0] {list(call.dims(QUERY))} must have {count} heads, {heads} a multiple of {groups}")
    size = width // count
    if packed != (call.optional(VALUE) is None):
        call.refuse("keys and values must both be given, or both be part of in[0]")
    call.check_dims(KEY, batch, length, groups * size)
    call.check_dims(VALUE, batch, length, groups * size)
    room = length
    past = call.optional(PAST_KEY)
    if past is not None:
        call.check_rank(PAST_KEY, 4)
        present = call.declared[1].dims if call.declared is not None and len(call.declared) > 1 else past.dims
        room = present[2] if len(present) == 4 else 0
        call.check_dims(PAST_KEY, batch, groups, past.dims[2], size)
        call.check_dims(PAST_VALUE, batch, groups, past.dims[2], size)
        if (
            call.optional(LAST_POSITIONS) is None
            or call.optional(PAST_VALUE) is None
            or room < max(past.dims[2], length)
        ):
            call.refuse("a cache needs keys, values, the last positions, and room for the new keys")
    last = call.optional(LAST_POSITIONS)
    if last is not None and last.elements != batch:
        call.refuse(f"in[{LAST_POSITIONS}] {last.describe()} must have one position for each batch")
    if call.number("do_rotary", below=2):
        call.check_rank(COSINES, 2)
        call.check_dims(SINES, *call.dims(COSINES))
        if call.optional(SINES) is None or not 1 <= 2 * call.dims(COSINES)[1] <= size:
            call.refuse("do_rotary needs tables of cosines and sines [positions, pairs]")
    return [(batch, length, heads * size), *[(batch, groups, room, size)] * 2]


OPERATIONS = (
    define(
        "RotaryEmbedding",
        _rotary_embedding,
        optional("interleaved", "bool", False),
        optional("rotary_embedding_dim", "u32", 0),
        inputs=(3, 4),
        types=(REALS, REALS, REALS, INDICES),
    ),
    define(
        "GroupQueryAttention",
        _group_query_attention,
        *required("u32", "num_heads", "kv_num_heads"),
        optional("do_rotary", "u32", 0),
        optional("scale", "f32", 0.0),
        inputs=(1, 9),
        outputs=(1, 3),
        types=[INDICES if index in (LAST_POSITIONS, TOTAL_LENGTH) else REALS for index in range(9)],
    ),
)
