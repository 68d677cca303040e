"""Real models in the types of NPUs, made by ONNX Runtime's tools, have one answer by every API on every backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import zoo
from support.suites import long

from capi import typed_models
from capi.typed_models import FORMS, KEYS, QUANTIZED, TypedModel

pytest.importorskip("onnx")
SHORT = ("kws_fp32", "a16w4")
ON_PROVIDER = tuple(key for key in KEYS if key != "ppocr_det")
"""The models that the provider computes as they are. It rounds a BatchNormalization of ppocr_det to the type of
weights, so that the vendor's own library gives the same number everywhere.
"""
PROVIDER = 0.02
"""What an answer of the provider may be off from that of `isthmus run`, as a part of the largest number. The first
differences are single steps, in recurrent layers, sums and a softmax of 8 bits.
"""
LAYER = 1.01
"""What a layer may be off from the same layer in ONNX Runtime, in steps: float32 sums round either way near a tie."""


def cases(forms: tuple[str, ...], keys: tuple[str, ...] = KEYS) -> list[object]:
    """Models in some forms; one of them belongs to the short tests."""
    pairs = [(key, form) for key in keys for form in forms]
    return [pair if pair == SHORT else long(*pair) for pair in pairs]


def prepared(key: str, form: str, folder: Path) -> TypedModel:
    try:
        return typed_models.typed_model(key, form, folder)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(("key", "form"), cases(FORMS))
def test_run_and_net_run_give_one_answer_on_every_backend(key: str, form: str, tmp_path: Path) -> None:
    typed_models.assert_one_answer(prepared(key, form, tmp_path), tmp_path)


@pytest.mark.parametrize(("key", "form"), cases(FORMS, ON_PROVIDER))
def test_the_provider_answers_as_run_does(key: str, form: str, libraries: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    model = prepared(key, form, tmp_path)
    expected = typed_models.by_run(model, "htp", tmp_path)
    found, taken = typed_models.by_provider(model, libraries / "libQnnHtp.so")
    assert taken >= 0.9
    assert typed_models.off(found, expected) <= PROVIDER


@pytest.mark.parametrize(("key", "form"), cases(tuple(QUANTIZED)))
def test_each_layer_is_that_of_onnx_runtime(key: str, form: str, tmp_path: Path) -> None:
    compared = 0
    for name, (here, there, scale) in typed_models.layers(prepared(key, form, tmp_path), tmp_path).items():
        # The mask of an attention is the lowest float32, which ONNX Runtime dequantizes to infinity.
        if np.isfinite(there).all():
            assert np.abs(here.astype(np.float64) - there).max() <= LAYER * scale, name
            compared += 1
    assert compared > 2
