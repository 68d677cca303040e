"""A composed graph becomes a graph, or one error says all that it lacks."""

from dataclasses import replace

import numpy as np
import pytest
from support.allocations import allocations
from support.dlc_graphs import NATIVE, READ, WRITE, convolution
from support.dlc_write import node, static, tensor

from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.build import MAX_NODES, ComposedBuilder
from isthmus.frontends.composed.encodings import BLOCKWISE_EXPANSION, read_encoding
from isthmus.frontends.composed.entries import EncodingEntry, GraphEntry
from isthmus.graph import DataType, TensorMemType, TensorType

X, Y = tensor("x", WRITE, (2, 3)), tensor("y", READ, (2, 3))
NONE = tensor("none", TensorType.NULL, (0,))


def built(*tensors, nodes):
    return ComposedBuilder(GraphEntry("net", tensors, nodes), "net").build()


def refused(*tensors, nodes) -> QnnError:
    with pytest.raises(QnnError) as caught:
        built(*tensors, nodes=nodes)
    return caught.value


def test_inputs_and_outputs_keep_the_order_of_the_file() -> None:
    tensors = (tensor("b", WRITE, (2, 3)), Y, tensor("a", WRITE, (2, 3)))
    graph = built(*tensors, nodes=(node("n", "ElementWiseAdd", ["a", "b"], ["y"]),))
    assert [t.name for t in graph.inputs] == ["b", "a"]


def test_absent_operands_at_the_end_are_no_operands() -> None:
    weights = static("w", np.ones((3, 3), np.float32))
    for inputs in (["x", "w", "none"], ["x", "w", ""], ["x", "w"]):
        graph = built(X, Y, NONE, weights, nodes=(node("fc", "FullyConnected", inputs, ["y"]),))
        assert len(graph.nodes[0].inputs) == 2


def test_absent_results_at_the_end_are_no_results() -> None:
    graph = built(X, Y, NONE, nodes=(node("n", "Relu", ["x"], ["y", "none"]),))
    assert [t.name for t in graph.nodes[0].outputs] == ["y"]


def test_a_result_before_another_cannot_be_absent() -> None:
    cut = {"axis": 1, "split_index": np.uint32([1])}
    tail = tensor("y", READ, (2, 2))
    error = refused(X, tail, NONE, nodes=(node("cut", "Split", ["x"], ["none", "y"], cut),))
    assert "Split x1 (an output before another is absent: 'cut')" in error.rule


def test_a_refused_tensor_is_not_reported_again_as_a_missing_result_of_its_node() -> None:
    cut = {"axis": 1, "split_index": np.uint32([1])}
    strange = replace(tensor("z", READ, (2, 2)), dtype=0x0404)
    tensors = X, tensor("y", READ, (2, 1)), strange
    error = refused(*tensors, nodes=(node("cut", "Split", ["x"], ["y", "z"], cut),))
    assert "'z'" in error.rule
    assert "Split" not in error.rule


def test_nodes_of_one_name_are_distinguished() -> None:
    between = tensor("a", NATIVE, (2, 3))
    graph = built(X, Y, between, nodes=(node("n", "Relu", ["x"], ["a"]), node("n", "Tanh", ["a"], ["y"])))
    assert [n.name for n in graph.nodes] == ["n", "n.1"]


def test_two_tensors_of_one_name_are_refused() -> None:
    error = refused(X, replace(X, dims=(1,)), Y, nodes=(node("n", "Relu", ["x"], ["y"]),))
    assert error.code is Code.TENSOR_ALREADY_EXISTS


def test_scales_are_not_repeated_for_dimensions_that_nothing_confirms() -> None:
    encoding = EncodingEntry(np.float32([0.5]), np.int32([0]), axis=0)
    claimed = replace(tensor("b", NATIVE, (1 << 22,)), dtype=DataType.SFIXED_POINT_32, encoding=encoding)
    with allocations() as most:
        error = refused(X, Y, claimed, nodes=(node("n", "Relu", ["x"], ["y"]),))
    assert error.code is Code.TENSOR_INVALID_TENSOR_PARAM
    assert most[0] < 1 << 20


def test_memory_types_are_those_of_the_tensors() -> None:
    graph = built(replace(X, mem_type=1), Y, nodes=(node("n", "Relu", ["x"], ["y"]),))
    assert [t.mem_type for t in (*graph.inputs, *graph.outputs)] == [TensorMemType.MEMHANDLE, TensorMemType.RAW]
    error = refused(replace(X, mem_type=9), Y, nodes=(node("n", "Relu", ["x"], ["y"]),))
    assert error.code is Code.TENSOR_INVALID_TENSOR_PARAM


def test_a_node_may_write_a_state_which_may_have_an_initial_value() -> None:
    start = np.float32([[1, 2, 3], [4, 5, 6]])
    nodes = (node("add", "ElementWiseAdd", ["x", "s"], ["s"]), node("copy", "Relu", ["s"], ["y"]))
    for data in (start, None):
        graph = built(X, Y, tensor("s", TensorType.APP_READWRITE, (2, 3), data=data), nodes=nodes)
        [state] = graph.states
        assert graph.nodes[1].inputs == [graph.state_updates["s"]]
        np.testing.assert_array_equal(state.initial(), start if data is not None else start * 0)
    error = refused(X, Y, tensor("s", TensorType.APP_READWRITE, (2, 4), data=start), nodes=nodes)
    assert error.code is Code.COMMON_LOADING_BINARIES


@pytest.mark.parametrize(
    ("tensors", "nodes", "named"),
    [
        ((X, Y, tensor("s", 77, (1,))), (), "tensor type 77 x1 ('s')"),
        ((X, Y, tensor("s", NATIVE, (1,), 0x0999)), (), "data type 0x0999 x1 ('s')"),
        ((X, Y), (node("n", "Relu", ["x", "x"], ["y"]),), "Relu x1 (2 inputs, at most 1: 'n')"),
        (
            (replace(X, dtype=int(DataType.BOOL_8)), Y),
            (node("n", "Tanh", ["x"], ["y"]),),
            "Tanh x1 (in[0] as BOOL_8; it takes FLOAT_32",
        ),
        ((X, Y), (node("n", "", ["x"], ["y"]),), "an operation without a name x1 ('n')"),
    ],
)
def test_what_is_not_supported_of_a_graph_is_named(tensors, nodes, named) -> None:
    error = refused(*tensors, nodes=nodes)
    assert error.code is Code.COMMON_NOT_SUPPORTED
    assert named in error.rule


def test_a_parameter_of_no_data_type_is_refused() -> None:
    graph = convolution()
    strange = replace(graph.nodes[0].params["stride"], dtype=0x0999)
    nodes = (replace(graph.nodes[0], params={**graph.nodes[0].params, "stride": strange}), graph.nodes[1])
    assert "0x0999 is none" in refused(*graph.tensors, nodes=nodes).rule


def test_an_unsupported_parameter_is_named() -> None:
    graph = convolution()
    nodes = (replace(graph.nodes[0], params={**graph.nodes[0].params, "reuse_sparse_indices": True}), graph.nodes[1])
    assert "Conv2d x1 (parameter 'reuse_sparse_indices': 'conv')" in refused(*graph.tensors, nodes=nodes).rule


def test_a_node_before_the_one_that_computes_its_operand_is_refused() -> None:
    between = tensor("a", NATIVE, (2, 3))
    error = refused(X, Y, between, nodes=(node("n", "Tanh", ["a"], ["y"]), node("m", "Relu", ["x"], ["a"])))
    assert error.code is Code.GRAPH_UNCONNECTED_NODE


def test_a_graph_has_a_bounded_number_of_nodes() -> None:
    assert "above the limit" in refused(X, Y, nodes=(node("n", "Relu", ["x"], ["y"]),) * (MAX_NODES + 1)).rule


def test_small_files_whose_tensors_share_their_bytes_make_no_large_copies() -> None:
    data = memoryview(bytes(1 << 12))
    packed = [
        replace(static(f"w{i}", np.zeros(1, np.uint8)), dtype=0x0004, dims=(2, 1 << 11), data=data[i : i + (1 << 11)])
        for i in range(8)
    ]
    assert "bytes are copied out of 4,096: tensors overlap" in refused(X, Y, *packed, nodes=()).rule


@pytest.mark.parametrize("dims", [(1 << 40, 1 << 40), (0, 1 << 62, 1 << 62)])
def test_dimensions_that_no_memory_has_are_refused(dims) -> None:
    for kind in (NATIVE, TensorType.STATIC):
        huge = replace(tensor("huge", kind, dims), data=memoryview(b"") if kind is TensorType.STATIC else None)
        assert "are those of no memory" in refused(X, Y, huge, nodes=()).rule


@pytest.mark.parametrize(("axis", "dims"), [(None, (4, 8)), (2, (4, 8)), (0, (8,))])
def test_factors_of_blocks_without_output_and_input_channels_are_refused_in_plain_words(axis, dims) -> None:
    blocks, factors = np.array([2], np.uint32), np.ones(8, np.uint16)
    entry = EncodingEntry(np.ones(4, np.float32), np.zeros(4, np.int32), axis, 4, BLOCKWISE_EXPANSION, blocks, factors)
    sentence = "factors of blocks need an axis of output channels and another of input channels"
    with pytest.raises(QnnError, match=sentence) as caught:
        read_encoding(entry, "tensor 'w'", dims, DataType.SFIXED_POINT_8)
    assert f"axis {axis} of {list(dims)} is no such axis" in caught.value.rule
