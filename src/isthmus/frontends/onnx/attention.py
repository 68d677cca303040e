"""FlexAttention of ONNX's preview domain: attention with scores and probabilities that subgraphs change. ONNX's own
Attention is converted by its definition in terms of other operators.
"""

from __future__ import annotations

from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.linear import matmul
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.frontends.onnx.reduction import softmax_along
from isthmus.frontends.onnx.tensors import data_type, element_type
from isthmus.graph import DataType


def scores_of(node: OnnxNode, q: OnnxValue, k: OnnxValue) -> OnnxValue:
    """Return the products of queries and keys, both [batch, heads, length, size].

    If there are fewer heads of keys than of queries, consecutive queries share one: their rows are multiplied by the
    same matrix, and no keys are copied.
    """
    batch, heads, length, size = q.dims
    shared, total = k.dims[1:3]
    rows = node.reshape_to(q, (batch, shared, heads // shared * length, size))
    return node.reshape_to(matmul(node, rows, k.permute((0, 1, 3, 2))), (batch, heads, length, total))


def weigh_values(node: OnnxNode, weights: OnnxValue, v: OnnxValue) -> OnnxValue:
    """Return the sums of values [batch, heads, keys, size] by weights of the form of `scores_of`."""
    batch, heads, length, total = weights.dims
    rows = node.reshape_to(weights, (batch, v.dims[1], heads // v.dims[1] * length, total))
    return node.reshape_to(matmul(node, rows, v), (batch, heads, length, v.dims[3]))


def _flex_attention(node: OnnxNode) -> OnnxValue:
    """Convert to products and a softmax; inputs are queries, keys and values [batch, heads, length, size]."""
    q, k, v = (node.value(index) for index in range(3))
    if not q.rank == k.rank == v.rank == 4 or (q.dims[0], q.dims[3]) != (k.dims[0], k.dims[3]):
        node.refuse(f"queries {list(q.dims)}, keys {list(k.dims)} and values {list(v.dims)} do not fit each other")
    _, heads, _, size = q.dims
    shared = k.dims[1]
    if v.dims[:3] != k.dims[:3] or not shared or heads % shared or not size:
        node.refuse(f"{heads} heads of queries do not fit keys {list(k.dims)} and values {list(v.dims)}")
    dtype = q.tensor.dtype
    number = node.attr("softmax_precision")
    if number is not None:
        precision = data_type(element_type(int(number), node.what))
    else:
        precision = dtype if dtype is DataType.FLOAT_64 else DataType.FLOAT_32
    scores = scores_of(node, node.times(q, node.attr("scale", size**-0.5)), k)
    scores = _modify(node, "score_mod", node.cast(scores, precision))
    probabilities = _modify(node, "prob_mod", softmax_along(node, scores, "Softmax", 3))
    return node.cast(weigh_values(node, probabilities, node.cast(v, precision)), dtype)


def _modify(node: OnnxNode, attribute: str, x: OnnxValue) -> OnnxValue:
    """Return the result of the subgraph in an attribute, or the value itself if the node has none."""
    graph = node.attr(attribute)
    if graph is None:
        return x
    results = node.run(graph, [x])
    if len(results) != 1 or results[0].dims != x.dims or results[0].tensor.dtype is not x.tensor.dtype:
        node.refuse(f"{attribute} must return one value of the shape and type of its input")
    return results[0]


CONVERTERS: dict[str, Converter] = {"ai.onnx.preview:FlexAttention": _flex_attention}
