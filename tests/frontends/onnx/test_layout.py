"""Channel-first models become channel-last graphs, and data is transposed only where it must be."""

from __future__ import annotations

import numpy as np
import pytest
from support import zoo
from support.suites import MODELS, only

from frontends.onnx.graphs import check, convert, floats, interpret, model, node, operations
from isthmus.frontends import load
from isthmus.graph import TensorType

RNG = np.random.default_rng(0)


def weights(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


CONV = {"w": weights(4, 3, 3, 3), "b": weights(4)}


def test_a_chain_of_convolutions_transposes_only_its_input_and_its_output() -> None:
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p v", "d"),
        node("BatchNormalization", "d s t m n", "y"),
    ]
    channels = {name: np.abs(weights(5)) for name in "stmn"}
    graph = check(model(nodes, {"x": floats(1, 3, 8, 8)}, "y", CONV | channels | {"v": weights(5, 4, 1, 1)}))
    assert operations(graph)["Transpose"] == 2
    assert [t.dims for t in graph.inputs] == [(1, 3, 8, 8)]
    assert [t.dims for t in graph.outputs] == [(1, 5, 4, 4)]


def test_two_convolutions_of_one_input_share_its_transpose() -> None:
    nodes = [
        node("Conv", "x w", "a"),
        node("Conv", "x w", "b2"),
        node("Add", "a b2", "s"),
        node("GlobalAveragePool", "s", "p"),
        node("Flatten", "p", "y"),
    ]
    graph = check(model(nodes, {"x": floats(1, 3, 8, 8)}, "y", CONV))
    assert operations(graph)["Transpose"] == 1


@pytest.mark.parametrize("keep", [0, 1])
def test_a_mean_over_height_and_width_moves_nothing(keep: int) -> None:
    nodes = [node("Conv", "x w b", "c"), node("ReduceMean", "c", "y", axes=[2, 3], keepdims=keep)]
    graph = check(model(nodes, {"x": floats(2, 3, 6, 6)}, "y", CONV))
    assert operations(graph) == {"Transpose": 1, "Conv2d": 1, "ReduceMean": 1} | ({"Reshape": 1} if keep else {})


def test_joining_cutting_and_padding_follow_the_stored_order() -> None:
    nodes = [
        node("Conv", "x w b", "c"),
        node("Split", "c", "l r", axis=1),
        node("Concat", "r l", "j", axis=1),
        node("Slice", "j starts ends axes", "s"),
        node("Pad", "s pads", "p", mode="reflect"),
        node("Softmax", "p", "q", axis=1),
        node("ReduceMax", "q", "y", axes=[2, 3], keepdims=0),
    ]
    constants = CONV | {
        "starts": np.int64([1]), "ends": np.int64([99]), "axes": np.int64([3]),
        "pads": np.int64([0, 0, 1, 2, 0, 0, 1, 0]),
    }  # fmt: skip
    graph = check(model(nodes, {"x": floats(1, 3, 8, 8)}, "y", constants))
    assert operations(graph)["Transpose"] == 1


def test_a_sequence_made_of_image_columns_needs_no_transpose() -> None:
    nodes = [
        node("Conv", "x w b", "c"),
        node("Squeeze", "c two", "s"),
        node("Transpose", "s", "t", perm=[0, 2, 1]),
        node("MatMul", "t k", "y"),
    ]
    constants = CONV | {"two": np.int64([2]), "k": weights(4, 6)}
    graph = check(model(nodes, {"x": floats(1, 3, 3, 9)}, "y", constants))
    assert operations(graph)["Transpose"] == 1


def test_flattening_height_and_width_keeps_channels_last() -> None:
    nodes = [
        node("Conv", "x w b", "c"),
        node("Reshape", "c shape", "f"),
        node("Transpose", "f", "y", perm=[0, 2, 1]),
    ]
    graph = check(model(nodes, {"x": floats(1, 3, 6, 7)}, "y", CONV | {"shape": np.int64([0, 4, -1])}))
    assert operations(graph)["Transpose"] == 1


def test_a_channel_shuffle_takes_one_transpose() -> None:
    nodes = [
        node("Conv", "x w b", "c"),
        node("Reshape", "c split", "g"),
        node("Transpose", "g", "h", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "h joined", "j"),
        node("Conv", "j v", "d"),
        node("ReduceMean", "d", "y", axes=[2, 3], keepdims=0),
    ]
    constants = CONV | {
        "split": np.int64([1, 2, 2, 4, 4]), "joined": np.int64([1, 4, 4, 4]), "v": weights(2, 4, 1, 1),
    }  # fmt: skip
    graph = check(model(nodes, {"x": floats(1, 3, 6, 6)}, "y", constants))
    assert operations(graph)["Transpose"] == 2


def test_transposes_that_cancel_leave_nothing_behind() -> None:
    nodes = [
        node("Transpose", "x", "a", perm=[0, 2, 3, 1]),
        node("Relu", "a", "b"),
        node("Transpose", "b", "y", perm=[0, 3, 1, 2]),
    ]
    assert operations(check(model(nodes, {"x": floats(1, 3, 4, 5)}, "y"))) == {"Relu": 1}


def test_moving_axes_of_size_one_is_a_reshape() -> None:
    made = model([node("Transpose", "x", "y", perm=[0, 2, 3, 1])], {"x": floats(1, 1, 4, 5)}, "y")
    assert operations(check(made)) == {"Reshape": 1}


def test_operands_of_lower_rank_are_broadcast_along_the_right_axes() -> None:
    nodes = [
        node("Conv", "x w b", "c"),
        node("Mul", "c column", "d"),
        node("Add", "d row", "e"),
        node("Sub", "e z", "f"),
        node("Max", "f one", "y"),
    ]
    constants = CONV | {"column": weights(4, 1, 1), "row": weights(5), "one": np.float32(0.1)}
    check(model(nodes, {"x": floats(1, 3, 7, 7), "z": floats(5, 1)}, "y", constants))


def test_gathers_keep_the_stored_order() -> None:
    nodes = [
        node("Conv", "x w b", "c"),
        node("Gather", "c picks", "g", axis=1),
        node("Gather", "g last", "h", axis=3),
        node("ReduceSum", "h two", "y", keepdims=0),
    ]
    constants = CONV | {"picks": np.int64([[2, 0], [-1, 1]]), "last": np.int64(-1), "two": np.int64([3])}
    graph = check(model(nodes, {"x": floats(1, 3, 7, 7)}, "y", constants))
    assert operations(graph)["Transpose"] <= 2


def test_attention_hands_the_second_operand_over_transposed() -> None:
    nodes = [
        node("Reshape", "x heads", "r"),
        node("Transpose", "r", "q", perm=[0, 2, 1, 3]),
        node("Transpose", "r", "k", perm=[0, 2, 3, 1]),
        node("MatMul", "q k", "y"),
    ]
    graph = check(model(nodes, {"x": floats(1, 6, 8)}, "y", {"heads": np.int64([1, 6, 2, 4])}))
    assert operations(graph) == {"Reshape": 1, "Transpose": 1, "MatMul": 1}


def test_an_input_an_output_a_constant_and_a_value_wanted_twice_can_be_outputs() -> None:
    nodes = [
        node("Identity", "x", "same"),
        node("Identity", "k", "fixed"),
        node("Relu", "x", "r"),
        node("Identity", "r", "again"),
        node("Neg", "r", "n"),
    ]
    made = model(nodes, {"x": floats(2)}, "same fixed r again n", {"k": np.float32([1, 2])})
    graph = check(made)
    assert [t.name for t in graph.outputs] == ["same", "fixed", "r", "again", "n"]


def test_what_no_output_needs_is_not_in_the_graph() -> None:
    nodes = [node("Relu", "x", "y"), node("Exp", "x", "unused"), node("Add", "x big", "gone")]
    graph = convert(model(nodes, {"x": floats(3)}, "y", {"big": weights(3)}))
    assert operations(graph) == {"Relu": 1}
    assert not [t for t in graph.tensors.values() if t.type is TensorType.STATIC]
    assert set(interpret(graph, {"x": np.float32([1, -1, 2])})) == {"y"}


def test_a_norm_with_scales_gets_its_axes_last_even_behind_a_convolution() -> None:
    nodes = [node("Conv", "x w b", "c"), node("LayerNormalization", "c s t", "y", axis=2)]
    scales = {"s": weights(6, 5), "t": weights(6, 5)}
    graph = check(model(nodes, {"x": floats(1, 3, 8, 7)}, "y", CONV | scales), 1e-4)
    [norm] = [step for step in graph.nodes if step.op == "LayerNorm"]
    assert list(norm.params["axes"]) == [2, 3]


TRANSPOSES = {
    "silero_vad_16k": ({}, 0),
    "kws_qdq": ({}, 0),
    "kws_qoperator": ({}, 0),
    "nsnet2": ({"input": (1, 20, 161)}, 0),
    "ppocr_det": ({"x": (1, 3, 64, 64)}, 1),
    "ppocr_cls": ({"x": (1, 3, 48, 192)}, 1),
    "ppocr_rec": ({"x": (1, 3, 48, 320)}, 9),
    "minilm_l3": ({"input_ids": (1, 64), "attention_mask": (1, 64)}, 12),
}


@pytest.mark.parametrize("name", only(MODELS, TRANSPOSES))
def test_real_models_have_no_more_transposes_than_they_need(name: str) -> None:
    shapes, most = TRANSPOSES[name]
    try:
        path = zoo.path(name)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    assert operations(load(path, shapes))["Transpose"] <= most
