"""A sample of the ONNX project's node tests, graph for graph; the engine runs all of them elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from support import zoo

from frontends.onnx.graphs import interpret
from isthmus.errors import Code, QnnError
from isthmus.frontends.onnx import load

EVERY = 7
PADDED = ("NonMaxSuppression", "NonZero")
"""Operators whose results depend on the data in size, and have room for the most."""
TYPES = {TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL}


def folders() -> list[Path]:
    try:
        return sorted(zoo.node_tests().iterdir())[::EVERY]
    except zoo.Unavailable:
        return []


def arrays(folder: Path, kind: str, names: list[str]) -> dict[str, np.ndarray]:
    found = {}
    for number, name in enumerate(names):
        path = folder / "test_data_set_0" / f"{kind}_{number}.pb"
        if path.exists():
            tensor = TensorProto()
            tensor.ParseFromString(path.read_bytes())
            found[name] = numpy_helper.to_array(tensor)
    return found


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_node(folder: Path) -> None:
    made = onnx.load(folder / "model.onnx")
    values = [*made.graph.input, *made.graph.output]
    if any(v.type.WhichOneof("value") != "tensor_type" or v.type.tensor_type.elem_type not in TYPES for v in values):
        pytest.skip("its types are out of scope")
    feeds = arrays(folder, "input", [v.name for v in made.graph.input])
    # Operands that decide shapes are inputs of these files; real models hold them as constants.
    first = made.graph.input[0].name if made.graph.input else ""
    for constants in ({}, {name: array for name, array in feeds.items() if name != first}, feeds):
        shapes = {name: array.shape for name, array in feeds.items() if name not in constants}
        try:
            graph = load(made.SerializeToString(), folder.name, shapes, constants)
            break
        except QnnError as error:
            refusal = error
    else:
        assert refusal.code in (Code.COMMON_NOT_SUPPORTED, Code.GRAPH_INVALID_OP_CONFIG), refusal
        pytest.skip(str(refusal))
    answers = interpret(graph, feeds)
    for name, reference in arrays(folder, "output", [v.name for v in made.graph.output]).items():
        if made.graph.node[0].op_type in PADDED:
            answers[name] = answers[name][tuple(slice(size) for size in reference.shape)]
        assert answers[name].shape == reference.shape
        assert answers[name].dtype == reference.dtype
        step = 1 if reference.dtype.itemsize == 1 and reference.dtype.kind in "iu" else 1e-5
        np.testing.assert_allclose(answers[name], reference, rtol=1e-3, atol=step)
