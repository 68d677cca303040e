"""HTP's setting "numerics": results are rounded as the chips round them, and a binary keeps the setting.

Where Qualcomm's package is installed, its library computes the same graphs and is the judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.suites import sampled

from backends.vendor.harness import NAME, needs_package
from isthmus import Code, QnnError, qnn
from isthmus.graph import DataType, Graph, Quantization, TensorType
from isthmus.qnn import ClientTensor

AS_CHIP = {"htp": {"numerics": "htp"}}
SCALE = float(np.float32(0.05))
BYTE = DataType.UFIXED_POINT_8
_rng = np.random.default_rng(4)

Case = tuple[Graph, list[np.ndarray]]


def graph_of(
    op: str, inputs: list[tuple[np.ndarray, float]], dims: tuple[int, ...], scale: float,
    params: dict[str, Any] | None = None, weights: tuple[np.ndarray, float] | None = None,
) -> Case:  # fmt: skip
    """Return a graph of one operation on bytes with the zero point 128, and its inputs."""
    graph = Graph(op)
    tensors = [
        graph.create_tensor(f"x{i}", TensorType.APP_WRITE, BYTE, x.shape, Quantization.per_tensor(s, 128))
        for i, (x, s) in enumerate(inputs)
    ]
    if weights is not None:
        data, factor = weights
        tensors.append(
            graph.create_tensor(
                "w", TensorType.STATIC, BYTE, data.shape, Quantization.per_tensor(factor, 128), data=data
            )
        )
    y = graph.create_tensor("y", TensorType.APP_READ, BYTE, dims, Quantization.per_tensor(scale, 128))
    graph.add_node("node", op, tensors, [y], params or {})
    graph.finalize()
    return graph, [x for x, _ in inputs]


def _bytes(*dims: int) -> np.ndarray:
    return _rng.integers(0, 256, dims).astype(np.uint8)


def _pool(height: int, width: int, stride: tuple[int, int] | None = None, size: int = 32) -> Case:
    """Return averages in windows of an image; without a stride, windows touch each other."""
    x, (down, across) = _bytes(1, size, size, 32), stride or (height, width)
    params = {"filter_size": np.uint32([height, width]), "stride": np.uint32([down, across])}
    params["pad_amount"] = np.zeros((2, 2), np.uint32)
    dims = (1, (size - height) // down + 1, (size - width) // across + 1, 32)
    return graph_of("PoolAvg2d", [(x, SCALE)], dims, SCALE, params)


def _convolution() -> Case:
    x = _rng.integers(118, 139, (1, 8, 8, 32)).astype(np.uint8)
    weights = _rng.integers(125, 132, (1, 1, 32, 32)).astype(np.uint8)
    params = {"stride": np.uint32([1, 1]), "pad_amount": np.zeros((2, 2), np.uint32)}
    return graph_of("Conv2d", [(x, 1.0)], (1, 8, 8, 32), 2.0, params, (weights, 0.5))


def _resize() -> Case:
    params = {"half_pixel_centers": np.bool_(True), "align_corners": np.bool_(False)}
    return graph_of("ResizeBilinear", [(_bytes(1, 16, 16, 32), SCALE)], (1, 32, 32, 32), SCALE, params)


def _mean() -> Case:
    params = {"axes": np.uint32([3]), "keep_dims": np.bool_(True)}
    return graph_of("ReduceMean", [(_bytes(1, 32, 32, 32), SCALE)], (1, 32, 32, 1), SCALE, params)


def _pairs(op: str, out: float) -> Case:
    x, z = _bytes(1, 16, 16, 32), _bytes(1, 16, 16, 32)
    return graph_of(op, [(x, 0.5), (z, 0.5)], x.shape, out)


CASES: dict[str, Callable[[], Case]] = {
    "Convert": lambda: graph_of("Convert", [(_bytes(1, 8, 8, 32), 1.0)], (1, 8, 8, 32), 2.0),
    "Add": lambda: _pairs("ElementWiseAdd", 1.0),
    "Subtract": lambda: _pairs("ElementWiseSubtract", 1.0),
    "Multiply": lambda: _pairs("ElementWiseMultiply", 32.0),
    "a convolution": _convolution,
    "averages of 2x2": lambda: _pool(2, 2),
    "averages of 4x4": lambda: _pool(4, 4),
    "averages of 8x8": lambda: _pool(8, 8),
    "averages of 4x8": lambda: _pool(4, 8),
    "averages of 6x6": lambda: _pool(6, 6, size=30),
    "averages of 2x4": lambda: _pool(2, 4),
    "ResizeBilinear": _resize,
    "ReduceMean": _mean,
    "ElementWiseCeil": lambda: graph_of("ElementWiseCeil", [(_bytes(1, 8, 8, 32), SCALE)], (1, 8, 8, 32), SCALE),
}


def computed(backend: qnn.Backend, case: Case) -> np.ndarray:
    """Return the results of a graph on a backend."""
    graph, arrays = case
    with backend.create_context() as context:
        made = context.add_graph(graph)
        made.finalize()
        y = np.zeros(graph.outputs[0].dims, graph.outputs[0].dtype.numpy)
        names = [tensor.name for tensor in graph.inputs]
        inputs = [ClientTensor(name, array) for name, array in zip(names, arrays, strict=True)]
        made.execute(inputs, [ClientTensor("y", y)])
    return y


@pytest.fixture(scope="module")
def as_chip():
    with qnn.Backend("htp", AS_CHIP) as made:
        yield made


@pytest.fixture(scope="module")
def exact():
    with qnn.Backend("htp") as made:
        yield made


@pytest.fixture(scope="module")
def vendor():
    with qnn.Backend(NAME, {"qnn-htp": {"soc": "SM8750"}}) as made:
        yield made


def _biased() -> Case:
    """Return a convolution whose bias has five times as many digits as the sum of products."""
    x, weights = _bytes(1, 8, 8, 32), _rng.integers(125, 132, (1, 1, 32, 32)).astype(np.uint8)
    graph = Graph("biased")
    image = graph.create_tensor("x0", TensorType.APP_WRITE, BYTE, x.shape, Quantization.per_tensor(SCALE, 128))
    filters = graph.create_tensor(
        "w", TensorType.STATIC, BYTE, weights.shape, Quantization.per_tensor(SCALE, 128), data=weights
    )
    bias = np.arange(-16, 16, dtype=np.int32)
    added = graph.create_tensor(
        "b", TensorType.STATIC, DataType.SFIXED_POINT_32, (32,), Quantization.per_tensor(SCALE * SCALE / 5), data=bias
    )
    y = graph.create_tensor("y", TensorType.APP_READ, BYTE, (1, 8, 8, 32), Quantization.per_tensor(SCALE, 128))
    params = {"stride": np.uint32([1, 1]), "pad_amount": np.zeros((2, 2), np.uint32)}
    graph.add_node("node", "Conv2d", [image, filters, added], [y], params)
    graph.finalize()
    return graph, [x]


CASES["convolution with a fine bias"] = _biased


def test_a_bias_is_truncated_to_the_unit_of_the_sum(as_chip) -> None:
    graph, (x,) = _biased()
    weights = graph.tensors["w"].data
    assert weights is not None
    sums = (x.reshape(64, 32).astype(np.int64) - 128) @ (weights.reshape(32, 32).astype(np.int64) - 128)
    sums += np.trunc(np.arange(-16, 16) / 5).astype(np.int64)
    expected = np.clip(np.floor(sums.astype(np.float32) * np.float32(SCALE) + np.float32(0.5)) + 128, 0, 255)
    np.testing.assert_array_equal(computed(as_chip, (graph, [x])).reshape(64, 32), expected)


@needs_package
@pytest.mark.parametrize("name", sampled(CASES, 4))
def test_bytes_have_the_bits_of_the_vendors_library(as_chip, vendor, name: str) -> None:
    case = CASES[name]()
    np.testing.assert_array_equal(computed(as_chip, case), computed(vendor, case))


@needs_package
def test_averages_in_overlapping_windows_are_nearly_those_of_the_vendors_library(as_chip, vendor) -> None:
    """Its rule for these is not known in full; rounded up, 3 % of them would differ."""
    case = _pool(4, 4, (2, 2))
    apart = computed(as_chip, case).astype(int) - computed(vendor, case)
    assert np.abs(apart).max() <= 1
    assert np.count_nonzero(apart) < 0.002 * apart.size


def test_the_setting_changes_the_rounding_of_ties_only(as_chip, exact) -> None:
    case = _pool(2, 2)
    chip, plain = computed(as_chip, case), computed(exact, case)
    means = case[1][0].astype(np.float64).reshape(1, 16, 2, 16, 2, 32).mean((2, 4))
    np.testing.assert_array_equal(chip, np.floor(means + 0.5))
    half = means % 1 == 0.5
    np.testing.assert_array_equal(plain[~half], chip[~half])
    assert (plain[half] != chip[half]).any()


def test_averages_of_four_by_four_bytes_are_rounded_twice(as_chip) -> None:
    case = _pool(4, 4)
    first = np.floor(case[1][0].astype(np.float64).reshape(1, 16, 2, 16, 2, 32).mean((2, 4)) + 0.5)
    expected = np.floor(first.reshape(1, 8, 2, 8, 2, 32).mean((2, 4)) + 0.5)
    np.testing.assert_array_equal(computed(as_chip, case), expected)


def test_floats_are_computed_in_fp16(as_chip) -> None:
    graph = Graph("sum")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (4,))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (4,))
    graph.add_node("add", "ElementWiseAdd", [x, x], [y])
    graph.finalize()
    values = np.float32([1.0001, 3.3333, 1000.3, 40000])
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
        expected = (half + half).astype(np.float32)
    np.testing.assert_array_equal(computed(as_chip, (graph, [values])), expected)


def test_a_binary_keeps_the_setting(as_chip, exact) -> None:
    graph, [x] = _pool(4, 4)
    expected = computed(as_chip, (graph, [x]))
    with as_chip.create_context() as context:
        context.add_graph(graph).finalize()
        binary = context.get_binary()
    [restored] = exact.create_context_from_binary(binary).graphs.values()
    found = np.zeros_like(expected)
    restored.execute([ClientTensor("x0", x)], [ClientTensor("y", found)])
    np.testing.assert_array_equal(found, expected)


def test_another_value_is_refused() -> None:
    with pytest.raises(QnnError) as refused:
        qnn.Backend("htp", {"htp": {"numerics": "chip"}})
    assert refused.value.code is Code.BACKEND_INVALID_CONFIG
    assert "exact" in str(refused.value)
