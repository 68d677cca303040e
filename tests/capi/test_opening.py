"""Libraries are opened: by several threads, around forks, in programs with and without Python, by settings that lie."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from capi.host_programs import Build, complaints, execute

HERE = Path(__file__).parent
AGAIN = "run `isthmus capi install DIR` again"


def python(code: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in Python to its end."""
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )  # fmt: skip


# -- threads and forks -------------------------------------------------------------------------------------------------


def test_libraries_that_threads_open_at_once_share_one_interpreter(libraries: Path, build: Build) -> None:
    for _ in range(3):
        done = execute(build("opening"), libraries)
        assert (done.returncode, done.stdout, complaints(done)) == (0, "done\n", [])


def test_a_fork_while_libraries_are_opened_leaves_no_child_waiting(libraries: Path, build: Build) -> None:
    done = execute(build("opening"), libraries, 12)
    assert (done.returncode, done.stdout, complaints(done)) == (0, "done\n", [])


@pytest.mark.parametrize("first", [[], ["rpcmem"]], ids=["a-back-end", "libcdsprpc"])
def test_a_forked_child_is_answered_by_all_libraries_whichever_started_python(
    libraries: Path, build: Build, first: list[str]
) -> None:
    done = execute(build("forked"), libraries, *first)
    assert (done.returncode, done.stdout, complaints(done)) == (0, "done\n", [])


def test_threads_that_hold_the_interpreter_open_a_library_without_waiting_for_one_another(libraries: Path) -> None:
    code = (
        "import ctypes, sys, threading\n"
        "sys.setswitchinterval(1e-5)\n"
        "from isthmus.cabi import tables as interface\n"
        "together, answers = threading.Barrier(6), []\n"
        "tables = [interface.providers(ctypes.PyDLL(file))[0].table for file in sys.argv[1:]]\n"
        # Functions of this kind are called in the GIL, as those of an extension module are.
        "kind = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint32)\n"
        "def use(number):\n"
        "    together.wait()\n"
        "    answers.append(kind(tables[number % len(tables)].propertyHasCapability)(302))\n"
        "threads = [threading.Thread(target=use, args=(number,), daemon=True) for number in range(6)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join(60) for thread in threads]\n"
        "print(answers)\n"
    )
    done = python(code, libraries / "libQnnCpu.so", libraries / "libQnnLpai.so")
    assert (done.returncode, done.stdout, complaints(done)) == (0, f"{[0] * 6}\n", [])


def test_a_program_in_python_that_forks_while_a_library_is_opened_leaves_no_child_waiting(libraries: Path) -> None:
    code = (
        # A fork during the import of logging makes Python itself complain: it is imported before.
        "import ctypes, logging, os, signal, sys, threading, time, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "from isthmus.cabi import tables as interface\n"
        "tables = [interface.providers(ctypes.CDLL(file))[0].table for file in sys.argv[1:]]\n"
        "def use():\n"
        "    for table in tables:\n"
        "        assert interface.function(table, 'propertyHasCapability')(302) == 0\n"
        "thread = threading.Thread(target=use)\n"
        "thread.start()\n"
        "for _ in range(4):\n"
        "    time.sleep(0.005)\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        signal.alarm(60)\n"
        "        use()\n"
        "        os._exit(0)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "thread.join()\n"
    )
    done = python(code, libraries / "libQnnCpu.so", libraries / "libQnnLpai.so")
    assert (done.returncode, done.stdout, complaints(done)) == (0, "0\n" * 4, [])


def test_a_library_whose_opening_was_interrupted_can_be_opened_again(libraries: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from capi.qnn_calls import Client\n"
        "from isthmus.capi import serve\n"
        "client, opened = Client(Path(sys.argv[1])), serve.open\n"
        "def interrupted(*arguments):\n"
        "    serve.open = opened\n"
        "    raise KeyboardInterrupt\n"
        "serve.open = interrupted\n"
        "try:\n"
        "    print('answers', client.propertyHasCapability(302))\n"
        "    [None for _ in range(1000)]\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
        "print('answers', client.propertyHasCapability(302))\n"
    )
    done = python(code, libraries / "libQnnCpu.so")
    assert (done.returncode, complaints(done)) == (0, [])
    assert done.stdout.splitlines()[-2:] == ["interrupted", "answers 0"]


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(libraries: Path, tmp_path: Path) -> Path:
    """The settings of libraries that a test may damage."""
    shutil.copytree(libraries, tmp_path / "copied")
    return tmp_path / "copied" / "isthmus.conf"


def changed(settings: Path, name: str, value: str) -> None:
    settings.write_text(re.sub(f"^{name}=.*$", f"{name}={value}", settings.read_text(), flags=re.MULTILINE))


def said(build: Build, settings: Path) -> str:
    """The one line that a program earns whose library cannot start Python; it goes on, and ends by itself."""
    done = execute(build("threads"), settings.parent, "libQnnCpu.so")
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert "backendCreate(NULL, NULL, &backend) answers 1003" in second
    assert first.startswith("isthmus: libQnnCpu: ")
    return first.removeprefix("isthmus: libQnnCpu: ")


def test_without_a_shared_libpython_one_line_says_what_to_install(build: Build, settings: Path) -> None:
    changed(settings, "libpython", "")
    assert said(build, settings).startswith("no shared libpython was found when it was installed: install one")


def test_without_settings_one_line_says_what_to_run(build: Build, settings: Path) -> None:
    settings.unlink()
    line = said(build, settings)
    assert line == f"run `isthmus capi install DIR` for a program without Python; there is no {settings}"


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("executable", "/gone/bin/python", f"the Python that it was installed with is gone: /gone/bin/python; {AGAIN}"),
        ("libpython", "/gone/libpython.so", f"cannot load Python: /gone/libpython.so: .*; {AGAIN}"),
        ("libpython", "/proc/self/exe", f"cannot load Python: /proc/self/exe: .*; {AGAIN}"),
        ("bootstrap", "import isthmus.gone", f"its package cannot be imported: No module named .*; {AGAIN}"),
        ("bootstrap", "raise SystemExit(7)", f"its package cannot be imported: 7; {AGAIN}"),
        ("bootstrap", "((", f"its package cannot be imported: .*; {AGAIN}"),
        ("bootstrap", "", f"there is no Python in .*/isthmus.conf; {AGAIN}"),
    ],
)
def test_stale_settings_are_reported_in_one_line_and_end_no_program(
    build: Build, settings: Path, name: str, value: str, line: str
) -> None:
    changed(settings, name, value)
    assert re.fullmatch(line, said(build, settings))


def test_settings_that_are_random_bytes_are_reported_in_one_line(build: Build, settings: Path) -> None:
    settings.write_bytes(bytes(range(256)) * 400)
    assert said(build, settings) == f"there is no Python in {settings}; {AGAIN}"


def test_a_python_without_its_own_library_is_reported_and_ends_no_program(
    build: Build, settings: Path, tmp_path: Path
) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    broken = tmp_path / "broken"
    for part in ("bin", f"lib/{version}/encodings", f"lib/{version}/lib-dynload"):
        (broken / part).mkdir(parents=True)
    for part in ("bin/python", f"lib/{version}/os.py", f"lib/{version}/encodings/__init__.py"):
        (broken / part).touch(0o755)
    changed(settings, "executable", str(broken / "bin" / "python"))
    done = execute(build("threads"), settings.parent, "libQnnCpu.so")
    assert done.returncode == 1
    # Before it, Python itself shows where it has looked.
    line, answer = done.stderr.splitlines()[-2:]
    assert re.fullmatch(f"isthmus: libQnnCpu: Python cannot be started: .*; {AGAIN}", line)
    assert "answers 1003" in answer


def test_variables_of_a_program_are_neither_obeyed_nor_changed(libraries: Path, build: Build, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('obeyed', flush=True)\n")
    done = execute(build("variables"), libraries, PYTHONHOME="/gone", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, complaints(done)) == (0, "/gone\n", [])


@pytest.mark.parametrize("denied", ["isthmus.conf", "executable"])
def test_settings_and_a_python_without_permission_are_reported_as_such(
    libraries: Path, build: Build, tmp_path: Path, denied: str
) -> None:
    # Root may do anything: there, a user who may not runs the program.
    user = 65534 if os.geteuid() == 0 else None
    # TMPDIR may be closed to that user.
    with tempfile.TemporaryDirectory(dir=None if user is None else "/tmp") as public:
        folder = Path(public)
        folder.chmod(0o755)
        for file in (libraries / "libQnnCpu.so", libraries / "isthmus.conf", build("variables")):
            shutil.copy(file, folder)
        (folder / "python").write_text("")
        settings = folder / "isthmus.conf"
        if denied == "executable":
            settings.write_text(re.sub("executable=.*", f"executable={folder}/python", settings.read_text()))
        else:
            settings.chmod(0)
        done = subprocess.run(
            [folder / "variables", folder], capture_output=True, text=True, timeout=600, user=user, cwd="/"
        )
    expected = {
        "isthmus.conf": f"permission denied: {settings}",
        "executable": f"permission denied: the Python that it was installed with, {folder}/python; {AGAIN}",
    }[denied]
    assert done.stderr.splitlines()[0] == f"isthmus: libQnnCpu: {expected}"
