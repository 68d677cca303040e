"""Kinds of recurrent networks: ONNX's own operators, and loops as exporters of TensorFlow and PyTorch write them."""

from __future__ import annotations

from typing import Any

import numpy as np
from network_builder import BOOL, FLOAT, INT64, Builder, kind
from onnx import helper


def _value(name: str, kind: int, *dims: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def _layer(b: Builder, op: str, x: str, ins: int, size: int, direction: str = "forward", **more: Any) -> Any:
    """Add a recurrent layer with zeros as first state; return its results."""
    gates, sides = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if direction == "bidirectional" else 1
    rows = gates * size
    weights = [b.weight(sides, rows, ins, scale=0.4), b.weight(sides, rows, size, scale=0.4)]
    operands: list[Any] = [x, *weights, b.weight(sides, 2 * rows, scale=0.1), ""]
    states = more.pop("states", None)
    if states is None:
        # PyTorch's exporter expands zeros by the batch.
        shape = b("Concat", [sides], b.unsqueeze(b.size(x, 1), 0), [size], axis=0)
        states = [b("ConstantOfShape", shape) for _ in range(2 if op == "LSTM" else 1)]
    peepholes = [b.weight(sides, 3 * size, scale=0.3)] if more.pop("peepholes", False) else []
    return b(op, *operands, *states, *peepholes, out=3 if op == "LSTM" else 2, hidden_size=size, direction=direction,
             **more)  # fmt: skip


@kind("LSTM", opset=11, op="LSTM")
@kind("LSTM, bidirectional", opset=13, op="LSTM", direction="bidirectional")
@kind("LSTM, reverse", opset=14, op="LSTM", direction="reverse")
@kind("LSTM with peepholes", opset=14, op="LSTM", peepholes=True)
@kind("LSTM of any batch and length", opset=11, op="LSTM", lengths=True, constant_nodes=True)
@kind("LSTM in float16", opset=14, op="LSTM", half=True)
@kind("GRU", opset=13, op="GRU", linear_before_reset=1)
@kind("GRU, reset before the product", opset=13, op="GRU", linear_before_reset=0)
@kind("GRU, bidirectional", opset=14, op="GRU", direction="bidirectional", linear_before_reset=1)
@kind("GRU, bidirectional, reset before the product", opset=14, op="GRU", direction="bidirectional")
@kind("RNN", opset=11, op="RNN", activations=["Tanh"])
@kind("RNN of Relu, bidirectional", opset=14, op="RNN", direction="bidirectional", activations=["Relu", "Relu"])
def recurrent(b: Builder, op: str, direction: str = "forward", lengths: bool = False, **more: Any) -> list[str]:
    x = b.input("x", (7, 2, 6), smaller=[(4, 2, 6), (7, 1, 6)] if lengths else [])
    sides = 2 if direction == "bidirectional" else 1
    if b.half:
        more["states"] = [b.constant(np.zeros((1, 2, 8), np.float16)) for _ in range(2)]
    results = _layer(b, op, x, 6, 8, direction, **more)
    y = b.transpose(results[0], 0, 2, 1, 3)
    y = b.reshape(y, b.size(y, 0), b.size(y, 1), 8 * sides) if lengths else b.reshape(y, 7, 2, 8 * sides)
    return [b.linear(y, 8 * sides, 5), *results[1:]]


@kind("LSTM, two layers, batch first", opset=12)
def stacked(b: Builder) -> str:
    x = b.transpose(b.input("x", (2, 6, 4)), 1, 0, 2)
    for ins in (4, 16):
        x = _layer(b, "LSTM", x, ins, 8, "bidirectional")[0]
        x = b.reshape(b.transpose(x, 0, 2, 1, 3), 0, 0, -1)
    return b.linear(b("Gather", b.transpose(x, 1, 0, 2), b.constant(-1), axis=1), 16, 3)


@kind("LSTM with its state as input", opset=14)
def stateful(b: Builder) -> list[str]:
    x, states = b.input("x", (1, 1, 6)), [b.input(name, (1, 1, 8)) for name in ("h", "c")]
    y, h, c = _layer(b, "LSTM", x, 6, 8, states=states)
    return [b.linear(b.squeeze(y, 1), 8, 3), h, c]


@kind("CRNN, text in a line", opset=11)
def crnn(b: Builder) -> str:
    x = b.input("x", (1, 1, 16, 32), smaller=[(1, 1, 16, 24)])
    x = b.pool(b.block(x, 1, 6))
    x = b("MaxPool", b.block(x, 6, 8), kernel_shape=[8, 1], strides=[8, 1])
    x = b.transpose(b.squeeze(x, 2), 2, 0, 1)
    y = _layer(b, "LSTM", x, 8, 8, "bidirectional")[0]
    y = b.transpose(y, 0, 2, 1, 3)
    y = b.reshape(y, b.size(y, 0), b.size(y, 1), 16)
    return str(b("LogSoftmax", b.linear(y, 16, 10), axis=2))


@kind("DeepSpeech", opset=13)
def deepspeech(b: Builder) -> str:
    x = b.clip(b.bn(b.conv(b.input("x", (1, 1, 20, 24)), 1, 4, size=5, stride=2), 4), 0.0, 20.0)
    x = b.transpose(b.reshape(x, 1, 40, 12), 2, 0, 1)
    y = _layer(b, "GRU", x, 40, 8, "bidirectional", linear_before_reset=1)[0]
    y = b.sum(y, 1, keep=0)
    return str(b("Softmax", b.linear(y, 8, 6), axis=-1))


@kind("Keyword spotting, attention over GRU", opset=12)
def keyword(b: Builder) -> str:
    y = b.squeeze(_layer(b, "GRU", b.input("x", (10, 1, 8)), 8, 8, linear_before_reset=1)[0], 1)
    y = b.transpose(y, 1, 0, 2)
    weights = b("Softmax", b.linear(b("Tanh", b.linear(y, 8, 8)), 8, 1), axis=1)
    return b.linear(b.sum(b("Mul", weights, y), 1, keep=0), 8, 4, gemm=True)


@kind("LSTM cells, unrolled", opset=13)
def cells(b: Builder) -> str:
    x = b.input("x", (1, 5, 6))
    w, r, bias = b.weight(6, 32, scale=0.4), b.weight(8, 32, scale=0.4), b.weight(32, scale=0.1)
    h = c = b.constant(np.zeros((1, 8), np.float32))
    for step in range(5):
        now = b("Gather", x, b.constant(step), axis=1)
        gates = b("Add", b("Add", b("MatMul", now, w), b("MatMul", h, r)), bias)
        i, f, g, o = b.split(gates, [8] * 4, 1)
        c = b("Add", b("Mul", b("Sigmoid", f), c), b("Mul", b("Sigmoid", i), b("Tanh", g)))
        h = b("Mul", b("Sigmoid", o), b("Tanh", c))
    return b.linear(h, 8, 3, gemm=True)


@kind("LSTM by Loop, as TensorFlow's while", opset=11)
@kind("LSTM by Loop over any length", opset=13, lengths=True)
def loop(b: Builder, lengths: bool = False) -> list[str]:
    x = b.input("x", (6, 1, 4), smaller=[(3, 1, 4), (1, 1, 4)] if lengths else [])
    w = b.weight(12, 8, scale=0.4)

    def body(i: Builder) -> tuple[list[Any], list[Any]]:
        inputs = [_value("step", INT64), _value("go", BOOL), _value("state", FLOAT, 1, 8)]
        joined = i("Concat", i("Gather", x, "step", axis=0), "state", axis=1)
        state = i("Tanh", i("MatMul", joined, w))
        return inputs, [(i("Identity", "go"), BOOL), (state, FLOAT), (i("Identity", state), FLOAT)]

    turns = b.size(x, 0)
    first = b.constant(np.zeros((1, 8), np.float32))
    return list(b("Loop", turns, np.asarray(True), first, out=2, body=b.graph(body)))


@kind("RNN by Scan", opset=11)
@kind("RNN by Scan, backwards", opset=16, backwards=True)
def scan(b: Builder, backwards: bool = False) -> list[str]:
    x, w = b.input("x", (5, 2, 4)), b.weight(12, 8, scale=0.4)

    def body(i: Builder) -> tuple[list[Any], list[Any]]:
        state = i("Relu", i("MatMul", i("Concat", "now", "state", axis=1), w))
        return [_value("state", FLOAT, 2, 8), _value("now", FLOAT, 2, 4)], [(state, FLOAT), (i("Neg", state), FLOAT)]

    first, flags = b.constant(np.zeros((2, 8), np.float32)), [1] if backwards else None
    return list(b("Scan", first, x, out=2, body=b.graph(body), num_scan_inputs=1, scan_input_directions=flags,
                  scan_output_directions=flags))  # fmt: skip


@kind("State space model, Mamba", opset=13)
def mamba(b: Builder) -> str:
    x = b.input("x", (1, 6, 8))
    y = b.transpose(b.linear(x, 8, 8), 0, 2, 1)
    y = b.slice(b.conv(y, 8, 8, size=4, group=8, pads=[3, 3], rank=1), 0, 6, 2)
    y = b.activation(b.transpose(y, 0, 2, 1), "silu")
    delta = b("Softplus", b.linear(y, 8, 8))
    a = b("Exp", b("Mul", b.unsqueeze(delta, 3), b("Neg", b("Exp", b.weight(8, 4)))))
    u = b("Mul", b.unsqueeze(b("Mul", delta, y), 3), b.unsqueeze(b.linear(y, 8, 4), 2))

    def body(i: Builder) -> tuple[list[Any], list[Any]]:
        inputs = [_value("state", FLOAT, 1, 8, 4), _value("decay", FLOAT, 1, 8, 4), _value("new", FLOAT, 1, 8, 4)]
        state = i("Add", i("Mul", "state", "decay"), "new")
        return inputs, [(state, FLOAT), (i("Identity", state), FLOAT)]

    _, states = b("Scan", b.constant(np.zeros((1, 8, 4), np.float32)), a, u, out=2, body=b.graph(body),
                  num_scan_inputs=2, scan_input_axes=[1, 1], scan_output_axes=[1])  # fmt: skip
    y = b.squeeze(b("MatMul", states, b.unsqueeze(b.linear(y, 8, 4), 3)), 3)
    return b.linear(b("Mul", y, b.activation(b.linear(x, 8, 8), "silu")), 8, 8)


@kind("Greedy decoder by Loop until the end of the sentence", opset=13)
def decoder(b: Builder) -> list[Any]:
    x = b.input("x", (1, 8))
    w, r, words = b.weight(8, 8, scale=0.5), b.weight(8, 6, scale=1.0), b.weight(6, 8, scale=1.0)

    def body(i: Builder) -> tuple[list[Any], list[Any]]:
        inputs = [_value("step", INT64), _value("go", BOOL), _value("state", FLOAT, 1, 8)]
        state = i("Tanh", i("MatMul", "state", w))
        word = i("ArgMax", i("MatMul", state, r), axis=1, keepdims=0)
        following = i("Add", state, i("Gather", words, word))
        more = i.squeeze(i("Not", i("Equal", word, i.constant([0]))), 0)
        return inputs, [(more, BOOL), (following, FLOAT), (i("Identity", word), INT64)]

    state, said = b("Loop", b.constant(6), np.asarray(True), x, out=2, body=b.graph(body))
    return [state, (said, INT64)]
