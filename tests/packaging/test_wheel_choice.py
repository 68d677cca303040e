"""What installs a wheel of a folder takes exactly one, or says which there are."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MACHINE = os.uname().machine


def commands(name: str) -> tuple[str, str]:
    """Return the commands of a file that choose and install a wheel, and the machine that it is for."""
    text = (ROOT / name).read_text()
    found = re.search(r"^ *(?:RUN )?(set -- .*?pip install[^\n]*)$", text, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1], "x86_64" if "third_party" in found[1] else MACHINE


def installed(name: str, folder: Path, versions: list[str]) -> tuple[list[str], str]:
    """Run a file's commands where these wheels are; return what pip was given, and its standard error."""
    script, machine = commands(name)
    wheels = folder / ("third_party" if "third_party" in script else "dist")
    wheels.mkdir()
    for version in versions:
        (wheels / f"isthmus-{version}-py3-none-manylinux_2_28_{machine}.whl").touch()
    pip, given = folder / "build/release/bin/pip", folder / "given"
    pip.parent.mkdir(parents=True)
    pip.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{given}"\n')
    pip.chmod(0o755)
    path = f"{pip.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", script], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert (done.returncode == 0) == (len(versions) == 1), done.stderr
    return given.read_text().split() if given.exists() else [], done.stderr


FILES = ["Dockerfile", "docs/releasing.md", "examples/github-workflow.yml"]


@pytest.mark.parametrize("name", FILES)
def test_the_only_wheel_of_a_folder_is_installed(name: str, tmp_path: Path) -> None:
    arguments, _ = installed(name, tmp_path, ["0.3.0"])
    assert [word for word in arguments if re.search(r"isthmus-0\.3\.0-[\w-]+\.whl\[onnx(,rich)?\]$", word)]


@pytest.mark.parametrize("versions", [[], ["0.2.0", "0.3.0"]], ids=["none", "two"])
@pytest.mark.parametrize("name", FILES)
def test_none_and_two_wheels_are_refused_with_their_names(name: str, versions: list[str], tmp_path: Path) -> None:
    arguments, errors = installed(name, tmp_path, versions)
    assert not arguments
    assert "must have one wheel for" in errors
    assert all(f"isthmus-{version}-" in errors for version in versions)
