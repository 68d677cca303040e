"""Kinds of transformers: pictures, text, speech, and attention in the forms in which it is exported."""

from __future__ import annotations

import math

import numpy as np
from network_builder import BOOL, FLOAT, INT64, Builder, kind


@kind("ViT", opset=14)
@kind("ViT, fused normalization", opset=17, fused=True)
@kind("ViT, any batch", opset=11, constant_nodes=True, batches=True)
@kind("ViT in float16", opset=17, fused=True, half=True)
@kind("ViT of the dynamo exporter", opset=18, fused=True, shapes=False)
def vit(b: Builder, fused: bool = False, batches: bool = False, shapes: bool = True) -> str:
    x = b.input("x", (2 if batches else 1, 3, 16, 16), smaller=[(1, 3, 16, 16)] if batches else [])
    x = b.conv(x, 3, 16, size=4, stride=4, pads=[0] * 4)
    if shapes:
        x = b.reshape(x, b.size(x, 0), b.size(x, 1), -1)
        token = b("Expand", b.weight(1, 1, 16), b("Concat", b.unsqueeze(b.size(x, 0), 0), [-1 + 2], [16], axis=0))
    else:
        x, token = b.reshape(x, 1, 16, 16), b.weight(1, 1, 16)
    x = b("Concat", token, b.transpose(x, 0, 2, 1), axis=1)
    x = b("Add", x, b.weight(1, 17, 16))
    for _ in range(2):
        x = b.encoder_layer(x, 16, 2, fused, shapes=shapes)
    x = b("Gather", b.layer_norm(x, 16, fused), b.constant(0), axis=1)
    return b.linear(x, 16, 5, gemm=True)


@kind("Swin", opset=14)
def swin(b: Builder) -> str:
    x = b.transpose(b.conv(b.input("x", (1, 3, 16, 16)), 3, 8, size=2, stride=2, pads=[0] * 4), 0, 2, 3, 1)
    # Shifted windows: a roll is two Slices and a Concat for each axis.
    y = b.layer_norm(x, 8)
    for axis in (1, 2):
        y = b("Concat", b.slice(y, 2, 8, axis), b.slice(y, 0, 2, axis), axis=axis)
    y = b.reshape(b.transpose(b.reshape(y, 1, 2, 4, 2, 4, 8), 0, 1, 3, 2, 4, 5), 4, 16, 8)
    index = b.constant(b.rng.integers(0, 49, 256))
    bias = b.transpose(b.reshape(b("Gather", b.weight(49, 2), index, axis=0), 16, 16, 2), 2, 0, 1)
    three = b.transpose(b.reshape(b.linear(y, 8, 24), 4, 16, 3, 2, 4), 2, 0, 3, 1, 4)
    q, k, v = (b("Gather", three, b.constant(i), axis=0) for i in range(3))
    y = b.linear(b.joined(b.attend(q, k, v, 4, b.unsqueeze(bias, 0), scale_first=True), 8), 8, 8)
    y = b.reshape(b.transpose(b.reshape(y, 1, 2, 2, 4, 4, 8), 0, 1, 3, 2, 4, 5), 1, 8, 8, 8)
    for axis in (1, 2):
        y = b("Concat", b.slice(y, 6, 8, axis), b.slice(y, 0, 6, axis), axis=axis)
    x = b("Add", x, y)
    # Merged patches: every other row and column.
    parts = [b.slice(b.slice(x, i, 1 << 31, 1, 2), j, 1 << 31, 2, 2) for j in (0, 1) for i in (0, 1)]
    x = b.linear(b.layer_norm(b("Concat", *parts, axis=-1), 32), 32, 16, bias=False)
    return b.linear(b.mean(x, 1, 2, keep=0), 16, 5, gemm=True)


@kind("MLP-Mixer", opset=13)
def mixer(b: Builder) -> str:
    x = b.conv(b.input("x", (1, 3, 16, 16)), 3, 8, size=4, stride=4, pads=[0] * 4)
    x = b.transpose(b.reshape(x, 1, 8, 16), 0, 2, 1)
    y = b.transpose(b.layer_norm(x, 8), 0, 2, 1)
    y = b.linear(b.activation(b.linear(y, 16, 24), "gelu"), 24, 16)
    x = b("Add", x, b.transpose(y, 0, 2, 1))
    x = b("Add", x, b.linear(b.activation(b.linear(b.layer_norm(x, 8), 8, 16), "gelu"), 16, 8))
    return b.linear(b.mean(x, 1, keep=0), 8, 5, gemm=True)


@kind("SegFormer", opset=13)
def segformer(b: Builder) -> str:
    x = b.conv(b.input("x", (1, 3, 32, 32)), 3, 8, size=7, stride=4)
    rows = b.transpose(b.reshape(x, 1, 8, 64), 0, 2, 1)
    # Attention to a reduced sequence.
    small = b.conv(x, 8, 8, size=2, stride=2, pads=[0] * 4)
    small = b.layer_norm(b.transpose(b.reshape(small, 1, 8, 16), 0, 2, 1), 8)
    rows = b("Add", rows, b.attention(b.layer_norm(rows, 8), 8, 2, small))
    y = b.linear(rows, 8, 16)
    y = b.conv(b.reshape(b.transpose(y, 0, 2, 1), 1, 16, 8, 8), 16, 16, group=16)
    y = b.activation(b.transpose(b.reshape(y, 1, 16, 64), 0, 2, 1), "gelu")
    rows = b("Add", rows, b.linear(y, 16, 8))
    return b.resize(b.conv(b.reshape(b.transpose(rows, 0, 2, 1), 1, 8, 8, 8), 8, 3, size=1), 4.0, "linear")


def _embedded(b: Builder, words: int = 20, width: int = 16, length: int = 8, shorter: bool = True) -> tuple[str, str]:
    """Return ids and the sum of the embeddings of words and positions; the positions are counted in the file."""
    ids = b.input("ids", (1, length), below=words, smaller=[(1, 5), (1, 1)] if shorter else [])
    count = b.size(ids, 1)
    places = b("Slice", b.constant(np.arange(length)[None]), [0], b.unsqueeze(count, 0), [1])
    x = b("Gather", b.weight(words, width, scale=0.5), ids)
    return ids, str(b("Add", x, b("Gather", b.weight(length, width, scale=0.5), places)))


@kind("BERT", opset=11, constant_nodes=True)
@kind("BERT, fused normalization", opset=17, fused=True)
@kind("BERT in float16", opset=14, half=True)
@kind("DistilBERT, mask by Where", opset=14, where=True)
def bert(b: Builder, fused: bool = False, where: bool = False) -> list[str]:
    _, x = _embedded(b, shorter=not where)
    mask = b.input("mask", (1, 8), below=2, smaller=() if where else [(1, 5), (1, 1)])
    x = b.layer_norm(x, 16, fused)
    if where:
        hidden = b("Equal", b.reshape(mask, 1, 1, 1, 8), b.constant(0))
        q, k, v = (b.heads(b.linear(x, 16, 16), 2, 16) for _ in range(3))
        scores = b("MatMul", b("Div", q, math.sqrt(8)), b.transpose(k, 0, 1, 3, 2))
        hidden = b("Expand", hidden, b("Shape", scores))
        scores = b("Where", hidden, float(np.finfo(np.float32).min), scores)
        x = b("Add", x, b.linear(b.joined(b("MatMul", b("Softmax", scores, axis=-1), v), 16), 16, 16))
    else:
        wide = b.unsqueeze(b.unsqueeze(mask, 1), 2)
        bias = b("Mul", b("Sub", 1.0, b("Cast", wide, to=b.float_type())), -10000.0)
        x = b.encoder_layer(x, 16, 2, fused, mask=bias, first=False)
    pooled = b("Tanh", b.linear(b("Gather", x, b.constant(0), axis=1), 16, 16, gemm=True))
    return [x, b.linear(pooled, 16, 3, gemm=True)]


@kind("ALBERT, shared layers", opset=13)
def albert(b: Builder) -> str:
    _, x = _embedded(b)
    weights = [b.weight(16, 16, scale=0.25) for _ in range(4)]
    for _ in range(2):
        q, k, v = (b.heads(b("MatMul", x, weight), 2, 16) for weight in weights[:3])
        y = b("MatMul", b.joined(b.attend(q, k, v, 8), 16), weights[3])
        x = b.layer_norm(b("Add", x, y), 16)
    return b.linear(x, 16, 20)


@kind("GPT-2", opset=13)
@kind("GPT-2, causal mask by Trilu", opset=14, trilu=True)
@kind("GPT-2 with a past", opset=13, past=True)
@kind("GPT-2 with a past and at most two new words", opset=13, past=True, most=2)
def gpt2(b: Builder, trilu: bool = False, past: bool = False, most: int = 6) -> list[str]:
    if past:
        ids = b.input("ids", (1, most), below=20, smaller=[(1, 1), (1, 2)])
        old = [b.input(name, (1, 2, 6, 8), smaller=[(1, 2, 3, 8), (1, 2, 1, 8)]) for name in ("key", "value")]
        before = b.size(old[0], 2)
        total = b("Add", before, b.size(ids, 1))
        places = b.unsqueeze(b("Range", before, total, b.constant(1)), 0)
        x = b("Add", b("Gather", b.weight(20, 16), ids), b("Gather", b.weight(12, 16), places))
    else:
        ids, x = _embedded(b)
    q, k, v = b.split(b.linear(b.layer_norm(x, 16), 16, 48), [16, 16, 16], 2)
    q, k, v = (b.heads(each, 2, 16) for each in (q, k, v))
    if past:
        k, v = (b("Concat", o, n, axis=2) for o, n in zip(old, (k, v), strict=True))
    scores = b("Div", b("MatMul", q, b.transpose(k, 0, 1, 3, 2)), math.sqrt(8))
    rows, columns = b.size(scores, 2), b.size(scores, 3)
    if trilu:
        square = b("ConstantOfShape", b("Concat", b.unsqueeze(rows, 0), b.unsqueeze(columns, 0), axis=0))
        seen = b("Trilu", b("Add", square, 1.0), upper=0)
        seen = b("Cast", seen, to=BOOL)
    else:
        # A slice of a constant triangle.
        triangle = b.constant(np.tril(np.ones((1, 1, 12, 12), bool)))
        first = b.unsqueeze(b("Sub", columns, rows), 0)
        seen = b("Slice", triangle, first, b.unsqueeze(columns, 0), [2])
        seen = b("Slice", seen, [0], b.unsqueeze(columns, 0), [3])
    scores = b("Where", seen, scores, -1e4)
    x = b("Add", x, b.linear(b.joined(b("MatMul", b("Softmax", scores, axis=-1), v), 16), 16, 16))
    x = b("Add", x, b.linear(b.activation(b.linear(b.layer_norm(x, 16), 16, 32), "tanh gelu"), 32, 16))
    return [b.linear(b.layer_norm(x, 16), 16, 20, bias=False), *([k, v] if past else [])]


@kind("Llama", opset=17)
@kind("Llama, any length", opset=14, lengths=True)
def llama(b: Builder, lengths: bool = False) -> str:
    ids = b.input("ids", (1, 6), below=20, smaller=[(1, 4), (1, 1)] if lengths else [])
    x = b("Gather", b.weight(20, 16, scale=0.5), ids)
    y = b.rms_norm(x, 16)
    q = b.heads(b.linear(y, 16, 16, bias=False), 4, 16)
    k, v = (b.heads(b.linear(y, 16, 8, bias=False), 2, 8) for _ in range(2))
    # Rotary positions: halves of a head, exchanged with a sign.
    places = b("Range", b.constant(0), b.size(ids, 1), b.constant(1))
    angles = b("Mul", b.unsqueeze(b("Cast", places, to=FLOAT), 1), np.float32([[1, 0.1]]))
    angles = b("Concat", angles, angles, axis=-1)
    cosine, sine = (b.unsqueeze(b(op, angles), 0, 1) for op in ("Cos", "Sin"))

    def rotated(x: str) -> str:
        turned = b("Concat", b("Neg", b.slice(x, 2, 4, 3)), b.slice(x, 0, 2, 3), axis=-1)
        return str(b("Add", b("Mul", x, cosine), b("Mul", turned, sine)))

    q, k = rotated(q), rotated(k)

    def repeated(x: str) -> str:
        """Two queries share the head of a key: Unsqueeze, Expand, Reshape."""
        count = b.size(x, 2)
        shape = b("Concat", b.constant([1, 2, 2]), b.unsqueeze(count, 0), b.constant([4]), axis=0)
        return b.reshape(b("Expand", b.unsqueeze(x, 2), shape), 1, 4, count, 4)

    k, v = repeated(k), repeated(v)
    hidden = b("Less", b.unsqueeze(places, 1), b.unsqueeze(places, 0))
    bias = b("Where", hidden, -1e9, 0.0)
    y = b.joined(b.attend(q, k, v, 4, b.unsqueeze(bias, 0, 1)), 16)
    x = b("Add", x, b.linear(y, 16, 16, bias=False))
    y = b.rms_norm(x, 16)
    gate = b("Mul", b.activation(b.linear(y, 16, 24, bias=False), "silu"), b.linear(y, 16, 24, bias=False))
    return b.linear(b.rms_norm(b("Add", x, b.linear(gate, 24, 16, bias=False)), 16), 16, 20, bias=False)


@kind("T5, relative positions", opset=13)
def t5(b: Builder) -> str:
    ids = b.input("ids", (1, 7), below=20, smaller=[(1, 4)])
    x = b("Gather", b.weight(20, 16, scale=0.5), ids)
    places = b("Range", b.constant(0), b.size(ids, 1), b.constant(1))
    apart = b("Sub", b.unsqueeze(places, 0), b.unsqueeze(places, 1))
    bucket = b("Mul", b("Cast", b("Greater", apart, b.constant(0)), to=INT64), b.constant(4))
    far = b("Abs", apart)
    near = b("Less", far, b.constant(2))
    log = b("Log", b("Div", b("Cast", b("Max", far, b.constant(1)), to=FLOAT), 2.0))
    log = b("Mul", b("Div", log, math.log(4)), 2.0)
    log = b("Add", b("Cast", log, to=INT64), b.constant(2))
    log = b("Min", log, b("Expand", b.constant(3), b("Shape", log)))
    bucket = b("Add", bucket, b("Where", near, far, log))
    bias = b.unsqueeze(b.transpose(b("Gather", b.weight(8, 2), bucket), 2, 0, 1), 0)
    q, k, v = (b.heads(b.linear(b.rms_norm(x, 16), 16, 16, bias=False), 2, 16) for _ in range(3))
    y = b("Softmax", b("Add", b("MatMul", q, b.transpose(k, 0, 1, 3, 2)), bias), axis=-1)
    x = b("Add", x, b.linear(b.joined(b("MatMul", y, v), 16), 16, 16, bias=False))
    return b.linear(b("Relu", b.linear(b.rms_norm(x, 16), 16, 24, bias=False)), 24, 16, bias=False)


@kind("Encoder and decoder", opset=14)
def encoder_decoder(b: Builder) -> str:
    memory = b.encoder_layer(b.input("source", (1, 6, 16), smaller=[(1, 3, 16)]), 16, 2)
    x = b.input("target", (1, 4, 16), smaller=[(1, 4, 16)])
    x = b("Add", x, b.attention(x, 16, 2, mask=b.constant(np.triu(np.full((4, 4), -1e9, np.float32), 1))))
    return b.linear(b("Add", x, b.attention(b.layer_norm(x, 16), 16, 2, memory)), 16, 10)


@kind("CLIP", opset=14)
def clip(b: Builder) -> list[str]:
    ids, x = _embedded(b, shorter=False)
    x = b.encoder_layer(x, 16, 2, act="silu")
    # The features of the word with the greatest id.
    last = b("ArgMax", ids, axis=-1, keepdims=0)
    text = b("GatherND", x, b("Concat", b.constant([[0]]), b.unsqueeze(last, 1), axis=1))
    image = b.flat(b("GlobalAveragePool", b.block(b.input("x", (2, 3, 8, 8)), 3, 16, stride=2)))
    text, image = (b("Div", e, b("ReduceL2", e, axes=[-1], keepdims=1)) for e in (text, image))
    scores = b("Mul", b("MatMul", image, b.transpose(text, 1, 0)), b("Exp", b.constant(1.5)))
    return [str(scores), str(b("Softmax", b.transpose(scores, 1, 0), axis=-1))]


@kind("DETR", opset=12)
def detr(b: Builder) -> list[str]:
    x = b.conv(b.block(b.input("x", (1, 3, 16, 16)), 3, 8, stride=4), 8, 16, size=1)
    memory = b.encoder_layer(b.transpose(b.reshape(x, 1, 16, 16), 0, 2, 1), 16, 2, act="Relu", first=False)
    queries = b("Tile", b.weight(1, 5, 16), [1, 1, 1])
    y = b("Add", queries, b.attention(queries, 16, 2, memory))
    box = b("Relu", b.linear(y, 16, 16))
    return [str(b("Softmax", b.linear(y, 16, 4), axis=-1)), str(b("Sigmoid", b.linear(box, 16, 4)))]


@kind("Conformer", opset=13)
@kind("Conformer, any length", opset=14, lengths=True)
def conformer(b: Builder, lengths: bool = False) -> str:
    x = b.input("x", (1, 16, 20), smaller=[(1, 12, 20), (1, 5, 20)] if lengths else [])
    # Subsampled by two convolutions.
    y = b("Relu", b.conv(b.unsqueeze(x, 1), 1, 4, stride=2))
    y = b.transpose(y, 0, 2, 1, 3)
    y = b.linear(b.reshape(y, b.size(y, 0), b.size(y, 1), 40), 40, 16)

    def forward(x: str) -> str:
        inner = b.activation(b.linear(b.layer_norm(x, 16), 16, 32), "silu")
        return str(b("Add", x, b("Mul", b.linear(inner, 32, 16), 0.5)))

    y = forward(y)
    y = b("Add", y, b.attention(b.layer_norm(y, 16), 16, 2))
    z = b.conv(b.transpose(b.layer_norm(y, 16), 0, 2, 1), 16, 32, size=1, rank=1)
    left, right = b.split(z, [16, 16], 1)
    z = b("Mul", left, b("Sigmoid", right))
    z = b.activation(b.bn(b.conv(z, 16, 16, size=5, group=16, rank=1), 16), "silu")
    y = b("Add", y, b.transpose(b.conv(z, 16, 16, size=1, rank=1), 0, 2, 1))
    return str(b("LogSoftmax", b.linear(b.layer_norm(forward(y), 16), 16, 8), axis=-1))


@kind("Whisper encoder", opset=14)
def whisper(b: Builder) -> str:
    x = b.activation(b.conv(b.input("x", (1, 10, 24)), 10, 16, rank=1), "gelu")
    x = b.activation(b.conv(x, 16, 16, stride=2, rank=1), "gelu")
    x = b("Add", b.transpose(x, 0, 2, 1), b.weight(12, 16))
    return b.layer_norm(b.encoder_layer(x, 16, 2), 16)


@kind("wav2vec", opset=14)
def wav2vec(b: Builder) -> str:
    x = b.conv(b.input("x", (1, 1, 64)), 1, 8, size=10, stride=5, pads=[0, 0], rank=1, bias=False)
    y = b("InstanceNormalization", b.reshape(x, 0, 8, -1), np.ones(8, np.float32), np.zeros(8, np.float32))
    y = b("Mul", b("Reshape", y, b("Shape", x)), b.unsqueeze(b.weight(8, positive=True), 1))
    y = b.transpose(b.activation(y, "gelu"), 0, 2, 1)
    places = b.conv(b.transpose(y, 0, 2, 1), 8, 8, size=4, group=2, pads=[2, 2], rank=1)
    places = b.activation(b.slice(places, 0, -1, 2), "gelu")
    return b.encoder_layer(b("Add", y, b.transpose(places, 0, 2, 1)), 8, 2)


@kind("Attention by Einsum", opset=12)
def einsum_attention(b: Builder) -> str:
    x = b.input("x", (2, 6, 16))
    q, k, v = (b("Einsum", x, b.weight(16, 2, 8, scale=0.25), equation="btd,dhk->bthk") for _ in range(3))
    scores = b("Einsum", q, k, equation="bqhd,bkhd->bhqk")
    chances = b("Softmax", b("Mul", scores, 8**-0.5), axis=-1)
    y = b("Einsum", chances, v, equation="bhqk,bkhd->bqhd")
    return str(b("Einsum", y, b.weight(2, 8, 16, scale=0.25), equation="bqhd,hde->bqe"))


@kind("Linear attention", opset=13)
def linear_attention(b: Builder) -> str:
    x = b.input("x", (1, 8, 16))
    q, k, v = (b.heads(b.linear(x, 16, 16), 2, 16) for _ in range(3))
    q, k = (b("Add", b("Elu", each), 1.0) for each in (q, k))
    context = b("MatMul", b.transpose(k, 0, 1, 3, 2), v)
    norm = b("MatMul", q, b.transpose(b.sum(k, 2), 0, 1, 3, 2))
    return b.joined(b("Div", b("MatMul", q, context), norm), 16)


@kind("ALiBi", opset=13)
def alibi(b: Builder) -> str:
    x = b.input("x", (1, 6, 16))
    apart = np.arange(6)[None, None] - np.arange(6)[None, :, None]
    slopes = np.float32([0.5, 0.25])[:, None, None]
    return b.attention(x, 16, 2, mask=b.constant((slopes * apart)[None].astype(np.float32)))


@kind("Attention of operator set 23", opset=23)
def attention23(b: Builder) -> str:
    x = b.input("x", (1, 6, 16))
    q, k, v = (b.linear(x, 16, 16) for _ in range(3))
    y = b("Attention", q, k, v, q_num_heads=2, kv_num_heads=2, is_causal=1)
    return str(b("RMSNormalization", b("Add", x, b.linear(y, 16, 16)), b.weight(16, positive=True)))


@kind("BERT, optimized by ONNX Runtime", opset=14)
def optimized_bert(b: Builder) -> str:
    x, ms = b.input("x", (1, 6, 16)), "com.microsoft"
    y = b("Attention", x, b.weight(16, 48, scale=0.25), b.weight(48, scale=0.1), num_heads=2, domain=ms)
    norm = (b.weight(16, positive=True), b.weight(16, scale=0.1))
    x = b("SkipLayerNormalization", b.linear(y, 16, 16), x, *norm, epsilon=1e-5, domain=ms)
    y = b("BiasGelu", b("MatMul", x, b.weight(16, 32, scale=0.25)), b.weight(32, scale=0.1), domain=ms)
    return str(b("SkipLayerNormalization", b.linear(y, 32, 16), x, *norm, epsilon=1e-5, domain=ms))


@kind("Mixture of experts", opset=13)
def experts(b: Builder) -> str:
    x = b.input("x", (6, 8))
    chances = b("Softmax", b.linear(x, 8, 4), axis=-1)
    best, which = b("TopK", chances, [2], axis=-1, out=2)
    best = b("Div", best, b.sum(best, -1))
    gates = b("ScatterElements", b("Mul", chances, 0.0), which, best, axis=1)
    hidden = b("Relu", b("MatMul", b.unsqueeze(x, 0), b.weight(4, 8, 12, scale=0.3)))
    outs = b("MatMul", hidden, b.weight(4, 12, 8, scale=0.3))
    return b.sum(b("Mul", outs, b.unsqueeze(b.transpose(gates, 1, 0), 2)), 0, keep=0)


@kind("Mixture of experts, words by NonZero", opset=13)
def sparse_experts(b: Builder) -> str:
    x = b.input("x", (6, 8))
    which = b("ArgMax", b.linear(x, 8, 3), axis=-1, keepdims=0)
    y = b("Mul", x, 0.0)
    for expert in range(3):
        rows = b("NonZero", b("Equal", which, b.constant(expert)))
        words = b.transpose(rows, 1, 0)
        done = b("Relu", b.linear(b("GatherND", x, words), 8, 8))
        y = b("ScatterND", y, words, done)
    return str(y)


@kind("FNet", opset=17)
def fnet(b: Builder) -> str:
    x = b.input("x", (1, 8, 16))
    y = b("DFT", b.unsqueeze(x, 3), axis=2)
    y = b.squeeze(b.slice(b("DFT", y, axis=1), 0, 1, 3), 3)
    return b.layer_norm(b("Add", x, y), 16)


@kind("RWKV, decay by CumSum", opset=13)
def rwkv(b: Builder) -> str:
    x = b.input("x", (1, 6, 8))
    before = b("Pad", x, [0, 1, 0, 0, -1, 0]) if b.opset >= 11 else x
    mix = b("Sigmoid", b.weight(8))
    k, v, r = (b.linear(b("Add", b("Mul", x, mix), b("Mul", before, b("Sub", 1.0, mix))), 8, 8) for _ in range(3))
    weights = b("Exp", k)
    total = b("Div", b("CumSum", b("Mul", weights, v), b.constant(1)), b("CumSum", weights, b.constant(1)))
    return b.linear(b("Mul", b("Sigmoid", r), total), 8, 8)
