"""A wheel with compiled code runs models and tests in an environment that has no compiler."""

import os
import platform
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy
import pytest
from support.suites import LONG

import isthmus
from isthmus.capi.installation import INCLUDE
from isthmus.engine.native.target import host
from isthmus.tools import samples

PROJECT = Path(__file__).parents[2]
PACKAGE = Path(isthmus.__file__).parent
SITE = Path(numpy.__file__).parents[1]
NEEDED = (
    "numpy", "numpy.libs", "py.py", "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments",
    "exceptiongroup", "tomli", "typing_extensions.py",
)  # fmt: skip
"""What numpy and pytest consist of; nothing else of this environment is visible in the new one."""

_KERNELS_READ = """
import sys
from isthmus import Session
from isthmus.engine.native import cache
read, names = cache.read_shipped, set()
cache.read_shipped = lambda kernel, target: names.add(kernel) or read(kernel, target)
for backend in ("cpu", "htp"):
    with Session(sys.argv[1], backend=backend) as session:
        session.run()
print(*sorted(names))
"""


def run(*command: str | Path, **settings) -> str:
    """Run a command that must succeed; return its standard output."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_sources(folder: Path) -> Path:
    """Copy what a wheel is built from, without what is generated, as a clone has it; return the folder."""
    generated = shutil.ignore_patterns("__pycache__", "*.egg-info", "include", "functions.h")
    shutil.copytree(PROJECT / "src", folder / "src", ignore=generated)
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(PROJECT / file, folder)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A sample model, which needs no package to read it."""
    files, _ = samples.make_all()
    (tmp_path / "model.tflite").write_bytes(files["model.tflite"])
    return tmp_path / "model.tflite"


@pytest.fixture
def wheel(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel as `make wheel` builds it, with the code that one model needs on this machine."""
    monkeypatch.syspath_prepend(str(PROJECT / "packaging"))
    import precompiled

    kernels = run(sys.executable, "-c", _KERNELS_READ, model).split()
    monkeypatch.setattr(precompiled, "CATALOGUE", tuple(kernels))
    archives = tmp_path / "shipped"
    archives.mkdir()
    precompiled.write_kernels(host(), archives / f"{host().name}.zip")
    precompiled.write_functions(platform.machine(), archives / f"{platform.machine()}.zip")
    source = copy_sources(tmp_path / "source")
    name = f"manylinux_2_28_{platform.machine()}"
    settings = os.environ | {"ISTHMUS_SHIPPED": str(archives), "ISTHMUS_PLATFORM": name}
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path / "dist", source, env=settings)
    (built,) = (tmp_path / "dist").glob(f"isthmus-*-py3-none-{name}.whl")
    return built


@LONG
def test_a_wheel_needs_no_compiler(wheel: Path, model: Path, tmp_path: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"isthmus/capi/libraries/libQnnHtp.so", "isthmus/report/page/page.html"} <= names
    headers = {f"isthmus/{file.relative_to(PACKAGE)}" for file in INCLUDE.rglob("*.h*") if file.is_file()}
    assert {name for name in names if name.startswith("isthmus/capi/include/")} == headers
    assert not [name for name in names if "handwritten" in name or name.endswith(".pyc")]
    venv.create(tmp_path / "environment")
    python = tmp_path / "environment" / "bin" / "python"
    (site,) = (tmp_path / "environment").glob("lib/python3*/site-packages")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel)
    for name in NEEDED:
        if (SITE / name).exists():
            (site / name).symlink_to(SITE / name)
    example = (PROJECT / "examples" / "test_zero_copy.py").read_text()
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_zero_copy.py").write_text(example.replace("model.onnx", str(model)))
    bare = {"HOME": str(tmp_path / "home"), "PATH": ""}
    said = run(python, "-m", "pytest", "-q", folder, cwd=folder, env=bare)
    assert "2 passed" in said
    assert not list((tmp_path / "home").rglob("*.o"))
    run(python, "-m", "isthmus", "capi", "install", tmp_path / "libraries", cwd=folder, env=bare)
    assert (tmp_path / "libraries" / "libQnnHtp.so").exists()
    source = tmp_path / "program.c"
    source.write_text('#include "QNN/QnnInterface.h"\nint main(void) { return QNN_BACKEND_ID_CPU != 3; }\n')
    for folder in (tmp_path / "libraries/include", run(python, "-m", "isthmus", "capi", "include", env=bare).strip()):
        run("gcc", "-Wall", "-Wextra", "-Werror", f"-I{folder}", source, "-o", tmp_path / "program")
        run(tmp_path / "program")


@LONG
def test_a_wheel_with_code_is_not_built_without_its_libraries(tmp_path: Path) -> None:
    """A user of such a wheel has no compiler to make up for it."""
    (tmp_path / "shipped").mkdir()
    source = copy_sources(tmp_path / "source")
    settings = os.environ | {"ISTHMUS_SHIPPED": str(tmp_path / "shipped"), "PATH": "", "CC": "no-such-compiler"}
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path / "dist", source]
    done = subprocess.run(command, env=settings, capture_output=True, text=True)
    assert done.returncode != 0
    assert "there is no C compiler" in done.stdout + done.stderr
