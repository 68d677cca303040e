"""Real models that ONNX Runtime's tools quantized to 16-bit activations: one answer from every backend and road."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import ort_provider
import ort_quantizer
import pytest
from support import oracles, stimuli, zoo
from support.suites import only

import isthmus
from isthmus.engine.native.lower import is_in_float
from isthmus.frontends import load
from isthmus.prepare.planner import rewritten

KEYS = (
    "kws_fp32", "mixed_ops", "silero_vad_16k", "silero_vad_op18_ifless", "nsnet2", "nsnet2_48k", "ppocr_cls",
    "ppocr_det", "ppocr_rec",
)  # fmt: skip
SHORT = ("kws_fp32", "mixed_ops")
ON_PROVIDER = tuple(key for key in KEYS if key not in ("ppocr_det", "ppocr_rec"))
"""The models whose weights are constants for the provider. In the others it computes weights at run time."""
FEEDS = 2


def prepared(key: str, folder: Path, weights: str = "QUInt8") -> tuple[Path, list[dict[str, np.ndarray]]]:
    """A quantized model and its first feeds; the test is skipped if the model is not on this machine."""
    try:
        feeds = stimuli.stimuli(key)[:FEEDS]
        model = ort_quantizer.quantized(key, folder, "QUInt16", weights)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    inputs = load(model).inputs
    return model, [{tensor.name: feed[tensor.name] for tensor in inputs} for feed in feeds]


@pytest.mark.parametrize("key", only(SHORT, KEYS))
def test_every_backend_gives_one_answer_near_the_reference(key: str, tmp_path: Path) -> None:
    model, feeds = prepared(key, tmp_path)
    answers = {}
    for backend in ("cpu", "htp", "lpai"):
        with isthmus.Session(model, backend=backend) as session:
            answers[backend] = [{name: array.copy() for name, array in session.run(feed).items()} for feed in feeds]
    for index, feed in enumerate(feeds):
        for name, expected in oracles.onnx_answers(model, feed).items():
            found = answers["cpu"][index][name]
            np.testing.assert_array_equal(answers["htp"][index][name], found)
            np.testing.assert_array_equal(answers["lpai"][index][name], found)
            # ONNX Runtime computes in float32, so single steps differ and travel through the layers.
            np.testing.assert_allclose(found, expected, atol=1e-2 * max(float(np.abs(expected).max()), 1e-3), rtol=0)


@pytest.mark.parametrize("key", only(SHORT, ON_PROVIDER))
def test_the_provider_answers_as_run_does(key: str, libraries: Path, tmp_path: Path) -> None:
    model, feeds = prepared(key, tmp_path)
    offered = ort_provider.session(model, libraries / "libQnnHtp.so")
    mine, total = ort_provider.assigned(offered)
    assert mine > total / 2
    with isthmus.Session(model) as session:
        for feed in feeds:
            own = session.run(feed)
            for made, found in zip(offered.get_outputs(), offered.run(None, feed), strict=True):
                largest = max(float(np.abs(own[made.name]).max()), 1e-3)
                np.testing.assert_allclose(found, own[made.name], atol=1e-2 * largest, rtol=0, err_msg=made.name)


@pytest.mark.parametrize("weights", ["QUInt8", "QInt16"])
def test_no_operation_on_16_bits_takes_a_detour_through_whole_tensors_of_floats(tmp_path: Path, weights: str) -> None:
    model, _ = prepared("kws_fp32", tmp_path, weights)
    steps = rewritten(load(model)).ordered()
    assert not [step.op for step in steps if is_in_float(step)]
    assert {t.dtype.itemsize for step in steps for t in step.outputs[:1] if t.dtype.is_fixed_point} == {2}
