"""Operations on constants become constants; anything else becomes a node; nothing hostile is allocated."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, Quantization, TensorType, folding
from isthmus.graph.folding import emit


@pytest.fixture
def graph() -> Graph:
    return Graph("g")


def test_shape_arithmetic_folds_to_constants_and_leaves_no_node(graph: Graph) -> None:
    x = graph.constant("x", np.zeros((2, 3, 4), np.float32))
    (shape,) = emit(graph, "Shape", [x], dtypes=[DataType.INT_64])
    (last,) = emit(graph, "Gather", [shape, graph.constant("i", np.int64([2]))], {"axis": 0})
    (both,) = emit(graph, "Concat", [graph.constant("m", np.int64([-1])), last], {"axis": 0}, output_names=["target"])
    assert (both.name, both.type, both.data.tolist()) == ("target", TensorType.STATIC, [-1, 4])
    assert graph.nodes == []


def test_an_operation_on_an_input_becomes_a_node(graph: Graph) -> None:
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (3,))
    (y,) = emit(graph, "ElementWiseAdd", [x, graph.constant("c", np.float32([1]))])
    assert y.type is TensorType.NATIVE
    assert [n.op for n in graph.nodes] == ["ElementWiseAdd"]


def test_a_state_is_not_a_constant_although_it_has_data(graph: Graph) -> None:
    start = np.zeros(3, np.float32)
    state = graph.create_tensor("s", TensorType.APP_READWRITE, DataType.FLOAT_32, (3,), data=start)
    emit(graph, "Relu", [state])
    assert len(graph.nodes) == 1


def test_absent_operands_do_not_keep_an_operation_from_folding(graph: Graph) -> None:
    x, w = graph.constant("x", np.ones((1, 2), np.float32)), graph.constant("w", np.ones((3, 2), np.float32))
    (y,) = emit(graph, "FullyConnected", [x, w, None])
    assert y.data.tolist() == [[2, 2, 2]]


def test_all_outputs_of_a_split_fold(graph: Graph) -> None:
    parts = emit(graph, "Split", [graph.constant("x", np.arange(5))], {"axis": 0, "split_index": [2]}, name="parts")
    assert [(p.name, p.data.tolist()) for p in parts] == [("parts", [0, 1]), ("parts:1", [2, 3, 4])]


def test_half_precision_weights_are_cast_on_load(graph: Graph) -> None:
    half = graph.constant("w", np.float16([1.5]))
    (single,) = emit(graph, "Cast", [half], dtypes=[DataType.FLOAT_32])
    assert (single.dtype, single.data.tolist()) == (DataType.FLOAT_32, [1.5])


def test_per_channel_weights_keep_their_scales_when_they_are_turned(graph: Graph) -> None:
    scales = np.float32([0.5, 0.25])
    weights = graph.constant("w", np.int8([[1, 2, 3], [4, 5, 6]]), Quantization.per_channel(scales, np.zeros(2), 0))
    (turned,) = emit(graph, "Transpose", [weights], {"perm": [1, 0]})
    assert turned.data.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert turned.quantization.axis == 1
    (reals,) = emit(graph, "Dequantize", [turned])
    assert reals.data.tolist() == [[0.5, 1.0], [1.0, 1.25], [1.5, 1.5]]


@pytest.mark.parametrize(
    ("op", "value", "params"),
    [
        ("ConstantOfShape", np.int64([1 << 20, 1 << 10]), {"value": 0}),
        ("Tile", np.zeros((1, 1), np.float32), {"multiples": [1 << 15, 1 << 15]}),
        ("Pad", np.zeros((1,), np.float32), {"scheme": 0, "pad_amount": [[0, 1 << 30]]}),
    ],
)
def test_a_huge_constant_out_of_small_ones_is_refused(graph: Graph, op: str, value: np.ndarray, params: dict) -> None:
    with pytest.raises(QnnError, match=rf"node 'big' \({op}\).* bytes") as caught:
        emit(graph, op, [graph.constant("c", value)], params, name="big", dtypes=[DataType.FLOAT_32])
    assert caught.value.code == Code.COMMON_MEM_ALLOC


def test_large_constants_may_be_made_from_large_ones(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MAX_FOLDED_BYTES", 16)
    half = graph.constant("w", np.zeros(100, np.float16))
    (single,) = emit(graph, "Cast", [half], dtypes=[DataType.FLOAT_32])
    # Beyond the limit a constant may have up to eight times the bytes of the inputs: 400 of 200, not 40,000 of 400.
    assert single.nbytes == 400
    with pytest.raises(QnnError, match="40000 bytes"):
        emit(graph, "Tile", [single], {"multiples": [100]})


def test_an_ill_formed_operation_on_constants_is_refused_like_any_other(graph: Graph) -> None:
    with pytest.raises(QnnError, match=r"6005.*node 'n' \(ElementWiseAdd\).*do not broadcast"):
        emit(graph, "ElementWiseAdd", [graph.constant("a", np.zeros(2)), graph.constant("b", np.zeros(3))], name="n")


def test_a_node_on_constants_makes_its_outputs_constants(graph: Graph) -> None:
    weights = graph.constant("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    turned = graph.create_tensor("turned", TensorType.NATIVE, DataType.FLOAT_32, (3, 2))
    folding.add_node(graph, "turn", "Transpose", [weights], [turned], {"perm": [1, 0]})
    assert (turned.type, turned.data.tolist()) == (TensorType.STATIC, [[0, 3], [1, 4], [2, 5]])
    assert graph.nodes == []
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (3, 2))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (3, 2))
    folding.add_node(graph, "add", "ElementWiseAdd", [x, turned], [y])
    assert [node.op for node in graph.nodes] == ["ElementWiseAdd"]


def test_an_output_of_the_graph_stays_one_although_it_is_constant(graph: Graph) -> None:
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (2,))
    folding.add_node(graph, "relu", "Relu", [graph.constant("c", np.float32([-1, 1]))], [y])
    assert y.type is TensorType.APP_READ
    assert [node.op for node in graph.nodes] == ["Relu"]


def test_a_fold_that_is_refused_changes_nothing(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "MAX_FOLDED_BYTES", 8)
    small = graph.constant("c", np.float32([1]))
    large = graph.create_tensor("large", TensorType.NATIVE, DataType.FLOAT_32, (64,))
    with pytest.raises(QnnError, match="folding it would make a constant of 256 bytes"):
        folding.add_node(graph, "tile", "Tile", [small], [large], {"multiples": [64]})
    assert large.type is TensorType.NATIVE
    assert graph.nodes == []


@pytest.mark.parametrize("problem", [QnnError(Code.COMMON_GENERAL, "x", "y"), KeyboardInterrupt()], ids=["error", "^C"])
def test_of_nodes_that_are_added_all_or_none_nothing_stays(problem: BaseException) -> None:
    graph = Graph("g")
    square = graph.constant("square", np.eye(2, dtype=np.float32))
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (4,))
    flat, sum = (graph.create_tensor(name, TensorType.NATIVE, DataType.FLOAT_32, (4,)) for name in ("flat", "sum"))

    def add(then: BaseException | None = None) -> None:
        folding.add_node(graph, "reshape", "Reshape", [square], [flat])
        graph.emit("ElementWiseNeg", [x], name="neg")
        graph.add_node("add", "ElementWiseAdd", [x, flat], [sum])
        if then is not None:
            raise then

    with pytest.raises(type(problem)), graph.all_or_none([flat, sum]):
        add(problem)
    assert (list(graph.tensors), graph.nodes) == (["square", "x", "flat", "sum"], [])
    assert (flat.type, flat.data) == (TensorType.NATIVE, None)
    with graph.all_or_none([flat, sum]):
        add()
    assert [node.name for node in graph.nodes] == ["neg", "add"]
