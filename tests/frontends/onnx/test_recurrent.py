"""LSTM, GRU and RNN in every direction, with and without biases and initial states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from frontends.onnx.graphs import check, convert, floats, interpret, model, node, operations, random_feeds
from isthmus.errors import QnnError

RNG = np.random.default_rng(3)
TIME, BATCH, FEATURES, UNITS = 4, 2, 3, 5
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OUTPUTS = {"LSTM": "y h c", "GRU": "y h", "RNN": "y h"}


def layer(op: str, direction: str, bias: bool, states: bool, **attributes: Any) -> Any:
    ways, gates = (2 if direction == "bidirectional" else 1), GATES[op]

    def weights(*dims: int) -> np.ndarray:
        return (RNG.standard_normal(dims) * 0.5).astype(np.float32)

    constants = {"w": weights(ways, gates * UNITS, FEATURES), "r": weights(ways, gates * UNITS, UNITS)}
    inputs = {"x": floats(TIME, BATCH, FEATURES)}
    names = "x w r " + ("b" if bias else "-")
    if bias:
        constants["b"] = weights(ways, 2 * gates * UNITS)
    if states:
        names += " - h0" + (" c0" if op == "LSTM" else "")
        inputs["h0"] = floats(ways, BATCH, UNITS)
        if op == "LSTM":
            inputs["c0"] = floats(ways, BATCH, UNITS)
    step = node(op, names, OUTPUTS[op], hidden_size=UNITS, direction=direction, **attributes)
    return model([step], inputs, OUTPUTS[op], constants)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("bias", "states"), [(False, False), (True, True)])
def test_layer(op: str, direction: str, bias: bool, states: bool) -> None:
    check(layer(op, direction, bias, states))


@pytest.mark.parametrize("linear", [0, 1])
def test_gru_resets_before_or_after_the_product(linear: int) -> None:
    graph = check(layer("GRU", "forward", True, True, linear_before_reset=linear))
    assert operations(graph)["Gru"] == 1


@pytest.mark.parametrize("coupled", [0, 1])
def test_lstm_with_peepholes(coupled: int) -> None:
    made = layer("LSTM", "forward", True, True, input_forget=coupled)
    made.graph.node[0].input.append("p")
    made.graph.initializer.append(
        model([], {}, "", {"p": RNG.standard_normal((1, 3 * UNITS)).astype(np.float32)}).graph.initializer[0]
    )
    check(made)


def test_an_lstm_stays_one_operation_per_direction() -> None:
    assert operations(convert(layer("LSTM", "bidirectional", True, False)))["Lstm"] == 2


@pytest.mark.parametrize("attributes", [{"activations": ["Relu", "Tanh", "Tanh"]}, {"clip": 1.0}])
def test_other_activations_and_clipping_are_reported(attributes: dict[str, Any]) -> None:
    with pytest.raises(QnnError, match="LSTM x1"):
        convert(layer("LSTM", "forward", False, False, **attributes))


@pytest.mark.parametrize("activations", [["Relu", "Relu"], ["Sigmoid", "Tanh"]])
def test_an_rnn_has_other_activations(activations: list[str]) -> None:
    check(layer("RNN", "bidirectional", True, True, activations=activations))


def test_activations_that_an_rnn_does_not_have_are_reported() -> None:
    with pytest.raises(QnnError, match=r"RNN x1 \(activations Elu"):
        convert(layer("RNN", "forward", False, False, activations=["Elu"]))


def test_sequence_lengths_may_be_stated_if_all_are_the_whole_length() -> None:
    made = layer("LSTM", "forward", True, False)
    made.graph.node[0].input.append("lengths")
    lengths = np.full(BATCH, TIME, np.int32)
    made.graph.initializer.append(model([], {}, "", {"lengths": lengths}).graph.initializer[0])
    check(made)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_an_lstm_may_couple_its_input_and_forget_gates(direction: str) -> None:
    check(layer("LSTM", direction, True, True, input_forget=1))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_batches_may_come_first(op: str, direction: str) -> None:
    made = layer(op, direction, True, True)
    graph = convert(made)
    feeds = random_feeds(graph)
    straight = interpret(graph, feeds)
    made.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
    for value in made.graph.input:
        first, second = value.type.tensor_type.shape.dim[:2]
        first.dim_value, second.dim_value = second.dim_value, first.dim_value
    turned = interpret(convert(made), {name: x.transpose(1, 0, 2) for name, x in feeds.items()})
    np.testing.assert_array_equal(turned["y"], straight["y"].transpose(2, 0, 1, 3))
    for name in OUTPUTS[op].split()[1:]:
        np.testing.assert_array_equal(turned[name], straight[name].transpose(1, 0, 2))


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("op", GATES)
def test_layers_of_16_bit_floats_are_near_those_of_float32(op: str, states: bool, kind: str) -> None:
    wide = layer(op, "bidirectional", True, states)
    code = getattr(TensorProto, kind)
    narrow = type(wide)()
    narrow.CopyFrom(wide)
    for value in narrow.graph.input:
        value.type.tensor_type.elem_type = code
    for tensor in narrow.graph.initializer:
        dtype = helper.tensor_dtype_to_np_dtype(code)
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    expected, graph = convert(wide), convert(narrow)
    feeds = random_feeds(expected)
    stored = {t.name: t.dtype.encode(feeds[t.name]) for t in graph.inputs}
    answers = interpret(graph, stored)
    for name, reference in interpret(expected, feeds).items():
        tolerance = 0.01 if kind == "FLOAT16" else 0.06
        decoded = graph.tensors[name].dtype.decode(answers[name])
        np.testing.assert_allclose(decoded, reference, atol=tolerance, err_msg=name)
