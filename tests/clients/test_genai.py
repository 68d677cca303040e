"""onnxruntime-genai generates the same tokens with ONNX Runtime's provider on our library and on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clients_report import Results, needs
from support.processes import answer

CLIENT = "onnxruntime-genai"
DECODER = Path(__file__).parents[2] / "examples" / "decoder"
PROMPT, COUNT = [1, 10, 11, 12], 24

pytestmark = needs("onnxruntime_genai", "onnxruntime_qnn", "onnx")


def generated(folder: Path, libraries: Path) -> dict[str, Any]:
    """Return what `run_genai.py` says."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("run_genai.py"), folder, str(COUNT), *map(str, PROMPT)],
        env={**os.environ, "LD_LIBRARY_PATH": str(libraries)}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(answer(done.stdout))


def test_the_tokens_are_those_of_the_cpu(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: Results
) -> None:
    monkeypatch.syspath_prepend(DECODER)
    import genai_decoder

    results.used("onnxruntime-genai", "onnxruntime-qnn")
    results.row("a decoder, token by token", "other tokens than on the CPU")
    backends = {"cpu": None, "qnn": libraries / "libQnnHtp.so"}
    found = {}
    for name, backend in backends.items():
        folder = tmp_path / name
        folder.mkdir()
        genai_decoder.write(folder, backend)
        found[name] = generated(folder, libraries)
    assert found["qnn"]["tokens"] == found["cpu"]["tokens"]
    assert len(set(found["cpu"]["tokens"])) > COUNT // 2
    # The whole decoder is one graph on our library, which runs once for each token but the last.
    assert found["qnn"]["executions"] == [len(PROMPT) + COUNT - 1]
    results.row("a decoder, token by token")


def test_shared_memory_is_refused_where_there_is_no_npu(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: Results
) -> None:
    monkeypatch.syspath_prepend(DECODER)
    import genai_decoder

    genai_decoder.write(tmp_path, libraries / "libQnnHtp.so", {"enable_htp_shared_memory_allocator": "1"})
    with pytest.raises(AssertionError, match="No devices matched the filtering criteria"):
        generated(tmp_path, libraries)
    reason = "onnxruntime-genai asks the provider for a device of type NPU; on x86-64 the provider has one of type CPU"
    results.row("enable_htp_shared_memory_allocator", reason)
