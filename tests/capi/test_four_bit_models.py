"""Real models with 4-bit weights, made by ONNX Runtime's own tools: their answers and their memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import oracles, quantized_models, quiet, stimuli, zoo
from support.oracles import Feeds
from support.suites import LONG, only

import isthmus
from capi import ort_provider, typed_models
from capi.typed_models import TypedModel

onnx = pytest.importorskip("onnx")
SHORT = ("kws_fp32",)
FEEDS = 2


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Leave out what ONNX Runtime's tools log about models that were not prepared for them."""
    with quiet.errors_only():
        yield


def fixed(key: str, folder: Path) -> tuple[Path, list[Feeds]]:
    """A model of floats and inputs for it."""
    try:
        source, feeds = ort_provider.fixed(key, folder), stimuli.stimuli(key)[:FEEDS]
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    return source, [{n: v for n, v in feed.items() if n not in zoo.MODELS[key].constants} for feed in feeds]


def on_cpu(model: Path, feeds: Feeds) -> Feeds:
    with isthmus.Session(model) as session:
        return {name: value.copy() for name, value in session.run(feeds).items()}


@LONG
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_model_with_4_bit_weights_only_gives_one_result_by_every_api(symmetric: bool, tmp_path: Path) -> None:
    source, feeds = fixed("minilm_l3", tmp_path)
    model = TypedModel(quantized_models.weight_only(source, tmp_path / "w4.onnx", symmetric=symmetric), feeds[0])
    expected = typed_models.assert_one_answer(model, tmp_path)
    assert typed_models.off(expected, oracles.onnx_answers(model.path, model.feeds)) <= 2e-3


@pytest.mark.parametrize("key", only(SHORT, quantized_models.STATIC))
def test_answers_have_the_bits_of_the_same_weights_in_bytes(key: str, tmp_path: Path) -> None:
    source, feeds = fixed(key, tmp_path)
    model = quantized_models.static_qdq(source, feeds, 4, tmp_path / "w4.onnx")
    proto = onnx.load(model)
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT4:
            elements = onnx.numpy_helper.to_array(tensor).astype(np.int8)
            tensor.CopyFrom(onnx.numpy_helper.from_array(elements, tensor.name))
    onnx.save(proto, tmp_path / "bytes.onnx")
    for feed in feeds:
        found, wanted = on_cpu(model, feed), on_cpu(tmp_path / "bytes.onnx", feed)
        for output, expected in wanted.items():
            np.testing.assert_array_equal(found[output], expected, err_msg=output)


@pytest.mark.parametrize("key", only(SHORT, quantized_models.STATIC))
def test_weights_of_4_bits_take_half_the_constants_of_8(key: str, tmp_path: Path) -> None:
    source, feeds = fixed(key, tmp_path)
    sizes = {}
    for bits in (8, 4):
        model = quantized_models.static_qdq(source, feeds, bits, tmp_path / f"w{bits}.onnx")
        with isthmus.Session(model) as session:
            sizes[bits] = session.info.memory.constant_bytes
    proto = onnx.load(model)
    elements = sum(math.prod(t.dims) for t in proto.graph.initializer if t.data_type == onnx.TensorProto.INT4)
    # Half a byte for each weight, but for the few small tensors that are not packed.
    assert elements > 1000
    assert sizes[8] - sizes[4] >= 0.75 * elements / 2
