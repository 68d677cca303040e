"""The examples in C and C++ build with CMake, and do what they say."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.libraries import copy_into

from isthmus import qnn
from isthmus.capi.installation import INCLUDE

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """The folder of the libraries."""
    for tool in ("cmake", "gcc", "g++", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    folder = tmp_path_factory.mktemp("libraries")
    copy_into(folder)
    return folder


def built(example, libraries, folder):
    """The program of an example."""
    for command in (
        ["cmake", "-S", EXAMPLES / example, "-B", folder, f"-DQNN_INCLUDE={INCLUDE / 'QNN'}",
         f"-DQNN_LIBRARIES={libraries}", "-DCMAKE_CXX_FLAGS=-Werror", "-DCMAKE_C_FLAGS=-Werror"],
        ["cmake", "--build", folder],
    ):  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
    return folder / "client"


@pytest.fixture(scope="module")
def client(libraries, tmp_path_factory):
    """The command that runs the client in C++."""
    return [built("cpp_client", libraries, tmp_path_factory.mktemp("cpp")), libraries]


@pytest.fixture(scope="module")
def lpai_client(libraries, tmp_path_factory):
    """The program of the client in C on LPAI."""
    return built("lpai_client", libraries, tmp_path_factory.mktemp("lpai"))


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """A binary of a graph y = x + state, whose state becomes y."""
    file, dims = tmp_path_factory.mktemp("binary") / "count.bin", (1, 64)
    with qnn.Backend("lpai") as backend:
        graph = backend.create_context().create_graph("count")
        x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, dims)
        y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, dims)
        state = graph.create_tensor(
            "state", qnn.TensorType.APP_READWRITE, qnn.DataType.FLOAT_32, dims, data=np.full(dims, 5, np.float32)
        )
        graph.add_node("add", "ElementWiseAdd", [x, state], [y])
        graph.update_state(state, y)
        file.write_bytes(graph.context.prepare_offline())
    return file


@pytest.mark.parametrize(("environment", "memory"), [("x86", []), ("x86", ["shared"]), ("arm", ["shared"])])
def test_the_client_on_lpai_runs_in_its_own_memory(lpai_client, counting, tmp_path, environment, memory) -> None:
    config = tmp_path / "lpai.conf"
    config.write_text(json.dumps({"lpai_backend": {"target_env": environment}}))
    done = subprocess.run(
        [lpai_client, counting, *memory], capture_output=True, text=True, timeout=600,
        env={**os.environ, "ISTHMUS_LPAI_CONFIG": str(config)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    first, *rest = done.stdout.splitlines()
    assert first.startswith("count: scratch ")
    assert "persistent 256" in first
    assert rest == [*(f"frame {n}: y[0] = {6 + n}" for n in range(3)), "0 bytes copied in the last frame"]


def test_the_client_on_lpai_says_what_is_wrong(lpai_client, tmp_path) -> None:
    (tmp_path / "noise.bin").write_bytes(b"noise" * 100)
    done = subprocess.run([lpai_client, tmp_path / "noise.bin"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"{tmp_path}/noise.bin is no context binary"


def test_the_cpp_client_builds_and_copies_nothing(client) -> None:
    done = subprocess.run(client, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    first, *rest = done.stdout.splitlines()
    assert first == "HTP_ISTHMUS, core API 2.40"
    report = {line[:24].strip(): line[24:].strip() for line in rest[:-1]}
    assert report["copied in"] == report["copied out"] == report["staging reserved"] == "0 bytes"
    assert report["used in place: shared"] == "2048 bytes"
    assert report["ElementWiseAdd add"].endswith(" us")
    assert rest[-1] == "y[255] = 510"


def test_the_cpp_client_is_clean_under_the_validator(client) -> None:
    strict = {**os.environ, "ISTHMUS_QNN_VALIDATE": "1,exitcode=66"}
    done = subprocess.run(client, capture_output=True, text=True, timeout=600, env=strict)
    assert done.returncode == 0, done.stderr
    assert "0 mistakes, 0 leaks" in done.stderr


def test_the_cpp_client_says_when_there_is_no_provider(client) -> None:
    nowhere = {**os.environ, "ISTHMUS_QNN_FORWARD": "/nowhere/libQnnHtp.so"}
    done = subprocess.run(client, capture_output=True, text=True, timeout=600, env=nowhere)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "no provider, error 1009"


def test_the_op_package_computes_what_it_says(tmp_path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    library = tmp_path / "libSwish.so"
    command = ["g++", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE / 'QNN'}"]
    subprocess.run([*command, EXAMPLES / "op_package" / "swish.cpp", "-o", library], check=True)
    with qnn.Backend("cpu") as backend:
        backend.register_op_package(library, "SwishInterface")
        graph = backend.create_context().create_graph("swish")
        x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (1, 8))
        y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (1, 8))
        graph.add_node("swish", "examples.swish::Swish", [x], [y], {"beta": 1.5})
        graph.finalize()
        values = graph.inputs["x"][...] = np.linspace(-4, 4, 8, dtype=np.float32)
        graph.execute()
        np.testing.assert_allclose(graph.outputs["y"][0], values / (1 + np.exp(-1.5 * values)), rtol=1e-5)
        assert graph.stats.copied_bytes == 0
