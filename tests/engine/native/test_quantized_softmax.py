"""A softmax of bytes looks up a table as ONNX Runtime does, and stays within it whatever its input turns into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from support import oracles, tiny

import isthmus
from engine.native.harness import GuardedBuffer
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.program import ABSENT, Operand, Program
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.target import host
from isthmus.engine.native.verification import verify
from isthmus.graph import DataType, TensorInfo
from isthmus.memory import window
from isthmus.prepare.schedule import Pool


@pytest.mark.parametrize("kernel", ["quantized_reduction:softmax.u8", "quantized_reduction:softmax.u8_integers"])
def test_a_softmax_whose_input_changes_under_it_stays_within_its_table(kernel) -> None:
    # Its result lies one byte behind its input: what is read is larger than the largest that was found.
    assert kernel in KERNELS
    length = 4096
    words = {
        "x": Operand.at(Pool.SCRATCH, 0), "y": Operand.at(Pool.SCRATCH, 1), "rows": 1, "length": length,
        "table": Operand.at(Pool.IO, 0), "work": ABSENT, "scale": 0.0, "inverse": 1.0, "zero": 0, "least": 255,
        "most": 255,
    }  # fmt: skip
    table, rest = (TensorInfo(name, DataType.UINT_8, (size,), None, size) for name, size in (("t", 1024), ("o", 64)))
    program = Program(
        name="forged", target=host().name, threads=1, kernels=(kernel,), table=np.array([[0, 0, 1]]),
        words=np.array(KERNELS[kernel].encode(words)), labels=("softmax",), constants=np.zeros(0, np.uint8),
        inputs=(table,), outputs=(rest,), states=(), state_offsets=(), state_initial=np.zeros(0, np.uint8),
        scratch_bytes=length + 64, alignment=64,
    )  # fmt: skip
    verify(program)
    scratch, *io = (GuardedBuffer(size, "before") for size in (length + 64, 1024, 64))
    io[0].bytes[:] = 1
    executor = Executor(program, window(scratch.bytes), None, [window(buffer.bytes) for buffer in io])
    executor.run()
    executor.close()
    assert (scratch.bytes[1:length] == 255).all()


def quantized_softmax(path: Path, kind: type, shape: tuple[int, ...], steps: int) -> Path:
    """A softmax of bytes in steps of an eighth, whose results are parts of so many steps."""
    low = np.iinfo(kind).min
    constants = {"s": np.float32(0.125), "z": np.array(3, kind), "t": np.float32(1 / steps), "u": np.array(low, kind)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["bytes"]),
        helper.make_node("DequantizeLinear", ["bytes", "s", "z"], ["reals"]),
        helper.make_node("Softmax", ["reals"], ["parts"], axis=-1),
        helper.make_node("QuantizeLinear", ["parts", "t", "u"], ["stored"]),
        helper.make_node("DequantizeLinear", ["stored", "t", "u"], ["y"]),
    ]
    return tiny.save(path, nodes, {"x": shape}, {"y": shape}, constants)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("length", [2, 3, 10, 513])
def test_probabilities_are_onnx_runtime_s_to_the_last_bit(kind: type, length: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(length)
    stored = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, (40, length))
    stored[0] = stored[0, 0]
    x = np.float32(0.125) * (stored - 3).astype(np.float32)
    path = quantized_softmax(tmp_path / "softmax.onnx", kind, x.shape, 256)
    with isthmus.Session(path, "cpu") as session:
        ours = session.run({"x": x})["y"]
    np.testing.assert_array_equal(ours, oracles.onnx_answers(path, {"x": x})["y"])


@pytest.mark.parametrize(("length", "steps", "rounded"), [(512, 256, 1), (16, 24, 2), (80, 200, 3), (1, 256, 255)])
def test_half_a_step_is_rounded_up_and_a_probability_of_one_is_the_largest(
    length: int, steps: int, rounded: int, tmp_path: Path
) -> None:
    path = quantized_softmax(tmp_path / "softmax.onnx", np.uint8, (1, length), steps)
    with isthmus.Session(path, "cpu") as session:
        result = session.run({"x": np.ones((1, length), np.float32)})["y"]
    np.testing.assert_array_equal(result, np.full((1, length), rounded * np.float32(1 / steps)))
