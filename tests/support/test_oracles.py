"""The references are right: where ONNX Runtime says what 8-bit products are, integer arithmetic says the same.

Without VNNI, ONNX Runtime's x86 kernels saturate at 16 bits unless a session option forbids it. So that a wrong
reference is reported as such, and not as a defect of the engine, it is compared with numpy here. Run as a program,
this file prints the largest differences with the option and without it.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from support import oracles

TESTS = Path(__file__).parents[1]
X, W = (0.02, 0.01)  # the steps of the operands
Y = 0.5  # and of the result, in which most sums are neither below the range nor above it


def nodes(op: str) -> list[NodeProto]:
    """Make the nodes that multiply x by w: one, or three between DequantizeLinear and QuantizeLinear."""
    if op.startswith("QDQ "):
        return [
            helper.make_node("DequantizeLinear", ["x", "x_step", "x_zero"], ["rx"]),
            helper.make_node("DequantizeLinear", ["w", "w_step", "w_zero"], ["rw"]),
            helper.make_node(op.removeprefix("QDQ "), ["rx", "rw"], ["ry"]),
            helper.make_node("QuantizeLinear", ["ry", "y_step", "y_zero"], ["y"]),
        ]
    if op in ("ConvInteger", "MatMulInteger"):
        return [helper.make_node(op, ["x", "w", "x_zero", "w_zero"], ["y"])]
    operands = ["x", "x_step", "x_zero", "w", "w_step", "w_zero"]
    if op == "QGemm":
        return [helper.make_node(op, [*operands, "", "y_step", "y_zero"], ["y"], domain="com.microsoft")]
    return [helper.make_node(op, [*operands, "y_step", "y_zero"], ["y"])]


def answer(op: str, x: np.ndarray, w: np.ndarray, zero: int, exact: bool) -> np.ndarray:
    """Multiply in ONNX Runtime, with u8 or s8 activations and s8 weights."""
    dtype = x.dtype.type
    steps = {"x_step": np.float32(X), "w_step": np.float32(W), "y_step": np.float32(Y)}
    constants = {"w": w, "x_zero": dtype(zero), "w_zero": np.int8(0), "y_zero": dtype(zero), **steps}
    made = np.dtype(np.int32 if op.endswith("Integer") else dtype)
    graph = helper.make_graph(
        nodes(op),
        "products",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(made), None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    result: np.ndarray = oracles.onnx_session(model.SerializeToString(), exact=exact).run(None, {"x": x})[0]
    return result


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Convolve integers without padding, channels first."""
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w)


def difference(op: str, dtype: type, seed: int, exact: bool) -> int:
    """Count the steps between ONNX Runtime's answer and sums of integers, for operands of full range."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    product: Callable[[np.ndarray, np.ndarray], np.ndarray]
    if "Conv" in op:
        shapes, product = ((1, 16, 9, 9), (16, 16, 3, 3)), convolved
    else:
        shapes, product = ((5, 96), (96, 24)), np.matmul
    x = rng.integers(info.min, info.max + 1, shapes[0]).astype(dtype)
    w = rng.integers(-127, 128, shapes[1]).astype(np.int8)
    x[..., ::2], w[..., ::3] = info.max, 127  # the largest products side by side
    zero = info.max // 2 + 1
    sums = product(x.astype(np.int64) - zero, w.astype(np.int64))
    if not op.endswith("Integer"):
        sums = np.clip(np.rint(sums * np.float32(X * W / Y)) + zero, info.min, info.max)
    return int(np.abs(answer(op, x, w, zero, exact).astype(np.int64) - sums).max())


CASES = [
    (op, dtype)
    for op in ("QLinearConv", "QLinearMatMul", "QGemm", "QDQ Conv", "QDQ MatMul", "ConvInteger", "MatMulInteger")
    for dtype in (np.uint8, np.int8)
    if (op, dtype) != ("ConvInteger", np.int8)  # which ONNX Runtime does not have
]


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_the_reference_computes_8_bit_products_exactly(op: str, dtype: type) -> None:
    worst = max(difference(op, dtype, seed, exact=True) for seed in range(5))
    # A sum that is half a step away may be rounded either way in single precision.
    assert worst <= (0 if op.endswith("Integer") else 1), f"the reference is wrong: {op} is {worst} steps away"


def test_the_reference_is_exact_where_the_processor_makes_its_default_wrong() -> None:
    """On an emulated Haswell: AVX2 without VNNI."""
    emulator = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if emulator is None:
        pytest.skip("needs qemu-x86_64, from the package qemu-user")
    done = subprocess.run(
        [emulator, "-cpu", "Haswell", sys.executable, __file__],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(TESTS)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert max(found["by default"].values()) > 1, "this processor does not saturate, so the test proves nothing"
    assert max(found["exact"].values()) <= 1


@pytest.mark.parametrize("op", ["QLinearMatMul", "MatMulInteger"])
def test_products_that_cannot_be_exact_are_refused(op: str) -> None:
    """ONNX Runtime rewrites constant weights only."""
    names = ["x", "w"] if op == "MatMulInteger" else ["x", "s", "x_zero", "w", "s", "w_zero", "s", "x_zero"]
    constants = {"s": np.float32(0.1), "x_zero": np.uint8(3), "w_zero": np.int8(0)}
    types = {"x": TensorProto.UINT8, "w": TensorProto.INT8}
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"])],
        "products",
        [helper.make_tensor_value_info(name, dtype, [4, 4]) for name, dtype in types.items()],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    with pytest.raises(oracles.Inexact, match="only if the s8 operand is a constant"):
        oracles.onnx_session(helper.make_model(graph).SerializeToString())


def test_sessions_of_onnx_runtime_are_opened_in_one_place() -> None:
    def opens(path: Path) -> bool:
        names = (getattr(node.func, "attr", getattr(node.func, "id", ""))
                 for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))  # fmt: skip
        return "InferenceSession" in names

    assert [path.name for path in TESTS.rglob("*.py") if opens(path)] == ["oracles.py"]


if __name__ == "__main__":
    print(
        json.dumps(
            {
                title: {f"{op} {dtype.__name__}": difference(op, dtype, 0, exact) for op, dtype in CASES}
                for title, exact in (("by default", False), ("exact", True))
            }
        )
    )
