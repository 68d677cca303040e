"""Quantized models: integers become fixed-point tensors, constants stay visible as integers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from frontends.onnx.graphs import check, convert, expected, floats, interpret, model, node, operations
from isthmus.graph import DataType, TensorType

RNG = np.random.default_rng(2)
WEIGHTS = RNG.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
SCALES = (np.abs(RNG.standard_normal(4)) * 0.01 + 0.01).astype(np.float32)


def test_weights_stay_integers_behind_a_dequantize_in_the_order_the_convolution_wants() -> None:
    nodes = [
        node("QuantizeLinear", "x sx zx", "q"),
        node("DequantizeLinear", "q sx zx", "d"),
        node("DequantizeLinear", "w sw zw", "f", axis=0),
        node("DequantizeLinear", "b sb", "g", axis=0),
        node("Conv", "d f g", "c"),
        node("QuantizeLinear", "c sx zx", "r"),
        node("DequantizeLinear", "r sx zx", "y"),
    ]
    constants = {
        "sx": np.float32(0.05), "zx": np.uint8(128), "w": WEIGHTS, "sw": SCALES, "zw": np.zeros(4, np.int8),
        "b": np.int32([10, -20, 30, 0]), "sb": SCALES * np.float32(0.05),
    }  # fmt: skip
    graph = check(model(nodes, {"x": floats(1, 3, 6, 6)}, "y", constants), tolerance=0.051)
    constant = {t.dtype: t for t in graph.tensors.values() if t.type is TensorType.STATIC}
    filters = constant[DataType.SFIXED_POINT_8]
    assert filters.dims == (3, 3, 3, 4)
    assert filters.quantization is not None
    assert filters.quantization.axis == 3
    assert constant[DataType.SFIXED_POINT_32].dims == (4,)
    assert operations(graph)["Dequantize"] == 4


@pytest.mark.parametrize(("kind", "dtype"), [(np.uint8, DataType.UFIXED_POINT_8), (np.int8, DataType.SFIXED_POINT_8)])
def test_integer_operators_become_operations_on_fixed_point(kind: type, dtype: DataType) -> None:
    nodes = [
        node("QuantizeLinear", "x sx zx", "q"),
        node("QLinearConv", "q sx zx w sw zw sy zy b", "c", pads=[1, 1, 1, 1]),
        node("MaxPool", "c", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "p", "f"),
        node("QLinearMatMul", "f sy zy m sm zm sz zz", "n"),
        node("DequantizeLinear", "n sz zz", "y"),
    ]
    zero = 128 if kind is np.uint8 else 0
    constants = {
        "sx": np.float32(0.05), "zx": kind(zero), "w": WEIGHTS, "sw": SCALES, "zw": np.zeros(4, np.int8),
        "b": np.int32([100, -200, 300, 0]), "sy": np.float32(0.1), "zy": kind(zero + 3),
        "m": RNG.integers(-127, 128, (36, 5)).astype(np.int8), "sm": np.float32(0.01), "zm": np.int8(0),
        "sz": np.float32(0.2), "zz": kind(zero - 5),
    }  # fmt: skip
    graph = check(model(nodes, {"x": floats(1, 3, 6, 6)}, "y", constants), tolerance=0.201)
    convolution = next(step for step in graph.nodes if step.op == "Conv2d")
    assert convolution.inputs[0] is not None
    assert convolution.inputs[0].dtype is dtype
    assert convolution.inputs[2] is not None
    assert convolution.inputs[2].dtype is DataType.SFIXED_POINT_32
    assert operations(graph)["Dequantize"] == 1


def test_an_integer_input_that_is_dequantized_is_a_fixed_point_input_with_the_same_bytes() -> None:
    nodes = [node("DequantizeLinear", "x s z", "y")]
    made = model(nodes, {"x": (TensorProto.UINT8, (4,))}, "y", {"s": np.float32(0.5), "z": np.uint8(3)})
    graph = convert(made)
    assert graph.inputs[0].dtype is DataType.UFIXED_POINT_8
    assert graph.inputs[0].quantization is not None
    assert graph.inputs[0].quantization.zero_point == 3
    answer = interpret(graph, {"x": np.uint8([0, 3, 5, 255])})["y"]
    np.testing.assert_array_equal(answer, np.float32([-1.5, 0, 1, 126]))


def test_an_input_may_be_read_as_fixed_point_and_as_plain_integers() -> None:
    nodes = [node("DequantizeLinear", "x s z", "r"), node("Cast", "x", "i", to=TensorProto.INT32)]
    made = model(nodes, {"x": (TensorProto.UINT8, (3,))}, "r i", {"s": np.float32(0.5), "z": np.uint8(3)})
    feeds = {"x": np.uint8([0, 3, 200])}
    answers = interpret(convert(made), feeds)
    for name, reference in expected(made, feeds).items():
        np.testing.assert_array_equal(answers[name], reference)


def test_a_quantized_output_is_fixed_point() -> None:
    constants = {"s": np.float32(0.1), "z": np.int8(-3)}
    made = model([node("QuantizeLinear", "x s z", "y")], {"x": floats(4)}, "y", constants)
    graph = check(made, tolerance=0)
    assert graph.outputs[0].dtype is DataType.SFIXED_POINT_8


def test_dynamic_quantization_and_the_integer_product() -> None:
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("MatMulInteger", "q w z", "i"),
        node("Cast", "i", "f", to=TensorProto.FLOAT),
        node("Mul", "f s", "y"),
    ]
    weights = RNG.integers(-127, 128, (6, 5)).astype(np.int8)
    check(model(nodes, {"x": floats(3, 6)}, "y q s z", {"w": weights}))


def test_scales_known_only_at_run_time_are_computed_with() -> None:
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")]
    inputs = {"x": floats(5), "s": floats()}
    made = model(nodes, inputs, "q y", {"z": np.uint8(7)})
    feeds = {"x": np.float32([-1, 0, 0.3, 2, 99]), "s": np.float32(0.25)}
    answers = interpret(convert(made), feeds)
    for name, reference in expected(made, feeds).items():
        np.testing.assert_array_equal(answers[name], reference)


@pytest.mark.parametrize(
    ("op", "more"),
    [("QLinearAdd", "t st zt"), ("QLinearMul", "t st zt"), ("QLinearSigmoid", ""), ("QLinearLeakyRelu", ""),
     ("QLinearGlobalAveragePool", "")],
)  # fmt: skip
def test_operators_of_the_runtime_itself(op: str, more: str) -> None:
    nodes = [node("QuantizeLinear", "x sx zx", "q")]
    integer = node(op, f"q sx zx {more} sy zy", "r")
    integer.domain = "com.microsoft"
    nodes += [integer, node("DequantizeLinear", "r sy zy", "y")]
    constants = {
        "sx": np.float32(0.03), "zx": np.uint8(120), "t": RNG.integers(0, 255, (3, 1, 4)).astype(np.uint8),
        "st": np.float32(0.02), "zt": np.uint8(100), "sy": np.float32(0.05), "zy": np.uint8(90),
    }  # fmt: skip
    made = model(nodes, {"x": floats(1, 3, 4, 4)}, "y", constants, domains=["com.microsoft"])
    check(made, tolerance=0.051)


U8 = TensorProto.UINT8
MEANING = {"s": np.float32(0.03), "z": np.uint8(120), "t": np.float32(0.05), "u": np.uint8(90)}
MATRIX = RNG.integers(0, 255, (6, 5)).astype(np.uint8)
COLUMNS = (np.abs(RNG.standard_normal(5)) * 0.01 + 0.01).astype(np.float32)
BIAS = RNG.integers(-999, 999, 5).astype(np.int32)
OF_THE_RUNTIME: dict[str, tuple[list, dict, dict]] = {
    "QGemm": ([node("QGemm", "x s z w a b - t u", "y")], {"x": (U8, (3, 6))}, {"w": MATRIX, "a": np.float32(0.02)}),
    "QGemm with a bias": (
        [node("QGemm", "x s z w a b c t u", "y")], {"x": (U8, (3, 6))},
        {"w": MATRIX, "a": np.float32(0.02), "c": BIAS},
    ),
    "QGemm by columns, transposed": (
        [node("QGemm", "x s z w a p c t u", "y", transB=1)], {"x": (U8, (3, 6))},
        {"w": np.ascontiguousarray(MATRIX.T), "a": COLUMNS, "p": np.full(5, 100, np.uint8), "c": BIAS},
    ),
    "QGemm by columns": (
        [node("QGemm", "x s z w a p c t u", "y")], {"x": (U8, (3, 6))},
        {"w": MATRIX, "a": COLUMNS, "p": np.full(5, 100, np.uint8), "c": BIAS},
    ),
    "QLinearConcat": (
        [node("QLinearConcat", "t u x s z v a b", "y", axis=1)], {"x": (U8, (2, 3)), "v": (U8, (2, 4))},
        {"a": np.float32(0.07)},
    ),
    "QLinearConcat of one meaning": (
        [node("QLinearConcat", "s z x s z v s z", "y", axis=-1)], {"x": (U8, (2, 3)), "v": (U8, (2, 4))}, {},
    ),
    "MatMulIntegerToFloat": (
        [node("MatMulIntegerToFloat", "x w s a", "y")], {"x": (U8, (3, 6))}, {"w": MATRIX, "a": np.float32(0.02)},
    ),
    "MatMulIntegerToFloat with everything": (
        [node("MatMulIntegerToFloat", "x w s a z b c", "y")], {"x": (U8, (3, 6))},
        {"w": MATRIX, "a": np.float32(0.02), "c": BIAS.astype(np.float32)},
    ),
    "QLinearSoftmax": (
        [node("QLinearSoftmax", "x s z t u", "y", axis=1, opset=13)], {"x": (U8, (3, 6))}, {"t": np.float32(1 / 256)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_THE_RUNTIME)
def test_rarer_operators_of_the_runtime_give_its_integers(name: str) -> None:
    nodes, inputs, constants = OF_THE_RUNTIME[name]
    nodes[0].domain = "com.microsoft"
    constants = {**MEANING, "b": np.uint8(100), **constants}
    made = model(nodes, inputs, "y", constants, domains=["com.microsoft"])
    feeds = {n: RNG.integers(0, 255, dims).astype(np.uint8) for n, (_, dims) in inputs.items()}
    answer, reference = interpret(convert(made), feeds)["y"], expected(made, feeds)["y"]
    assert answer.dtype == reference.dtype
    # A rounding may fall to the other side of a half.
    np.testing.assert_allclose(answer.astype(float), reference.astype(float), rtol=1e-5, atol=1)
    assert np.mean(answer == reference) > 0.8 or answer.dtype.kind == "f"


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dims", [(4, 2, 3), (2, 2, 6), (1, 4, 6), (24,)], ids=str)
def test_what_scales_along_an_axis_mean_survives_any_reshape(axis: int, dims: tuple[int, ...]) -> None:
    weights = RNG.integers(-127, 128, (4, 6)[:: 1 if axis == 0 else -1]).astype(np.int8)
    shape = np.int64(dims if axis == 0 else dims[::-1])
    scales = np.linspace(0.01, 0.2, 4, dtype=np.float32)
    nodes = [
        node("QuantizeLinear", "x s z", "q", axis=axis),
        node("DequantizeLinear", "q s z", "d", axis=axis),
        node("Reshape", "d shape", "y"),
    ]
    made = model(nodes, {"x": floats(*weights.shape)}, "y", {"s": scales, "z": np.zeros(4, np.int8), "shape": shape})
    feeds = {"x": weights.astype(np.float32) * 0.01}
    np.testing.assert_allclose(interpret(convert(made), feeds)["y"], expected(made, feeds)["y"], atol=1e-6)
    constant = model(
        [node("DequantizeLinear", "w s z", "d", axis=axis), node("Reshape", "d shape", "r"), node("Add", "x r", "y")],
        {"x": floats(1)}, "y", {"w": weights, "s": scales, "z": np.zeros(4, np.int8), "shape": shape},
    )  # fmt: skip
    feeds = {"x": np.float32([0])}
    np.testing.assert_allclose(interpret(convert(constant), feeds)["y"], expected(constant, feeds)["y"], atol=1e-6)


@pytest.mark.parametrize("size", [(4, 6), (4, 4), (3, 5)], ids=str)
@pytest.mark.parametrize("axis", [1, 2, 3, -3])
def test_scales_of_an_axis_follow_it_where_the_layout_puts_it(axis: int, size: tuple[int, int]) -> None:
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("QuantizeLinear", "c s z", "q", axis=axis),
        node("DequantizeLinear", "q s z", "y", axis=axis),
    ]
    length = (1, 4, *size)[axis]
    scales = np.linspace(0.01, 0.2, length, dtype=np.float32)
    constants = {"w": RNG.standard_normal((4, 3, 3, 3)).astype(np.float32), "s": scales}
    constants["z"] = np.arange(length).astype(np.int8)
    made = model(nodes, {"x": floats(1, 3, *size)}, "y q", constants)
    feeds = {"x": RNG.standard_normal((1, 3, *size)).astype(np.float32)}
    answers, reference = interpret(convert(made), feeds), expected(made, feeds)
    np.testing.assert_allclose(answers["y"], reference["y"], atol=1e-6)
    np.testing.assert_array_equal(answers["q"], reference["q"])


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1]], ids=str)
@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_quantized_averages_count_what_onnx_runtime_counts(pads: list[int], counted: int, ceil: int) -> None:
    windows = {"kernel_shape": [2, 3], "strides": [2, 3], "pads": pads, "ceil_mode": ceil, "count_include_pad": counted}
    pool = node("QLinearAveragePool", "x s z t u", "y", domain="com.microsoft", **windows)
    constants = {"s": np.float32(0.05), "z": np.uint8(100), "t": np.float32(0.04), "u": np.uint8(90)}
    dims = (2, 3, 5, 8)
    made = model([pool], {"x": (TensorProto.UINT8, dims)}, "y", constants, domains=["com.microsoft"])
    feeds = {"x": RNG.integers(0, 256, dims).astype(np.uint8)}
    found, reference = interpret(convert(made), feeds)["y"], expected(made, feeds)["y"]
    assert found.shape == reference.shape
    assert np.abs(found.astype(int) - reference.astype(int)).max() <= 1


@pytest.mark.parametrize("several", [False, True])
def test_weights_of_one_scale_are_reshaped_before_they_are_dequantized(several: bool) -> None:
    weights = RNG.integers(-127, 128, (6, 4)).astype(np.int8)
    scale = np.linspace(0.01, 0.02, 6, dtype=np.float32) if several else np.float32(0.02)
    zero = np.zeros(6, np.int8) if several else np.int8(0)
    nodes = [
        node("DequantizeLinear", "w s z", "d", axis=0),
        node("Reshape", "d shape", "r"),
        node("MatMul", "x r", "y"),
    ]
    constants = {"w": weights, "s": scale, "z": zero, "shape": np.int64([4, 6])}
    found = operations(check(model(nodes, {"x": floats(3, 4)}, "y", constants)))
    assert found["Reshape"] == several
    assert found["MatMul"] == 1


@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_scales_known_only_at_run_time_apply_to_their_axis(axis: int) -> None:
    nodes = [node("QuantizeLinear", "x s z", "q", axis=axis), node("DequantizeLinear", "q s z", "y", axis=axis)]
    length = (2, 3, 4)[axis]
    zeros = np.arange(length, dtype=np.uint8) + 100
    made = model(nodes, {"x": floats(2, 3, 4), "s": floats(length)}, "q y", {"z": zeros})
    scales = np.linspace(0.1, 0.3, length, dtype=np.float32)
    feeds = {"x": RNG.standard_normal((2, 3, 4)).astype(np.float32), "s": scales}
    answers = interpret(convert(made), feeds)
    for name, reference in expected(made, feeds).items():
        np.testing.assert_allclose(answers[name], reference, atol=1e-6)


@pytest.mark.parametrize("fill", [0, 7, 133])
def test_padding_of_a_quantized_tensor_is_a_stored_integer(fill: int) -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("Pad", "q pads fill", "p"),
        node("DequantizeLinear", "p s z", "y"),
    ]
    constants = {"s": np.float32(0.25), "z": np.uint8(130), "pads": np.int64([0, 1, 2, 0]), "fill": np.uint8(fill)}
    check(model(nodes, {"x": floats(2, 3)}, "y", constants), tolerance=1e-6)


def test_an_operator_without_fixed_point_gets_the_stored_integers() -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("Clip", "q low high", "c"),
        node("Equal", "q five", "e"),
        node("DequantizeLinear", "c s z", "y"),
    ]
    constants = {
        "s": np.float32(0.25), "z": np.uint8(130), "low": np.uint8(128), "high": np.uint8(133), "five": np.uint8(5),
    }  # fmt: skip
    check(model(nodes, {"x": floats(4, 6)}, "y e", constants), tolerance=1e-6)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(np.uint16, DataType.UFIXED_POINT_16), (np.int16, DataType.SFIXED_POINT_16)]
)
@pytest.mark.parametrize(("opset", "domain"), [(21, ""), (17, "com.microsoft")])
def test_sixteen_bits_are_fixed_point_as_eight_are(kind: type, dtype: DataType, opset: int, domain: str) -> None:
    nodes = [
        node("DequantizeLinear", "x sx zx", "d", domain=domain),
        node("DequantizeLinear", "w sw zw", "f", axis=0, domain=domain),
        node("Conv", "d f", "c"),
        node("QuantizeLinear", "c sy zy", "y", domain=domain),
    ]
    zero = 30000 if kind is np.uint16 else -7
    constants = {
        "sx": np.float32(0.001), "zx": kind(zero), "w": WEIGHTS, "sw": SCALES, "zw": np.zeros(4, np.int8),
        "sy": np.float32(0.0005), "zy": kind(zero + 5),
    }  # fmt: skip
    element = TensorProto.UINT16 if kind is np.uint16 else TensorProto.INT16
    made = model(nodes, {"x": (element, (1, 3, 6, 6))}, "y", constants, opset, domains=[domain] if domain else [])
    made.ir_version = 10
    graph = convert(made)
    assert graph.inputs[0].dtype is graph.outputs[0].dtype is dtype
    assert graph.inputs[0].quantization is not None
    assert graph.inputs[0].quantization.zero_point == zero
    feeds = {"x": RNG.integers(zero - 900, zero + 900, (1, 3, 6, 6)).astype(kind)}
    answer = interpret(graph, feeds)["y"].astype(np.int64)
    assert np.abs(answer - expected(made, feeds)["y"]).max() <= 1
