"""Steps without a kernel for the type of their tensors are computed in float32 by rows, with the bits of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.suites import long

from engine.native import harness
from engine.native.harness import Operand, Result
from isthmus.engine.native.lower import is_in_float, lowering_of
from isthmus.engine.native.lowering import via_float
from isthmus.engine.native.target import portable
from isthmus.graph import DataType, Quantization
from isthmus.graph.ops.sampling import LINEAR

pytestmark = harness.ON_TARGETS
IMAGE = (1, 48, 40, 24)
CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "norm of rows": ("LayerNorm", (1, 130, 384), (1, 130, 384), {"axes": [2], "epsilon": 1e-5}),
    "norm by squares": ("RmsNorm", (130, 384), (130, 384), {"axes": [1], "epsilon": 1e-5}),
    "larger image": ("Resize", IMAGE, (1, 96, 80, 24), {"interpolation_mode": LINEAR}),
    "ratio of no power of two": ("Resize", IMAGE, (1, 67, 55, 24), {"interpolation_mode": LINEAR}),
    "smaller image": ("ResizeBilinear", IMAGE, (1, 30, 40, 24), {}),
}


def step_of(case: str) -> tuple[Any, list[np.ndarray | None]]:
    """A step on 16-bit fixed point, and its arrays."""
    op, dims, out, params = CASES[case]
    rng = np.random.default_rng(7)
    quantization = Quantization.per_tensor(0.001, 30_000)

    def stored(*dims: int, static: bool) -> Operand:
        reals = rng.standard_normal(dims).astype(np.float32)
        return Operand(quantization.quantize(reals, np.dtype(np.uint16)), static, quantization)

    inputs = [stored(*dims, static=False)]
    if op in ("LayerNorm", "RmsNorm"):
        inputs += [stored(dims[-1], static=True) for _ in range(2)]
    return harness.make_step(op, inputs, params, [Result(out, DataType.UFIXED_POINT_16, quantization)])


@pytest.mark.parametrize("case", CASES)
def test_rows_have_the_bits_of_the_whole(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, arrays = step_of(case)
    lowering = lowering_of(step)
    assert is_in_float(step)
    for target in harness.targets():
        results = []
        for pieces in (32, 1):
            monkeypatch.setattr(via_float, "MAX_PIECES", pieces)
            results.append(harness.run(step, arrays, target, 2, "after", None, lowering))
        np.testing.assert_array_equal(*(result[0] for result in results), err_msg=target.name)


def recurrent(op: str, dtype: DataType, steps: int, **params: Any) -> tuple[Any, list[np.ndarray | None]]:
    """A recurrent layer with all its outputs, and its arrays."""
    rng = np.random.default_rng(9)
    features, units, quantization = 9, 20, Quantization.per_tensor(0.0003) if dtype.is_fixed_point else None

    def stored(*dims: int, is_constant: bool = True) -> Operand:
        reals = rng.standard_normal(dims).astype(np.float32)
        if quantization is None:
            return Operand(dtype.encode(reals), is_constant, None, dtype)
        return Operand(quantization.quantize(reals, dtype.numpy), is_constant, quantization)

    inputs: list[Operand | None] = [stored(steps, 1, features, is_constant=False)]
    inputs += [stored(units, features) for _ in range(3)] + [stored(units, units) for _ in range(3)]
    inputs += [stored(units) for _ in range(3 if op == "Lstm" else 6)]
    if op == "Lstm":
        inputs += [stored(1, units, is_constant=False) for _ in range(2)]
    result = Result(None, dtype, quantization)
    return harness.make_step(op, inputs, params, [result] * (3 if op == "Lstm" else 2))


@pytest.mark.parametrize("kind", ["FLOAT_16", long("BFLOAT_16"), "SFIXED_POINT_16"])
@pytest.mark.parametrize(
    ("op", "params"), [("Lstm", {}), ("Lstm", {"direction": 1}), ("Gru", {}), ("Gru", {"direction": 1})], ids=str
)
def test_parts_of_a_sequence_have_the_bits_of_the_whole(
    op: str, params: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, arrays = recurrent(op, DataType[kind], 55, **params)
    lowering = lowering_of(step)
    for target in harness.targets():
        results, sizes = [], []
        for pieces in (32, 1):
            monkeypatch.setattr(via_float, "MAX_PIECES", pieces)
            results.append(harness.run(step, arrays, target, 2, "after", None, lowering))
            sizes.append(lowering.work(step, target, 2))
        for divided, whole in zip(*results, strict=True):
            np.testing.assert_array_equal(divided, whole, err_msg=target.name)
        assert sizes[0] < sizes[1] / 2


@pytest.mark.parametrize("case", CASES)
def test_the_work_space_holds_some_rows_and_no_whole_tensors(case: str) -> None:
    step, _ = step_of(case)
    smallest = min(t.elements for t in (step.inputs[0], step.outputs[0]))
    assert lowering_of(step).work(step, portable(), 1) < 4 * smallest / 2
