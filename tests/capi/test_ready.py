"""A client in C is ready soon: asking compiles nothing, and compiled code serves it wherever it comes from."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.suites import LONG

import isthmus
from capi.host_programs import complaints, execute
from isthmus.capi.installation import SETTINGS
from isthmus.compiled import shipped
from isthmus.engine.native import cache
from isthmus.engine.native.target import host

PACKAGE = Path(isthmus.__file__).parent
PACKAGING = Path(__file__).parents[2] / "packaging"


def steps(done):
    """Return what the program printed, by its first word."""
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.parametrize("kind", ["float", "fixed"])
def test_validation_compiles_nothing(libraries, build, tmp_path, kind) -> None:
    done = execute(build("ready"), libraries, "libQnnHtp.so", kind, "validate", ISTHMUS_CACHE_DIR=str(tmp_path / "c"))
    assert "validated" in steps(done)
    assert done.stderr == ""
    assert not (tmp_path / "c").exists()


def test_a_client_in_floats_runs_the_same_on_cpu_and_htp(libraries, build) -> None:
    cpu, htp = (execute(build("ready"), libraries, f"libQnn{name}.so", "float") for name in ("Cpu", "Htp"))
    assert steps(cpu)["result"] == steps(htp)["result"]


@LONG
@pytest.mark.parametrize("kind", ["float", "fixed"])
def test_code_that_a_wheel_contains_serves_clients_in_c(libraries, build, tmp_path, monkeypatch, kind) -> None:
    """What the first run compiles is shipped with a copy of the package, and a client of that compiles nothing."""
    monkeypatch.syspath_prepend(str(PACKAGING))
    import precompiled

    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path / "cache"))
    first = execute(build("ready"), libraries, "libQnnHtp.so", kind)
    kernels = [kernel for kernel in precompiled.CATALOGUE if cache.path(kernel, host()).exists()]
    assert len(kernels) >= 10
    monkeypatch.setattr(precompiled, "CATALOGUE", kernels)
    del sys.modules["precompiled"]
    source = tmp_path / "source"
    shutil.copytree(PACKAGE, source / "isthmus", ignore=shutil.ignore_patterns("__pycache__"))
    archives = source / "isthmus" / "compiled" / shipped.FOLDER.name
    archives.mkdir()
    precompiled.write_kernels(host(), archives / f"{host().name}.zip")
    shutil.copytree(libraries, tmp_path / "libraries")
    settings = tmp_path / "libraries" / SETTINGS
    settings.write_text(settings.read_text().replace(str(PACKAGE.parent), str(source)))

    unused = tmp_path / "unused"
    later = execute(build("ready"), tmp_path / "libraries", "libQnnHtp.so", kind, ISTHMUS_CACHE_DIR=str(unused))
    assert steps(later)["result"] == steps(first)["result"]
    assert later.stderr == ""
    assert not unused.exists()
    # The copy is used, and not the package that these tests run.
    (archives / f"{host().name}.zip").unlink()
    os.mkdir(unused)
    compiling = execute(build("ready"), tmp_path / "libraries", "libQnnHtp.so", kind, ISTHMUS_CACHE_DIR=str(unused))
    assert "compiling" in compiling.stderr
    assert complaints(compiling) == []
