"""The pytest plugin, as other people's tests use it: in a process of its own, on files that it has not seen."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from support import tiny
from support.suites import LONG, long

ROOT = Path(__file__).parents[2]
PLUGIN = "isthmus.testing.plugin"
LOADED = [] if any(each.value == PLUGIN for each in entry_points(group="pytest11")) else ["-p", PLUGIN]
"""Options that load the plugin where this package was installed before it had one."""
SECONDS = 600
"""How long the tests of a file may take; on a busy machine an accelerator needs long to start."""

PROGRAM = """
import numpy as np
import pytest
from isthmus import QnnError, qnn
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, TensorMemType

DIMS = (1, 16)


def composed(backend, mem_type=TensorMemType.MEMHANDLE):
    context = backend.create_context()
    graph = context.create_graph("double")
    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, DIMS, mem_type=mem_type)
    y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, DIMS, mem_type=mem_type)
    graph.add_node("add", "ElementWiseAdd", [x, x], [y])
    graph.finalize()
    return context, graph


def register(context, buffer):
    return context.mem_register([MemDescriptor(DIMS, qnn.DataType.FLOAT_32, DescriptorType.ION, fd=buffer.fd)])[0]


def run(backend, times=1):
    _, graph = composed(backend, TensorMemType.RAW)
    x, y = np.ones(DIMS, np.float32), np.empty(DIMS, np.float32)
    for _ in range(times):
        graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
    return y
"""


def run_pytest(
    folder: Path, text: str, *options: str, **variables: str
) -> tuple[dict[str, str], subprocess.CompletedProcess[str]]:
    """Run a file of tests in a folder; return the outcome of each test by name, and all that pytest printed."""
    (folder / "test_theirs.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-rA", "--strict-markers", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        [*command, *LOADED, "test_theirs.py"],
        cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    found = re.findall(r"^(PASSED|FAILED|ERROR) test_theirs.py::(\w+)", done.stdout, re.MULTILINE)
    # A test whose fixtures find something at the end has passed and has an error.
    return {name: outcome for outcome, name in sorted(found, reverse=True)}, done


LIMITS = f"""{PROGRAM}
@pytest.mark.isthmus(max_copied=0, no_leaks=True, no_mistakes=True)
def test_zero_copy(htp):
    context, graph = composed(htp)
    with rpcmem.alloc(25, 1, 64) as x, rpcmem.alloc(25, 1, 64) as y:
        handles = [register(context, each) for each in (x, y)]
        x.view(np.float32, DIMS)[...] = 3
        graph.execute([ClientTensor("x", mem_handle=handles[0])], [ClientTensor("y", mem_handle=handles[1])])
        assert (y.view(np.float32, DIMS) == 6).all()
        context.mem_deregister(handles)


@pytest.mark.isthmus(max_copied=255)
def test_too_many_copies(htp):
    run(htp, 2)


@pytest.mark.isthmus(max_copied=256)
def test_enough_copies(htp):
    run(htp, 2)


@pytest.fixture
def copying_at_its_end(htp):
    yield
    run(htp)


@pytest.mark.isthmus(max_copied=0)
def test_copies_of_a_fixture(copying_at_its_end):
    pass


@pytest.mark.isthmus(no_leaks=True)
def test_leak(htp):
    context, _ = composed(htp)
    test_leak.kept = rpcmem.alloc(25, 1, 5000)
    register(context, test_leak.kept)


@pytest.mark.isthmus(fault="ssr@3")
def test_death(htp):
    with pytest.raises(QnnError, match="1007"):
        run(htp, 3)
    assert (run(htp) == 2).all(), "a new context starts a new accelerator"


@pytest.mark.isthmus(fault="ssr@3")
def test_death_that_does_not_come(htp):
    run(htp, 2)


def test_without_a_marker(htp):
    assert (run(htp, 4) == 2).all()


def test_an_audit_as_a_fixture(isthmus_audit, htp):
    run(htp)
    assert isthmus_audit.copied_bytes == 128
"""


@pytest.mark.parametrize("options", [pytest.param((), id="one process"), long(("-n", "2"), id="xdist")])
def test_limits_and_faults_decide_the_outcome_of_a_test(tmp_path: Path, options: tuple[str, ...]) -> None:
    if options:
        pytest.importorskip("xdist")
    outcomes, done = run_pytest(tmp_path, LIMITS, *options)
    assert outcomes == {
        "test_zero_copy": "PASSED",
        "test_too_many_copies": "FAILED",
        "test_enough_copies": "PASSED",
        "test_copies_of_a_fixture": "ERROR",
        "test_leak": "ERROR",
        "test_death": "PASSED",
        "test_death_that_does_not_come": "FAILED",
        "test_without_a_marker": "PASSED",
        "test_an_audit_as_a_fixture": "PASSED",
    }, done.stdout
    assert "256 bytes were copied, 255 are allowed" in done.stdout
    assert "128 bytes in 2 copies of 'x' of graph 'double'" in done.stdout
    assert "2 leaks" in done.stdout
    assert re.search(r"test_theirs.py:\d+ in test_leak: never freed: rpcmem buffer of 5000 bytes", done.stdout)
    assert re.search(r"test_theirs.py:\d+ in register: never deregistered: .*'x' or 'y'", done.stdout)
    assert "fault 'ssr@3' did not occur: 2 executions counted" in done.stdout
    # The line of the copy is that of the test file, not one of this package.
    assert re.search(r"^ +at \S*test_theirs.py:\d+ in run$", done.stdout, re.MULTILINE)


FAULTS = f"""{PROGRAM}
import os, time


@pytest.mark.isthmus(fault="slow-unmap=300ms", no_mistakes=True)
def test_slow_deregistration_by_a_fixture(qnn_session):
    qnn_session("model.onnx").run()


@pytest.mark.isthmus(fault="slow-unmap=300ms")
def test_slow_deregistration_in_time(qnn_session):
    session = qnn_session("model.onnx")
    began = time.monotonic()
    session.close()
    assert time.monotonic() - began >= 0.3


@pytest.mark.isthmus(fault="slow-unmap=1ms")
def test_no_deregistration(htp):
    pass


@pytest.mark.isthmus(fault="slow-unmap=1ms")
def test_failure_before_the_fault(htp):
    assert not "their own failure"


@pytest.mark.isthmus(fault="slow-unmap=1ms")
def test_skipped(htp):
    pytest.skip("their own reason")


@pytest.mark.skip(reason="their own reason")
@pytest.mark.isthmus(fault="srs@1")
def test_skipped_before_its_marker_is_read(htp):
    pass


@pytest.mark.isthmus(fault="ssr@999999")
@pytest.mark.parametrize("times", [1, 4])
def test_call_that_is_never_reached(htp, times):
    run(htp, times)


@pytest.mark.isthmus(fault="alloc@7")
def test_allocation_that_is_never_requested(htp):
    rpcmem.alloc(25, 1, 64).close()


class TestDescriptors:
    @pytest.fixture(autouse=True)
    def files(self, tmp_path):
        (tmp_path / "before").write_text("")
        yield
        (tmp_path / "after").write_text("")

    @pytest.mark.isthmus(fault="fds@1", max_copied=0, no_leaks=True)
    def test_refused(self, qnn_session):
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        with pytest.raises(QnnError, match="1010.*fault 'fds@1' was injected"):
            qnn_session("model.onnx")

    @pytest.mark.isthmus(fault="fds@1")
    def test_failure(self, qnn_session):
        qnn_session("model.onnx")

    @pytest.mark.isthmus(fault="fds@2")
    def test_failure_of_other_code(self):
        os.pipe()

    def test_afterwards(self, qnn_session):
        qnn_session("model.onnx").run()
"""


@pytest.mark.parametrize("options", [pytest.param((), id="one process"), long(("-n", "2"), id="xdist")])
def test_faults_occur_in_tests_and_not_in_the_plugin(tmp_path: Path, options: tuple[str, ...]) -> None:
    if options:
        pytest.importorskip("xdist")
    tiny.convolution(tmp_path / "model.onnx")
    outcomes, done = run_pytest(tmp_path, FAULTS, *options)
    assert outcomes == {
        "test_slow_deregistration_by_a_fixture": "PASSED",
        "test_slow_deregistration_in_time": "PASSED",
        "test_no_deregistration": "ERROR",
        "test_failure_before_the_fault": "FAILED",
        "test_call_that_is_never_reached": "FAILED",
        "test_allocation_that_is_never_requested": "FAILED",
        "TestDescriptors": "FAILED",
    }, done.stdout
    for line in (
        "fault 'ssr@999999' did not occur: 1 execution counted on accelerators (HTP) that this process started in the "
        "test. Child processes count for themselves.",
        "fault 'ssr@999999' did not occur: 4 executions counted",
        "fault 'alloc@7' did not occur: 1 allocation counted in this process.",
        "fault 'slow-unmap=1ms' did not occur: 0 deregistrations counted",
    ):
        assert line in done.stdout
    assert "2 skipped" in done.stdout
    assert "1 error" in done.stdout.splitlines()[-1], "no fault concerns other fixtures and the plugin's own files"
    assert re.search(r"^E .*1010.*fault 'fds@1' was injected", done.stdout, re.MULTILINE)
    assert "Captured isthmus call" in done.stdout
    assert "injected faults: fds@2" in done.stdout


def test_a_misspelt_option_of_a_session_gets_the_nearest_one(tmp_path: Path) -> None:
    text = """
def test_near(qnn_session):
    qnn_session("model.onnx", bakend="htp")

def test_far(qnn_session):
    qnn_session("model.onnx", xyz=1)

def test_by_position(qnn_session):
    assert qnn_session("model.onnx", "cpu").backend == "cpu"
"""
    tiny.convolution(tmp_path / "model.onnx")
    outcomes, done = run_pytest(tmp_path, text)
    assert outcomes == {"test_near": "FAILED", "test_far": "FAILED", "test_by_position": "PASSED"}, done.stdout
    assert "qnn_session: it has no option 'bakend'. Did you mean 'backend'?" in done.stdout
    assert "qnn_session: it has no option 'xyz'. Options are backend, shapes, threads," in done.stdout
    assert "plugin.py" not in done.stdout, "the report shows the line of the test"


WRONG = {
    "max_copies=0": "marker 'isthmus': it has no keyword 'max_copies'. Did you mean 'max_copied'?",
    "fault='srs@3'": "fault 'srs@3' is unknown; known are ssr@N, map@N, alloc@N, fds@N, slow-unmap=TIME. "
    "Did you mean 'ssr@N'?",
    "fault='ssr'": "fault 'ssr' is not of the form ssr@N. N is 1 to 999,999,999, as in ssr@3.",
    "fault='ssr@-1'": "fault 'ssr@-1' is not of the form ssr@N. N is 1 to 999,999,999, as in ssr@3.",
    "backend='hpt'": "Did you mean 'htp'?",
    "max_copied='0'": "max_copied='0' must be of type int",
    "max_copied=-1": "max_copied=-1 is less than 0",
    "no_leaks=1": "no_leaks=1 must be of type bool",
    "0": "it takes keywords only, not 0. Keywords are max_copied, no_leaks, no_mistakes, fault, backend.",
}


def test_a_marker_that_is_wrong_fails_its_test_in_one_line(tmp_path: Path) -> None:
    tests = [
        f"@pytest.mark.isthmus({arguments})\ndef test_{index}():\n    pass\n" for index, arguments in enumerate(WRONG)
    ]
    outcomes, done = run_pytest(tmp_path, "import pytest\n" + "".join(tests))
    assert outcomes == {f"test_{index}": "ERROR" for index in range(len(WRONG))}
    for message in WRONG.values():
        lines = [line for line in done.stdout.splitlines() if not line.startswith("ERROR")]
        assert sum(message in line for line in lines) == 1, message
    assert f"{len(WRONG)} errors" in done.stdout
    assert not re.search("Traceback|During handling", done.stdout)


def test_the_plugin_loads_nothing_before_it_is_used(tmp_path: Path) -> None:
    text = """
    import sys

    def test_nothing():
        assert not [name for name in sys.modules if name.startswith(("isthmus.", "numpy"))
                    and name not in ("isthmus.testing", "isthmus.testing.plugin")]
    """
    outcomes, done = run_pytest(tmp_path, text.replace("\n    ", "\n"))
    assert outcomes == {"test_nothing": "PASSED"}, done.stdout


CHILDREN = f"""{PROGRAM}
import subprocess, sys

CHILD = __file__.replace("test_theirs", "client")


def start(*arguments):
    return subprocess.run([*arguments], capture_output=True, text=True)


@pytest.mark.isthmus(max_copied=0, no_mistakes=True)
def test_a_correct_client(qnn_libraries):
    subprocess.run(["./audited", qnn_libraries], check=True)


@pytest.mark.isthmus(no_leaks=True)
def test_a_wrong_client(qnn_libraries):
    assert start("./audited", qnn_libraries, "wrong").returncode == 0


@pytest.mark.isthmus(max_copied=0)
def test_two_wrong_clients(qnn_libraries):
    for _ in range(2):
        assert start("./audited", qnn_libraries, "wrong").returncode == 0


@pytest.mark.isthmus(fault="ssr@2")
def test_a_client_whose_accelerator_dies(qnn_libraries):
    done = start("./audited", qnn_libraries)
    assert done.returncode != 0
    assert "1007" in done.stderr


def test_the_libraries_are_found_by_name(qnn_libraries):
    program = "import ctypes; ctypes.CDLL('libQnnHtp.so'); ctypes.CDLL('libQnnSystem.so')"
    assert start(sys.executable, "-c", program).returncode == 0
"""


@LONG
def test_clients_in_c_are_audited_and_get_the_faults(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    from isthmus.capi.installation import INCLUDE

    programs = ROOT / "tests" / "capi" / "programs"
    subprocess.run(
        ["gcc", "-std=c11", "-g", "-D_GNU_SOURCE", f"-I{INCLUDE}", f"-I{programs}", programs / "audited.c", "-o",
         tmp_path / "audited", "-ldl"], check=True,
    )  # fmt: skip
    outcomes, done = run_pytest(tmp_path, CHILDREN)
    assert outcomes == {
        "test_a_correct_client": "PASSED",
        "test_a_wrong_client": "ERROR",
        "test_two_wrong_clients": "FAILED",
        "test_a_client_whose_accelerator_dies": "PASSED",
        "test_the_libraries_are_found_by_name": "PASSED",
    }, done.stdout
    assert "3 leaks" in done.stdout
    assert "128 bytes were copied, 0 are allowed" in done.stdout, "each of the two clients copies 64 bytes"


def test_the_example_is_short() -> None:
    assert len((ROOT / "examples" / "test_zero_copy.py").read_text().splitlines()) <= 14


def test_the_package_declares_the_plugin() -> None:
    [declared] = re.findall(r"^\[project.entry-points.pytest11\]\nisthmus = \"(.+)\"$",
                            (ROOT / "pyproject.toml").read_text(), re.MULTILINE)  # fmt: skip
    assert declared == PLUGIN


def test_the_example_passes_by_the_command_of_the_workflow(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "github-workflow.yml").read_text()
    commands = re.findall(r"^ +run: (.+)$", text, re.MULTILINE)
    [command] = [each for each in commands if each.startswith("python -m pytest ")]
    folder = tmp_path / command.split()[-1]
    folder.mkdir()
    tiny.convolution(tmp_path / "model.onnx")
    (folder / "test_theirs.py").write_text((ROOT / "examples" / "test_zero_copy.py").read_text())
    words = [sys.executable, *command.split()[1:], *LOADED]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_workflow_can_be_parsed() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    workflow = yaml.safe_load((ROOT / "examples" / "github-workflow.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    assert all({"uses", "run"} & step.keys() for step in steps)
