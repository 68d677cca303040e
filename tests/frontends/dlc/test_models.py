"""Real models as DLCs, made by ONNX Runtime with QNN's own writer: the same nodes and the same results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import oracles, stimuli, zoo
from support.dlc_graphs import convolution, fully_connected, single
from support.dlc_write import OLD, dlc
from support.qnn_export import export_dlc, library, with_static_shapes
from support.suites import only

import isthmus
from frontends.dlc.test_files import ENCODED, FAMILIES
from frontends.dlc.vendor_compose import SECONDS, compared
from isthmus import Session, frontends
from isthmus.frontends import dlc as reader
from isthmus.graph import DataType

MODELS = ("kws_fp32", "kws_qdq", "mixed_ops", "silero_vad_16k_sequence", "nsnet2_48k", "ppocr_det")
"""Floats and bytes, convolutions, LSTM, GRU, and an image that is resized."""
RECURRENT = ("silero_vad_16k_sequence", "nsnet2_48k")
"""QNN's own reader ends its process on these: it looks for an attribute that QNN's writer leaves out."""
FRAMES = {"nsnet2_48k": {"input": (1, 4, 513)}}
"""Each step of a GRU becomes a node; a few of them will do."""


@pytest.fixture(scope="module", params=only(("kws_fp32", "kws_qdq"), MODELS))
def exported(request, tmp_path_factory):
    """A model's key, its ONNX file with fixed shapes, and its one DLC."""
    key = request.param
    try:
        source, model = zoo.path(key), zoo.MODELS[key]
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    folder = tmp_path_factory.mktemp(key)
    static = with_static_shapes(source, FRAMES.get(key, model.shapes), folder / "fixed.onnx")
    (file,) = export_dlc(static, folder / "dlc")
    return key, static, file


def inputs(key):
    feeds = stimuli.stimuli(key)[-1]
    shapes = FRAMES.get(key, {})
    return {name: value.reshape(-1)[: np.prod(shapes.get(name, value.shape))].reshape(shapes.get(name, value.shape))
            for name, value in feeds.items()}  # fmt: skip


def test_results_are_those_of_onnx_runtime(exported) -> None:
    key, onnx, file = exported
    feeds = inputs(key)
    expected = oracles.onnx_answers(onnx, feeds)
    with Session(file) as session:
        tensors = {info.name: info for info in (*session.info.inputs, *session.info.outputs)}
        given = {}
        for name, value in feeds.items():
            encoding = tensors[name].quantization
            given[name] = value if encoding is None else encoding.quantize(value, tensors[name].dtype.numpy)
        got = session.run(given)
    assert got.keys() == expected.keys()
    for name, array in got.items():
        info = tensors[name]
        if info.quantization is None:
            largest = np.abs(expected[name]).max()
            np.testing.assert_allclose(array, expected[name], atol=1e-4 * largest, rtol=0)
        else:
            off = np.abs(info.quantization.dequantize(array) - expected[name]).max()
            assert off <= 1.01 * info.quantization.scale, f"{name} is {off / info.quantization.scale:.1f} steps off"


def test_weights_of_real_files_are_views_of_one_mapping(exported) -> None:
    graph = frontends.load(exported[2])
    held = [t.data for t in graph.tensors.values() if t.is_static]
    assert held
    assert not any(array.flags.owndata or array.flags.writeable for array in held)


def test_nodes_are_those_that_qnns_own_reader_composes(exported) -> None:
    key, _, file = exported
    found = compared(library("QnnSystem"), file)
    if key in RECURRENT:
        assert found is None or found == []
    else:
        assert found == []


WRITTEN = {
    "two graphs": dlc([convolution("first"), convolution("second")]),
    "an older form": dlc([convolution()], OLD),
    **{
        family: dlc([single(operation, out=expected.shape, dtype=DataType.of(expected.dtype))])
        for family, (operation, expected) in FAMILIES.items()
    },
    **{kind: dlc([fully_connected(weights)]) for kind, (weights, _, _) in ENCODED.items()},
}


def test_files_of_our_own_are_what_qnns_reader_takes_them_for(tmp_path) -> None:
    files = {name: tmp_path / f"{name}.dlc" for name in WRITTEN}
    for name, path in files.items():
        path.write_bytes(WRITTEN[name])
    assert compared(library("QnnSystem"), *files.values()) == []


def vendor_htp(*arguments):
    """Have QNN's own HTP do something; see `vendor_htp.py`."""
    folder = library("QnnHtp").parent
    paths = [str(Path(__file__).parents[2]), str(Path(isthmus.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, Path(__file__).with_name("vendor_htp.py"), folder, *arguments]
    here = arguments[1].parent
    done = subprocess.run(command, env=environment, cwd=here, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_cache_that_the_real_htp_made_is_shown_and_the_graph_beside_it_runs(tmp_path) -> None:
    plain, cached = tmp_path / "plain.dlc", tmp_path / "cached.dlc"
    plain.write_bytes(dlc([fully_connected(ENCODED["per channel"][0])]))
    vendor_htp("cache", plain, cached)
    contents = reader.read(cached)
    assert contents.caches == ("htp.cache.0",)
    assert contents.entries["htp.cache.0"] > 4096
    with Session(plain) as before, Session(cached) as after:
        x = np.uint8([[40, 3, 13]])
        np.testing.assert_array_equal(before.run({"x": x})["y"], after.run({"x": x})["y"])


def test_weights_of_four_bits_mean_to_the_real_htp_what_they_mean_here(tmp_path) -> None:
    """Also where the rest of a byte is not the sign's: within one step, as the two round halves differently."""
    path = tmp_path / "encoded.dlc"
    path.write_bytes(dlc([fully_connected(ENCODED["four bits without their sign"][0])]))
    x = np.uint8([[90, 30, 60]])
    np.savez(tmp_path / "feeds.npz", x=x)
    vendor_htp("execute", path, tmp_path / "feeds.npz", tmp_path / "results.npz")
    with Session(path) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], np.load(tmp_path / "results.npz")["y"], atol=1, rtol=0)
