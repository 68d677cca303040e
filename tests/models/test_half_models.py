"""Real models in float16, as ONNX Runtime's own tool converts them: the same bits on cpu and htp, close to float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import oracles, stimuli, zoo
from support.oracles import Feeds
from support.suites import long

import isthmus

onnx = pytest.importorskip("onnx")

TOLERANCES = {
    "kws_fp32": 1e-3, "mixed_ops": 1e-3, "ppocr_cls": 2e-3, "silero_vad": 5e-3, "silero_vad_op18_ifless": 5e-3,
    "silero_vad_16k_sequence": 6e-2, "nsnet2": 4e-3, "nsnet2_48k": 4e-3, "minilm_l3": 6e-3, "ppocr_rec": 3e-2,
}  # fmt: skip
"""Models, and how far results may be from those in float32, as a part of the largest one. Recurrent layers and
softmaxes over thousands of characters accumulate more. (ppocr_det is not among them: on pictures of no text its results
are steps from 0 to 1, and rounding moves them, in ONNX Runtime as well.)
"""
SHORT = ("kws_fp32", "mixed_ops")


def models() -> list[object]:
    """All models; the small ones belong to the short tests."""
    return [pytest.param(key, id=key) if key in SHORT else long(key, id=key) for key in TOLERANCES]


def converted(key: str, path: Path, keep_io_types: bool) -> Path:
    """A model of the zoo with floats in 16 bits; with `keep_io_types`, its inputs and outputs stay float32."""
    float16 = pytest.importorskip("onnxruntime.transformers.float16", reason="needs onnxruntime's converter")
    half = float16.convert_float_to_float16(onnx.load(zoo.path(key)), keep_io_types=keep_io_types)
    onnx.save(half, path)
    return path


def answers(model: Path, key: str, feed: Feeds, backend: str) -> dict[str, np.ndarray]:
    constants = {name: np.int64(value) for name, value in zoo.MODELS[key].constants.items()}
    given = {name: value for name, value in feed.items() if name not in constants}
    with isthmus.Session(model, backend=backend, shapes=zoo.MODELS[key].shapes, constants=constants) as session:
        return session.run(given)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("keep_io_types", [False, True], ids=["float16 throughout", "float32 at the interface"])
@pytest.mark.parametrize("key", models())
def test_a_model_in_float16_has_one_answer_near_that_of_float32(key: str, keep_io_types: bool, tmp_path: Path) -> None:
    try:
        feed, oracle = stimuli.stimuli(key)[-1], oracles.reference(zoo.MODELS[key])
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    model = converted(key, tmp_path / "half.onnx", keep_io_types)
    if not keep_io_types:
        feed16 = {name: v.astype(np.float16) if v.dtype == np.float32 else v for name, v in feed.items()}
    else:
        feed16 = feed
    found, other = (answers(model, key, feed16, backend) for backend in ("cpu", "htp"))
    for name, expected in oracle.run(feed).items():
        assert found[name].tobytes() == other[name].tobytes(), name
        if expected.dtype == np.float32:
            assert found[name].dtype == (np.float32 if keep_io_types else np.float16)
            off = np.abs(found[name].astype(np.float64) - expected).max() / np.abs(expected).max()
            assert off <= TOLERANCES[key], (name, off)
