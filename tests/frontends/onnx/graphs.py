"""Small ONNX models made in memory, graphs run node by node in numpy, and comparison with ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from support import oracles

from isthmus.frontends.onnx import load
from isthmus.graph import Graph, TensorType
from isthmus.graph.evaluate import evaluate

Arrays = Mapping[str, np.ndarray]
OPSET = 17


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """A node whose operands are named in one string; ``-`` stands for an absent one."""
    names = [["" if n == "-" else n for n in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, **attributes)


def subgraph(nodes: Sequence[NodeProto], inputs: Sequence[Any] = (), outputs: str = "") -> GraphProto:
    """A branch or loop body; outputs are declared without a shape."""
    return helper.make_graph(
        list(nodes), "body", list(inputs), [helper.make_tensor_value_info(n, 1, None) for n in outputs.split()]
    )


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[Any]]],
    outputs: str,
    constants: Mapping[str, Any] | None = None,
    opset: int = OPSET,
    functions: Sequence[Any] = (),
    domains: Sequence[str] = (),
) -> ModelProto:
    """A model. Inputs are (element type, dimensions); outputs are declared without type or shape."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, kind, list(dims)) for name, (kind, dims) in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs.split()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    made = helper.make_model(graph, opset_imports=opsets, functions=list(functions))
    made.ir_version = 8
    return made


def floats(*dims: Any) -> tuple[int, Sequence[Any]]:
    """A float input of these dimensions."""
    return TensorProto.FLOAT, dims


def convert(made: ModelProto, **more: Any) -> Graph:
    """The graph of a model."""
    return load(made.SerializeToString(), "test", **more)


def interpret(graph: Graph, feeds: Arrays) -> dict[str, np.ndarray]:
    """Run a finalized graph by the reference computations of its operations."""
    assert graph.finalized
    arrays = {t.name: t.data for t in graph.tensors.values() if t.type is TensorType.STATIC}
    arrays |= {t.name: np.asarray(feeds[t.name]).reshape(t.dims) for t in graph.inputs}
    for step in graph.nodes:
        params = {name: value for name, value in step.params.items() if value is not None}
        values = [None if t is None else arrays[t.name] for t in step.inputs]
        results = evaluate(step.op, step.inputs, values, params, step.outputs)
        for tensor, result in zip(step.outputs, results, strict=True):
            assert result.shape == tensor.dims, (step.name, step.op)
            assert result.dtype == tensor.dtype.numpy, (step.name, step.op)
            arrays[tensor.name] = result
    return {t.name: arrays[t.name] for t in graph.outputs}


def expected(made: ModelProto, feeds: Arrays) -> dict[str, np.ndarray]:
    """Return what ONNX Runtime answers."""
    return oracles.onnx_answers(made.SerializeToString(), feeds)


def random_feeds(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Numbers for every input: normal floats, small integers."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for tensor in graph.inputs:
        dtype = tensor.dtype.numpy
        values = rng.standard_normal(tensor.dims) if dtype.kind == "f" else rng.integers(0, 2, tensor.dims)
        feeds[tensor.name] = values.astype(dtype)
    return feeds


def check(made: ModelProto, tolerance: float = 1e-5, **more: Any) -> Graph:
    """Convert a model, run it on random inputs, compare with ONNX Runtime, and answer with the graph."""
    graph = convert(made, **more)
    feeds = random_feeds(graph)
    bound = {name: np.asarray(value) for name, value in more.get("constants", {}).items()}
    answers = interpret(graph, feeds)
    for name, reference in expected(made, {**feeds, **bound}).items():
        assert answers[name].shape == reference.shape, name
        assert answers[name].dtype == reference.dtype, name
        np.testing.assert_allclose(answers[name], reference, rtol=tolerance, atol=tolerance, err_msg=name)
    return graph


def operations(graph: Graph) -> Counter[str]:
    """Return how often each operation occurs."""
    return Counter(step.op for step in graph.nodes)
