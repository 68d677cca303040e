"""Steps without a kernel for the type of their tensors are computed in float32 by rows, with the bits of the whole."""

from __future__ import annotations

from typing import Any

import harness
import numpy as np
import pytest
from harness import Operand, Result

from isthmus.engine.native.lower import is_in_float, lowering_of
from isthmus.engine.native.lowering import via_float
from isthmus.engine.native.target import portable
from isthmus.graph import DataType, Quantization
from isthmus.graph.ops.sampling import LINEAR

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
        for pieces in (via_float.MAX_PIECES, 1):
            monkeypatch.setattr(via_float, "MAX_PIECES", pieces)
            results.append(harness.run(step, arrays, target, 2, "after", None, lowering))
        np.testing.assert_array_equal(*(result[0] for result in results), err_msg=target.name)


@pytest.mark.parametrize("case", CASES)
def test_the_work_space_holds_some_rows_and_no_whole_tensors(case: str) -> None:
    step, _ = step_of(case)
    smallest = min(t.elements for t in (step.inputs[0], step.outputs[0]))
    assert lowering_of(step).work(step, portable(), 1) < 4 * smallest / 2
