"""ONNX Runtime's fused operators (domain com.microsoft), as compositions: products, normalizations, attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from isthmus.frontends.onnx import convolution, elementwise, linear
from isthmus.frontends.onnx.attention import scores_of, weigh_values
from isthmus.frontends.onnx.elementwise import gelu_of, tanh_gelu_of
from isthmus.frontends.onnx.indexing import rows_at
from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.linear import matmul
from isthmus.frontends.onnx.movement import element_of, expand, join, parts_of, slice_value, stack_values
from isthmus.frontends.onnx.node import Converter, OnnxNode, Results
from isthmus.frontends.onnx.normalization import layer_norm, rms_norm
from isthmus.frontends.onnx.reduction import reduce_value, softmax_along
from isthmus.graph import DataType

# The activations that products are fused with, and their parameters in the order in which FusedConv lists them.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (), "Sigmoid": (), "Softplus": (), "Softsign": (), "Tanh": (), "Elu": ("alpha",), "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Selu": ("alpha", "gamma"), "Clip": ("min", "max"),
}  # fmt: skip


def _only(node: OnnxNode, *names: str, **values: object) -> None:
    """Refuse attributes that are not among these names, unless they have the values given, which change nothing."""
    for name, value in node.attributes.items():
        if name not in names and (name not in values or value != values[name]):
            node.unsupported(f"attribute {name} = {value}")


def _absent(node: OnnxNode, **operands: int) -> None:
    """Refuse a node that has one of these operands, given by name and index."""
    for name, index in operands.items():
        if node.optional(index) is not None:
            node.unsupported(f"operand {name}")


def _total(node: OnnxNode, *indices: int) -> OnnxValue:
    """Return the sum of the operands that are present."""
    return reduce(node.plus, [value for index in indices if (value := node.optional(index)) is not None])


# --- activations and products ---------------------------------------------------------------------------------------


def _quick_gelu(node: OnnxNode) -> OnnxValue:
    """Multiply by the sigmoid of the value times alpha."""
    x = node.value(0)
    gate = node.elementwise("Sigmoid", node.times(x, node.attr("alpha", 1.702)))
    return node.times(x, gate)


def _fused_matmul(node: OnnxNode) -> OnnxValue:
    """Multiply matrices of which the last two axes may be exchanged, times alpha."""
    _only(node, "alpha", "transA", "transB", transBatchA=0, transBatchB=0)
    a, b = (_operand(node, index, name) for index, name in enumerate(("transA", "transB")))
    product = matmul(node, a, b)
    alpha = node.attr("alpha", 1.0)
    return product if alpha == 1.0 else node.times(product, alpha)


def _operand(node: OnnxNode, index: int, attribute: str) -> OnnxValue:
    """Return an operand with its last two axes exchanged if an attribute says so."""
    value = node.value(index)
    if not node.attr(attribute, 0) or value.rank < 2:
        return value
    return value.permute([*range(value.rank - 2), value.rank - 1, value.rank - 2])


def _fused_conv(node: OnnxNode) -> Results:
    """Convolve, add the fourth operand if there is one, and apply the activation, whose parameters are a list."""
    result = convolution.CONVERTERS["Conv"](node)
    assert isinstance(result, OnnxValue)
    total = node.optional(3)
    if total is not None:
        result = node.plus(result, total)
    activation, params = node.attr("activation", ""), list(node.attr("activation_params", ()))
    names = _ACTIVATIONS.get(activation, ())
    if len(params) != len(names):
        node.unsupported(f"activation '{activation}' with parameters {params}")
    return _activate(node, activation, result, dict(zip(names, params, strict=True)))


def _fused_gemm(node: OnnxNode) -> Results:
    """Compute a Gemm and apply the activation, whose parameters are attributes with a prefix."""
    result = linear.CONVERTERS["Gemm"](node)
    assert isinstance(result, OnnxValue)
    prefix = "activation_"
    params = {name[len(prefix) :]: value for name, value in node.attributes.items() if name.startswith(prefix)}
    return _activate(node, node.attr("activation", ""), result, params)


def _activate(node: OnnxNode, activation: str, value: OnnxValue, params: Mapping[str, float]) -> Results:
    """Apply the ONNX operator that an activation is named after, with its parameters by name."""
    if not activation:
        return value
    if activation not in _ACTIVATIONS:
        node.unsupported(f"activation '{activation}'")
    # Operators of the set in which all parameters are attributes.
    return elementwise.CONVERTERS[activation](replace(node, inputs=[value], attributes=dict(params), opset=6))


# --- normalizations -------------------------------------------------------------------------------------------------


def _skip_layer_norm(node: OnnxNode) -> list[OnnxValue | None]:
    """Normalize the sum of input, skip and bias; the sum itself is the fourth result."""
    _only(node, "epsilon")
    _no_statistics(node)
    total = _total(node, 0, 1, 4)
    result = layer_norm(node, total, node.value(2), node.optional(3), node.attr("epsilon", 1e-12))
    return [result, None, None, total]


def _skip_rms_norm(node: OnnxNode) -> list[OnnxValue | None]:
    """Divide the sum of input, skip and bias by its root mean square; the sum itself is the fourth result."""
    _only(node, "epsilon")
    _no_statistics(node)
    total = _total(node, 0, 1, 3)
    return [rms_norm(node, total, node.value(2), node.attr("epsilon", 1e-12)), None, None, total]


def _no_statistics(node: OnnxNode) -> None:
    """Refuse the mean and the deviation as results, which ONNX Runtime does not compute either."""
    if node.wants(1) or node.wants(2):
        node.unsupported("the mean or the deviation as a result")


def _embed_layer_norm(node: OnnxNode) -> list[OnnxValue | None]:
    """Normalize the sum of the embeddings of words, positions and segments."""
    # The second result counts the words of each row of the mask; the third is the sum.
    _only(node, "epsilon", mask_index_type=1)
    ids, segments, mask, positions = (node.optional(index) for index in (0, 1, 7, 8))
    if ids is None or ids.rank != 2:
        node.refuse("its words must be a matrix of indices")
    total = rows_at(node, node.value(2), ids)
    if positions is None:
        table = node.value(3)
        rows = slice_value(node, table, {0: (0, ids.dims[1], 1)})
        places = node.reshape_to(rows, (1, *rows.dims))
    else:
        places = rows_at(node, node.value(3), positions)
    total = node.plus(total, places)
    if segments is not None:
        total = node.plus(total, rows_at(node, node.value(4), segments))
    result = layer_norm(node, total, node.value(5), node.value(6), node.attr("epsilon", 1e-12))
    if mask is None:
        counts = node.literal(np.zeros(ids.dims[:1], np.int32))
    else:
        counts = reduce_value(node, "ReduceSum", node.cast(mask, DataType.INT_32), [1], False)
    return [result, counts, total]


# --- attention ------------------------------------------------------------------------------------------------------


def _heads(node: OnnxNode, x: OnnxValue, heads: int) -> OnnxValue:
    """Return [batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, width = x.dims
    if width % heads:
        node.refuse(f"{width} features are not divisible by {heads} heads")
    return node.reshape_to(x, (batch, length, heads, width // heads)).permute((0, 2, 1, 3))


def _join_heads(node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Return [batch, heads, length, size] as [batch, length, heads * size]."""
    batch, heads, length, size = x.dims
    return node.reshape_to(x.permute((0, 2, 1, 3)), (batch, length, heads * size))


def _attend(
    node: OnnxNode, q: OnnxValue, k: OnnxValue, v: OnnxValue, biases: Sequence[OnnxValue], unseen: np.ndarray,
    softcap: float = 0.0,
) -> OnnxValue:  # fmt: skip
    """Return the attention of queries to keys and values, all [batch, heads, length, size], with the heads joined."""
    # `biases` are added to the scores, `unseen` [length, keys] marks the keys that a query does not see, and `softcap`
    # limits scores by a tanh if it is not 0.
    # A scale of 0 stands for the default.
    scale = node.attr("scale", 0.0) or 1 / math.sqrt(q.dims[3])
    scores = scores_of(node, node.times(q, scale), k)
    if softcap:
        scores = node.times(node.elementwise("Tanh", node.times(scores, 1 / softcap)), softcap)
    for bias in biases:
        scores = node.plus(scores, bias)
    if unseen.any():
        scores = node.choose(node.literal(unseen), -3.0e38, scores)
    return _join_heads(node, weigh_values(node, softmax_along(node, scores, "Softmax", 3), v))


def _unseen_keys(length: int, total: int, past: int, window: int = -1) -> np.ndarray:
    """Return which keys each query does not see [length, total]: later ones, and those before its window."""
    # `past` is how many keys come before that of the first query.
    own = np.arange(length)[:, None] + past
    unseen = np.arange(total) > own
    # To ONNX Runtime the last query sees all keys, also if there are more keys than queries.
    unseen[-1:] = False
    return unseen | (np.arange(total) <= own - window) if window >= 0 else unseen


def _unseen(node: OnnxNode, q: OnnxValue, k: OnnxValue, past: int) -> np.ndarray:
    """Return which keys each query does not see, if an attribute says that it sees no later ones."""
    unseen = _unseen_keys(q.dims[2], k.dims[2], past)
    return unseen if node.attr("unidirectional", 0) else np.zeros_like(unseen)


def _mask_bias(node: OnnxNode, mask: OnnxValue | None, q: OnnxValue, total: int) -> list[OnnxValue]:
    """Return what a mask, [batch, total] or [batch, length, total], adds to scores; a mask of 0 hides a key."""
    batch, _, length, _ = q.dims
    if mask is None:
        return []
    if mask.dims == (batch, total):
        mask = node.reshape_to(mask, (batch, 1, 1, total))
    elif mask.dims == (batch, length, total):
        mask = node.reshape_to(mask, (batch, 1, length, total))
    else:
        node.unsupported(f"a mask of dimensions {list(mask.dims)}")
    hidden = node.elementwise("ElementWiseLessEqual", mask, 0)
    low, zero = (node.scalar(number, q.tensor.dtype) for number in (node.attr("mask_filter_value", -10000.0), 0.0))
    return [node.choose(hidden, low, zero)]


def _with_past(node: OnnxNode, past: OnnxValue | None, now: OnnxValue) -> OnnxValue:
    """Return keys or values with those of earlier steps before them."""
    return now if past is None else join(node, [past, now], 2)


def _attention(node: OnnxNode) -> list[OnnxValue | None]:
    """Project the input to queries, keys and values with one matrix, and attend."""
    # The second result has keys and values with those of the past before them.
    _only(
        node, "num_heads", "scale", "unidirectional", "mask_filter_value", "qkv_hidden_sizes",
        do_rotary=0, past_present_share_buffer=0, rotary_embedding_dim=0,
    )  # fmt: skip
    _absent(node, past_sequence_length=6)
    x, heads, past = node.value(0), int(node.attr("num_heads", 1)), node.optional(4)
    if x.rank != 3 or heads < 1:
        node.refuse(f"an input of dimensions {list(x.dims)} with {heads} heads")
    product = matmul(node, x, node.value(1))
    if node.optional(2) is not None:
        product = node.plus(product, node.value(2))
    sizes = list(node.attr("qkv_hidden_sizes") or [product.dims[2] // 3] * 3)
    if sum(sizes) != product.dims[2]:
        node.refuse(f"parts {sizes} do not make up {product.dims[2]} features")
    q, k, v = (_heads(node, part, heads) for part in parts_of(node, product, 2, sizes))
    if past is not None:
        # The past is [2, batch, heads, length, size]: keys, then values.
        k, v = (_with_past(node, element_of(node, past, 0, index), now) for index, now in enumerate((k, v)))
    biases = _mask_bias(node, node.optional(3), q, k.dims[2])
    if node.optional(5) is not None:
        biases.append(node.value(5))
    result = _attend(node, q, k, v, biases, _unseen(node, q, k, k.dims[2] - q.dims[2]))
    return [result, stack_values(node, (k, v), 0) if node.wants(1) else None]


def _multi_head_attention(node: OnnxNode) -> list[OnnxValue | None]:
    """Attend with queries, keys and values that are projected already; keys and values may be split into heads."""
    # The second and third result are keys and values with those of the past before them.
    _only(node, "num_heads", "scale", "unidirectional", "mask_filter_value")
    _absent(node, past_sequence_length=8, cache_indirection=9)
    q, heads = node.value(0), int(node.attr("num_heads", 1))
    if q.rank != 3 or node.optional(1) is None or node.optional(2) is None:
        node.unsupported("queries, keys and values in one tensor")
    k, v = node.value(1), node.value(2)
    bias = node.optional(3)
    if bias is not None:
        width, value_width = q.dims[2], bias.dims[0] - 2 * q.dims[2]
        if k.rank != 3 or v.rank != 3:
            node.unsupported("a bias for keys and values that are split into heads")
        parts = parts_of(node, bias, 0, (width, width, value_width))
        q, k, v = (node.plus(each, part) for each, part in zip((q, k, v), parts, strict=True))
    q, k, v = (_heads(node, each, heads) if each.rank == 3 else each for each in (q, k, v))
    new_keys = k.dims[2]
    k, v = (_with_past(node, node.optional(index), each) for index, each in ((6, k), (7, v)))
    biases = _mask_bias(node, node.optional(4), q, k.dims[2])
    if node.optional(5) is not None:
        biases.append(node.value(5))
    result = _attend(node, q, k, v, biases, _unseen(node, q, k, k.dims[2] - new_keys))
    return [result, k if node.wants(1) else None, v if node.wants(2) else None]


def _group_query_attention(node: OnnxNode) -> list[OnnxValue | None]:
    """Attend with fewer heads of keys and values than of queries, which may come in one tensor."""
    # All rows of the batch must have the same length. The second and third result are keys and values with those of the
    # past before them; if the past has room for more rows, its unused rows stay behind them.
    _only(
        node, "num_heads", "kv_num_heads", "scale", "do_rotary", "rotary_interleaved", "local_window_size", "softcap",
        smooth_softmax=0, qk_output=0, k_quant_type="NONE", v_quant_type="NONE", kv_cache_bit_width=0,
    )  # fmt: skip
    _absent(node, position_ids=9, attention_bias=10, head_sink=11)
    q, past = node.value(0), [node.optional(index) for index in (3, 4)]
    heads, shared = int(node.attr("num_heads", 1)), int(node.attr("kv_num_heads", 1))
    if q.rank != 3 or heads < 1 or shared < 1 or heads % shared:
        node.refuse(f"queries {list(q.dims)} of {heads} heads do not fit {shared} heads of keys")
    if node.optional(1) is None:
        size = q.dims[2] // (heads + 2 * shared)
        q, k, v = parts_of(node, q, 2, (heads * size, shared * size, shared * size))
    else:
        k, v = node.value(1), node.value(2)
    length = q.dims[1]
    room = 0 if past[0] is None else past[0].dims[2]
    totals = set((node.array(5, greatest=room + length - 1).reshape(-1) + 1).tolist())
    total = totals.pop()
    before = total - length
    if totals or not 0 <= before <= room:
        node.unsupported(f"rows of different lengths, or {total} keys with {room} of the past and {length} new ones")
    q, k, v = (_heads(node, each, count) for each, count in ((q, heads), (k, shared), (v, shared)))
    if node.attr("do_rotary", 0):
        places = node.literal(np.broadcast_to(np.arange(before, total), (q.dims[0], length)))
        tables, interleaved = (node.value(7), node.value(8)), bool(node.attr("rotary_interleaved", 0))
        q, k = (_rotate(node, each, places, *tables, interleaved) for each in (q, k))
    results: list[OnnxValue | None] = []
    joined = []
    for old, new in zip(past, (k, v), strict=True):
        parts = [new]
        if old is not None and before:
            parts.insert(0, slice_value(node, old, {2: (0, before, 1)}))
        joined.append(join(node, parts, 2))
        rest = [] if old is None or total >= room else [slice_value(node, old, {2: (total, room, 1)})]
        results.append(join(node, [joined[-1], *rest], 2))
    unseen = _unseen_keys(length, total, before, int(node.attr("local_window_size", -1)))
    return [_attend(node, q, joined[0], joined[1], [], unseen, node.attr("softcap", 0.0)), *results]


def _rotary_embedding(node: OnnxNode) -> OnnxValue:
    """Rotate pairs of features by angles that depend on positions: halves of a head, or neighbours if interleaved."""
    _only(node, "interleaved", "num_heads", "rotary_embedding_dim", scale=1.0, is_packed_batching=0)
    x, positions, cosines, sines = (node.value(index) for index in range(4))
    heads = int(node.attr("num_heads", 0)) or (x.dims[2] // (2 * cosines.dims[1]) if x.rank == 3 else x.dims[1])
    split = _heads(node, x, heads) if x.rank == 3 else x
    batch, length = split.dims[0], split.dims[2]
    if int(node.attr("rotary_embedding_dim", 0)) not in (0, 2 * cosines.dims[1]):
        node.refuse(f"angles of {cosines.dims[1]} features are not half of those that are rotated")
    if positions.tensor.elements == 1 and (batch, length) != (1, 1):
        steps = node.literal(np.arange(length))
        start = node.reshape_to(node.cast(positions, DataType.INT_64), (1,))
        positions = node.reshape_to(node.plus(steps, start), (1, length))
        positions = expand(node, positions, (batch, length))
    rotated = _rotate(node, split, positions, cosines, sines, bool(node.attr("interleaved", 0)))
    return _join_heads(node, rotated) if x.rank == 3 else rotated


def _rotate(
    node: OnnxNode, x: OnnxValue, positions: OnnxValue, cosines: OnnxValue, sines: OnnxValue, interleaved: bool
) -> OnnxValue:
    """Return [batch, heads, length, size] with the first features of each head rotated."""
    # The tables have a row for each of the positions [batch, length], and a column for each pair of features:
    # neighbours if interleaved, otherwise the halves of what is rotated.
    batch, _, length, size = x.dims
    half = cosines.dims[1]
    turned = 2 * half
    if turned > size:
        node.refuse(f"angles of {half} features do not fit heads of {size}")
    cosine, sine = (
        node.reshape_to(rows_at(node, table, positions), (batch, 1, length, half)) for table in (cosines, sines)
    )
    ranges = ((0, turned, 2), (1, turned, 2)) if interleaved else ((0, half, 1), (half, turned, 1))
    a, b = (slice_value(node, x, {3: each}) for each in ranges)
    first = node.minus(node.times(a, cosine), node.times(b, sine))
    second = node.plus(node.times(a, sine), node.times(b, cosine))
    if interleaved:
        result = node.reshape_to(stack_values(node, (first, second), 4), (*x.dims[:3], turned))
    else:
        result = join(node, [first, second], 3)
    return result if turned == size else join(node, [result, slice_value(node, x, {3: (turned, size, 1)})], 3)


CONVERTERS: dict[str, Converter] = {
    "com.microsoft:BiasGelu": lambda node: gelu_of(node, _total(node, 0, 1)),
    "com.microsoft:FastGelu": lambda node: tanh_gelu_of(node, _total(node, 0, 1)),
    "com.microsoft:QuickGelu": _quick_gelu,
    "com.microsoft:FusedMatMul": _fused_matmul,
    "com.microsoft:FusedConv": _fused_conv,
    "com.microsoft:FusedGemm": _fused_gemm,
    "com.microsoft:SkipLayerNormalization": _skip_layer_norm,
    "com.microsoft:SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "com.microsoft:EmbedLayerNormalization": _embed_layer_norm,
    "com.microsoft:Attention": _attention,
    "com.microsoft:MultiHeadAttention": _multi_head_attention,
    "com.microsoft:GroupQueryAttention": _group_query_attention,
    "com.microsoft:RotaryEmbedding": _rotary_embedding,
}
