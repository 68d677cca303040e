"""LiteRT's compiler plugin compiles models with our libraries, and what it compiles computes LiteRT's results."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from clients_report import Results, needs
from support import oracles, stimuli, zoo

CLIENT = "LiteRT compiler plugin"
KEYS = [model.key for model in zoo.MODELS.values() if model.kind == "tflite"]
VARIABLES = "the plugin has no CALL_ONCE, and no type for variables"
LACKING = dict.fromkeys(("okay_nabu", "alexa", "hey_jarvis", "hey_mycroft"), VARIABLES)
"""Models that the plugin refuses by itself."""
SPARSE = (
    "compiles; LiteRT's writer drops the sparsity of the weights that it leaves to DENSIFY, so it cannot run",
    "required_bytes <= bytes was not true",
)
CUSTOM = (
    "compiles; LiteRT's interpreter in Python lacks Convolution2DTransposeBias, which the plugin leaves to it",
    "unresolved custom op: Convolution2DTransposeBias",
)
LOOP = "compiles; a loop stays with LiteRT, with compiled parts in its body", r"while\.cc.* was not true"
NOT_RUN = {
    "pose_detection": SPARSE,
    "face_detection_full_range_sparse": SPARSE,
    "selfie_segmentation": CUSTOM,
    "selfie_segmentation_landscape": CUSTOM,
    "precise_vad": LOOP,
}
"""Models that compile, why LiteRT cannot run the rest, and what it says then."""
WHOLE = {key: 1 for key in KEYS if key not in LACKING and key not in NOT_RUN}

pytestmark = needs("ai_edge_litert")


def compiled(key: str, libraries: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Let the plugin compile a model of the zoo into a file of this folder."""
    package = Path(importlib.metadata.distribution("ai-edge-litert").locate_file("ai_edge_litert"))
    return subprocess.run(
        [
            package / "tools" / "apply_plugin_main", "--cmd=apply", f"--model={zoo.path(key)}",
            f"--o={folder / key}.tflite", "--soc_manufacturer=Qualcomm", "--soc_model=SM8650", "--err=--",
            f"--libs={package / 'vendors' / 'qualcomm' / 'compiler'}",
        ],
        env={**os.environ, "LD_LIBRARY_PATH": str(libraries)}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_a_model_compiles_and_computes_litert_results(
    key: str, libraries: Path, tmp_path: Path, results: Results
) -> None:
    from litert_bytecode import CompiledModel

    results.used("ai-edge-litert")
    try:
        zoo.path(key)
    except zoo.Unavailable as problem:
        pytest.skip(str(problem))
    done = compiled(key, libraries, tmp_path)
    errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
    if key in LACKING:
        results.row(key, LACKING[key])
        assert done.returncode != 0
        assert "CallOnce" in done.stdout + done.stderr
        return
    results.row(key, f"does not compile: {errors[:1]}")
    assert done.returncode == 0, errors
    model = CompiledModel(tmp_path / f"{key}.tflite")
    assert model.partitions
    if key in NOT_RUN:
        reason, message = NOT_RUN[key]
        with pytest.raises((RuntimeError, ValueError), match=message):
            model.run(stimuli.stimuli(key)[0])
        results.row(key, reason, partitions=model.partitions, left=model.left)
        return
    assert (model.partitions, model.left) == (WHOLE[key], 0)
    results.row(key, "compiles, with other results than LiteRT's", partitions=1)
    described = zoo.MODELS[key]
    (feed, *_) = stimuli.stimuli(key)
    expected = oracles.reference(described).run(feed)
    found = model.run(feed)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        limit = described.step if described.numerics == "int8" else described.tolerance * np.abs(value).max()
        difference = np.abs(found[name].reshape(value.shape).astype(np.float64) - value.astype(np.float64)).max()
        assert difference <= limit, name
    results.row(key, partitions=model.partitions, left=model.left)
