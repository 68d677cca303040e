"""Which library, which device: named, or the best there is; and one sentence where there is none."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.opencl_device import DEVICE
from support.opencl_faults import replace_function

from isthmus import qnn
from isthmus.backends.gpu.runtime import device as devices_module
from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime.device import choose, devices
from isthmus.backends.gpu.runtime.library import _mapped_libraries, library
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel


def in_child(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )


def test_there_is_a_device_and_its_facts_are_plausible() -> None:
    found = choose()
    assert found in devices()
    assert found.kind in ("cpu", "gpu", "accelerator")
    assert found.alignment >= 1
    assert found.max_group >= 1
    assert 0 < found.largest_allocation <= found.memory
    assert found.driver in found.identity


def test_a_device_is_named_by_part_of_its_name_in_any_case_or_by_its_number(monkeypatch) -> None:
    monkeypatch.delenv("ISTHMUS_OPENCL_DEVICE", raising=False)
    # Of several that a part of a name fits, the best is taken.
    best = choose()
    assert choose(device=best.name[:5].upper()) == best
    assert choose(platform=best.platform_name[:6].lower()) == best
    for number, found in enumerate(devices()):
        assert choose(device=number) == found


def test_the_environment_chooses_the_device_unless_something_else_does(monkeypatch) -> None:
    found = choose()
    monkeypatch.setenv("ISTHMUS_OPENCL_DEVICE", "no such device")
    assert choose(device=found.name) == found
    with pytest.raises(QnnError, match="no device of OpenCL is device 'no such device'") as refused:
        choose()
    assert refused.value.code is Code.DEVICE_HARDWARE_UNAVAILABLE
    assert found.name in refused.value.hint


@pytest.mark.parametrize("given", [{"device": 99}, {"platform": "nobody's"}])
def test_an_unknown_device_is_refused_with_a_list_of_the_devices(given) -> None:
    with pytest.raises(QnnError, match="no device of OpenCL is") as refused:
        choose(**given)
    assert f"device 0 is {devices()[0]}" in refused.value.hint


def test_the_best_device_is_a_gpu_if_there_is_one_then_the_largest(monkeypatch) -> None:
    from dataclasses import replace

    first = replace(DEVICE, kind="cpu", compute_units=99, available=True)
    small, large = replace(first, kind="gpu", compute_units=2), replace(first, kind="gpu", compute_units=9)
    gone = replace(first, kind="gpu", available=False)
    monkeypatch.delenv("ISTHMUS_OPENCL_DEVICE", raising=False)
    monkeypatch.setattr(devices_module, "devices", lambda tell: [first, small, gone, large])
    assert choose() is large


def failing_for(handle):
    """Queries about one device or platform fail."""

    def behave(real, asked, *arguments):
        return numbers.OUT_OF_HOST_MEMORY if asked == handle else real(asked, *arguments)

    return behave


def test_a_device_that_does_not_answer_is_left_out_and_logged(monkeypatch) -> None:
    real, ghost = DEVICE.handle, ctypes.c_int64()
    handles = [ctypes.addressof(ghost), real]
    monkeypatch.delenv("ISTHMUS_OPENCL_DEVICE", raising=False)
    monkeypatch.setattr(devices_module, "platforms", lambda: [DEVICE.platform])
    monkeypatch.setattr(devices_module, "device_handles", lambda platform: handles)
    reported = []
    with replace_function("clGetDeviceInfo", failing_for(handles[0])):
        assert [device.handle for device in devices(reported.append)] == [real]
        assert choose().handle == real
        assert reported == ["A device of OpenCL is left out: clGetDeviceInfo answers OUT_OF_HOST_MEMORY (-6)"]
        with qnn.Backend("gpu", log=Log(lambda level, text: reported.append((level, text)))):
            assert (LogLevel.WARN, reported[0]) in reported
        handles.pop()  # only the silent device remains
        with pytest.raises(QnnError, match="finds no device: A device of OpenCL is left out"):
            choose()


def test_a_platform_that_does_not_answer_is_left_out_and_logged() -> None:
    reported = []
    with replace_function("clGetDeviceIDs", failing_for(DEVICE.platform)):
        assert all(device.platform != DEVICE.platform for device in devices(reported.append))
    assert "A platform of OpenCL is left out: clGetDeviceIDs answers OUT_OF_HOST_MEMORY (-6)" in reported


NO_LIBRARY = """
import isthmus.backends.gpu.runtime.library as library
library._pyopencl.cache_clear(); library._pyopencl = lambda: None
from isthmus import QnnError, qnn
try:
    qnn.Backend("gpu")
except QnnError as problem:
    print(problem)
"""


def test_without_opencl_one_line_names_the_remedy() -> None:
    ran = in_child(NO_LIBRARY, ISTHMUS_OPENCL_LIBRARY="/nowhere/libOpenCL.so")
    assert ran.returncode == 0, ran.stderr
    (line,) = ran.stdout.splitlines()
    assert "COMMON_PLATFORM_NOT_SUPPORTED" in line
    assert "there is no OpenCL library" in line
    assert "pip install 'isthmus[gpu]'" in line


def test_without_a_driver_one_line_names_the_remedy() -> None:
    ran = in_child("from isthmus import qnn\nqnn.Backend('gpu')", OCL_ICD_VENDORS="/nowhere")
    if ran.returncode == 0:
        pytest.skip("the OpenCL library finds its drivers by other ways than OCL_ICD_VENDORS")
    last = ran.stderr.splitlines()[-1]
    assert "DEVICE_HARDWARE_UNAVAILABLE" in last
    assert "no driver is installed" in last
    assert "pip install 'isthmus[gpu]'" in last


def test_nothing_of_opencl_is_loaded_unless_the_backend_is_used() -> None:
    program = (
        "import sys, isthmus, isthmus.qnn, isthmus.backends.seam.registry as r\n"
        "r.entry('cpu'); isthmus.qnn.Backend('cpu').free()\n"
        "print('pyopencl' in sys.modules, 'OpenCL' in open('/proc/self/maps').read())"
    )
    assert in_child(program).stdout.split() == ["False", "False"]


def test_the_backend_runs_without_importing_pyopencl_and_has_its_library() -> None:
    program = (
        "import sys\nfrom isthmus import qnn\nb = qnn.Backend('gpu'); b.create_context()\n"
        "print('pyopencl' in sys.modules)\nimport pyopencl as cl\n"
        "print(b.driver.opencl().device.platform in [p.int_ptr for p in cl.get_platforms()]); b.free()"
    )
    ran = in_child(program)
    assert ran.stdout.split() == ["False", "True"], ran.stderr


def test_a_library_that_the_client_has_loaded_is_the_one(tmp_path) -> None:
    copied = tmp_path / "libOpenCL.so.1"
    library()
    copied.write_bytes(Path(_mapped_libraries()[0]).read_bytes())
    program = (
        f"import ctypes; ctypes.CDLL({str(copied)!r})\n"
        "from isthmus.backends.gpu.runtime.library import library\n"
        "print(library().path)"
    )
    assert in_child(program).stdout.split() == [str(copied)]
