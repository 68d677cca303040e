"""Our own HTP library in the place of the vendor's, which has the same interface, and copies of it with a fault."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.libraries import copy_into

from isthmus.backends.vendor.library import is_installed
from isthmus.capi.installation import INCLUDE
from isthmus.graph import DataType, Graph, TensorType

ENDS, HANGS, REGISTERS_NOTHING, REFUSES = 1, 2, 3, 4
NAME = "qnn-htp"

needs_package = pytest.mark.skipif(not is_installed(), reason="needs the package onnxruntime-qnn")


def our_libraries(folder: Path) -> Path:
    """Install our libraries and return that of HTP."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("needs a C compiler")
    copy_into(folder)
    return folder / "libQnnHtp.so"


def faulty(ours: Path, fault: int) -> Path:
    """Compile a library with a fault that passes all other calls on to ours."""
    made = ours.parent / f"fault{fault}" / ours.name
    if not made.exists():
        made.parent.mkdir()
        source = Path(__file__).with_name("faulty_library.c")
        compiler = next(filter(shutil.which, ("cc", "gcc", "clang")))
        subprocess.run(
            [
                compiler, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-shared", "-fPIC", f"-DFAULT={fault}",
                f'-DOURS="{ours}"', f"-I{INCLUDE / 'QNN'}", str(source), "-o", str(made), "-ldl",
            ],
            check=True,
        )  # fmt: skip
        shutil.copy(ours.with_name("libQnnSystem.so"), made.parent)
    return made


def doubling(name: str = "doubling") -> Graph:
    """A graph that computes x + x."""
    graph = Graph(name)
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))
    graph.add_node("add", "ElementWiseAdd", [x, x], [y])
    graph.finalize()
    return graph


def summing() -> Graph:
    """A graph with a state: it returns the sum of all inputs so far."""
    graph = Graph("summing")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4))
    total = graph.create_tensor(
        "total", TensorType.APP_READWRITE, DataType.FLOAT_32, (1, 4), data=np.full((1, 4), 10, np.float32)
    )
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 4))
    graph.add_node("add", "ElementWiseAdd", [x, total], [y])
    graph.update_state(total, y)
    graph.finalize()
    return graph
