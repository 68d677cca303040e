"""Operations of transformers: rotary embedding and attention of groups of heads with a cache of keys and values.

Functions of a `Call` are the rules of operations: they check the call and return the dimensions of its outputs.
"""

from __future__ import annotations

from isthmus.graph.datatypes import INDICES, REALS
from isthmus.graph.operation import Call, Dims, Operation, Param, optional

QUERY, KEY, VALUE, PAST_KEY, PAST_VALUE, LAST_POSITIONS, TOTAL_LENGTH, COSINES, SINES = range(9)
"""The inputs of GroupQueryAttention. LAST_POSITIONS has the position of the last key of each batch."""


def _rotary_embedding(call: Call) -> list[Dims]:
    """Check vectors [batch, heads, positions, size], and cosines and sines of the angles of their pairs.

    Cosines and sines are [batch or 1, positions, pairs] or [positions, pairs]. With in[3], the positions of the
    vectors [batch, positions], they are a table [all positions, pairs].
    """
    call.rank(0, 4)
    batch, _, length, size = call.dims(0)
    rotated = call.number("rotary_embedding_dim") or size
    call.params["rotary_embedding_dim"] = rotated
    if rotated % 2 or rotated > size:
        call.refuse(f"rotary_embedding_dim {rotated} must be even and at most {size}")
    angles = call.dims(1)
    call.shape(2, *angles)
    positions = call.given(3)
    if positions is not None:
        call.rank(1, 2)
        call.shape(3, batch, length)
        rows: tuple[Dims, ...] = (angles[:1],)
    else:
        rows = ((batch, length), (1, length), (length,))
    if angles[-1:] != (rotated // 2,) or angles[:-1] not in rows:
        call.refuse(f"in[1] {list(angles)} must have {rotated // 2} cosines for each position of in[0]")
    return [call.dims(0)]


def _group_query_attention(call: Call) -> list[Dims]:
    """Check queries, keys and values [batch, positions, heads * size]; caches are [batch, heads, room, size].

    Without keys and values, in[0] has queries, keys and values one after the other. The results are the attention,
    and the caches with the new keys and values.
    """
    call.rank(QUERY, 3)
    heads, groups = call.number("num_heads", least=1), call.number("kv_num_heads", least=1)
    batch, length, width = call.dims(QUERY)
    packed = call.given(KEY) is None
    count = heads + 2 * groups if packed else heads
    if heads % groups or width % count or not width or not length:
        call.refuse(f"in[0] {list(call.dims(QUERY))} must have {count} heads, {heads} a multiple of {groups}")
    size = width // count
    if packed != (call.given(VALUE) is None):
        call.refuse("keys and values must both be given, or both be part of in[0]")
    call.shape(KEY, batch, length, groups * size)
    call.shape(VALUE, batch, length, groups * size)
    room = length
    past = call.given(PAST_KEY)
    if past is not None:
        call.rank(PAST_KEY, 4)
        present = call.declared[1].dims if call.declared is not None and len(call.declared) > 1 else past.dims
        room = present[2] if len(present) == 4 else 0
        call.shape(PAST_KEY, batch, groups, past.dims[2], size)
        call.shape(PAST_VALUE, batch, groups, past.dims[2], size)
        if call.given(LAST_POSITIONS) is None or call.given(PAST_VALUE) is None or room < max(past.dims[2], length):
            call.refuse("a cache needs keys, values, the last positions, and room for the new keys")
    last = call.given(LAST_POSITIONS)
    if last is not None and last.elements != batch:
        call.refuse(f"in[{LAST_POSITIONS}] {last.describe()} must have one position for each batch")
    if call.number("do_rotary", below=2):
        call.rank(COSINES, 2)
        call.shape(SINES, *call.dims(COSINES))
        if call.given(SINES) is None or not 1 <= 2 * call.dims(COSINES)[1] <= size:
            call.refuse("do_rotary needs tables of cosines and sines [positions, pairs]")
    return [(batch, length, heads * size), *[(batch, groups, room, size)] * 2]


OPERATIONS = (
    Operation(
        "RotaryEmbedding",
        (3, 4),
        (1, 1),
        (optional("interleaved", "bool", False), optional("rotary_embedding_dim", "u32", 0)),
        _rotary_embedding,
        {0: REALS, 1: REALS, 2: REALS, 3: INDICES},
    ),
    Operation(
        "GroupQueryAttention",
        (1, 9),
        (1, 3),
        (
            Param("num_heads", "u32"),
            Param("kv_num_heads", "u32"),
            optional("do_rotary", "u32", 0),
            optional("scale", "f32", 0.0),
        ),
        _group_query_attention,
        {
            **dict.fromkeys((QUERY, KEY, VALUE, PAST_KEY, PAST_VALUE, COSINES, SINES), REALS),
            **dict.fromkeys((LAST_POSITIONS, TOTAL_LENGTH), INDICES),
        },
    ),
)
