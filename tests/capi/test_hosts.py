"""Programs in C and C++ that know nothing of Python run QNN on our libraries, and leave cleanly."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.processes import run_client
from support.recurrent_states import LAYERS, Recurrent, check
from support.suites import long, sampled

from capi.host_programs import PROGRAMS, Build, accelerators, complaints, execute
from isthmus.capi.installation import INCLUDE
from isthmus.errors import Code

KINDS = [("gcc", False), ("g++", False), ("g++", True)]
kinds = pytest.mark.parametrize(("compiler", "sanitize"), KINDS, ids=["c", "c++", "c++-asan"])


@kinds
def test_a_qmem_graph_runs_online_and_from_its_binary(
    libraries: Path, build: Build, compiler: str, sanitize: bool
) -> None:
    done = execute(build("htp_qmem", compiler, sanitize), libraries)
    assert (done.returncode, complaints(done)) == (0, [])
    assert "done" in done.stdout.splitlines()


@pytest.mark.parametrize("sanitize", [False, True], ids=["c++", "c++-asan"])
def test_pieces_of_one_buffer_are_registered_once_and_executed_in_place(
    libraries: Path, build: Build, sanitize: bool
) -> None:
    """A runner of language models keeps cache, prompt and token in one buffer; during an execution it has no access."""
    done = execute(build("shared_pieces", "g++", sanitize), libraries)
    assert (done.returncode, complaints(done)) == (0, [])
    assert "8 executions, 0 bytes copied, 2688 in place, 8 registrations" in done.stdout.splitlines()


def test_a_program_that_frees_nothing_leaves_nothing(libraries: Path, build: Build) -> None:
    done = execute(build("htp_qmem"), libraries, "forget")
    assert (done.returncode, complaints(done)) == (0, [])
    started = {int(number) for number in re.findall(r"Accelerator process (\d+) started", done.stdout)}
    assert started
    assert not started & accelerators()


@kinds
def test_lpai_asks_for_pools_and_runs_in_them(
    libraries: Path, counting: Path, build: Build, compiler: str, sanitize: bool
) -> None:
    done = execute(build("lpai_pools", compiler, sanitize), libraries, counting)
    assert (done.returncode, complaints(done)) == (0, [])
    assert done.stdout.startswith("alignment 128 128\nscratch 512 persistent 256\n")
    assert "its scratch memory is not set" in done.stdout
    assert "which is not a multiple of 128" in done.stdout


@pytest.mark.parametrize(
    ("compiler", "target", "version", "alignment"),
    [("gcc", 0, "6", "128 128"), ("g++", 0, "5", "64 64"), ("gcc", 2, "0x10005", "64 64"), ("gcc", 0, "4", "64 8"),
     ("gcc", 2, "7", "128 128"), ("gcc", 0, "0", "128 128")],
)  # fmt: skip
def test_lpais_hardware_is_what_a_program_names(
    libraries: Path, build: Build, compiler: str, target: int, version: str, alignment: str
) -> None:
    done = execute(build("lpai_hardware", compiler), libraries, target, version)
    assert (done.returncode, complaints(done)) == (0, [])
    assert f"created 0\nalignment {alignment}\n" in done.stdout
    for hint in ("PREPARE, enablePerLayer = 0, cores '0,1'", "PERF_CFG = fps 1, ", "CORE_AFFINITY = "):
        assert done.stdout.count(f"LPAI graph option {hint}") == 1
    assert done.stdout.count("accepted, but without effect here") == 3


@pytest.mark.parametrize(("target", "version"), [(3, "6"), (0, "3"), (0, "0x7fffffff")])
def test_hardware_that_lpai_does_not_simulate_is_refused(
    libraries: Path, build: Build, target: int, version: str
) -> None:
    done = execute(build("lpai_hardware"), libraries, target, version)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "created 4012")


def test_what_a_program_names_comes_before_the_configuration(libraries: Path, build: Build, tmp_path: Path) -> None:
    """The program names version 5; another one names none (0), so the configuration's v4 applies."""
    config = lpai_config(tmp_path, "ddr", enable_hw_ver="v4")
    done = execute(build("lpai_hardware"), libraries, 0, "5", ISTHMUS_LPAI_CONFIG=config)
    assert "alignment 64 64\n" in done.stdout
    done = execute(build("lpai_hardware"), libraries, 0, "0", ISTHMUS_LPAI_CONFIG=config)
    assert "alignment 64 8\n" in done.stdout


@kinds
def test_lpai_runs_in_tcm_by_its_configuration(
    libraries: Path, counting: Path, build: Build, tmp_path: Path, compiler: str, sanitize: bool
) -> None:
    config = tmp_path / "lpai.conf"
    config.write_text(
        '{"lpai_backend": {"target_env": "adsp", "enable_hw_ver": "v6"},'
        ' "lpai_graph": {"execute": {"mem_type": "tcm"}}}'
    )
    done = execute(build("lpai_pools", compiler, sanitize), libraries, counting, "tcm", ISTHMUS_LPAI_CONFIG=str(config))
    assert (done.returncode, complaints(done)) == (0, [])
    assert "log 3: TCM pool current size: 0 max_size: 2035712\n" in done.stdout
    assert done.stdout.count(" from tcm pool 0\n") == 3
    assert "memory types cannot be mixed" in done.stdout


def lpai_config(tmp_path: Path, mem_type: str, **backend: str) -> str:
    """A file for direct mode in which the client brings inputs and outputs."""
    config = tmp_path / "lpai.conf"
    settings = {
        "lpai_backend": {"target_env": "adsp", **backend},
        "lpai_graph": {"prepare": {"exclude_io": True}, "execute": {"mem_type": mem_type}},
    }
    config.write_text(json.dumps(settings))
    return str(config)


@pytest.mark.parametrize(("compiler", "mem_type"), [("gcc", "tcm"), ("g++", "tcm"), ("gcc", "ddr")])
def test_a_program_brings_its_io_in_the_memory_type_of_its_context(
    libraries: Path, build: Build, tmp_path: Path, compiler: str, mem_type: str
) -> None:
    program = build("lpai_tcm_io", compiler)
    done = execute(program, libraries, ISTHMUS_LPAI_CONFIG=lpai_config(tmp_path, mem_type))
    assert done.returncode == 0, done.stderr
    assert ["is not a context of libQnnLpai.so" in line for line in complaints(done)] == [True, True]
    lines = done.stdout.splitlines()
    assert lines[-1] == "done"
    if mem_type == "ddr":
        assert {"finalize 0", "own memory 0", "allocated 33"} <= set(lines)
        assert "tcm pool" not in done.stdout
        return
    # One of the 32 buffers is the model binary.
    assert {"finalize 0", "own memory 6004", "allocated 31"} <= set(lines)
    assert lines.count("log 3: Allocate size 256 from tcm pool 0") == 2 * 64 + 31
    assert "log 1: TCM system fatal error: more than 32 buffers" in lines


def test_a_program_gets_no_buffer_of_an_unknown_memory_type(libraries: Path, build: Build, tmp_path: Path) -> None:
    done = execute(build("lpai_tcm_io"), libraries, ISTHMUS_LPAI_CONFIG=lpai_config(tmp_path, "vtcm"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {"finalize 1002", "no buffers", "allocated 0", "log 1: Invalid memory type"} <= set(lines)
    assert "log 1: Memory type only supports DDR & TCM" in lines


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.op)
@pytest.mark.parametrize("library", ["libQnnLpai.so", long("libQnnHtp.so"), "libQnnCpu.so"])
def test_a_recurrent_layer_composed_in_c_keeps_its_states(
    libraries: Path, build: Build, tmp_path: Path, library: str, layer: Recurrent
) -> None:
    (tmp_path / "values").write_bytes(layer.blob)
    (tmp_path / "frames").write_bytes(layer.frames.tobytes())
    done = execute(build("recurrent_states"), libraries, library, layer.op, tmp_path / "values", tmp_path / "frames")
    assert (done.returncode, complaints(done)) == (0, [])
    for found in np.array(done.stdout.split(), np.float32).reshape(2, *layer.expected.shape):
        check(layer, found)


@pytest.mark.parametrize("library", ["libQnnHtp.so", "libQnnCpu.so"])
def test_four_threads_execute_a_thousand_times_each(libraries: Path, build: Build, library: str) -> None:
    done = execute(build("threads"), libraries, library)
    assert (done.returncode, done.stdout, complaints(done)) == (0, "done\n", [])


def test_four_threads_of_a_program_with_the_sanitizer(libraries: Path, build: Build) -> None:
    done = execute(build("threads", "gcc", sanitize=True), libraries, "libQnnHtp.so", 200)
    assert (done.returncode, done.stdout, complaints(done)) == (0, "done\n", [])


@pytest.mark.parametrize("place", sampled(["notification", "log", "free", "list"], 2))
@pytest.mark.parametrize("library", ["libQnnHtp.so", long("libQnnCpu.so")])
def test_a_callback_that_ends_its_thread_stops_no_execution_and_no_free(
    libraries: Path, build: Build, library: str, place: str
) -> None:
    done = execute(build("ended_threads"), libraries, library, place)
    freed = int(Code.CONTEXT_INVALID_HANDLE) if place == "free" else 0
    assert (done.returncode, done.stdout, complaints(done)) == (0, f"contextFree {freed}\ndone\n", [])


def test_a_program_in_python_that_frees_nothing_leaves_nothing(libraries: Path) -> None:
    code = (
        "import sys, ctypes; from pathlib import Path; from capi.qnn_calls import Client, doubling, opened\n"
        "client = Client(Path(sys.argv[1]))\n"
        "backend, context = opened(client)\n"
        "doubling(client, context)\n"
        "from isthmus import capi\n"
        "print(capi.graphs()[0].context.backend.get_property(20001))\n"
    )
    done = run_client(code, libraries / "libQnnHtp.so", options=("-W", "error"))
    assert (done.returncode, complaints(done)) == (0, [])
    assert int(done.stdout) not in accelerators()


@pytest.fixture(scope="module")
def by_name(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that is linked with the libraries, and calls functions by their names."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    program = tmp_path_factory.mktemp("linked") / "by_name"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    command = ["gcc", *flags, PROGRAMS / "by_name.c", "-o", program, "-lQnnHtp", "-lcdsprpc"]
    subprocess.run(list(map(str, command)), check=True)
    return program


@pytest.mark.parametrize(("says", "reserved"), [("raw", 8192), ("memhandle", 0)])
def test_a_node_declares_which_memory_its_inputs_and_outputs_will_have(by_name: Path, says: str, reserved: int) -> None:
    done = execute(by_name, says)
    assert (done.returncode, complaints(done)) == (0, [])
    assert done.stdout.splitlines() == [f"staging reserved {reserved}", "staging reserved 0", "y 14"]


def test_a_node_cannot_declare_memory_of_a_tensor_within_the_graph(by_name: Path) -> None:
    done = execute(by_name, "native")
    assert done.returncode == 1
    assert "tensor 'between' is MEMHANDLE there, which only graph inputs and outputs may be" in done.stderr
    assert "QnnGraph_addNode(graph, add) answers 6005" in done.stderr


CONTEXTS = [(6, 1024), long(25, 4096, id="25-contexts-of-64-megabytes")]


@pytest.mark.parametrize(("rounds", "width"), CONTEXTS)
@pytest.mark.parametrize("library", ["libQnnHtp.so", "libQnnCpu.so"])
def test_contexts_one_after_the_other_take_the_memory_of_one(
    libraries: Path, build: Build, library: str, rounds: int, width: int
) -> None:
    done = execute(build("contexts"), libraries, library, rounds, width)
    assert (done.returncode, complaints(done)) == (0, [])
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["live", "freed"] * rounds
    assert max(int(line[1]) for line in lines) <= 1.3 * int(lines[0][1])
    assert len({line[2] for line in lines if line[0] == "freed"}) == 1
