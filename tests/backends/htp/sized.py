"""Context binaries that need a chosen number of bytes in a process domain, and chips with small domains, for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isthmus import qnn
from isthmus.backends.seam import binary
from isthmus.domains import ContextSizes, GraphNeeds
from isthmus.graph import DataType, TensorType


def table_graph(context: qnn.Context, name: str, rows: int, value: int = 0) -> qnn.Graph:
    """A graph that gathers four bytes of a table of so many bytes, all of one value."""
    graph = context.create_graph(name)
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.INT_32, (4,))
    table = np.full((rows, 1), value, np.uint8)
    t = graph.create_tensor("t", TensorType.STATIC, DataType.UINT_8, table.shape, None, table)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.UINT_8, (4, 1))
    graph.add_node("gather", "Gather", [t, x], [y], {"axis": 0})
    return graph


def sizes_of(content: bytes, name: str = "") -> ContextSizes:
    """Return what a binary needs in a process domain."""
    info = binary.inspect(content)
    assert info is not None
    return ContextSizes(name, tuple(map(GraphNeeds.of, info.graphs)))


def charge_of(content: bytes) -> int:
    """The bytes that are charged for a context of a binary, without I/O."""
    return sum(size for _, size in sizes_of(content).pieces)


def binary_of(*nbytes: int, names: Sequence[str] = "abcdefgh") -> bytes:
    """A binary of graphs whose tables make each charge these bytes, exactly."""
    rows = [size - 700 for size in nbytes]
    while True:
        with qnn.Backend("htp") as backend, backend.create_context() as context:
            for number, (name, count) in enumerate(zip(names, rows, strict=False), 1):
                table_graph(context, name, count, number)
            content = context.prepare_offline()
        graphs = sizes_of(content).graphs
        missing = [size - each.constants - each.op_data for size, each in zip(nbytes, graphs, strict=True)]
        if not any(missing):
            return content
        rows = [count + more for count, more in zip(rows, missing, strict=True)]


def chip(folder: Path, **figures: Any) -> str:
    """The file of a chip's profile; its name is that of the folder, so that tests do not share its domains."""
    file = folder / "chip.json"
    file.write_text(json.dumps({"name": str(folder), **figures}))
    return str(file)


WIDTH = 64
"""The columns of the tensors of `chain_of`."""


def chain_of(rows: int, seed: int = 0, steps: int = 4, name: str = "chain") -> tuple[bytes, np.ndarray]:
    """A binary of a graph that rotates columns by matrices, step by step through spill-fill memory; and the last one.

    Its results are exact: each matrix permutes columns.
    """
    random = np.random.default_rng(seed)
    order = np.arange(WIDTH)
    with qnn.Backend("htp") as backend, backend.create_context() as context:
        graph = context.create_graph(name)
        value = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (rows, WIDTH))
        for step in range(steps):
            permutation = random.permutation(WIDTH)
            order = order[permutation]
            matrix = np.eye(WIDTH, dtype=np.float32)[:, permutation]
            w = graph.create_tensor(f"w{step}", TensorType.STATIC, DataType.FLOAT_32, matrix.shape, None, matrix)
            kind, tensor = (TensorType.APP_READ, "y") if step == steps - 1 else (TensorType.NATIVE, f"t{step}")
            after = graph.create_tensor(tensor, kind, DataType.FLOAT_32, (rows, WIDTH))
            graph.add_node(f"n{step}", "MatMul", [value, w], [after])
            value = after
        return context.prepare_offline(), order
