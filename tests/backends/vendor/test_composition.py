"""Our graphs in the form that the vendor's library gets: folded quantization, states as inputs and outputs."""

from __future__ import annotations

import numpy as np
import pytest

from backends.vendor.harness import NAME, needs_package, summing
from isthmus import qnn
from isthmus.backends.vendor.composition import compose, specimen
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.encodings import read_encoding
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


DEPTH, COLUMNS, BLOCK, ROWS = 64, 32, 16, 8
U8 = DataType.UFIXED_POINT_8
SHAPES = {
    "FullyConnected": ((ROWS, DEPTH), (COLUMNS, DEPTH), (ROWS, COLUMNS)),
    "MatMul": ((ROWS, DEPTH), (DEPTH, COLUMNS), (ROWS, COLUMNS)),
    "Conv2d": ((1, 1, ROWS, DEPTH), (1, 1, DEPTH, COLUMNS), (1, 1, ROWS, COLUMNS)),
}
"""Dimensions of the input, the weights and the result."""


def quantizations(op: str) -> dict[str, Quantization]:
    """4-bit weights of an operation in every encoding."""
    rng = np.random.default_rng(5)
    dims = SHAPES[op][1]
    channels, depth = (0, 1) if op == "FullyConnected" else (len(dims) - 1, len(dims) - 2)
    factors = rng.integers(1, 16, (COLUMNS, DEPTH // BLOCK))
    scales = (0.004 * (1 + rng.random((COLUMNS, 1)))).astype(np.float32) * factors.astype(np.float64)
    first = tuple(scales[:, 0].tolist())
    if channels:
        scales, factors = scales.T, factors.T
    blocks, none = tuple(scales.reshape(-1).tolist()), (0,) * scales.size
    return {
        "BW_SCALE_OFFSET": Quantization((0.04,), (0,), None, 4),
        "BW_AXIS_SCALE_OFFSET": Quantization(first, (0,) * COLUMNS, channels, 4),
        "BLOCK": Quantization(blocks, none, depth, 4, BLOCK),
        "BLOCKWISE_EXPANSION": Quantization(blocks, none, depth, 4, BLOCK, tuple(factors.reshape(-1).tolist())),
    }


ENCODINGS = tuple(quantizations("Conv2d"))


def product(op: str, encoding: str) -> Graph:
    """A product of bytes with 4-bit weights."""
    graph = Graph("product")
    x_dims, w_dims, y_dims = SHAPES[op]
    stored = np.random.default_rng(6).integers(-8, 8, w_dims).astype(np.int8)
    x = graph.create_tensor("x", TensorType.APP_WRITE, U8, x_dims, Quantization.per_tensor(0.02, 128))
    w = graph.create_tensor("w", TensorType.STATIC, S8, w_dims, quantizations(op)[encoding], data=stored)
    y = graph.create_tensor("y", TensorType.APP_READ, U8, y_dims, Quantization.per_tensor(0.05, 128))
    params = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]} if op == "Conv2d" else {}
    graph.add_node("product", op, [x, w], [y], params)
    graph.finalize()
    return graph


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("op", SHAPES)
def test_weights_of_4_bits_keep_their_encoding(op, encoding) -> None:
    (entry,) = read(memoryview(compose(product(op, encoding)).to_bytes()), "test")
    weights = next(tensor for tensor in entry.tensors if tensor.type == TensorType.STATIC)
    assert weights.encoding.bits == (0 if encoding == "BLOCK" else 4)
    # A product becomes a FullyConnected, whose weights are transposed.
    expected = quantizations("FullyConnected" if op == "MatMul" else op)[encoding]
    found = read_encoding(weights.encoding, "weights", weights.dims, S8, 4)
    np.testing.assert_array_equal(np.float32(found.scales), np.float32(expected.scales))
    assert (found.axis, found.block, found.factors) == (expected.axis, expected.block, expected.factors)


@pytest.fixture(scope="module")
def vendor():
    with qnn.Backend(NAME) as backend:
        yield backend


@needs_package
@pytest.mark.parametrize("encoding", [each for each in ENCODINGS if each != "BLOCK"])
@pytest.mark.parametrize("op", SHAPES)
def test_the_vendors_library_computes_with_weights_of_4_bits(vendor, op, encoding) -> None:
    graph = product(op, encoding)
    (node,), weights = graph.nodes, graph.tensors["w"]
    vendor.validate_op_config(node.name, node.op, node.inputs, node.outputs, node.params)
    executable = vendor.create_context().add_graph(graph)
    executable.finalize()
    memory = executable.allocate()
    bytes_in = np.random.default_rng(7).integers(0, 256, SHAPES[op][0])
    memory.inputs["x"][...] = bytes_in
    memory.binding.execute()
    matrix = weights.quantization.dequantize(weights.data).astype(np.float64)
    matrix = matrix.T if op == "FullyConnected" else matrix.reshape(DEPTH, COLUMNS)
    sums = (bytes_in.reshape(ROWS, DEPTH) - 128) * 0.02 @ matrix
    expected = np.clip(sums / 0.05 + 128, 0, 255)
    # The library rounds scales of its own; a wrong number of bits is off by many steps.
    assert np.abs(memory.outputs["y"].reshape(ROWS, COLUMNS) - expected).max() < 0.75
    memory.close()


@needs_package
def test_the_vendors_library_refuses_scales_of_blocks_when_it_compiles(vendor) -> None:
    graph = vendor.create_context().add_graph(product("FullyConnected", "BLOCK"))
    with pytest.raises(QnnError, match="graphFinalize answers 1002"):
        graph.finalize()
