"""Recordings of QNN's Saver compile against our header, and replay on our libraries as their models compute."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import oracles, stimuli, zoo
from support.qnn_export import export_saver, fixed
from support.suites import only

import isthmus
from isthmus.capi.installation import INCLUDE

MODELS = ("kws_fp32", "kws_qdq", "mixed_ops", "silero_vad_16k_sequence")
"""Floats and bytes, several kinds of operations, an LSTM."""
SECONDS = 200


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Makes recordings, each once: a model's ONNX file with fixed shapes, and the folder with its recording."""
    made = {}

    def of(key):
        try:
            source, model = zoo.path(key), zoo.MODELS[key]
        except zoo.Unavailable as reason:
            pytest.skip(str(reason))
        if key not in made:
            folder = tmp_path_factory.mktemp(key)
            static = fixed(source, model.shapes, folder / "fixed.onnx")
            made[key] = static, export_saver(static, folder)
        return made[key]

    return of


def compiled(folder: Path, libraries: Path, backend: str, *options: str) -> Path:
    out = folder / f"{backend}{len(options)}"
    command = ["gcc", "-std=gnu11", "-O0", "-Wall", "-Wno-unused", f"-I{INCLUDE}", *options, "saver_output.c",
               f"-L{libraries}", f"-l{backend}", f"-Wl,-rpath,{libraries}", "-o", str(out)]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.parametrize("backend", ["QnnHtp", "QnnCpu"])
@pytest.mark.parametrize("key", only(("kws_qdq",), MODELS))
def test_a_recording_is_a_program_that_succeeds(record, key, libraries, backend):
    """It checks every call, and ends with the first error."""
    _, folder = record(key)
    program = compiled(folder, libraries, backend)
    done = subprocess.run([program], cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


@pytest.mark.parametrize("key", only(("kws_qdq",), MODELS))
def test_the_graph_of_a_recording_computes_what_its_model_does(record, key, libraries, tmp_path):
    onnx, folder = record(key)
    feeds = stimuli.stimuli(key)[-1]
    np.savez(tmp_path / "feeds.npz", **feeds)
    library = compiled(folder, libraries, "QnnCpu", "-shared", "-fPIC", "-Dmain=recording")
    script = Path(__file__).with_name("replay_saver.py")
    command = [sys.executable, script, library, tmp_path / "feeds.npz", tmp_path / "results.npz"]
    environment = {**os.environ, "PYTHONPATH": str(Path(isthmus.__file__).parents[1])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    got = np.load(tmp_path / "results.npz")
    for name, expected in oracles.onnx_answers(onnx, feeds).items():
        step = got.get(f"output step of {name}")
        allowed = 1e-4 * np.abs(expected).max() if step is None else 1.01 * step
        np.testing.assert_allclose(got[f"output {name}"].reshape(expected.shape), expected, atol=allowed, rtol=0)


def test_a_recording_that_is_not_right_ends_with_the_error(record, libraries, tmp_path):
    """So the success of the others means something."""
    _, folder = record("kws_fp32")
    source = (folder / "saver_output.c").read_text()
    damaged = source.replace('"FullyConnected"', '"NoSuchOperation"')
    assert damaged != source
    (tmp_path / "saver_output.c").write_text(damaged)
    shutil.copy(folder / "params.bin", tmp_path)
    program = compiled(tmp_path, libraries, "QnnCpu")
    done = subprocess.run([program], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode != 0
    assert "NoSuchOperation" in done.stdout + done.stderr
