"""With another library behind ours, calls go there unchanged, and a client's mistakes and leaks are named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from capi.host_programs import Build, execute
from isthmus.capi.installation import INCLUDE

MISTAKES = [
    r"call 7 (tensorCreateGraphTensor): tensor 'y': graph",
    r"call 8 (graphAddNode): node 'relu' (Relu): tensor 'x' has the id 77, and the graph none of that id",
    r"call 9 (graphAddNode): node 'relu' (Relu): tensor 'x' is FLOAT_32[2, 4], and was created as 'x' FLOAT_32[1, 8]",
    r"call 11 (graphAddNode): node 'again' (Relu): tensor 'y' is written by node 'relu' already",
    r"call 12 (graphExecute): graph",
    r"call 14 (graphFinalize): graph",
    r"call 16 (graphExecute): input 'x' has the dimensions [2, 4], and was created with [1, 8]",
    r"call 17 (graphExecute): input 'x' is INT_8, and was created as FLOAT_32",
    r"call 18 (graphExecute): output 'y': its buffer has 4 bytes, 32 are needed",
    r"call 19 (graphExecute): output 'y': its buffer overlaps that of input 'x'",
    r"call 21 (graphExecute): output 'y' of graph",
    r"call 22 (graphCreate): argument 4 is null",
    r"call 24 (logFree): backend",
    r"call 26 (contextFree): context",
    r"call 27 (graphExecute): graph",
    r"call 28 (contextFree): context",
]
"""How the messages begin that `programs/mistakes.c` earns."""


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory, libraries: Path) -> Path:
    """A folder with further libraries, to which the first ones forward calls."""
    folder = tmp_path_factory.mktemp("forwarded") / "behind"
    shutil.copytree(libraries, folder)
    return folder


def test_calls_of_threads_that_python_did_not_start_are_validated(
    libraries: Path, behind: Path, build: Build, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    done = execute(
        build("threads"), libraries, "libQnnCpu.so", 2, ISTHMUS_QNN_FORWARD=str(behind / "libQnnCpu.so"),
        ISTHMUS_QNN_REPORT=str(file),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "Traceback" not in done.stderr
    report = json.loads(file.read_text())
    assert report["mistakes"] == []
    assert report["calls"]["graphExecute"]["count"] == 8


@pytest.mark.parametrize("own", [False, True], ids=["before another library", "before our own"])
def test_mistakes_are_named_in_order_and_leaks_at_the_end(
    libraries: Path, behind: Path, build: Build, tmp_path: Path, own: bool
) -> None:
    file = tmp_path / "report.json"
    how = {"ISTHMUS_QNN_VALIDATE": "1"} if own else {"ISTHMUS_QNN_FORWARD": str(behind / "libQnnCpu.so")}
    done = execute(build("mistakes"), libraries, "libQnnCpu.so", ISTHMUS_QNN_REPORT=str(file), **how)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    report = json.loads(file.read_text())
    for expected, found in zip(MISTAKES, report["mistakes"], strict=True):
        assert found.startswith(expected)
        assert found in done.stderr
    assert "it was freed by call 25 (contextFree)" in report["mistakes"][-3]
    assert report["leaks"] == [leak for leak in report["leaks"] if "backend" in leak], "it takes its context along"
    assert len(report["leaks"]) == 1
    assert f"checked 28 calls of 10 functions; {len(MISTAKES)} mistakes, 1 leak" in done.stderr
    assert report["calls"]["graphExecute"]["count"] == 9
    assert report["calls"]["graphExecute"]["errors"] == {
        "6023": 1, "6004": 4, "6000": 1, "6001": 1,
    }  # fmt: skip
    assert report["raw_bytes"] >= 64


@pytest.mark.parametrize("own", [False, True], ids=["before another library", "before our own"])
def test_a_program_that_does_right_makes_no_mistake(
    libraries: Path, behind: Path, build: Build, tmp_path: Path, own: bool
) -> None:
    file = tmp_path / "report.json"
    how = {"ISTHMUS_QNN_VALIDATE": "1"} if own else {"ISTHMUS_QNN_FORWARD": str(behind / "libQnnHtp.so")}
    done = execute(build("htp_qmem"), libraries, ISTHMUS_QNN_REPORT=str(file), **how)
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    # The program uses freed handles on purpose, in three calls, and runs a graph raw that was prepared for handles.
    raw = [mistake for mistake in report["mistakes"] if "prepared for memhandle, run raw" in mistake]
    assert len(raw) == 4 * own
    assert len(report["mistakes"]) == len(raw) + 3
    assert all("it was freed by" in mistake for mistake in report["mistakes"] if mistake not in raw)
    assert report["leaks"] == []
    assert report["shared_bytes"] > 0


def test_one_switch_finds_what_the_audit_finds_and_counts_each_mistake_once(libraries: Path, build: Build) -> None:
    done = execute(build("audited"), libraries, "wrong", ISTHMUS_QNN_VALIDATE="1,exitcode=66")
    assert done.returncode == 66, done.stderr
    # Of both tensors that have a handle of another context, and of both handles that are not deregistered, the checks
    # of calls tell; the audit, which sees them too, is not heard again.
    for text, times in {
        "registered twice": 1, "misaligned": 1, "is registered with another context": 2, "wrong context": 0,
        "not mapped": 1, "prepared for memhandle, run raw": 1, "freed too early": 1, "of it is registered still": 2,
        "never deregistered": 0, "never freed: rpcmem buffer of 256 bytes": 1,
    }.items():  # fmt: skip
        assert done.stderr.count(text) == times, (text, done.stderr)
    assert "11 functions; 9 mistakes, 1 leak\n" in done.stderr
    assert "Call rpcmem_free when" in done.stderr
    assert "mem_register" not in done.stderr


def test_a_correct_program_keeps_its_exit_status(libraries: Path, build: Build) -> None:
    done = execute(build("audited"), libraries, ISTHMUS_QNN_VALIDATE="exitcode=66")
    assert done.returncode == 0, done.stderr
    assert "0 mistakes, 0 leaks" in done.stderr


@pytest.mark.parametrize(
    ("value", "reported"),
    [("1,exitcod=3", "there is no option 'exitcod=3'. Did you mean 'exitcode'?"), ("exitcode=256", "takes 1 to 255")],
)
def test_an_option_that_does_not_exist_is_reported(libraries: Path, build: Build, value: str, reported: str) -> None:
    done = execute(build("mistakes"), libraries, "libQnnCpu.so", ISTHMUS_QNN_VALIDATE=value)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert reported in done.stderr


@pytest.mark.parametrize("value", ["", "0"])
def test_a_variable_set_to_0_disables_the_validation(libraries: Path, build: Build, value: str) -> None:
    done = execute(build("mistakes"), libraries, "libQnnCpu.so", ISTHMUS_QNN_VALIDATE=value)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "isthmus: checked" not in done.stderr


def test_a_library_that_is_forwarded_to_is_not_validated_twice(libraries: Path, behind: Path, build: Build) -> None:
    done = execute(
        build("mistakes"), libraries, "libQnnCpu.so", ISTHMUS_QNN_FORWARD=str(behind / "libQnnCpu.so"),
        ISTHMUS_QNN_VALIDATE="1",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.count("isthmus: checked") == 1


def test_a_library_that_cannot_be_loaded_is_reported_and_answers_an_error(libraries: Path, build: Build) -> None:
    done = execute(build("mistakes"), libraries, "libQnnCpu.so", ISTHMUS_QNN_FORWARD="/nowhere/libQnnCpu.so")
    assert done.returncode == 1
    assert "isthmus: libQnnCpu: cannot forward to ISTHMUS_QNN_FORWARD=" in done.stderr
    assert "answers 1009" in done.stderr


def test_a_library_that_is_configured_to_forward_to_itself_is_an_error(libraries: Path, build: Build) -> None:
    itself = libraries / "libQnnCpu.so"
    done = execute(build("mistakes"), libraries, "libQnnCpu.so", ISTHMUS_QNN_FORWARD=str(itself))
    assert done.returncode == 1
    line, answer = done.stderr.splitlines()
    assert line == (
        f"isthmus: libQnnCpu: ISTHMUS_QNN_FORWARD names this library itself: {itself}; "
        "name the one to forward to, and load another"
    )
    assert "answers 1009" in answer


def test_one_library_may_be_forwarded_to_by_another_of_the_same_folder(libraries: Path, build: Build) -> None:
    done = execute(build("mistakes"), libraries, "libQnnLpai.so", ISTHMUS_QNN_FORWARD=str(libraries / "libQnnCpu.so"))
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert f"{len(MISTAKES)} mistakes, 1 leak" in done.stderr


@pytest.mark.parametrize("forward", ["/nowhere/libQnnCpu.so", "itself"])
def test_calls_by_name_are_not_served_where_they_are_to_be_forwarded_and_cannot_be(
    libraries: Path, forward: str
) -> None:
    backend = libraries / "libQnnCpu.so"
    code = (
        "import ctypes, sys; made = ctypes.c_void_p()\n"
        "print(ctypes.CDLL(sys.argv[1]).QnnBackend_create(None, None, ctypes.byref(made)), made.value)\n"
        "print(ctypes.CDLL(sys.argv[2]).QnnSystemContext_create(ctypes.byref(made)), bool(made.value))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, backend, libraries / "libQnnSystem.so"], capture_output=True, text=True,
        timeout=600, env={**os.environ, "ISTHMUS_QNN_FORWARD": str(backend) if forward == "itself" else forward},
    )  # fmt: skip
    # The system library beside our own is our own.
    assert done.stdout.splitlines() == ["1009 None", "0 True" if forward == "itself" else "1009 False"]
    assert len(done.stderr.splitlines()) == (1 if forward == "itself" else 2), done.stderr


FOREIGN_SYSTEM = """
#include "QNN/System/QnnSystemInterface.h"
static QnnSystemInterface_t table = {0, "OTHER", {1, MINOR, 0}, {{FIRST}}};
static const QnnSystemInterface_t *tables[] = {&table};
Qnn_ErrorHandle_t QnnSystemInterface_getProviders(const QnnSystemInterface_t ***list, uint32_t *count) {
  *list = tables, *count = 1;
  return 0;
}
"""


@pytest.mark.parametrize(("minor", "first"), [("14", "(void *)8"), ("15", "0")], ids=["shorter table", "null entry"])
def test_a_call_by_name_follows_no_entry_that_another_system_library_lacks(
    libraries: Path, tmp_path: Path, minor: str, first: str
) -> None:
    source = tmp_path / "system.c"
    source.write_text(FOREIGN_SYSTEM)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f"-I{INCLUDE}", f"-DMINOR={minor}", f"-DFIRST={first}", source, "-o",
         tmp_path / "libQnnSystem.so"], check=True,
    )  # fmt: skip
    code = (
        "import ctypes, sys; made = ctypes.c_void_p()\n"
        "print(ctypes.CDLL(sys.argv[1]).QnnSystemContext_create(ctypes.byref(made)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, libraries / "libQnnSystem.so"], capture_output=True, text=True, timeout=600,
        env={**os.environ, "ISTHMUS_QNN_FORWARD": str(tmp_path / "libQnnHtp.so")},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr


FOREIGN_BACKEND = """
#include "QNN/QnnInterface.h"
static Qnn_ErrorHandle_t answer(void) { return 77; }
static struct { uint32_t id; const char *name; Qnn_ApiVersion_t version; void *entries[QNN_TABLE_ENTRIES]; } table =
    {0, "OTHER", {{MAJOR, MINOR, 0}, {1, 0, 0}}, {0}};
static const void *tables[] = {&table};
Qnn_ErrorHandle_t QnnInterface_getProviders(const QnnInterface_t ***list, uint32_t *count) {
  for (int i = 0; i < QNN_TABLE_ENTRIES; i++) table.entries[i] = i < ENTRIES ? (void *)answer : (void *)8;
  *list = (const QnnInterface_t **)tables, *count = 1;
  return 0;
}
"""
LAST = {"QnnTensor_updateGraphTensors": 57, "QnnTensor_updateContextTensors": 58, "QnnContext_finalize": 66,
        "QnnContext_addToDlc": 71}  # fmt: skip
"""Functions near the ends of the tables of QNN's versions, with their places."""


@pytest.mark.parametrize(
    ("version", "entries"),
    [((2, 31), 58), ((2, 32), 71), ((2, 39), 71), ((2, 40), 72), ((1, 40), 58), ((3, 40), 58)],
    ids=lambda given: str(given),
)
def test_a_call_by_name_follows_no_entry_beyond_the_end_of_another_backends_table(
    libraries: Path, tmp_path: Path, version: tuple[int, int], entries: int
) -> None:
    """What lies there is no function, and as many entries are known as each version of QNN declares."""
    source = tmp_path / "backend.c"
    source.write_text(FOREIGN_BACKEND)
    defined = [f"-DMAJOR={version[0]}", f"-DMINOR={version[1]}", f"-DENTRIES={entries}"]
    other = tmp_path / "libQnnHtp.so"
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{INCLUDE}", *defined, source, "-o", other], check=True)
    code = (
        "import ctypes, sys; library = ctypes.CDLL(sys.argv[1])\n"
        "for name in sys.argv[2:]: print(getattr(library, name)(*[ctypes.c_void_p()] * 6), flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, libraries / "libQnnCpu.so", *LAST], capture_output=True, text=True, timeout=600,
        env={**os.environ, "ISTHMUS_QNN_FORWARD": str(other)},
    )  # fmt: skip
    answers = [77 if place < entries else 1000 for place in LAST.values()]
    assert (done.returncode, done.stdout.split()) == (0, [str(each) for each in answers]), done.stderr


def test_a_report_that_cannot_be_written_is_one_line_of_error(
    libraries: Path, behind: Path, build: Build, tmp_path: Path
) -> None:
    done = execute(
        build("mistakes"), libraries, "libQnnCpu.so", ISTHMUS_QNN_FORWARD=str(behind / "libQnnCpu.so"),
        ISTHMUS_QNN_REPORT=str(tmp_path / "nowhere" / "report.json"),
    )  # fmt: skip
    assert done.returncode == 0
    last = done.stderr.splitlines()[-1]
    assert last == (
        f"isthmus: ISTHMUS_QNN_REPORT='{tmp_path}/nowhere/report.json' cannot be written: No such file or directory"
    )


@pytest.mark.parametrize("own", [False, True], ids=["the vendor's library", "our own"])
def test_the_calls_of_onnx_runtimes_provider_are_clean(libraries: Path, tmp_path: Path, own: bool) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    pytest.importorskip("onnx")
    from capi import ort_provider, test_provider

    model, file = test_provider.convolution(tmp_path / "tiny.onnx"), tmp_path / "report.json"
    code = (
        "import sys, numpy\n"
        "from capi import ort_provider\n"
        "session = ort_provider.session(sys.argv[1], sys.argv[2])\n"
        "session.run(None, {'x': numpy.ones((1, 4, 12, 12), numpy.float32)})\n"
        "del session\n"
    )
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    how = {"ISTHMUS_QNN_FORWARD": str(ort_provider.vendor_library("QnnHtp"))} if not own else {}
    settings = {"ISTHMUS_QNN_VALIDATE": "1", "ISTHMUS_QNN_REPORT": str(file), "PYTHONPATH": path, **how}
    done = subprocess.run(
        [sys.executable, "-c", code, model, libraries / "libQnnHtp.so"],
        capture_output=True, text=True, timeout=240, env={**os.environ, **settings},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert report["mistakes"] == []
    assert report["leaks"] == []
    assert report["calls"]["graphExecute"]["count"] == 1
    assert report["calls"]["backendValidateOpConfig"]["count"] >= 1
