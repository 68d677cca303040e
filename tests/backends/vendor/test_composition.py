"""Our graphs in the form that the vendor's library gets: folded quantization, states as inputs and outputs."""

from __future__ import annotations

import numpy as np
import pytest

from backends.vendor.harness import summing
from isthmus.backends.vendor.composition import compose, specimen
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.serialization import read
from isthmus.graph import DataType, Graph, Quantization, TensorType

Q = Quantization.per_tensor(0.1, 0)
OTHER = Quantization.per_tensor(0.2, 3)
S8, F32 = DataType.SFIXED_POINT_8, DataType.FLOAT_32


class Chain:
    """A graph whose nodes follow each other, between an input and an output of 8 bits."""

    def __init__(self, dims, quantization=Q):
        self.graph = Graph("chain")
        self.last = self.graph.create_tensor("x", TensorType.APP_WRITE, S8, dims, quantization)

    def add(self, op, dims, dtype=F32, quantization=None, more=(), params=None, kind=TensorType.NATIVE):
        name = f"t{len(self.graph.nodes)}"
        out = self.graph.create_tensor(name, kind, dtype, dims, quantization)
        self.graph.add_node(f"n{len(self.graph.nodes)}", op, [self.last, *more], [out], params or {})
        self.last = out

    def composed(self):
        self.graph.finalize()
        return compose(self.graph).entry


def operations(entry):
    return [node.type for node in entry.nodes]


def test_an_operation_between_dequantize_and_quantize_takes_the_quantized_tensors() -> None:
    chain = Chain((1, 8))
    chain.add("Dequantize", (1, 8))
    chain.add("Relu", (1, 8))
    chain.add("Quantize", (1, 8), S8, OTHER, kind=TensorType.APP_READ)
    entry = chain.composed()
    assert operations(entry) == ["Relu"]
    assert (entry.nodes[0].inputs, entry.nodes[0].outputs) == (("x",), ("t2",))
    assert {tensor.name for tensor in entry.tensors} == {"x", "t2"}


def test_a_result_that_is_read_as_float_too_stays_float() -> None:
    chain = Chain((1, 8))
    chain.add("Dequantize", (1, 8))
    chain.add("Relu", (1, 8))
    relu = chain.last
    chain.add("Quantize", (1, 8), S8, Q, kind=TensorType.APP_READ)
    chain.last = relu
    chain.add("Tanh", (1, 8), kind=TensorType.APP_READ)
    assert operations(chain.composed()) == ["Dequantize", "Relu", "Quantize", "Tanh"]


def test_a_change_of_layout_does_not_keep_an_operation_from_being_folded() -> None:
    chain = Chain((1, 2, 4))
    chain.add("Dequantize", (1, 2, 4))
    chain.add("Reshape", (1, 8))
    chain.add("Relu", (1, 8))
    chain.add("Reshape", (2, 4))
    chain.add("Quantize", (2, 4), S8, OTHER, kind=TensorType.APP_READ)
    entry = chain.composed()
    assert operations(entry) == ["Reshape", "Relu", "Reshape"]
    encodings = {tensor.name: tensor for tensor in entry.tensors}
    middle = encodings[entry.nodes[1].inputs[0]]
    assert (middle.dtype, middle.dims, float(middle.encoding.scales[0])) == (S8, (1, 8), np.float32(0.1))


@pytest.mark.parametrize(("quantization", "expected"), [(Q, ["Relu"]), (OTHER, ["Convert", "Relu"])])
def test_a_quantize_right_after_a_dequantize_is_a_convert_or_nothing(quantization, expected) -> None:
    chain = Chain((1, 8))
    chain.add("Dequantize", (1, 8))
    chain.add("Quantize", (1, 8), S8, quantization)
    chain.add("Relu", (1, 8), S8, quantization, kind=TensorType.APP_READ)
    assert operations(chain.composed()) == expected


def test_a_quantized_product_with_a_constant_matrix_becomes_fully_connected() -> None:
    chain = Chain((2, 3))
    matrix = np.arange(12, dtype=np.int8).reshape(3, 4)
    weights = chain.graph.constant("w", matrix, Quantization((1.0,) * 4, (0,) * 4, 1))
    chain.add("MatMul", (2, 4), S8, OTHER, more=[weights], kind=TensorType.APP_READ)
    entry = chain.composed()
    assert operations(entry) == ["FullyConnected"]
    turned = next(tensor for tensor in entry.tensors if tensor.name == entry.nodes[0].inputs[1])
    assert (turned.dims, turned.encoding.axis) == ((4, 3), 0)
    np.testing.assert_array_equal(np.frombuffer(turned.data, np.int8).reshape(4, 3), matrix.T)


def test_a_state_is_an_input_and_an_output() -> None:
    composition = compose(summing())
    assert composition.states == (("total", "total.next"),)
    kinds = {tensor.name: tensor.type for tensor in composition.entry.tensors}
    assert (kinds["total"], kinds["total.next"]) == (TensorType.APP_WRITE, TensorType.APP_READ)


def test_a_state_that_a_node_writes_has_a_tensor_for_its_next_value() -> None:
    graph = Graph("counting")
    x = graph.create_tensor("x", TensorType.APP_WRITE, F32, (1, 4))
    state = graph.create_tensor("state", TensorType.APP_READWRITE, F32, (1, 4))
    y = graph.create_tensor("y", TensorType.APP_READ, F32, (1, 4))
    graph.add_node("next", "ElementWiseAdd", [x, state], [state])
    graph.add_node("result", "Relu", [state], [y])
    graph.finalize()
    nodes = {node.name: node for node in compose(graph).entry.nodes}
    assert nodes["next"].inputs == ("x", "state")
    (after,) = nodes["next"].outputs
    assert after != "state"
    assert nodes["result"].inputs == (after,)
    assert (nodes["state.next.update"].inputs, nodes["state.next.update"].outputs) == ((after,), ("state.next",))


def test_operations_that_qnn_lacks_are_named() -> None:
    graph = Graph("g")
    x = graph.create_tensor("x", TensorType.APP_WRITE, F32, (1, 4))
    y = graph.create_tensor("y", TensorType.APP_READ, F32, (1, 4))
    graph.add_node("error_function", "Erf", [x], [y])
    graph.finalize()
    with pytest.raises(QnnError, match=r"lacks 1 of its node: error_function \(Erf\)") as refusal:
        compose(graph)
    assert refusal.value.code is Code.COMMON_NOT_SUPPORTED


def test_a_composition_survives_its_way_to_the_other_process() -> None:
    composition = specimen()
    (entry,) = read(memoryview(composition.to_bytes()), "test")
    assert [node.type for node in entry.nodes] == ["Relu"]
    assert [tensor.dims for tensor in entry.tensors] == [(1, 16, 16, 32)] * 2


def test_types_of_scalar_parameters_travel_with_the_graph() -> None:
    graph = Graph("g")
    x = graph.create_tensor("x", TensorType.APP_WRITE, F32, (1, 4))
    y = graph.create_tensor("y", TensorType.APP_READ, F32, (1, 4))
    graph.add_node("clip", "ReluMinMax", [x], [y], {"min_value": -1.0, "max_value": 1.0})
    graph.finalize()
    (entry,) = read(memoryview(compose(graph).to_bytes()), "test")
    assert entry.nodes[0].kinds == {"min_value": F32, "max_value": F32}
