"""Equal constants are kept once: of models in several formats, and inside one graph on every backend."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from frontends.tflite.build import T, options, single
from support import dlc_write, tiny
from support.dlc_write import node, tensor

from backends.gpu.harness import gpu
from isthmus import memory, qnn
from isthmus.frontends.composed.entries import GraphEntry
from isthmus.graph import DataType, TensorType
from isthmus.qnn import ClientTensor

SIZE = 512
WEIGHTS = (np.random.default_rng(0).standard_normal((SIZE, SIZE)) * 0.05).astype(np.float32)
LITTLE = 80_000
"""What a step or a graph takes besides weights."""


def files(folder: Path) -> dict[str, Path]:
    """A model of the same product in each format, for another number of rows each."""
    from onnx import helper

    made = {name: folder / f"product.{name}" for name in ("onnx", "tflite", "dlc")}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    tiny.save(made["onnx"], nodes, {"x": [16, SIZE]}, {"y": [16, SIZE]}, {"w": WEIGHTS})
    turned = np.ascontiguousarray(WEIGHTS.T)
    connected = options("FullyConnected")
    inputs = [T("f32", (4, SIZE), name="x"), T("f32", turned.shape, turned, name="weights")]
    made["tflite"].write_bytes(single("FULLY_CONNECTED", inputs, [T("f32", (4, SIZE), name="y")], connected))
    x, y = tensor("x", TensorType.APP_WRITE, (1, SIZE)), tensor("y", TensorType.APP_READ, (1, SIZE))
    product = node("product", "FullyConnected", ["x", "constant"], ["y"])
    entry = GraphEntry("net", (x, dlc_write.static("constant", turned), y), (product,))
    made["dlc"].write_bytes(dlc_write.dlc([entry]))
    return made


def test_models_of_three_formats_share_a_weight_in_one_context(tmp_path: Path) -> None:
    with qnn.Backend("htp", {"htp": {"precision": "float16"}}) as backend:
        context = backend.create_context({qnn.htp.WEIGHT_SHARING_ENABLED: True})
        for name, file in files(tmp_path).items():
            context.compose(file, name)
        binary = bytes(context.prepare_offline())
        stated = [graph.figures for graph in qnn.SystemContext().get_binary_info(binary).graphs]
        assert [(each.constants, each.shared_weights) for each in stated if each] == [(0, WEIGHTS.nbytes // 2)] * 3
        assert len(binary) < WEIGHTS.nbytes // 2 + 3 * LITTLE
        restored = backend.create_context_from_binary(binary)
        for graph in restored.graphs.values():
            source, result = graph.info.inputs[0], graph.info.outputs[0]
            given = np.random.default_rng(1).standard_normal(source.dims).astype(np.float32)
            found = np.zeros(result.dims, np.float32)
            graph.execute([ClientTensor(source.name, given)], [ClientTensor(result.name, found)])
            np.testing.assert_allclose(found, given @ WEIGHTS, rtol=1e-2, atol=1e-2)


def chain(context: qnn.Context, products: int) -> qnn.Graph:
    """A graph of some products with equal weights, each a constant of its own."""
    graph = context.create_graph("chain")
    source = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (4, SIZE))
    for number in range(products):
        kind = TensorType.APP_READ if number == products - 1 else TensorType.NATIVE
        constant = graph.create_tensor(
            f"w{number}", TensorType.STATIC, DataType.FLOAT_32, WEIGHTS.shape, None, WEIGHTS.copy()
        )
        result = graph.create_tensor(f"y{number}", kind, DataType.FLOAT_32, (4, SIZE))
        graph.add_node(f"product {number}", "MatMul", [source, constant], [result])
        source = result
    return graph


def opened(name: str) -> AbstractContextManager[qnn.Backend]:
    return gpu() if name == "gpu" else qnn.Backend(name)


@pytest.mark.parametrize("name", ["cpu", "lpai", "gpu"])
def test_equal_constants_of_one_graph_are_stored_once(name: str) -> None:
    nbytes, counted = [], []
    with opened(name) as backend:
        for products in (1, 3):
            with backend.create_context() as context:
                counted.append(chain(context, products).info.memory.constant_bytes)
                nbytes.append(len(context.prepare_offline()))
    assert WEIGHTS.nbytes < nbytes[0]
    assert nbytes[1] - nbytes[0] < LITTLE
    assert WEIGHTS.nbytes <= counted[0]
    assert counted[1] - counted[0] < LITTLE


def test_equal_constants_of_one_graph_are_on_a_gpu_once() -> None:
    taken = []
    with gpu() as backend, memory.statistics("opencl") as statistics:
        for products in (1, 3):
            before = statistics.live_bytes
            with backend.create_context() as context:
                chain(context, products).finalize()
                taken.append(statistics.live_bytes - before)
    assert WEIGHTS.nbytes <= taken[0]
    assert taken[1] - taken[0] < LITTLE
