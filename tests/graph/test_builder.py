"""The builder refuses every ill-formed graph with QNN's code and a sentence that names the object."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorMemType, TensorType

F32 = DataType.FLOAT_32


@pytest.fixture
def graph() -> Graph:
    return Graph("g")


@pytest.fixture
def x(graph: Graph) -> Tensor:
    return graph.create_tensor("x", TensorType.APP_WRITE, F32, (1, 4, 4, 3))


def output(graph: Graph, *dims: int, name: str = "y", dtype: DataType = F32) -> Tensor:
    return graph.create_tensor(name, TensorType.APP_READ, dtype, dims)


def refusal(code: Code, *words: str):
    return pytest.raises(QnnError, match="".join(f"(?=.*{w})" for w in (str(int(code)), *words)))


def test_a_node_with_an_unknown_tensor_is_refused_with_6005(graph: Graph, x: Tensor) -> None:
    y = output(graph, 1, 4, 4, 3)
    stranger = Tensor("stranger", TensorType.APP_WRITE, F32, (1, 4, 4, 3))
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "6005", "node 'n'", "'stranger' is not a tensor of this graph"):
        graph.add_node("n", "Relu", [stranger], [y])
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "node 'n'", "'stranger'"):
        graph.add_node("n", "Relu", [x], [stranger])


def test_a_tensor_of_another_graph_is_unknown_even_under_the_same_name(graph: Graph, x: Tensor) -> None:
    other = Graph("other").create_tensor("x", TensorType.APP_WRITE, F32, (1, 4, 4, 3))
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "not a tensor of this graph"):
        graph.add_node("n", "Relu", [other], [output(graph, 1, 4, 4, 3)])


def test_an_empty_graph_cannot_be_finalized_6022(graph: Graph) -> None:
    with refusal(Code.GRAPH_FINALIZE_FAILED, "6022", "graph 'g'", "empty"):
        graph.finalize()


def test_an_output_that_nothing_writes_cannot_be_finalized(graph: Graph, x: Tensor) -> None:
    output(graph, 2, name="lonely")
    graph.emit("Relu", [x])
    with refusal(Code.GRAPH_FINALIZE_FAILED, "no node writes the output 'lonely'"):
        graph.finalize()


def test_a_finalized_graph_cannot_be_changed_6024(graph: Graph, x: Tensor) -> None:
    graph.add_node("n", "Relu", [x], [output(graph, 1, 4, 4, 3)])
    graph.finalize()
    for change in (
        graph.finalize,
        lambda: graph.emit("Relu", [x]),
        lambda: graph.constant("c", np.zeros(1, np.float32)),
        lambda: graph.update_state(x, x),
    ):
        with refusal(Code.GRAPH_FINALIZED, "6024"):
            change()


def test_a_node_may_not_read_what_is_not_written_yet_so_there_are_no_cycles(graph: Graph, x: Tensor) -> None:
    a = graph.create_tensor("a", TensorType.NATIVE, F32, x.dims)
    b = graph.create_tensor("b", TensorType.NATIVE, F32, x.dims)
    with refusal(Code.GRAPH_UNCONNECTED_NODE, "node 'first'", "'b' is not written"):
        graph.add_node("first", "ElementWiseAdd", [x, b], [a])
    with refusal(Code.GRAPH_UNCONNECTED_NODE, "node 'itself'"):
        graph.add_node("itself", "Relu", [a], [a])


def test_two_nodes_may_not_write_one_tensor(graph: Graph, x: Tensor) -> None:
    y = output(graph, 1, 4, 4, 3)
    graph.add_node("n", "Relu", [x], [y])
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "node 'again'", "written by another node"):
        graph.add_node("again", "Relu", [x], [y])
    parts = graph.create_tensor("p", TensorType.NATIVE, F32, (1, 4, 4, 1))
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "node 'twice'", "written by another node"):
        graph.add_node("twice", "Split", [x], [parts, parts], {"axis": 3, "split_index": [1]})


def test_only_intermediates_outputs_and_states_can_be_written(graph: Graph, x: Tensor) -> None:
    constant = graph.constant("c", np.zeros(x.dims, np.float32))
    for target in (graph.create_tensor("t", TensorType.APP_WRITE, F32, x.dims), constant):
        with refusal(Code.GRAPH_INVALID_OP_CONFIG, "node 'n'", f"'{target.name}', .*not writable"):
            graph.add_node("n", "Relu", [x], [target])


def test_an_unknown_operation_is_refused(graph: Graph, x: Tensor) -> None:
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, r"node 'n' \(Frobnicate\)", "no such operation"):
        graph.emit("Frobnicate", [x], name="n")


def test_a_missing_parameter_is_refused(graph: Graph, x: Tensor) -> None:
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "node 'n'", "'perm' is missing"):
        graph.emit("Transpose", [x], name="n")


def test_an_unknown_parameter_is_refused_with_those_there_are(graph: Graph, x: Tensor) -> None:
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "'order' is unknown; it takes perm"):
        graph.emit("Transpose", [x], {"order": [0, 1, 2, 3]})


@pytest.mark.parametrize("axis", [-1, 0.5, "one", 2**32, [1, 2], float("nan"), {}])
def test_an_ill_typed_parameter_is_refused(graph: Graph, x: Tensor, axis: object) -> None:
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "node 'n'", "'axis' must be u32"):
        graph.emit("Softmax", [x], {"axis": axis}, name="n")


def test_a_wrong_rank_is_refused(graph: Graph) -> None:
    x = graph.create_tensor("x", TensorType.APP_WRITE, F32, (4, 4, 3))
    w = graph.constant("w", np.zeros((3, 3, 3, 8), np.float32))
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "node 'conv'", r"in\[0\] must have rank 4, has rank 3"):
        graph.emit("Conv2d", [x, w], {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}, name="conv")


def test_a_declared_shape_that_does_not_follow_is_refused(graph: Graph, x: Tensor) -> None:
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "node 'n'", r"must have dimensions \[1, 4, 4, 3\]"):
        graph.add_node("n", "Relu", [x], [output(graph, 1, 4, 4, 4)])


def test_an_unsupported_data_type_is_refused(graph: Graph, x: Tensor) -> None:
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "node 'n'", "unsupported data type", "BOOL_8"):
        graph.emit("ElementWiseAnd", [x, x], name="n")
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "node 'n'", "must be BOOL_8"):
        graph.add_node("n", "ElementWiseEqual", [x, x], [output(graph, 1, 4, 4, 3)])


def test_operands_of_different_types_do_not_mix(graph: Graph, x: Tensor) -> None:
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "must have the data type of"):
        graph.emit("ElementWiseAdd", [x, graph.constant("one", np.int32([1]))])


def test_too_few_and_too_many_operands_are_refused(graph: Graph, x: Tensor) -> None:
    y = output(graph, 1, 4, 4, 3)
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "takes 2 inputs, 1 given"):
        graph.add_node("n", "ElementWiseAdd", [x], [y])
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "takes 1 inputs, 2 given"):
        graph.add_node("n", "Relu", [x, x], [y])
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, r"in\[1\] is missing"):
        graph.add_node("n", "ElementWiseAdd", [x, None], [y])
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "it has 3 outputs, 1 are given"):
        graph.add_node("n", "UnPack", [x], [y], {"axis": 3})


def test_names_are_unique(graph: Graph, x: Tensor) -> None:
    with refusal(Code.TENSOR_ALREADY_EXISTS, "tensor 'x'"):
        graph.create_tensor("x", TensorType.NATIVE, F32, (1,))
    graph.add_node("n", "Relu", [x], [output(graph, 1, 4, 4, 3)])
    with refusal(Code.GRAPH_INVALID_NAME, "node 'n'"):
        graph.add_node("n", "Relu", [x], [output(graph, 1, 4, 4, 3, name="z")])
    with refusal(Code.GRAPH_INVALID_NAME):
        Graph("")


def test_emit_makes_names_that_are_free(graph: Graph, x: Tensor) -> None:
    names = [graph.emit("Relu", [x])[0].name for _ in range(3)]
    assert names == ["Relu", "Relu.1", "Relu.2"]
    pair = graph.emit("TopK", [x], {"k": 1}, output_names=["same", "same"])
    assert [t.name for t in pair] == ["same", "same.1"]


def test_emit_gives_as_many_outputs_as_the_operation_has(graph: Graph, x: Tensor) -> None:
    assert len(graph.emit("Split", [x], {"axis": 1, "split_index": [1, 2]})) == 3
    assert len(graph.emit("UnPack", [x], {"axis": 1})) == 4
    values, indices = graph.emit("TopK", [x], {"k": 2})
    assert (values.dtype, indices.dtype) == (F32, DataType.INT_32)


def test_emit_gives_the_types_that_the_operation_says(graph: Graph, x: Tensor) -> None:
    (condition,) = graph.emit("ElementWiseGreater", [x, x])
    (selected,) = graph.emit("ElementWiseSelect", [condition, x, x])
    (shape,) = graph.emit("Shape", [x], dtypes=[DataType.INT_64])
    (equal,) = graph.emit("ElementWiseBinary", [x, x], {"operation": 3})
    types = [t.dtype for t in (condition, selected, shape, equal)]
    assert types == [DataType.BOOL_8, F32, DataType.INT_64, DataType.BOOL_8]


def test_emit_carries_the_quantization_of_its_input_with_its_axis(graph: Graph) -> None:
    per_channel = Quantization.per_channel([0.5, 0.25], [0, 0], axis=0)
    weights = graph.constant("w", np.zeros((2, 3, 5), np.int8), per_channel)
    (moved,) = graph.emit("Transpose", [weights], {"perm": [1, 2, 0]})
    assert moved.quantization == Quantization.per_channel([0.5, 0.25], [0, 0], axis=2)
    (reshaped,) = graph.emit("Reshape", [weights], dims=[(1, 2, 15)])
    assert reshaped.quantization == Quantization.per_channel([0.5, 0.25], [0, 0], axis=1)
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "quantized axis 0"):
        graph.emit("Reshape", [weights], dims=[(30,)])


def test_a_null_tensor_stands_for_an_absent_operand(graph: Graph, x: Tensor) -> None:
    null = graph.create_tensor("none", TensorType.NULL, F32, ())
    w = graph.constant("w", np.zeros((1, 1, 3, 2), np.float32))
    y = output(graph, 1, 4, 4, 2)
    node = graph.add_node("n", "Conv2d", [x, w, null], [y], {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]})
    assert node.inputs[2] is None


def test_a_node_keeps_complete_parameters_with_axes_resolved(graph: Graph, x: Tensor) -> None:
    graph.emit("Softmax", [x])
    graph.emit("Gather", [x, graph.constant("i", np.int32([0]))], {"axis": -1})
    graph.emit("StridedSlice", [x], {"ranges": [[0, 0, 1]] * 4, "end_mask": 15})
    softmax, gather, strided = graph.nodes
    assert softmax.params == {"axis": 3, "beta": 1.0}
    assert gather.params == {"axis": 3, "from_end": True}
    assert strided.params["ranges"].tolist() == [[0, 1, 1], [0, 4, 1], [0, 4, 1], [0, 3, 1]]
    assert strided.params["end_mask"] == 0


@pytest.mark.parametrize(
    ("op", "dims", "params"),
    [
        ("Gather", (2,), {"axis": 1}),
        ("GatherElements", (1, 2, 4, 3), {"axis": 1}),
        ("GatherNd", (3, 2), {}),
        ("ScatterElements", (1, 2, 4, 3), {"axis": 1}),
        ("ScatterNd", (3, 2), {}),
    ],
)
def test_constant_indices_outside_their_axis_are_refused(graph: Graph, x: Tensor, op: str, dims, params) -> None:
    # The last index is one of axis 1, which has four elements.
    for number, (index, from_end, wrong) in enumerate(
        ((3, True, False), (-4, True, False), (4, True, True), (-5, True, True), (0, False, False), (-1, False, True))
    ):
        values = np.zeros(dims, np.int64)
        values.reshape(-1)[-1] = index
        operands = [x, graph.constant(f"indices {number}", values)]
        if op.startswith("Scatter"):
            shape = dims if op == "ScatterElements" else (3, 4, 3)
            operands.append(graph.constant(f"updates {number}", np.zeros(shape, np.float32)))
        if wrong:
            with refusal(Code.GRAPH_INVALID_OP_CONFIG, f"index {index} is outside"):
                graph.emit(op, operands, params | {"from_end": from_end})
        else:
            graph.emit(op, operands, params | {"from_end": from_end})


def test_a_state_takes_only_a_value_of_its_own_kind(graph: Graph, x: Tensor) -> None:
    start = np.zeros((1, 4, 4, 3), np.float32)
    state = graph.create_tensor("s", TensorType.APP_READWRITE, F32, (1, 4, 4, 3), data=start)
    (value,) = graph.emit("ElementWiseAdd", [x, state])
    graph.update_state(state, value)
    assert graph.state_updates == {"s": value}
    assert graph.states == [state]
    with refusal(Code.GRAPH_INVALID_TENSOR, "state 's'"):
        graph.update_state(state, graph.emit("ReduceSum", [x], {"axes": [0]})[0])
    with refusal(Code.GRAPH_INVALID_TENSOR, "'x'", "not a state"):
        graph.update_state(x, value)


def state(graph: Graph, name: str = "s") -> Tensor:
    return graph.create_tensor(name, TensorType.APP_READWRITE, F32, (1, 4, 4, 3))


def test_a_state_that_a_node_writes_has_its_new_value_from_then_on(graph: Graph, x: Tensor) -> None:
    s, other = state(graph), state(graph, "other")
    before = graph.add_node("before", "ElementWiseAdd", [x, s], [output(graph, 1, 4, 4, 3, name="a")])
    write = graph.add_node("write", "ElementWiseAdd", [x, s], [s])
    after = graph.add_node("after", "ElementWiseAdd", [x, s], [output(graph, 1, 4, 4, 3, name="b")])
    graph.update_state(other, s)
    value = graph.state_updates["s"]
    assert (before.inputs[1], write.inputs[1], after.inputs[1]) == (s, s, value)
    assert write.outputs == [value]
    assert value is not s
    assert graph.state_updates["other"] is value
    assert graph.states == [s, other]
    assert list(graph.tensors) == ["x", "s", "other", "a", "b"], "the new value takes no name of the client's"


def test_a_state_has_one_next_value(graph: Graph, x: Tensor) -> None:
    s, other = state(graph), state(graph, "other")
    graph.add_node("write", "Relu", [x], [s])
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "node 'again'", "'s' is written by another node"):
        graph.add_node("again", "Relu", [x], [s])
    with refusal(Code.GRAPH_INVALID_TENSOR, "state 's'", "a node writes its next value"):
        graph.update_state(s, x)
    graph.update_state(other, x)
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "node 'other'", "'other' is given by update_state"):
        graph.add_node("other", "Relu", [x], [other])
    assert [node.name for node in graph.nodes] == ["write"]


def test_a_write_that_is_undone_leaves_the_state_as_it_was(graph: Graph, x: Tensor) -> None:
    s = state(graph)
    graph.add_node("write", "Relu", [x], [s])
    graph.remove_last_node()
    assert graph.state_updates == {}
    node = graph.add_node("write", "ElementWiseAdd", [x, s], [s])
    assert node.inputs[1] is s


TENSOR_REFUSALS = {
    "no name": (7004, {"name": ""}),
    "undefined type": (7004, {"dtype": DataType.UNDEFINED}),
    "negative size": (7004, {"dims": (1, -2)}),
    "size that is not a number": (7004, {"dims": ("a",)}),
    "more bytes than any machine has": (7004, {"dims": (1 << 20, 1 << 20, 4)}),
    "fixed point without quantization": (7004, {"dtype": DataType.SFIXED_POINT_8}),
    "quantized axis outside": (7004, {"quantization": Quantization.per_channel([1.0, 1.0], [0, 0], 2)}),
    "as many scales as channels": (7004, {"quantization": Quantization.per_channel([1.0, 1.0, 1.0], [0] * 3, 1)}),
    "static without data": (7004, {"type": TensorType.STATIC}),
    "data of another shape": (7004, {"type": TensorType.STATIC, "data": np.zeros((2, 1), np.float32)}),
    "data of another type": (7004, {"type": TensorType.STATIC, "data": np.zeros((1, 2), np.int8)}),
    "data of an input": (7004, {"type": TensorType.APP_WRITE, "data": np.zeros((1, 2), np.float32)}),
    "rank above 8": (7004, {"dims": (1,) * 9}),
    "memory handle for an intermediate": (7004, {"mem_type": TensorMemType.MEMHANDLE}),
}


@pytest.mark.parametrize(("code", "changes"), TENSOR_REFUSALS.values(), ids=TENSOR_REFUSALS)
def test_ill_formed_tensors_are_refused(code: int, changes: dict) -> None:
    facts = {"name": "t", "type": TensorType.NATIVE, "dtype": F32, "dims": (1, 2)}
    with pytest.raises(QnnError) as caught:
        Tensor(**(facts | changes))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("scales", "offsets", "axis"),
    [
        ((), (), None),
        ((1.0,), (0, 0), None),
        ((1.0, 2.0), (0, 0), None),
        ((0.0,), (0,), None),
        ((float("nan"),), (0,), None),
    ],
)
def test_ill_formed_quantizations_are_refused(scales: tuple, offsets: tuple, axis: int | None) -> None:
    with pytest.raises(QnnError) as caught:
        Quantization(scales, offsets, axis)
    assert caught.value.code == Code.TENSOR_INVALID_TENSOR_PARAM


def test_a_refused_emit_leaves_the_graph_as_it_was(graph: Graph, x: Tensor) -> None:
    stranger = Tensor("stranger", TensorType.APP_WRITE, F32, (1, 4, 4, 3))
    with refusal(Code.GRAPH_INVALID_OP_CONFIG, "stranger"):
        graph.emit("ElementWiseAdd", [x, stranger])
    assert list(graph.tensors) == ["x"]
    assert graph.nodes == []
