"""The figures of our compositions equal those of ONNX Runtime's QNN provider for the same model and options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import zoo
from support.suites import LONG

from isthmus import frontends
from isthmus.backends.vendor.composition import compose
from isthmus.backends.vendor.library import find
from isthmus.backends.vendor.measurement import measure, prepared
from isthmus.backends.vendor.target import ChipTarget

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
sys.path[:0] = [str(Path(__file__).parent)]

import figure_models  # noqa: E402
from capi import ort_provider  # noqa: E402

FROM_THE_ZOO = ("kws_fp32", "mixed_ops")
TARGET = ChipTarget(69, 2, 3, "float16")
OPTIONS = {
    "soc_model": str(TARGET.soc), "htp_arch": "79", "vtcm_mb": str(TARGET.vtcm_mb),
    "htp_graph_finalization_optimization_mode": str(TARGET.level), "enable_htp_fp16_precision": "1",
    "offload_graph_io_quantization": "0",
}  # fmt: skip


def provider_figures(model: Path, folder: Path) -> dict:
    """Return what the provider makes of a model, in a process of its own."""
    out = folder / "provider.json"
    program = Path(__file__).with_name("provider_figures.py")
    subprocess.run(
        [sys.executable, program, model, out, json.dumps(OPTIONS)], check=True, capture_output=True, timeout=600
    )
    return json.loads(out.read_text())


@LONG
@pytest.mark.parametrize("name", [*figure_models.MODELS, *FROM_THE_ZOO])
def test_the_provider_has_the_same_figures(name, tmp_path) -> None:
    if name in FROM_THE_ZOO:
        try:
            zoo.path(name)
        except zoo.Unavailable as reason:
            pytest.skip(str(reason))
        model = ort_provider.fixed(name, tmp_path)
    else:
        model = figure_models.MODELS[name](tmp_path / f"{name}.onnx")
    theirs = provider_figures(model, tmp_path)
    assert theirs["taken"] == theirs["total"]
    (binary,) = theirs["binaries"]
    ours = measure(prepared([compose(frontends.load(model))]), TARGET, find())
    assert not ours.problem
    assert ours.file_bytes == binary["bytes"]
    assert [graph.figures.to_json() for graph in ours.graphs] == [graph["figures"] for graph in binary["graphs"]]
