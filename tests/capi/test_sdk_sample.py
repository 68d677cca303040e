"""A program that is written for the SDK's headers compiles with ours, and runs on every backend."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support import model_libraries
from support.suites import long

from capi.host_programs import PROGRAMS, execute
from isthmus.capi.installation import INCLUDE


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled as with the SDK: its headers are found in ``include/QNN``."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    program = tmp_path_factory.mktemp("sample") / "sample"
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE / 'QNN'}"]
    subprocess.run(["g++", *flags, PROGRAMS / "sdk_sample.cpp", "-o", program, "-ldl"], check=True)
    return program


@pytest.mark.parametrize("backend", ["Htp", long("Cpu"), long("Gpu")])
def test_the_sample_composes_executes_saves_and_loads(
    libraries: Path, sample: Path, tmp_path: Path, backend: str
) -> None:
    if backend == "Gpu":
        pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")
    model = model_libraries.build(tmp_path / "model", LISTENS=1)
    done = execute(sample, libraries / f"libQnn{backend}.so", model, libraries / "libQnnSystem.so")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
