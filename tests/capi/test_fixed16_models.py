"""A real model that ONNX Runtime's tools quantized to 16-bit activations is computed in 16 bits throughout."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import zoo

from capi import ort_quantizer
from isthmus.engine.native.lower import is_in_float
from isthmus.frontends import load
from isthmus.prepare.planner import rewritten


@pytest.mark.parametrize("weights", ["QUInt8", "QInt16"])
def test_no_operation_on_16_bits_takes_a_detour_through_whole_tensors_of_floats(tmp_path: Path, weights: str) -> None:
    try:
        model = ort_quantizer.quantized("kws_fp32", tmp_path, "QUInt16", weights)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    steps = rewritten(load(model)).ordered()
    assert not [step.op for step in steps if is_in_float(step)]
    assert {t.dtype.itemsize for step in steps for t in step.outputs[:1] if t.dtype.is_fixed_point} == {2}
