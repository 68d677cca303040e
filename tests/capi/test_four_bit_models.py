"""Real models with 4-bit weights, made by ONNX Runtime's own tools, have one answer on every way to run them."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import ort_provider
import pytest
from support import oracles, quantized_models, stimuli, zoo
from support.oracles import Feeds
from support.suites import only

import isthmus
from isthmus.tools.cli import main
from isthmus.tools.net_run import file_name

onnx = pytest.importorskip("onnx")
MODELS = (*(f"{key} a8w4" for key in quantized_models.STATIC), "minilm_l3 w4 symmetric", "minilm_l3 w4 asymmetric")
SHORT = ("kws_fp32 a8w4",)
FEEDS = 2


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    """Leave out what ONNX Runtime's tools log about models that were not prepared for them."""
    logging.getLogger().setLevel(logging.ERROR)


def made(name: str, folder: Path) -> tuple[Path, list[Feeds]]:
    """A quantized model and inputs for it."""
    key, form, *how = name.split()
    try:
        source, feeds = ort_provider.fixed(key, folder), stimuli.stimuli(key)[:FEEDS]
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    feeds = [{n: v for n, v in feed.items() if n not in zoo.MODELS[key].constants} for feed in feeds]
    target = folder / f"{name.replace(' ', '_')}.onnx"
    if form == "a8w4":
        return quantized_models.static_qdq(source, feeds, 4, target), feeds
    return quantized_models.weight_only(source, target, symmetric=how == ["symmetric"]), feeds


def on_backend(model: Path, feeds: Feeds, backend: str) -> dict[str, np.ndarray]:
    with isthmus.Session(model, backend=backend) as session:
        return {name: value.copy() for name, value in session.run(feeds).items()}


def through_a_binary(model: Path, feeds: Feeds, backend: str, names: list[str], folder: Path) -> dict[str, np.ndarray]:
    """The answers of net-run on a binary of the generator."""
    for name, value in feeds.items():
        value.tofile(folder / f"{name}.raw")
    listed = folder / "list.txt"
    listed.write_text(" ".join(f"{name}:={folder / name}.raw" for name in feeds) + "\n")
    library = f"libQnn{backend.capitalize()}.so"
    output = folder / f"output_{backend}"
    common = ["--backend", library, "--output_dir", str(output)]
    assert main(["context-binary-generator", "--model", str(model), "--binary_file", "model", *common]) == 0
    types = ["--use_native_output_files", "--use_native_input_files"]
    binary = str(output / "model.bin")
    assert main(["net-run", "--retrieve_context", binary, "--input_list", str(listed), *common, *types]) == 0
    with isthmus.Session(model) as session:
        views = dict(session.outputs)
    files = {name: output / "Result_0" / f"{file_name(name)}.raw" for name in names}
    return {name: np.fromfile(file, views[name].dtype).reshape(views[name].shape) for name, file in files.items()}


@pytest.mark.parametrize("name", only(SHORT, MODELS))
def test_backends_and_binaries_answer_with_the_same_bits(name: str, tmp_path: Path) -> None:
    model, feeds = made(name, tmp_path)
    answers = {backend: on_backend(model, feeds[0], backend) for backend in ("cpu", "htp", "lpai")}
    names = list(answers["cpu"])
    answers |= {
        f"{backend} binary": through_a_binary(model, feeds[0], backend, names, tmp_path) for backend in ("htp", "lpai")
    }
    for way, answer in answers.items():
        for output in names:
            np.testing.assert_array_equal(answer[output], answers["cpu"][output], err_msg=f"{output} by {way}")


@pytest.mark.parametrize("name", only(SHORT, MODELS))
def test_answers_are_those_of_onnx_runtime(name: str, tmp_path: Path) -> None:
    model, feeds = made(name, tmp_path)
    # Of 8-bit activations, single steps of rounding differ, which later layers of a coarse model make larger.
    within = 0.1 if "a8w4" in name else 2e-3
    for feed in feeds:
        found, wanted = on_backend(model, feed, "cpu"), oracles.onnx_answers(model, feed)
        for output, expected in wanted.items():
            difference = float(np.sqrt(np.mean(np.square(found[output] - expected, dtype=np.float64))))
            assert difference <= within * float(np.sqrt(np.mean(np.square(expected, dtype=np.float64)))), output


@pytest.mark.parametrize("name", only(SHORT, [name for name in MODELS if "a8w4" in name]))
def test_answers_have_the_bits_of_the_same_weights_in_bytes(name: str, tmp_path: Path) -> None:
    model, feeds = made(name, tmp_path)
    proto = onnx.load(model)
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT4:
            elements = onnx.numpy_helper.to_array(tensor).astype(np.int8)
            tensor.CopyFrom(onnx.numpy_helper.from_array(elements, tensor.name))
    onnx.save(proto, tmp_path / "bytes.onnx")
    for feed in feeds:
        found, wanted = on_backend(model, feed, "cpu"), on_backend(tmp_path / "bytes.onnx", feed, "cpu")
        for output, expected in wanted.items():
            np.testing.assert_array_equal(found[output], expected, err_msg=output)


@pytest.mark.parametrize("name", only(SHORT, [name for name in MODELS if "a8w4" in name]))
def test_the_provider_answers_as_the_session_does(name: str, libraries: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    model, feeds = made(name, tmp_path)
    session = ort_provider.session(model, libraries / "libQnnHtp.so")
    mine, total = ort_provider.assigned(session)
    assert mine >= 0.9 * total, f"{mine} of {total} nodes are the provider's"
    for feed in feeds:
        ours = on_backend(model, feed, "htp")
        for output, found in zip(session.get_outputs(), session.run(None, feed), strict=True):
            expected = ours[output.name]
            largest = float(np.abs(expected).max())
            np.testing.assert_allclose(found, expected, rtol=0, atol=0.02 * largest, err_msg=output.name)


@pytest.mark.parametrize("key", only(("kws_fp32",), quantized_models.STATIC))
def test_weights_of_4_bits_take_half_the_constants_of_8(key: str, tmp_path: Path) -> None:
    try:
        source, feeds = ort_provider.fixed(key, tmp_path), stimuli.stimuli(key)[:1]
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
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
