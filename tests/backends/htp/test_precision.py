"""HTP's precision: a FLOAT_32 graph that stores its floats in 16 bits between inputs and outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import tiny

import isthmus
from isthmus import Code, QnnError, qnn
from isthmus.graph import Quantization
from isthmus.qnn import ClientTensor, htp

HALF = {"htp": {"precision": "float16"}}
X = np.random.default_rng(1).standard_normal((1, 12, 12, 16)).astype(np.float32)
WEIGHTS = np.random.default_rng(2).standard_normal((3, 3, 16, 24)).astype(np.float32)
PARAMS = {"stride": np.uint32([1, 1]), "pad_amount": np.uint32([[1, 1], [1, 1]])}


def two_layers(context: qnn.Context, dtype: qnn.DataType) -> qnn.Graph:
    """A convolution, a sigmoid, and another convolution, in one type throughout."""
    graph = context.create_graph(f"in {dtype.name}")
    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, dtype, X.shape)
    weights = graph.create_tensor("w", qnn.TensorType.STATIC, dtype, WEIGHTS.shape, data=dtype.encode(WEIGHTS))
    back = np.ascontiguousarray(WEIGHTS.swapaxes(2, 3))
    second = graph.create_tensor("v", qnn.TensorType.STATIC, dtype, back.shape, data=dtype.encode(back))
    between = graph.create_tensor("between", qnn.TensorType.NATIVE, dtype, (1, 12, 12, 24))
    gated = graph.create_tensor("gated", qnn.TensorType.NATIVE, dtype, (1, 12, 12, 24))
    y = graph.create_tensor("y", qnn.TensorType.APP_READ, dtype, X.shape)
    graph.add_node("first", "Conv2d", [x, weights], [between], PARAMS)
    graph.add_node("gate", "Sigmoid", [between], [gated])
    graph.add_node("second", "Conv2d", [gated, second], [y], PARAMS)
    return graph


def result(graph: qnn.Graph, dtype: qnn.DataType) -> np.ndarray:
    graph.finalize()
    y = np.zeros(X.shape, dtype.numpy)
    graph.execute([ClientTensor("x", dtype.encode(X))], [ClientTensor("y", y)])
    return y


def test_a_float32_graph_has_the_bits_of_a_float16_graph_inside(backend: qnn.Backend) -> None:
    single, half = qnn.DataType.FLOAT_32, qnn.DataType.FLOAT_16
    with backend.create_context() as context, qnn.Backend("cpu") as cpu:
        graph = two_layers(context, single)
        graph.set_config(htp.PRECISION, htp.FloatPrecision.FLOAT16)
        found = result(graph, single)
        plain = two_layers(context, half)
        expected = result(plain, half)
        np.testing.assert_array_equal(found, expected.astype(np.float32))
        np.testing.assert_array_equal(result(two_layers(cpu.create_context(), half), half), expected)


def test_floats_inside_take_half_the_bytes(backend: qnn.Backend) -> None:
    with backend.create_context() as context, backend.create_context() as other:
        whole = two_layers(context, qnn.DataType.FLOAT_32)
        graph = two_layers(other, qnn.DataType.FLOAT_32)
        graph.set_config(htp.PRECISION, htp.FloatPrecision.FLOAT16)
        constants = [g.info.memory.constant_bytes for g in (graph, whole)]
        assert constants[0] < 0.52 * constants[1]
        assert graph.driver.info.inputs[0].dtype is qnn.DataType.FLOAT_32


def test_the_precision_is_fixed_once_the_graph_is_prepared(backend: qnn.Backend) -> None:
    with backend.create_context() as context:
        graph = two_layers(context, qnn.DataType.FLOAT_32)
        with pytest.raises(QnnError) as refused:
            graph.set_config(htp.PRECISION, "float16")
        assert refused.value.code is Code.GRAPH_INVALID_ARGUMENT
        graph.finalize()
        with pytest.raises(QnnError) as late:
            graph.set_config(htp.PRECISION, htp.FloatPrecision.FLOAT16)
        assert late.value.code is Code.GRAPH_FINALIZED


def test_a_number_beyond_65504_becomes_infinite_and_a_large_constant_the_largest_number() -> None:
    with qnn.Backend("htp", HALF) as backend:
        graph = backend.create_context().create_graph("g")
        x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (3,))
        large = graph.create_tensor(
            "mask", qnn.TensorType.STATIC, qnn.DataType.FLOAT_32, (3,), data=np.float32([-1e38, 2, 1e38])
        )
        y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (3,))
        graph.add_node("scale", "ElementWiseMultiply", [x, large], [y])
        graph.finalize()
        found = np.zeros(3, np.float32)
        graph.execute([ClientTensor("x", np.float32([0, 40000, 1]))], [ClientTensor("y", found)])
        np.testing.assert_array_equal(found, np.float32([0, np.inf, 65504]))


def test_a_binary_keeps_the_precision(backend: qnn.Backend) -> None:
    with qnn.Backend("htp", HALF) as half:
        context = half.create_context()
        graph = two_layers(context, qnn.DataType.FLOAT_32)
        expected = result(graph, qnn.DataType.FLOAT_32)
        binary = context.get_binary()
    [restored] = backend.create_context_from_binary(binary).graphs.values()
    found = np.zeros(X.shape, np.float32)
    restored.execute([ClientTensor("x", X)], [ClientTensor("y", found)])
    np.testing.assert_array_equal(found, expected)


def test_a_plan_shows_the_halved_memory(tmp_path: Path) -> None:
    model = tiny.convolution(tmp_path / "model.onnx", 64, 64)
    scratch = []
    for config in (None, HALF):
        with isthmus.Session(model, backend="htp", config=config) as session:
            scratch.append(session.graph.driver.plan.bytes)
    assert scratch[1] <= 0.6 * scratch[0]


def test_states_stay_float32_and_fixed_point_steps_stay_as_they_are() -> None:
    byte = qnn.Quantization.per_tensor(0.25, 0)
    with qnn.Backend("htp", HALF) as backend:
        graph = backend.create_context().create_graph("g")
        x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (4,))
        total = graph.create_tensor(
            "total", qnn.TensorType.APP_READWRITE, qnn.DataType.FLOAT_32, (4,), data=np.zeros(4, np.float32)
        )
        stored = graph.create_tensor("stored", qnn.TensorType.NATIVE, qnn.DataType.UFIXED_POINT_8, (4,), byte)
        real = graph.create_tensor("real", qnn.TensorType.NATIVE, qnn.DataType.FLOAT_32, (4,))
        y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (4,))
        graph.add_node("add", "ElementWiseAdd", [x, total], [total])
        graph.add_node("quantize", "Quantize", [total], [stored])
        graph.add_node("dequantize", "Dequantize", [stored], [real])
        graph.add_node("double", "ElementWiseAdd", [real, real], [y])
        graph.finalize()
        found = np.zeros(4, np.float32)
        for _ in range(3):
            graph.execute([ClientTensor("x", np.float32([1, 0.25, 3, -1]))], [ClientTensor("y", found)])
        np.testing.assert_array_equal(found, np.float32([6, 1.5, 18, 0]))  # bytes have no numbers below 0


def test_operations_on_fixed_point_keep_their_digits(backend: qnn.Backend) -> None:
    """A Logit is composed of steps in floats, whose 24 bits a result of 16 bits needs."""
    stored = np.linspace(1000, 64000, 256).astype(np.uint16)
    wide = qnn.DataType.UFIXED_POINT_16
    with backend.create_context() as context:
        graph = context.create_graph("logit")
        ends = Quantization.per_tensor(1 / 65535), Quantization.per_tensor(5e-4, 32768)
        x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, wide, (256,), ends[0])
        y = graph.create_tensor("y", qnn.TensorType.APP_READ, wide, (256,), ends[1])
        graph.add_node("logit", "Logit", [x], [y])
        graph.set_config(htp.PRECISION, htp.FloatPrecision.FLOAT16)
        graph.finalize()
        steps = np.zeros(256, np.uint16)
        graph.execute([ClientTensor("x", stored)], [ClientTensor("y", steps)])
    share = stored / 65535
    exact = np.log(share / (1 - share)) / np.float32(5e-4) + 32768
    assert np.abs(steps - exact).max() < 0.51


def test_only_the_work_space_of_a_tiny_model_grows(tmp_path: Path) -> None:
    """Every tensor takes half the bytes; the windows that a convolution converts at a time are all that is added."""
    model = tiny.convolution(tmp_path / "model.onnx", 8, 8)
    tensors, work = [], []
    for config in (None, HALF):
        with isthmus.Session(model, backend="htp", config=config) as session:
            rows = session.graph.driver.plan.rows
        # Inputs and outputs are cast: the tensors that both plans have are compared.
        tensors.append({row.name.removesuffix(".1"): row.bytes for row in rows if "(work)" not in row.name})
        work.append(sum(row.bytes for row in rows if "(work)" in row.name))
    common = tensors[0].keys() & tensors[1].keys()
    assert common
    assert all(2 * tensors[1][name] == tensors[0][name] for name in common), tensors
    assert work[0] < work[1] < work[0] + 16 * 1024
