"""What executions call is counted by a layer below everything: in the loader of the OpenCL library itself."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import opencl_device as opencl_device

LAYER = Path(__file__).parent / "runtime" / "counting_layer.c"
EXECUTIONS = 100
TRANSFERS = ("clEnqueueReadBuffer", "clEnqueueWriteBuffer", "clEnqueueCopyBuffer", "clEnqueueMapBuffer",
             "clEnqueueUnmapMemObject")  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to make the layer with")
    layer = tmp_path_factory.mktemp("layer") / "libcounting.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", layer, LAYER], check=True, timeout=60)
    ran = subprocess.run(
        [sys.executable, Path(__file__).with_name("counted_executions.py"), layer],
        env={**os.environ, "OPENCL_LAYERS": str(layer)}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    if not found["registered"]:
        pytest.skip("the loader of the OpenCL library takes no layers")
    return found


def test_executions_on_registered_buffers_transfer_map_and_copy_nothing(report) -> None:
    assert report["bytes"] == 0
    assert not set(TRANSFERS) & set(report["registered"])


def test_no_buffer_is_made_for_registered_ones_and_some_are_for_raw_memory(report) -> None:
    assert not {"clCreateBuffer", *TRANSFERS} & set(report["registered first"])
    assert report["raw first"]["clCreateBuffer"] == 2


def test_a_steady_execution_launches_waits_and_touches_no_argument(report) -> None:
    calls = report["registered"]
    assert calls["clEnqueueNDRangeKernel"] == 2 * EXECUTIONS
    assert calls["clFlush"] == EXECUTIONS
    assert calls["clGetMemObjectInfo"] == 2 * EXECUTIONS  # whether the two buffers are mapped
    waiting = {"clGetEventInfo", "clReleaseEvent", "clSetEventCallback"}
    assert set(calls) - waiting == {"clEnqueueNDRangeKernel", "clFlush", "clGetMemObjectInfo"}


def test_executions_on_raw_memory_transfer_it(report) -> None:
    assert report["raw bytes"] == 2 * 64 * 128 * 4 * (EXECUTIONS + 2)
    assert set(TRANSFERS) & set(report["raw"])
