"""The example of the TFLite delegate does what it says."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import zoo

EXAMPLE = Path(__file__).parents[2] / "examples" / "tflite_shared_memory.py"


@pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="LiteRT is not installed")
def test_the_tutorial_of_the_delegate_runs_line_by_line() -> None:
    try:
        path = zoo.path("okay_nabu")
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    ran = subprocess.run([sys.executable, EXAMPLE, path], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert [line for line in ran.stderr.splitlines() if line.startswith("INFO: ")] == [
        "INFO: Initialized TensorFlow Lite runtime.",
        "INFO: TfLiteQnnDelegate delegate: 61 nodes delegated out of 61 nodes with 1 partitions.",
        "INFO: Replacing 61 node(s) with delegate (TfLiteQnnDelegate) node, yielding 1 partitions.",
        "INFO: Tensor 0 is successfully registered to shared memory.",
        "INFO: Tensor 104 is successfully registered to shared memory.",
    ]
    assert ran.stdout.splitlines() == ["0 bytes copied, 121 used in place"]
