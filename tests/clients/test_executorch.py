"""ExecuTorch's own tests of operators pass on our libraries, and whole models too, by its wheel alone."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clients_report import Results, needs

CLIENT = "ExecuTorch"
SUITES = {"TestQNNFloatingPointOperator": 178, "TestQNNQuantizedOperator": 196}
"""The classes of tests in the wheel, with the number of tests that each has."""
LIMIT = 600
"""Seconds that one test may take; the first that needs a kernel compiles it."""
NO_RESULT = {"outcome": "failed", "message": "it was collected and has no result"}

pytestmark = needs("executorch", "torch", "transformers", "pytest_timeout")


def environment(sdk: Path) -> dict[str, str]:
    """Return the variables that lead ExecuTorch to our libraries."""
    return {**os.environ, "QNN_SDK_ROOT": str(sdk), "LD_LIBRARY_PATH": str(sdk / "lib" / "x86_64-linux-clang")}


def outcomes(suite: str, sdk: Path, folder: Path) -> tuple[dict[str, dict[str, Any]], subprocess.CompletedProcess[str]]:
    """Run a class of ExecuTorch's tests in a process of their own; each test's result by name, and the process."""
    package = importlib.util.find_spec("executorch.backends.qualcomm")
    assert package is not None
    assert package.submodule_search_locations
    tests = Path(next(iter(package.submodule_search_locations))) / "tests" / "test_qnn_delegate.py"
    file = folder / "results.jsonl"
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "executorch_plugin", "-p", "no:cacheprovider", "-n", "auto",
            "--timeout", str(LIMIT), "-k", os.environ.get("EXECUTORCH_TESTS", "test"), f"{tests}::{suite}",
        ],
        cwd=folder, capture_output=True, text=True,
        env={
            **environment(sdk),
            "QNN_DELEGATE_TEST": "1",
            "QNN_ARTIFACT_DIR": str(folder / "artifacts"),
            # ExecuTorch does not set the memory of buffers that a program changes; its tests expect zeros, which fresh
            # pages have and reused ones have not.
            "MALLOC_MMAP_THRESHOLD_": "65536",
            "EXECUTORCH_RESULTS": str(file),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        },
    )  # fmt: skip
    assert file.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = {}
    for result in map(json.loads, file.read_text().splitlines()):
        if "outcome" in result:
            found[result["test"]] = result
        else:
            found.setdefault(result["test"], {**result, **NO_RESULT})
    return found, done


@pytest.mark.parametrize("suite", SUITES)
def test_executorchs_own_tests_of_operators_pass(suite: str, sdk: Path, tmp_path: Path, results: Results) -> None:
    results.used("executorch", "torch")
    found, done = outcomes(suite, sdk, tmp_path)
    failed = {}
    for test, result in found.items():
        if result["outcome"] == "failed":
            failed[test] = [*result.get("errors", []), *result["message"].strip().splitlines()[-1:], "no message"][0]
        if result["outcome"] == "skipped":
            results.row(test, f"skipped by ExecuTorch: {result['message'].strip()[-160:]}")
        else:
            results.row(test, failed.get(test, "passes"))
    if "EXECUTORCH_TESTS" not in os.environ:
        assert len(found) == SUITES[suite]
    assert not failed
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def whole_models() -> Results:
    """The results of whole models, which are a table of their own."""
    results = Results(f"{CLIENT}, whole models")
    results.used("executorch", "torch", "torchvision")
    return results


@pytest.mark.parametrize("precision", ["8a8w", "16a8w", "16a4w"])
@pytest.mark.parametrize("model", ["mobilenet_v2", "llama"])
def test_whole_models_compute_what_pytorch_computes(
    model: str, precision: str, sdk: Path, tmp_path: Path, whole_models: Results
) -> None:
    program = Path(__file__).with_name("executorch_models.py")
    done = subprocess.run(
        [sys.executable, program, model, precision], cwd=tmp_path, env=environment(sdk), capture_output=True, text=True
    )
    whole_models.row(f"{model} {precision}", "passes" if done.returncode == 0 else (done.stdout + done.stderr)[-300:])
    assert done.returncode == 0, done.stdout + done.stderr
