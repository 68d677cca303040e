"""A child process of ours runs our code and the interpreter's, and nothing that lies about."""

import ast
import os
import signal
import site
import subprocess
import sys
from pathlib import Path

import pytest

import isthmus
from isthmus.system import isolated

POISONED = ("numpy", "llvmlite", "numba", "isthmus", "sitecustomize", "usercustomize", "runpy", "ctypes")


@pytest.fixture
def poisoned(tmp_path):
    """A folder full of modules with well-known names; each leaves a marker when it is run."""
    folder = tmp_path / "poisoned"
    folder.mkdir()
    for name in POISONED:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / f'{name}.ran')!r}, 'w').close()\n")
    return folder


def markers(folder):
    return sorted(path.name for path in folder.parent.glob("*.ran"))


def package_beside(folder, main):
    """A package of our name that can start children, with a module to run."""
    package = folder / "isthmus"
    (package / "system").mkdir(parents=True)
    source = Path(isthmus.__file__).parent
    (package / "__init__.py").write_text("")
    for name in ("system/__init__.py", "system/isolated.py", "errors.py"):
        (package / name).write_bytes((source / name).read_bytes())
    (package / "child.py").write_text(main)
    return folder


@pytest.mark.parametrize("variable", ["", ".", ":", "{folder}"])
def test_modules_in_the_working_folder_are_not_run(poisoned, monkeypatch, variable) -> None:
    monkeypatch.chdir(poisoned)
    monkeypatch.setenv("PYTHONPATH", variable.format(folder=poisoned))
    monkeypatch.setenv("PYTHONSTARTUP", str(poisoned / "numpy.py"))
    done = subprocess.run(
        isolated.command("isthmus.compiled.compile_server", "no number"),
        env={**os.environ, **isolated.environment()},  # even with every variable of the interpreter's left in
        capture_output=True,
        text=True,
        check=False,
    )
    assert "invalid literal for int()" in done.stderr, "the module itself was reached"
    assert markers(poisoned) == []


def test_a_plain_start_would_have_run_modules_in_the_working_folder(poisoned) -> None:
    subprocess.run([sys.executable, "-m", "isthmus"], cwd=poisoned, capture_output=True, check=False)
    assert "isthmus.ran" in markers(poisoned)


def test_the_package_that_runs_is_the_one_that_the_child_imports(tmp_path) -> None:
    script = "from isthmus.system import isolated; print('\\0'.join(isolated.command('isthmus.child', 'x', '')))"
    source = package_beside(tmp_path / "tree", "import sys, isthmus; print(isthmus.__file__, sys.argv[1:])")
    command = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": str(source)}, capture_output=True, check=True
    ).stdout.decode()
    done = subprocess.run(command[:-1].split("\0"), cwd="/", env={}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{source}/isthmus/__init__.py ['x', '']\n"


def test_dependencies_are_taken_from_the_interpreter_before_the_folder_of_the_package(tmp_path) -> None:
    source = package_beside(tmp_path / "tree", "import json, beside; print(json.__file__, beside.__file__)")
    (source / "json.py").write_text("raise SystemExit('the wrong one')")
    (source / "beside.py").write_text("")
    script = "import sys; from isthmus.system import isolated; print('\\0'.join(isolated.command('isthmus.child')))"
    command = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(source)!r}); sys.path.insert(0, {str(source)!r})\n"
         + script], cwd=tmp_path, env={}, capture_output=True, check=True,
    ).stdout.decode()  # fmt: skip
    done = subprocess.run(command[:-1].split("\0"), cwd="/", env={}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [os.path.dirname(os.__file__) + "/json/__init__.py", str(source / "beside.py")]


def test_packages_of_the_user_come_before_those_of_the_interpreter_as_they_do_here(tmp_path, monkeypatch) -> None:
    def import_path():
        return subprocess.run(isolated.command("site"), capture_output=True, text=True, check=True).stdout

    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    assert str(tmp_path) not in import_path()
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path))
    found = import_path()
    places = [os.path.dirname(os.__file__), str(tmp_path), site.getsitepackages()[0]]
    assert sorted(places, key=lambda place: found.index(f"{place}'")) == places


def test_the_environment_holds_what_a_child_needs_and_no_more(monkeypatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    needed = {"PATH": "/bin", "HOME": "/h", "LANG": "C", "LC_ALL": "C", "TMPDIR": "/t", "XDG_CACHE_HOME": "/c",
              "ISTHMUS_TARGET": "avx2"}  # fmt: skip
    for name, value in needed.items():
        monkeypatch.setenv(name, value)
    for name in ("PYTHONPATH", "PYTHONHOME", "NUMBA_DISABLE_JIT", "LD_PRELOAD", "PASSWORD"):
        monkeypatch.setenv(name, "1")
    assert isolated.environment() == needed
    monkeypatch.setenv("LD_LIBRARY_PATH", ":/opt/lib:.:relative")
    assert isolated.environment() == {**needed, "LD_LIBRARY_PATH": "/opt/lib"}


def test_an_interpreter_that_cannot_be_named_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(isthmus.QnnError, match=r"sys\.executable"):
        isolated.command("isthmus.backends.accelerator")


CHILD = """
import os, sys, time
from isthmus.system import isolated
isolated.end_with(int(sys.argv[1]))
print("begun", flush=True)
time.sleep(3600)
"""
PARENT = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}, str(os.getpid())])"


def test_a_child_ends_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "begun\n"
    parent.send_signal(signal.SIGKILL)
    # The pipe ends with the last process that holds it; the child would sleep for an hour.
    assert parent.stdout.read() == ""
    parent.wait()
    parent.stdout.close()


def test_a_child_whose_parent_has_died_before_does_not_begin() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, "1" if os.getpid() != 1 else "2"], capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")


def test_every_child_is_started_in_a_session_of_its_own() -> None:
    """So that Ctrl-C in a terminal, which goes to all processes of a group, is the client's alone to answer."""
    lacking = []
    for file in sorted(Path(isthmus.__file__).parent.rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            starts = ("subprocess.Popen", "subprocess.run", "super().__init__" if file.name == "child.py" else "")
            if isinstance(call, ast.Call) and ast.unparse(call.func) in starts:
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                if given.get("start_new_session") != "True":
                    lacking.append(f"{file}:{call.lineno}")
    assert not lacking


def test_a_relative_name_of_the_interpreter_is_made_absolute(monkeypatch, tmp_path) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", "python")
    assert isolated.command("isthmus.backends.accelerator")[0] == str(tmp_path / "python")
