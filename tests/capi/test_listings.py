"""The listings of QNN's own tutorials, put right, as programs in C and C++ that know nothing of Python."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.suites import long

from capi.host_programs import DRIVERS_LEAK, Build, accelerators, complaints, execute

KINDS = [pytest.param("gcc", False, id="c"), long("g++", False, id="c++"), long("g++", True, id="c++-asan")]
kinds = pytest.mark.parametrize(("compiler", "sanitize"), KINDS)

# -- OpenCL buffers of the client's own --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opencl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """An OpenCL library that a program in C can load, and the variables that have it find its driver."""
    pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")
    from isthmus.backends.gpu.runtime.library import library

    path = Path(library().path)
    drivers = sorted(path.parent.glob("*.icd"))
    if path.parent.name != ".libs" or not drivers:
        return path, {}
    folder = tmp_path_factory.mktemp("drivers")
    for each in drivers:
        (folder / each.name).write_text(f"{path.parent / each.read_text().strip()}\n")
    return path, {"OCL_ICD_VENDORS": str(folder), "PYOPENCL_HOME": str(path.parents[1])}


@kinds
def test_tensors_lie_in_the_clients_opencl_buffers(
    libraries: Path, opencl: tuple[Path, dict[str, str]], build: Build, compiler: str, sanitize: bool
) -> None:
    path, variables = opencl
    done = execute(build("gpu_opencl", compiler, sanitize), libraries, path, **variables, **DRIVERS_LEAK)
    assert (done.returncode, complaints(done)) == (0, [])
    assert "done" in done.stdout.splitlines()
    assert "is not an object of OpenCL, or was released" in done.stdout


@pytest.mark.parametrize("how", ["late", "forget", "offline"])
def test_buffers_are_registered_after_the_graph_is_ready_or_never_freed_or_with_a_loaded_one(
    libraries: Path, opencl: tuple[Path, dict[str, str]], build: Build, how: str
) -> None:
    path, variables = opencl
    done = execute(build("gpu_opencl"), libraries, path, how, **variables)
    assert (done.returncode, complaints(done)) == (0, [])
    assert "done" in done.stdout.splitlines()


# -- the TFLite delegate -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def litert(tmp_path_factory: pytest.TempPathFactory) -> list[Path | int]:
    """What a program is told of LiteRT: libpython, the library, a model, its input and output with their sizes."""
    pytest.importorskip("ai_edge_litert", reason="needs the package ai-edge-litert")
    import ai_edge_litert

    from isthmus.capi.installation import libpython
    from isthmus.delegate import probe_model

    python = libpython()
    if python is None:
        pytest.skip("needs a shared libpython")
    library = Path(ai_edge_litert.__file__).parent / "libpywrap_litert_common.so"
    model = tmp_path_factory.mktemp("model") / "model.tflite"
    model.write_bytes(probe_model.content())
    facts: list[Path | int] = [python, library, model]
    for index in (probe_model.INPUT, probe_model.OUTPUT):
        _, _, dims = probe_model.TENSORS[index]
        facts += [index, math.prod(dims)]
    return facts


LINES = [
    "INFO: Initialized TensorFlow Lite runtime.",
    "INFO: TfLiteQnnDelegate delegate: 2 nodes delegated out of 2 nodes with 1 partitions.",
    "INFO: Replacing 2 node(s) with delegate (TfLiteQnnDelegate) node, yielding 1 partitions.",
    "INFO: Tensor 0 is successfully registered to shared memory.",
    "INFO: Tensor 5 is successfully registered to shared memory.",
]
"""What the tutorial shows."""


@pytest.mark.parametrize("sanitize", [pytest.param(False, id="c++"), long(True, id="c++-asan")])
def test_the_delegate_runs_a_model_in_shared_memory(
    libraries: Path, litert: list[Path | int], build: Build, sanitize: bool
) -> None:
    done = execute(build("tflite_delegate", "g++", sanitize), libraries, *litert, **DRIVERS_LEAK)
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout.splitlines()
    events = json.loads(done.stdout.splitlines()[0])
    assert sum(event["value"] for event in events if event["name"].startswith("copied")) == 0
    assert sum(event["value"] for event in events if event["name"] == "used in place: shared") == 3 * 4 * (84 + 45)
    said = done.stderr.splitlines()
    assert [line for line in said if line in LINES] == LINES
    problems = [line for line in said if line.startswith("ERROR")]
    for line, part in zip(
        problems,
        ("option backend_type: it is mandatory", "options: they are null", "custom memory of 0 bytes",
         "an interpreter still runs 1 of its nodes", "it is unknown, or was deleted", "it is not allocated",
         "it is not allocated"),
        strict=True,
    ):  # fmt: skip
        assert part in line
    assert sum("goes with the interpreter that has a tensor there" in line for line in said) == 2


def test_a_program_that_forgets_its_delegate_leaves_no_accelerator(
    libraries: Path, litert: list[Path | int], build: Build
) -> None:
    done = execute(build("tflite_delegate", "g++"), libraries, *litert, "forget")
    assert done.returncode == 0, done.stderr
    started = {int(number) for number in re.findall(r"Accelerator process (\d+) started", done.stderr)}
    assert started
    assert not started & accelerators()


def test_a_forked_child_runs_no_node_of_its_parents_delegates(
    libraries: Path, litert: list[Path | int], build: Build
) -> None:
    done = execute(build("tflite_delegate", "g++"), libraries, *litert, "fork")
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout.splitlines()
    # Of both interpreters, each time; TFLite says it, nothing of Python's is entered.
    assert sum("(TfLiteQnnDelegate) failed to invoke" in line for line in done.stderr.splitlines()) == 2 * 3


def test_the_delegate_is_loaded_by_name_with_its_options_as_texts(
    libraries: Path, litert: list[Path | int], tmp_path: Path
) -> None:
    code = """
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter, load_delegate
library, model = sys.argv[1:]
outputs = []
delegate = load_delegate(library, {"backend_type": "htp", "htp_performance_mode": "burst", "log_level": "error"})
for delegates in ([delegate], []):
    interpreter = Interpreter(model, experimental_delegates=delegates)
    interpreter.allocate_tensors()
    (x,), (y,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.set_tensor(x["index"], np.linspace(-1, 1, 84, dtype=np.float32).reshape(x["shape"]))
    interpreter.invoke()
    outputs.append(interpreter.get_tensor(y["index"]))
np.testing.assert_allclose(*outputs, atol=1e-4)
for wrong in ({"backend_type": "hexagon"}, {"backend_type": "htp", "vtcm": "8"}, {}):
    try:
        load_delegate(library, wrong)
    except ValueError as problem:
        print(problem)
del interpreter, delegate, delegates
"""
    done = subprocess.run(
        [sys.executable, "-c", code, libraries / "libQnnTFLiteDelegate.so", str(litert[2])], capture_output=True,
        text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 nodes delegated out of 2 nodes" in done.stderr
    for part in ("must be one of undefined 0, gpu 1, htp 2", "there is no option named vtcm", "it is mandatory"):
        assert part in done.stdout
