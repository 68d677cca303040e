"""The GPU example does what it says."""

import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_buffers_of_a_client_are_used_in_place_by_a_pipeline_that_never_leaves_the_device(
    monkeypatch, capsys
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delitem(sys.modules, "gpu_opencl_buffers", raising=False)
    importlib.import_module("gpu_opencl_buffers").main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(".")[0] for line in lines] == [str(number) for number in range(1, 10)]
    assert "0 bytes reserved" in lines[1]
    assert "MEM_ALREADY_REGISTERED" in lines[4]
    assert "101 frames" in lines[5]
    assert "0 bytes between host and device, in place {'opencl': 6619136}" in lines[5]
    assert "32,768 bytes of the output, results right" in lines[6]
    assert "its OpenCL buffer is mapped" in lines[7]
