"""An op package of our own, compiled from `backends/cpu/op_package.cpp`, and a model library with a node of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from isthmus import qnn
from isthmus.capi.installation import INCLUDE

SOURCES = Path(__file__).parents[1] / "backends" / "cpu"
PACKAGE = "test.ops"
SHIFT = np.arange(8, dtype=np.float32)
AFFINE = {"scale": 3.0, "shift": SHIFT, "mode": "plain"}
X = np.linspace(-4, 4, 8, dtype=np.float32).reshape(1, 8)


def build(folder: Path, source: str = "op_package.cpp") -> Path:
    """A compiled library; skips the test where there is no compiler."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    library = folder / f"lib{Path(source).stem}.so"
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{INCLUDE / 'QNN'}"]
    subprocess.run([*command, SOURCES / source, "-o", library], check=True)
    return library


def in_the_middle(context: qnn.Context, op: str = "Affine", params: dict | None = None, name: str = "g") -> qnn.Graph:
    """y = relu(op(x + x)): a package's node between two of ours."""
    graph = context.create_graph(name)
    kinds, dims = qnn.TensorType, X.shape
    x = graph.create_tensor("x", kinds.APP_WRITE, qnn.DataType.FLOAT_32, dims)
    a, b = (graph.create_tensor(each, kinds.NATIVE, qnn.DataType.FLOAT_32, dims) for each in "ab")
    y = graph.create_tensor("y", kinds.APP_READ, qnn.DataType.FLOAT_32, dims)
    graph.add_node("twice", "ElementWiseAdd", [x, x], [a])
    graph.add_node("middle", f"{PACKAGE}::{op}", [a], [b], AFFINE if op == "Affine" and params is None else params)
    graph.add_node("relu", "Relu", [b], [y])
    return graph


def expected(x: np.ndarray = X) -> np.ndarray:
    """Return what `in_the_middle` makes of an input."""
    return np.maximum(3 * (x + x) + SHIFT, 0)
