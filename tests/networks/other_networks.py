"""Other kinds of networks: detectors, graphs, recommendation, quantized files, and control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
from network_builder import BOOL, FLOAT, INT64, Builder, kind
from onnx import helper

# --- detectors ------------------------------------------------------------------------------------------------------


def _selected(b: Builder, boxes: str, scores: str, most: int = 4) -> list[Any]:
    """Select boxes by NonMaxSuppression, and gather them with their scores and classes."""
    chosen = b("NonMaxSuppression", boxes, scores, [most], np.float32([0.4]), np.float32([0.3]))
    index, which = (b("Gather", chosen, b.constant(i), axis=1) for i in (2, 1))
    kept = b("Gather", b.squeeze(boxes, 0), index, axis=0)
    pairs = b("Concat", b.unsqueeze(which, 1), b.unsqueeze(index, 1), axis=1)
    return [kept, b("GatherND", b.squeeze(scores, 0), pairs), (which, INT64)]


@kind("SSD with NonMaxSuppression", opset=11)
def ssd(b: Builder) -> list[Any]:
    x = b.block(b.block(b.input("x", (1, 3, 32, 32)), 3, 8, stride=2, act="relu6"), 8, 12, stride=2, act="relu6")
    y = b.block(x, 12, 12, stride=2, act="relu6")
    places, chances = [], []
    for each in (x, y):
        for found, parts in ((places, 4), (chances, 3)):
            rows = b.transpose(b.conv(each, 12, 2 * parts), 0, 2, 3, 1)
            found.append(b.reshape(rows, b.size(rows, 0), -1, parts))
    offsets, scores = b("Concat", *places, axis=1), b("Softmax", b("Concat", *chances, axis=1), axis=2)
    anchors = b.rng.random((1, 160, 4)).astype(np.float32) * 0.5 + np.float32([0, 0, 0.2, 0.2])
    centre = b("Add", b("Mul", b.slice(offsets, 0, 2, 2), 0.1), anchors[..., :2])
    size = b("Mul", b("Exp", b("Mul", b.slice(offsets, 2, 4, 2), 0.2)), anchors[..., 2:])
    half = b("Div", size, 2.0)
    boxes = b("Concat", b("Sub", centre, half), b("Add", centre, half), axis=2)
    return _selected(b, boxes, b.transpose(b.slice(scores, 1, 3, 2), 0, 2, 1))


@kind("YOLOv3", opset=10)
@kind("YOLOv5, grid from shapes", opset=12, grid=True)
@kind("YOLOv8 with NonMaxSuppression", opset=17, selects=True)
def yolo(b: Builder, grid: bool = False, selects: bool = False) -> Any:
    act = "silu" if grid or selects else "leaky"
    x = b.input("x", (1, 3, 32, 32), smaller=[(1, 3, 16, 32)] if grid else [])
    if grid:
        # The focus layer: every other row and column.
        parts = [b.slice(b.slice(x, i, 1 << 31, 2, 2), j, 1 << 31, 3, 2) for j in (0, 1) for i in (0, 1)]
        x = b.block(b("Concat", *parts, axis=1), 12, 8, act=act)
    else:
        x = b.block(x, 3, 8, stride=2, act=act)
    x = b.block(x, 8, 8, stride=2, act=act)
    # Spatial pyramid pooling.
    pools = [x, *(b.pool(x, size=size, stride=1, pads=[size // 2] * 4) for size in (3, 5))]
    fine = b.block(b("Concat", *pools, axis=1), 24, 8, size=1, act=act)
    coarse = b.block(fine, 8, 8, stride=2, act=act)
    fine = b("Concat", b.resize(coarse, 2.0), fine, axis=1)
    if not grid and not selects:
        return [b.conv(fine, 16, 14, size=1), b.conv(coarse, 8, 14, size=1)]
    raw = b.conv(fine, 16, 6, size=1)
    height, width = b.size(raw, 2), b.size(raw, 3)
    lines = [b("Cast", b("Range", b.constant(0), n, b.constant(1)), to=FLOAT) for n in (height, width)]
    shape = b("Concat", b.unsqueeze(height, 0), b.unsqueeze(width, 0), axis=0)
    rows = b("Expand", b.unsqueeze(lines[0], 1), shape)
    columns = b("Expand", b.unsqueeze(lines[1], 0), shape)
    cells = b("Concat", b.unsqueeze(columns, 2), b.unsqueeze(rows, 2), axis=2)
    raw = b("Sigmoid", b.reshape(b.transpose(raw, 0, 2, 3, 1), 1, height, width, 6))
    centre = b("Mul", b("Add", b("Sub", b("Mul", b.slice(raw, 0, 2, 3), 2.0), 0.5), b.unsqueeze(cells, 0)), 4.0)
    size = b("Mul", b("Pow", b("Mul", b.slice(raw, 2, 4, 3), 2.0), 2.0), 4.0)
    flat = b.reshape(b("Concat", centre, size, b.slice(raw, 4, 6, 3), axis=3), 1, -1, 6)
    if not selects:
        return flat
    middle, half = b.slice(flat, 0, 2, 2), b("Div", b.slice(flat, 2, 4, 2), 2.0)
    boxes = b("Concat", b("Sub", middle, half), b("Add", middle, half), axis=2)
    return _selected(b, boxes, b.transpose(b.slice(flat, 4, 6, 2), 0, 2, 1))


@kind("RetinaNet, best by TopK", opset=12)
def retinanet(b: Builder) -> list[Any]:
    x = b.block(b.block(b.input("x", (1, 3, 16, 16)), 3, 8, stride=2), 8, 8)
    scores = b("Sigmoid", b.reshape(b.transpose(b.conv(x, 8, 6), 0, 2, 3, 1), -1))
    boxes = b.reshape(b.transpose(b.conv(x, 8, 8), 0, 2, 3, 1), -1, 4)
    count = b("Min", b("Concat", [100], b("Shape", scores), axis=0), [384])
    best, places = b("TopK", scores, b("ReduceMin", count, axes=[0], keepdims=1), out=2, axis=0)
    rows = b("Div", places, b.constant(3))
    return [best, b("Gather", boxes, rows, axis=0), (b("Mod", places, b.constant(3)), INT64)]


@kind("Faster R-CNN, RoiAlign", opset=16)
def faster(b: Builder) -> list[Any]:
    x = b.block(b.input("x", (1, 3, 24, 24)), 3, 8, stride=2)
    corners = b.input("corners", (5, 2), low=0.0)
    boxes = b("Concat", corners, b("Add", corners, 8.0), axis=1)
    parts = b("RoiAlign", x, boxes, b.constant(np.zeros(5, np.int64)), output_height=3, output_width=3,
              sampling_ratio=2, spatial_scale=0.5, mode="avg")  # fmt: skip
    y = b("Relu", b.linear(b.flat(parts), 72, 16, gemm=True))
    return [b("Softmax", b.linear(y, 16, 3, gemm=True), axis=-1), b.linear(y, 16, 12, gemm=True)]


@kind("Proposals by NonZero and Loop over sizes", opset=13)
def proposals(b: Builder) -> list[Any]:
    x = b("Sigmoid", b.conv(b.input("x", (1, 3, 12, 12)), 3, 1))
    places = b("NonZero", b("Greater", x, 0.6))
    rows = b.transpose(places, 1, 0)
    values = b("GatherND", x, rows)
    return [values, (b("Gather", rows, [2, 3], axis=1), INT64), b.sum(values, 0)]


@kind("CenterNet, peaks by MaxPool", opset=13)
def centernet(b: Builder) -> list[Any]:
    heat = b("Sigmoid", b.conv(b.block(b.input("x", (1, 3, 16, 16)), 3, 8, stride=2), 8, 2))
    peaks = b("Mul", heat, b("Cast", b("Equal", heat, b.pool(heat, size=3, stride=1, pads=[1] * 4)), to=FLOAT))
    best, places = b("TopK", b.reshape(peaks, 1, -1), [6], out=2)
    cell = b("Mod", places, b.constant(64))
    sizes = b.reshape(b.conv(heat, 2, 2), 1, 2, 64)
    taken = b("GatherElements", sizes, b("Expand", b.unsqueeze(cell, 1), [1, 2, 6]), axis=2)
    return [best, (b("Div", cell, b.constant(8)), INT64), taken]


@kind("Pose, expected places", opset=13)
def pose(b: Builder) -> list[Any]:
    heat = b.conv(b.block(b.input("x", (1, 3, 16, 16)), 3, 8, stride=2), 8, 5)
    chances = b("Softmax", b.reshape(heat, 1, 5, 64), axis=2)
    grid = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(64, 2).astype(np.float32)
    return [b("MatMul", chances, grid), (b("ArgMax", b.reshape(heat, 5, 64), axis=1, keepdims=0), INT64)]


@kind("Text detector of any size", opset=14)
def text(b: Builder) -> str:
    x = b.input("x", (1, 3, 32, 32), smaller=[(1, 3, 24, 32), (1, 3, 17, 9)])
    fine = b.block(x, 3, 6, stride=2, act="hardswish")
    coarse = b.block(fine, 6, 8, stride=2, act="hardswish")
    merged = b("Add", b.resize_like(b.conv(coarse, 8, 6, size=1), fine, "nearest"), fine)
    return str(b("Sigmoid", b.resize_like(b.conv(b.block(merged, 6, 6), 6, 1, size=1), x)))


@kind("Face detector, priors of any size", opset=11)
def faces(b: Builder) -> list[Any]:
    x = b.input("x", (1, 3, 32, 24), smaller=[(1, 3, 16, 24)])
    y = b.block(b.block(x, 3, 6, stride=2, act="leaky"), 6, 8, stride=2, act="leaky")
    rows = b.transpose(b.conv(y, 8, 4, size=1), 0, 2, 3, 1)
    marks = b.reshape(rows, b.size(rows, 0), -1, 4)
    counts = b("Concat", *(b.unsqueeze(b.size(y, axis), 0) for axis in (2, 3)), axis=0)
    centres = b.transpose(b("NonZero", b("ConstantOfShape", counts, value=helper.make_tensor("v", FLOAT, [1], [1.0]))),
                          1, 0)  # fmt: skip
    centres = b("Add", b("Cast", centres, to=FLOAT), 0.5)
    return [b("Add", b.slice(marks, 0, 2, 2), b.unsqueeze(centres, 0)), b.slice(marks, 2, 4, 2)]


# --- graphs, points, tables -----------------------------------------------------------------------------------------


@kind("Graph convolution", opset=16)
@kind("Graph attention", opset=18, attention=True)
def graph_network(b: Builder, attention: bool = False) -> str:
    x, edges = b.input("x", (6, 8)), b.input("edges", (2, 10), below=6, smaller=[(2, 7), (2, 1)])
    source, target = (b("Gather", edges, b.constant(i), axis=0) for i in (0, 1))
    y = b.linear(x, 8, 8)
    sent = b("Gather", y, source, axis=0)
    wide = b("Expand", b.unsqueeze(target, 1), b("Shape", sent))
    zero = b.constant(np.zeros((6, 8), np.float32))
    if not attention:
        total = b("ScatterElements", zero, wide, sent, axis=0, reduction="add")
        ones = b("Expand", b.constant(1.0), b("Shape", sent))
        degree = b("ScatterElements", zero, wide, ones, axis=0, reduction="add")
        return b.linear(b("Relu", b("Div", total, b("Max", degree, 1.0))), 8, 3)
    score = b.activation(b("Add", b.linear(sent, 8, 8), b("Gather", b.linear(y, 8, 8), target)), "leaky")
    top = b("ScatterElements", b("Sub", zero, 1e9), wide, score, axis=0, reduction="max")
    weight = b("Exp", b("Sub", score, b("Gather", top, target)))
    total = b("ScatterND", zero, b.unsqueeze(target, 1), weight, reduction="add")
    weight = b("Div", weight, b("Gather", total, target))
    return str(b("ScatterND", zero, b.unsqueeze(target, 1), b("Mul", weight, sent), reduction="add"))


@kind("PointNet", opset=13)
def pointnet(b: Builder) -> str:
    x = b.input("x", (1, 3, 20), smaller=[(1, 3, 9)])
    turn = b.max(b.block(x, 3, 8, size=1, rank=1), 2, keep=0)
    turn = b("Add", b.reshape(b.linear(turn, 8, 9, gemm=True), -1, 3, 3), np.eye(3, dtype=np.float32)[None])
    x = b.transpose(b("MatMul", b.transpose(x, 0, 2, 1), turn), 0, 2, 1)
    return b.linear(b.max(b.block(x, 3, 16, size=1, rank=1), 2, keep=0), 16, 4, gemm=True)


@kind("Nearest points, DGCNN", opset=13)
def dgcnn(b: Builder) -> str:
    x = b.input("x", (1, 3, 12))
    inner = b("Mul", b("MatMul", b.transpose(x, 0, 2, 1), x), -2.0)
    square = b.sum(b("Pow", x, 2.0), 1)
    apart = b("Neg", b("Add", b("Add", inner, square), b.transpose(square, 0, 2, 1)))
    _, near = b("TopK", apart, [4], axis=-1, out=2)
    points = b.reshape(b.transpose(x, 0, 2, 1), 12, 3)
    around = b.reshape(b("Gather", points, b.reshape(near, -1), axis=0), 1, 12, 4, 3)
    own = b("Tile", b.reshape(points, 1, 12, 1, 3), [1, 1, 4, 1])
    edges = b.transpose(b("Concat", b("Sub", around, own), own, axis=3), 0, 3, 1, 2)
    return b.max(b.block(edges, 6, 8, size=1, act="leaky"), -1, keep=0)


@kind("DLRM", opset=13)
def dlrm(b: Builder) -> str:
    dense, ids = b.input("dense", (2, 6)), b.input("ids", (2, 3), below=10)
    parts = [b.unsqueeze(b("Relu", b.linear(dense, 6, 4, gemm=True)), 1)]
    parts += [b.unsqueeze(b("Gather", b.weight(10, 4), b("Gather", ids, b.constant(i), axis=1)), 1) for i in range(3)]
    x = b("Concat", *parts, axis=1)
    products = b("MatMul", x, b.transpose(x, 0, 2, 1))
    rows, columns = np.tril_indices(4, -1)
    places = np.broadcast_to(np.stack([rows, columns], -1), (2, 6, 2))
    x = b("GatherND", products, np.ascontiguousarray(places), batch_dims=1)
    return str(b("Sigmoid", b.linear(b("Concat", b.squeeze(parts[0], 1), x, axis=1), 10, 1, gemm=True)))


@kind("Wide and deep", opset=13)
def wide_deep(b: Builder) -> str:
    ids, x = b.input("ids", (3,), below=6), b.input("x", (3, 4))
    wide = b.linear(b("OneHot", ids, b.constant([6]), np.float32([0, 1])), 6, 1, gemm=True)
    deep = b.linear(b("Relu", b.linear(b("Concat", x, b("Gather", b.weight(6, 4), ids), axis=1), 8, 8)), 8, 1)
    return str(b("Sigmoid", b("Add", wide, deep)))


@kind("Matrix factorization by Einsum", opset=12)
def factors(b: Builder) -> list[Any]:
    x, y = b.input("x", (3, 4, 5)), b.input("y", (3, 5, 2))
    sides = b("Einsum", x, x, equation="bij,bij->b")
    wide = b("Einsum", x, b.weight(4, 6), equation="...ij,ik->...kj")
    return [b("Einsum", x, y, equation="bij,bjk->bik"), sides, wide]


@kind("Spectrogram", opset=17)
def spectrogram(b: Builder) -> str:
    x = b("STFT", b.input("x", (1, 64)), b.constant(8), np.hanning(16).astype(np.float32), out=1)
    power = b.sum(b("Mul", x, x), 3, keep=0)
    mel = b("MatMul", power, b.constant(np.abs(b.rng.standard_normal((9, 5))).astype(np.float32)))
    return b.linear(b("Log", b("Add", mel, 1e-6)), 5, 3)


@kind("Spectrogram by convolutions", opset=12)
def spectrogram_conv(b: Builder) -> str:
    x = b.pad(b.input("x", (1, 1, 60)), [0, 0, 8, 0, 0, 8], "reflect")
    sides = [b.conv(x, 1, 9, size=16, stride=8, pads=[0, 0], rank=1, bias=False) for _ in range(2)]
    power = b("Sqrt", b("Add", b("Pow", sides[0], 2.0), b("Pow", sides[1], 2.0)))
    return str(b("Log", b("Max", power, 1e-5)))


@kind("Variational autoencoder", opset=13)
def vae(b: Builder) -> list[Any]:
    h = b("Relu", b.linear(b.input("x", (2, 12)), 12, 8, gemm=True))
    mean, log = b.linear(h, 8, 3, gemm=True), b.linear(h, 8, 3, gemm=True)
    z = b("Add", mean, b("Mul", b.input("noise", (2, 3)), b("Exp", b("Mul", log, 0.5))))
    return [b("Sigmoid", b.linear(b("Relu", b.linear(z, 3, 8)), 8, 12)), mean, log]


@kind("Normalizing flow", opset=13)
def coupling(b: Builder) -> list[Any]:
    first, second = b.split(b.input("x", (4, 8)), [4, 4], 1)
    scale = b("Tanh", b.linear(b("Relu", b.linear(first, 4, 8)), 8, 4))
    second = b("Add", b("Mul", second, b("Exp", scale)), b.linear(first, 4, 4))
    turned = b("Gather", b("Concat", second, first, axis=1), b.constant(np.arange(7, -1, -1)), axis=1)
    return [turned, b.sum(scale, 1, keep=0)]


@kind("Reinforcement learning, two heads", opset=15)
def policy(b: Builder) -> list[Any]:
    x = b.input("x", (1, 10))
    h = b("Elu", b.linear(b("Selu", b.linear(x, 10, 16, gemm=True)), 16, 16, gemm=True))
    chances = b("Softmax", b.linear(h, 16, 4, gemm=True), axis=1)
    return [(b("ArgMax", chances, axis=1), INT64), b.linear(h, 16, 1, gemm=True), b("ReduceLogSumExp", h, axes=[1])]


# --- quantized ------------------------------------------------------------------------------------------------------


@kind("ResNet in int8, QDQ", opset=13)
@kind("ResNet in int8, QDQ per channel", opset=13, per_channel=True)
@kind("MobileNet in uint8 activations, QDQ", opset=13, per_channel=True, depthwise=True)
def quantized(b: Builder, per_channel: bool = False, depthwise: bool = False) -> str:
    dtype, zero = (np.uint8, 128) if depthwise else (np.int8, 0)

    def conv(x: str, ins: int, outs: int, group: int = 1, size: int = 3, stride: int = 1) -> str:
        bias = b.constant(b.rng.integers(-200, 200, outs).astype(np.int32))
        scale = np.float32(1e-3)
        bias = b("DequantizeLinear", bias, scale, np.asarray(0, np.int32))
        weight = b.q_weight(outs, ins // group, size, size, per_channel=per_channel)
        return str(b("Conv", x, weight, bias, kernel_shape=[size] * 2, pads=[size // 2] * 4, group=group,
                     strides=[stride] * 2))  # fmt: skip

    # Scales whose sums seldom lie between two steps: there rounding is a matter of the last bit.
    x = b.qdq(b.input("x", (1, 3, 16, 16)), 0.0313, zero, dtype)
    x = b.qdq(b("Relu", conv(x, 3, 8, stride=2)), 0.0313, zero, dtype)
    y = b.qdq(b("Relu", conv(x, 8, 8, group=8 if depthwise else 1)), 0.0313, zero, dtype)
    y = b.qdq(conv(y, 8, 8, size=1 if depthwise else 3), 0.0313, zero, dtype)
    x = b.qdq(b("Add", x, y), 0.0427, zero, dtype)
    x = b.qdq(b("GlobalAveragePool", x), 0.0197, zero, dtype)
    x = b("Gemm", b.flat(x), b.q_weight(4, 8), transB=1)
    return b.qdq(x, 0.0197, zero, dtype)


@kind("Transformer in int8, QDQ", opset=17)
def quantized_transformer(b: Builder) -> str:
    x = b.qdq(b.input("x", (1, 6, 16)), 0.03)

    def product(x: str) -> str:
        return b.qdq(b("Add", b("MatMul", x, b.q_weight(16, 16)), b.weight(16, scale=0.1)), 0.04)

    q, k, v = (b.heads(product(x), 2, 16, shapes=False) for _ in range(3))
    scores = b.qdq(b("Div", b("MatMul", q, b.transpose(k, 0, 1, 3, 2)), 2.8), 0.05)
    chances = b.qdq(b("Softmax", scores, axis=-1), 1 / 255, 0, np.uint8)
    y = product(b.qdq(b.joined(b("MatMul", chances, v), 16, shapes=False), 0.03))
    return b.qdq(b.layer_norm(b.qdq(b("Add", x, y), 0.05), 16, fused=True), 0.03)


@kind("Linear layers, dynamic quantization", opset=11)
def dynamic(b: Builder) -> str:
    x = b.input("x", (2, 16))
    for ins, outs in ((16, 12), (12, 4)):
        stored, scale, zero = b("DynamicQuantizeLinear", x, out=3)
        weight = b.constant(b.rng.integers(0, 256, (ins, outs)).astype(np.uint8))
        product = b("MatMulInteger", stored, weight, zero, np.asarray(128, np.uint8))
        x = b("Add", b("Mul", b("Cast", product, to=FLOAT), b("Mul", scale, 0.003)), b.weight(outs, scale=0.1))
        x = b("Relu", x)
    return str(x)


@kind("Convolutions of QLinearConv", opset=10)
def qlinear(b: Builder) -> str:
    def scale(value: float) -> np.ndarray:
        return np.asarray(value, np.float32)

    zero = np.asarray(0, np.uint8)
    x = b("QuantizeLinear", b("Abs", b.input("x", (1, 3, 12, 12))), scale(0.015), zero)
    for ins, outs in ((3, 6), (6, 4)):
        weight = b.constant(b.rng.integers(-100, 100, (outs, ins, 3, 3)).astype(np.int8))
        bias = b.constant(b.rng.integers(-500, 500, outs).astype(np.int32))
        x = b("QLinearConv", x, scale(0.015), zero, weight, scale(0.003), np.asarray(0, np.int8), scale(0.015), zero,
              bias, kernel_shape=[3, 3], pads=[1] * 4)  # fmt: skip
        x = b("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]) if b.opset >= 12 else x
    return str(b("DequantizeLinear", x, scale(0.015), zero))


# --- control flow and functions -------------------------------------------------------------------------------------


@kind("If of a condition that is an input", opset=13)
@kind("If whose branches have other shapes", opset=13, other=True)
def branches(b: Builder, other: bool = False) -> str:
    x, flag = b.input("x", (2, 6)), b.input("flag", (), dtype=np.bool_)

    def then(i: Builder) -> tuple[list[Any], list[Any]]:
        return [], [(i("Relu", i("Reshape", x, [3, 4]) if other else x), FLOAT)]

    def otherwise(i: Builder) -> tuple[list[Any], list[Any]]:
        return [], [(i("Neg", i("Reshape", x, [12, 1]) if other else x), FLOAT)]

    y = b("If", flag, then_branch=b.graph(then), else_branch=b.graph(otherwise))
    return str(b("Softmax", y, axis=-1))


@kind("Squeeze by If, as the TorchScript exporter writes it", opset=13)
def squeezed(b: Builder) -> str:
    x = b.conv(b.input("x", (1, 3, 8, 8)), 3, 1)

    def then(i: Builder) -> tuple[list[Any], list[Any]]:
        return [], [(i("Squeeze", x, [1]), FLOAT)]

    def otherwise(i: Builder) -> tuple[list[Any], list[Any]]:
        return [], [(i("Identity", x), FLOAT)]

    one = b("Equal", b.size(x, 1), b.constant(1))
    return str(b("Sigmoid", b("If", one, then_branch=b.graph(then), else_branch=b.graph(otherwise))))


@kind("Sequence of parts", opset=13)
def parts(b: Builder) -> str:
    x = b.input("x", (2, 6, 4))
    found = b("SplitToSequence", x, b.constant(2), axis=1)
    first, last = (b("SequenceAt", found, b.constant(i)) for i in (0, -1))
    made = b("SequenceConstruct", first, b.linear(last, 4, 4), first)
    return str(b("ConcatFromSequence", made, axis=1))


@kind("Functions of the dynamo exporter", opset=18)
def functions(b: Builder) -> str:
    opsets = [helper.make_opsetid("", 18)]
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    b.functions.append(helper.make_function("pkg.torch", "silu", ["x"], ["y"], nodes, opsets))
    inner = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["q"]),
             helper.make_node("silu", ["q"], ["y"], domain="pkg.torch")]  # fmt: skip
    calls = [*opsets, helper.make_opsetid("pkg.torch", 1)]
    b.functions.append(helper.make_function("pkg.torch", "layer", ["x", "w", "b"], ["y"], inner, calls))
    x = b.input("x", (2, 8))
    for _ in range(2):
        x = b("layer", x, b.weight(8, 8), b.weight(8), domain="pkg.torch")
    return str(x)


@kind("Mask by Compress and Unique", opset=13)
def compress(b: Builder) -> list[Any]:
    x = b.input("x", (8,))
    kept = b("Compress", x, b("Greater", x, 0.0))
    ids = b("Unique", b("Floor", x))
    return [kept, ids, (b("Shape", kept), INT64)]


@kind("Padding and cropping by shapes", opset=13)
def padding(b: Builder) -> str:
    x = b.input("x", (1, 2, 10, 12), smaller=[(1, 2, 7, 9), (1, 2, 8, 8)])
    # To a multiple of 4 and back, as networks with strides do.
    amounts = []
    for axis in (2, 3):
        size = b.size(x, axis)
        rest = b("Mod", size, b.constant(4))
        amounts.append(b.unsqueeze(b("Mod", b("Sub", b.constant(4), rest), b.constant(4)), 0))
    pads = b("Concat", [0, 0, 0, 0, 0, 0], *amounts, axis=0)
    y = b.resize(b.pool(b.conv(b("Pad", x, pads, mode="edge"), 2, 4), size=4, stride=4), 4.0)
    ends = b("Slice", b("Shape", x), [2], [4], [0])
    return str(b("Slice", y, [0, 0], ends, [2, 3]))


@kind("Comparisons and logic", opset=16)
def logic(b: Builder) -> list[Any]:
    x, y = b.input("x", (3, 4)), b.input("y", (1, 4))
    inside = b("And", b("GreaterOrEqual", x, y), b("LessOrEqual", b("Abs", x), 1.0))
    count = b("ReduceSum", b("Cast", inside, to=INT64), [1], keepdims=0)
    return [b("Where", inside, x, b("Neg", y)), (count, INT64), (b("Not", inside), BOOL)]
