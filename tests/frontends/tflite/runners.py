"""Runs a converted graph with the reference computations, and the model file with LiteRT, for comparison."""

from __future__ import annotations

import numpy as np

from isthmus.graph import Graph, TensorType
from isthmus.graph.evaluate import evaluate


class GraphRunner:
    """A finalized graph and its states."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.states = {t.name: t.data for t in graph.states}

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """One execution: arrays for the inputs in order, arrays of the outputs in order."""
        values = {t.name: t.data for t in self.graph.tensors.values() if t.type is TensorType.STATIC} | self.states
        for tensor, array in zip(self.graph.inputs, inputs, strict=True):
            assert (array.shape, array.dtype) == (tensor.dims, tensor.dtype.numpy), tensor.describe()
            values[tensor.name] = array
        for node in self.graph.nodes:
            arrays = [None if t is None else values[t.name] for t in node.inputs]
            results = evaluate(node.op, node.inputs, arrays, node.params, node.outputs)
            values |= {t.name: array for t, array in zip(node.outputs, results, strict=True)}
        self.states |= {name: values[value.name] for name, value in self.graph.state_updates.items()}
        return [values[t.name] for t in self.graph.outputs]


class LiteRtRunner:
    """A model file in LiteRT, with its default kernels."""

    def __init__(self, model: bytes) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.interpreter = Interpreter(model_content=model, num_threads=1)
        self.interpreter.allocate_tensors()

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """One execution."""
        for detail, array in zip(self.interpreter.get_input_details(), inputs, strict=True):
            self.interpreter.set_tensor(detail["index"], array)
        self.interpreter.invoke()
        return [self.interpreter.get_tensor(d["index"]) for d in self.interpreter.get_output_details()]


def random_input(rng: np.random.Generator, dims: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Random values that suit a type: normal floats, any small integers."""
    if dtype.kind == "f":
        return rng.standard_normal(dims).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, dims).astype(dtype)
    info = np.iinfo(dtype)
    low, high = (info.min, info.max) if dtype.itemsize == 1 else (-50 if info.min else 0, 50)
    return rng.integers(low, high, dims, endpoint=True).astype(dtype)
