"""ONNX's 4-bit tensors: read from any field, dequantized per tensor, per channel and in blocks, and MatMulNBits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import oracles

import isthmus
from isthmus.errors import QnnError
from isthmus.frontends import load
from isthmus.graph import Graph

rng = np.random.default_rng(8)


def saved(nodes: list[Any], constants: list[Any], x: tuple[int, ...], path: Path, opset: int = 21) -> Path:
    """Write a model with the input x and the output y."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants,
    )  # fmt: skip
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)
    return path


def answer(path: Path, x: np.ndarray) -> np.ndarray:
    with isthmus.Session(path) as session:
        return session.run({"x": x})["y"].copy()


def four_bit(name: str, elements: np.ndarray, field: str) -> Any:
    """A tensor of INT4 or UINT4 in a field of the file."""
    kind = TensorProto.INT4 if elements.dtype == np.int8 else TensorProto.UINT4
    packed = helper.make_tensor(name, kind, elements.shape, elements.reshape(-1).tolist())
    if field == "raw_data":
        low = elements.reshape(-1).view(np.uint8) & 15
        low = np.append(low, np.zeros(low.size % 2, np.uint8))
        packed = TensorProto(name=name, data_type=kind, dims=elements.shape)
        packed.raw_data = (low[0::2] | low[1::2] << 4).tobytes()
    return packed


@pytest.mark.parametrize("field", ["int32_data", "raw_data"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("as_node", [False, True], ids=["initializer", "Constant"])
def test_elements_are_read_from_any_field(kind: type, field: str, as_node: bool, tmp_path: Path) -> None:
    elements = (rng.integers(-8, 8, (3, 5)) + (8 if kind is np.uint8 else 0)).astype(kind)
    tensor = four_bit("w", elements, field)
    nodes = [helper.make_node("Constant", [], ["w"], value=tensor)] if as_node else []
    nodes += [
        helper.make_node("DequantizeLinear", ["w", "s"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"]),
    ]  # fmt: skip
    constants = [numpy_helper.from_array(np.float32(0.5), "s"), *([] if as_node else [tensor])]
    model = saved(nodes, constants, (3, 5), tmp_path / "m.onnx")
    np.testing.assert_array_equal(answer(model, np.zeros((3, 5), np.float32)), elements * np.float32(0.5))


def test_a_field_of_the_wrong_length_is_refused(tmp_path: Path) -> None:
    tensor = four_bit("w", np.zeros((3, 5), np.int8), "raw_data")
    tensor.raw_data += b"\0"
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    constants = [numpy_helper.from_array(np.float32(0.5), "s"), tensor]
    with pytest.raises(QnnError, match=r"it holds 9 bytes, int8 \(3, 5\) takes 8"):
        load(saved(nodes, constants, (3, 5), tmp_path / "m.onnx"))


def bits_of(graph: Graph) -> set[int]:
    """The bits of the graph's constants of fewer bits."""
    encodings = [t.quantization for t in graph.tensors.values() if t.is_static and t.quantization is not None]
    return {encoding.bits for encoding in encodings if encoding.bits}


@pytest.mark.parametrize(("channels", "block"), [(48, 16), (48, 24), (48, 48), (20, 20), (36, 36), (36, 12), (24, 24)])
def test_blocks_of_a_convolution_have_scales_for_each_tap(channels: int, block: int, tmp_path: Path) -> None:
    elements = rng.integers(-8, 8, (6, channels, 3, 3)).astype(np.int8)
    scales = rng.uniform(0.01, 0.05, (6, channels // block, 3, 3)).astype(np.float32)
    scales *= rng.choice([-1, 1], scales.shape).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["r"], axis=1, block_size=block),
        helper.make_node("Conv", ["x", "r"], ["y"]),
    ]
    constants = [four_bit("w", elements, "int32_data"), numpy_helper.from_array(scales, "s")]
    model = saved(nodes, constants, (1, channels, 5, 5), tmp_path / "m.onnx")
    assert bits_of(load(model)) == {4}
    x = rng.standard_normal((1, channels, 5, 5)).astype(np.float32)
    weights = elements * scales.repeat(block, 1)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), axis=(2, 3))
    np.testing.assert_allclose(answer(model, x), np.einsum("nchwij,fcij->nfhw", windows, weights), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("block", [8, 12, 16, 20, 32, 36, 37, 40, 64, 100])
@pytest.mark.parametrize("depth", [16, 20, 36, 37, 64, 100])
def test_blocks_of_any_length_give_the_products_of_floats(depth: int, block: int, rows: int, tmp_path: Path) -> None:
    """Words of 8 elements and blocks need not end together, and a block may be longer than the depth."""
    elements = rng.integers(-8, 8, (depth, 5)).astype(np.int8)
    scales = rng.uniform(0.01, 0.05, (-(-depth // block), 5)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["r"], axis=0, block_size=block),
        helper.make_node("MatMul", ["x", "r"], ["y"]),
    ]
    constants = [four_bit("w", elements, "int32_data"), numpy_helper.from_array(scales, "s")]
    model = saved(nodes, constants, (rows, depth), tmp_path / "m.onnx")
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    weights = elements * scales.repeat(block, 0)[:depth]
    np.testing.assert_allclose(answer(model, x), x.astype(np.float64) @ weights, rtol=1e-5, atol=1e-5)


# -- MatMulNBits -------------------------------------------------------------------------------------------------------


def nbits(
    tmp_path: Path, depth: int, columns: int, bits: int, zeros: str, rows: int = 5,
    attributes: dict[str, int] | None = None, extra: list[tuple[str, Any]] | None = None,
) -> tuple[Path, np.ndarray]:  # fmt: skip
    """A model with a MatMulNBits in blocks of 32, and its weights as floats [depth, columns].

    `attributes` replace those that are right; `extra` are the operands from the fifth on.
    """
    block = 32
    blocks = -(-depth // block)
    elements = rng.integers(0, 1 << bits, (columns, blocks * block)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.05, (columns, blocks)).astype(np.float32)
    # ONNX Runtime's tools write negative scales where a block's largest weight is negative, and 0 if all are.
    scales *= rng.choice([-1, 0, 1], scales.shape).astype(np.float32)
    points = rng.integers(0, 1 << bits, (columns, blocks)).astype(np.uint8)
    if zeros == "absent":
        points[:] = 1 << (bits - 1)
    packed = elements if bits == 8 else elements[:, 0::2] | elements[:, 1::2] << 4
    constants = [
        numpy_helper.from_array(packed.reshape(columns, blocks, -1), "b"),
        numpy_helper.from_array(scales.reshape(-1), "s"),
    ]
    inputs = ["x", "b", "s"]
    if zeros != "absent":
        stored: Any = points.astype(np.float32)
        if zeros == "packed":
            padded = np.append(points, np.zeros((columns, blocks % 2), np.uint8), axis=1)
            stored = (points if bits == 8 else padded[:, 0::2] | padded[:, 1::2] << 4).reshape(-1)
        constants.append(numpy_helper.from_array(stored, "z"))
        inputs.append("z")
    constants += [numpy_helper.from_array(array, name) for name, array in extra or () if name]
    inputs += [""] * (4 - len(inputs)) + [name for name, _ in extra] if extra else []
    given = {"K": depth, "N": columns, "bits": bits, "block_size": block} | (attributes or {})
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **given)
    real = (elements.astype(np.float64) - points.repeat(block, 1)) * scales.repeat(block, 1)
    return saved([node], constants, (rows, depth), tmp_path / "m.onnx"), real[:, :depth].T


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize(
    ("bits", "zeros"), [(4, "absent"), (4, "packed"), (4, "floats"), (8, "packed"), (8, "absent")], ids=str
)
def test_products_with_blocks_of_weights_are_exact(bits: int, zeros: str, rows: int, tmp_path: Path) -> None:
    model, weights = nbits(tmp_path, 100, 24, bits, zeros, rows)
    x = rng.standard_normal((rows, 100)).astype(np.float32)
    np.testing.assert_allclose(answer(model, x), x.astype(np.float64) @ weights, rtol=1e-5, atol=2e-5)


def test_a_bias_is_added(tmp_path: Path) -> None:
    bias = rng.standard_normal(24).astype(np.float32)
    model, weights = nbits(tmp_path, 64, 24, 4, "absent", extra=[("", None), ("bias", bias)])
    x = rng.standard_normal((5, 64)).astype(np.float32)
    np.testing.assert_allclose(answer(model, x), x.astype(np.float64) @ weights + bias, rtol=1e-5, atol=2e-5)


def test_what_is_not_supported_is_named(tmp_path: Path) -> None:
    order = np.zeros(64, np.int32)
    with pytest.raises(QnnError, match=r"an order of the depth \(g_idx\)"):
        load(nbits(tmp_path, 64, 24, 4, "absent", extra=[("order", order)])[0])
    with pytest.raises(QnnError, match="weights of 2 bits"):
        load(nbits(tmp_path, 64, 24, 8, "absent", attributes={"bits": 2})[0])
    with pytest.raises(QnnError, match="bytes of weights are not 25 rows"):
        load(nbits(tmp_path, 64, 24, 4, "absent", attributes={"N": 25})[0])


PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "MatMul": ((3, 16), (16, 10), {}),
    "Gemm": ((3, 16), (10, 16), {"transB": 1}),
    "Conv": ((1, 4, 6, 6), (10, 4, 3, 3), {}),
    "ConvTranspose": ((1, 10, 6, 6), (10, 4, 3, 3), {}),
}
"""The dimensions of operand and weights, and the attributes of each product."""


@pytest.mark.parametrize("kind", [np.int8, np.int16], ids=["8 bits", "16 bits"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", PRODUCTS)
def test_blocks_along_either_axis_give_onnx_runtimes_products(op: str, axis: int, kind: type, tmp_path: Path) -> None:
    dims, shape, attributes = PRODUCTS[op]
    grid = tuple(-(-n // 2) if a == axis else n for a, n in enumerate(shape))
    constants = [
        numpy_helper.from_array(np.float32(0.02 if kind is np.int8 else 1e-3), "s"),
        numpy_helper.from_array(kind(0), "z"),
        numpy_helper.from_array((rng.random(grid) * 0.02 + 0.001).astype(np.float32), "t"),
        four_bit("w", rng.integers(-8, 8, shape).astype(np.int8), "raw_data"),
    ]  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "t"], ["wd"], axis=axis, block_size=2),
        helper.make_node(op, ["xd", "wd"], ["r"], **attributes),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["rq"]),
        helper.make_node("DequantizeLinear", ["rq", "s", "z"], ["y"]),
    ]
    model = saved(nodes, constants, dims, tmp_path / "m.onnx")
    x = rng.standard_normal(dims).astype(np.float32)
    step = 1.01 * float(numpy_helper.to_array(constants[0]))
    np.testing.assert_allclose(answer(model, x), oracles.onnx_answers(model.read_bytes(), {"x": x})["y"], atol=step)
