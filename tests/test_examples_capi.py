"""The C++ example builds with CMake, and does what it says."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from isthmus.capi import install
from isthmus.capi.installation import INCLUDE

EXAMPLE = Path(__file__).parents[1] / "examples" / "cpp_client"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """The command that runs the example."""
    for tool in ("cmake", "g++", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    folder = tmp_path_factory.mktemp("example")
    install(folder / "libraries")
    build = folder / "build"
    for command in (
        ["cmake", "-S", EXAMPLE, "-B", build, f"-DQNN_INCLUDE={INCLUDE / 'QNN'}", "-DCMAKE_CXX_FLAGS=-Werror"],
        ["cmake", "--build", build],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return [build / "client", folder / "libraries"]


def test_the_cpp_client_builds_and_copies_nothing(client):
    done = subprocess.run(client, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    first, *rest = done.stdout.splitlines()
    assert first == "HTP_ISTHMUS, core API 2.40"
    told = {line[:24].strip(): line[24:].strip() for line in rest[:-1]}
    assert told["copied in"] == told["copied out"] == told["staging reserved"] == "0 bytes"
    assert told["used in place: shared"] == "2048 bytes"
    assert rest[-1] == "y[255] = 510"


def test_the_cpp_client_says_when_there_is_no_provider(client):
    nowhere = {**os.environ, "ISTHMUS_QNN_FORWARD": "/nowhere/libQnnHtp.so"}
    done = subprocess.run(client, capture_output=True, text=True, timeout=120, env=nowhere)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "no provider, error 1009"
