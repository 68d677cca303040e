"""ONNX Runtime's QNN provider runs its models on our library: right, whole, cached, profiled, in shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import oracles, stimuli, zoo
from support.processes import answer
from support.suites import only
from support.waiting import run_in_threads

from capi import ort_provider

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
onnx = pytest.importorskip("onnx")

REFUSED = {
    "silero_vad": "the provider ends the process on it, with the vendor's library too",
    "kws_qoperator": "the provider mixes up its layouts, with the vendor's library too",
}
SMALL = ["kws_qdq", "kws_fp32", "mixed_ops", "silero_vad_16k", "silero_vad_half"]
MODELS = [key for key, model in zoo.MODELS.items() if model.kind == "onnx" and key not in REFUSED]
MIN_PART = 0.95
FEEDS = 3


@pytest.fixture(scope="module")
def htp_library(libraries: Path) -> Path:
    return libraries / "libQnnHtp.so"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A convolution on floats."""
    return convolution(tmp_path / "tiny.onnx")


def convolution(file: Path, dtype: type | None = None, axes: int = 2) -> Path:
    """A convolution over some axes, of floats, or quantized with activations of a type."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(3)
    weights, pads, size = random.integers(-127, 128, (8, 4, *(3,) * axes)).astype(np.int8), [1, 1] * axes, [12] * axes
    constants: dict[str, Any] = {"bias": random.standard_normal(8).astype(np.float32)}
    nodes = []
    if dtype is None:
        constants["w"] = weights.astype(np.float32) * np.float32(0.01)
        nodes.append(helper.make_node("Conv", ["x", "w", "bias"], ["y"], pads=pads))
    else:
        most = np.iinfo(dtype).max
        constants |= {
            "scale": np.float32(40 / most), "zero": np.array(most // 2 + 1, dtype), "stored": weights,
            "w_scale": np.float32(0.01), "w_zero": np.int8(0),
        }  # fmt: skip
        del constants["bias"]
        nodes += [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"]),
            helper.make_node("DequantizeLinear", ["stored", "w_scale", "w_zero"], ["w"]),
            helper.make_node("Conv", ["xd", "w"], ["made"], pads=pads),
            helper.make_node("QuantizeLinear", ["made", "scale", "zero"], ["yq"]),
            helper.make_node("DequantizeLinear", ["yq", "scale", "zero"], ["y"]),
        ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, *size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, *size])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), str(file))
    return file


def image(axes: int = 2) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((1, 4, *(12,) * axes)).astype(np.float32)}


def reference(model: Path, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(oracles.onnx_answers(model, feed).values())


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", only(SMALL, MODELS))
def test_a_model_runs_on_the_provider_and_answers_as_the_reference(key: str, htp_library: Path, tmp_path: Path) -> None:
    try:
        model = ort_provider.fixed(key, tmp_path)
        feeds = stimuli.stimuli(key)[:FEEDS]
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    session = ort_provider.session(model, htp_library)
    mine, total = ort_provider.assigned(session)
    assert mine >= MIN_PART * total, f"{mine} of {total} nodes are the provider's"
    names = [given.name for given in session.get_inputs()]
    for feed in feeds:
        given = {name: value for name, value in feed.items() if name in names}
        for made, found, expected in zip(
            session.get_outputs(), session.run(None, given), reference(model, given), strict=True
        ):
            largest = float(np.abs(expected).max())
            described = zoo.MODELS[key]
            within = 1.01 * described.step if described.numerics == "int8" else described.tolerance * max(largest, 1e-3)
            np.testing.assert_allclose(found, expected, atol=within, rtol=0, err_msg=made.name)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_quantized_models_of_8_and_16_bits_are_within_a_quantization_step(
    htp_library: Path, tmp_path: Path, dtype: type, axes: int
) -> None:
    model = convolution(tmp_path / "quantized.onnx", dtype, axes)
    session = ort_provider.session(model, htp_library, {"offload_graph_io_quantization": "0"})
    mine, total = ort_provider.assigned(session)
    assert mine == total
    (found,), (expected,) = session.run(None, image(axes)), reference(model, image(axes))
    step = 40 / np.iinfo(dtype).max
    np.testing.assert_allclose(found, expected, atol=1.01 * step, rtol=0)
    assert expected.std() > 10 * step


def test_threads_that_share_a_session_get_their_own_answers(htp_library: Path, tiny: Path) -> None:
    session = ort_provider.session(tiny, htp_library)
    wrong: list[float] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(25):
            feed = {"x": random.standard_normal((1, 4, 12, 12)).astype(np.float32)}
            difference = float(abs(session.run(None, feed)[0] - expected.run(None, feed)[0]).max())
            if difference > 1e-4:
                wrong.append(difference)

    expected = oracles.onnx_session(tiny)
    run_in_threads(work, range(4))
    assert not wrong


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_are_understood_or_logged(htp_library: Path, tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {
        "htp_performance_mode": "burst",
        "htp_graph_finalization_optimization_mode": "3",
        "enable_htp_fp16_precision": "1",
        "vtcm_mb": "8",
        "htp_arch": "73",
        "soc_model": "57",
        "qnn_context_priority": "high",
        "rpc_control_latency": "100",
    }
    with caplog.at_level(10, "isthmus"):
        session = ort_provider.session(tiny, htp_library, options)
    np.testing.assert_allclose(session.run(None, image())[0], reference(tiny, image())[0], atol=0.02)
    reported = caplog.text
    for option in ("HTP graph option OPTIMIZATION", "HTP graph option PRECISION = FLOAT16", "VTCM_SIZE", "ARCH", "SOC"):
        assert option in reported, option
    assert "accepted, but without effect here" in reported
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_profile_arrives_in_the_providers_files(htp_library: Path, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "profile.csv"
    options = {"profiling_level": "detailed", "profiling_file_path": str(file)}
    session = ort_provider.session(tiny, htp_library, options)
    for _ in range(3):
        session.run(None, image())
    del session
    lines = file.read_text().splitlines()
    assert len([line for line in lines if ",EXECUTE," in line and ",US," in line]) >= 3, lines
    assert any("FINALIZE" in line for line in lines)
    assert any("copied in" in line for line in lines)
    (ours,) = [path for path in tmp_path.iterdir() if path.name.endswith(".log")]
    header, *calls = map(json.loads, ours.read_text().splitlines())
    assert header["application"] == "OnnxRuntime"
    assert calls
    assert calls[-1]["events"][0]["type"] == "EXECUTE"


@pytest.mark.parametrize("embedded", ["0", "1"])
def test_a_context_is_cached_and_loaded_again(htp_library: Path, tiny: Path, tmp_path: Path, embedded: str) -> None:
    cache = tmp_path / "cached.onnx"
    config = {
        "ep.context_enable": "1",
        "ep.context_embed_mode": embedded,
        "ep.context_file_path": str(cache),
    }
    first = ort_provider.session(tiny, htp_library, config=config).run(None, image())
    binaries = list(tmp_path.glob("*.bin"))
    assert len(binaries) == (0 if embedded == "1" else 1)
    if binaries:
        assert binaries[0].read_bytes().startswith(b"ISTHMCTX"), "in our own format"
    again = ort_provider.session(cache, htp_library).run(None, image())
    np.testing.assert_array_equal(first[0], again[0])


NAMED = """
import sys
import onnxruntime, onnxruntime_qnn
made, loaded, library, model, cache = sys.argv[1:]
for name in {made, loaded}:
    onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
caching = {"ep.context_enable": "1", "ep.context_file_path": cache}
for name, file, config in ((made, model, caching), (loaded, cache, {})):
    options = onnxruntime.SessionOptions()
    for entry in {"session.disable_cpu_ep_fallback": "1", **config}.items():
        options.add_session_config_entry(*entry)
    device = next(each for each in onnxruntime.get_ep_devices() if each.ep_name == name)
    options.add_provider_for_devices([device], {"backend_path": library})
    try:
        onnxruntime.InferenceSession(file, options)
    except Exception as problem:
        print(f"{name} refuses {file}: {problem}")
"""
"""A process of its own: a library cannot be registered anew under another name where sessions have used it."""


@pytest.mark.parametrize("vendor", [False, True])
@pytest.mark.parametrize("made", ["QNNExecutionProvider", "another"])
def test_a_cache_is_loaded_again_only_if_its_provider_had_the_one_name(
    made: str, vendor: bool, htp_library: Path, tiny: Path, tmp_path: Path
) -> None:
    library = ort_provider.vendor_library("QnnHtp") if vendor else htp_library
    # The other name, so that nothing depends on loading under the name that the cache was made with.
    loaded = "another" if made == "QNNExecutionProvider" else "QNNExecutionProvider"
    command = [sys.executable, "-c", NAMED, made, loaded, library, tiny, tmp_path / "cached.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    (node,) = onnx.load(tmp_path / "cached.onnx", load_external_data=False).graph.node
    assert [each.s.decode() for each in node.attribute if each.name == "source"] == [made]
    if made == "QNNExecutionProvider":
        assert " refuses " not in done.stdout
    else:
        assert f"{loaded} refuses {tmp_path / 'cached.onnx'}: " in done.stdout
        assert "nodes that are assigned to the default CPU EP" in done.stdout


def test_a_damaged_cache_is_refused_with_the_reason(
    htp_library: Path, tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cached.onnx"
    config = {"ep.context_enable": "1", "ep.context_embed_mode": "0", "ep.context_file_path": str(cache)}
    ort_provider.session(tiny, htp_library, config=config)
    (binary,) = tmp_path.glob("*.bin")
    content = bytearray(binary.read_bytes())
    content[len(content) // 2] ^= 0xFF
    binary.write_bytes(content)
    with pytest.raises(Exception, match=r"INVALID_GRAPH : Failed to load from EpContext model\. Failed to get context"):
        ort_provider.session(cache, htp_library, config={"session.disable_cpu_ep_fallback": "1"})
    assert "systemContextGetBinaryInfo: [5005 CONTEXT_CREATE_FROM_BINARY] context binary: " in caplog.text


def test_the_shared_memory_allocator_copies_no_byte(libraries: Path, tiny: Path) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, here / "ort_shared_memory.py", libraries, tiny],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": path},
    )
    if "another table" in done.stderr:
        pytest.skip("this ONNX Runtime has another table of functions")
    assert done.returncode == 0, done.stderr
    reported = answer(done.stdout)
    assert reported["difference"] < 1e-4
    assert (reported["executions"], reported["copied"], reported["staging"]) == (5, 0, 0)
    assert reported["in_place"] == {"shared": reported["used"]}
