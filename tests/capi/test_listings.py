"""The listings of QNN's own tutorials, put right, as programs in C and C++ that know nothing of Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_programs import Build, execute

KINDS = [("gcc", False), ("g++", False), ("g++", True)]
kinds = pytest.mark.parametrize(("compiler", "sanitize"), KINDS, ids=["c", "c++", "c++-asan"])

# -- OpenCL buffers of the client's own --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opencl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """An OpenCL library that a program in C can load, and the variables that have it find its driver."""
    pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")
    from isthmus.opencl.library import library

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
    done = execute(build("gpu_opencl", compiler, sanitize), libraries, path, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "done" in done.stdout.splitlines()
    assert "is no object of OpenCL, or was released" in done.stdout


@pytest.mark.parametrize("how", ["late", "forget"])
def test_buffers_are_registered_after_the_graph_is_ready_or_never_freed(
    libraries: Path, opencl: tuple[Path, dict[str, str]], build: Build, how: str
) -> None:
    path, variables = opencl
    done = execute(build("gpu_opencl"), libraries, path, how, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "done" in done.stdout.splitlines()
