"""The libraries, made once for all tests, and programs in C compiled against our header."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.libraries import copy_into

from capi.host_programs import PROGRAMS, Build
from capi.qnn_calls import Client
from isthmus import qnn
from isthmus.capi.installation import INCLUDE


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the libraries."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("libraries")
    copy_into(folder)
    return folder


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles a program of `programs`, as C or C++, with or without the address sanitizer; each once."""
    made: dict[tuple[str, str, bool], Path] = {}

    def compiled(name: str, compiler: str = "gcc", sanitize: bool = False) -> Path:
        if shutil.which(compiler) is None:
            pytest.skip(f"needs {compiler}")
        key = (name, compiler, sanitize)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("program") / name
            language = ["-std=c11"] if compiler == "gcc" else ["-x", "c++", "-std=c++17"]
            source = next(PROGRAMS.glob(f"{name}.c*"))
            flags = ["-fsanitize=address"] if sanitize else []
            subprocess.run(
                [
                    compiler, *language, *flags, "-g", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", f"-I{INCLUDE}",
                    f"-I{PROGRAMS}", source, "-o", made[key], "-ldl", "-lpthread",
                ],
                check=True,
            )  # fmt: skip
        return made[key]

    return compiled


@pytest.fixture
def client(libraries: Path) -> Client:
    """A client of the CPU back end."""
    return Client(libraries / "libQnnCpu.so")


@pytest.fixture
def htp(libraries: Path) -> Client:
    """A client of HTP."""
    return Client(libraries / "libQnnHtp.so")


@pytest.fixture(scope="session")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A context binary for LPAI with a graph that adds its input to its state."""
    dims = (1, 64)
    with qnn.Backend("lpai") as backend:
        graph = backend.create_context().create_graph("count")
        x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, dims)
        y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, dims)
        state = graph.create_tensor(
            "state", qnn.TensorType.APP_READWRITE, qnn.DataType.FLOAT_32, dims, data=np.zeros(dims, np.float32)
        )
        graph.add_node("add", "ElementWiseAdd", [x, state], [y])
        graph.update_state(state, y)
        file = tmp_path_factory.mktemp("binary") / "count.bin"
        file.write_bytes(graph.context.prepare_offline())
    return file
