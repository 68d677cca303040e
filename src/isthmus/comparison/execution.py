"""Execution of a graph on a backend, as often as needed, on arrays in the graph's own form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from isthmus import qnn
from isthmus.graph import Graph, Tensor, TensorType
from isthmus.prepare.planner import rewritten
from isthmus.qnn.profile import median_times
from isthmus.system.shield import shielded


class GraphRunner:
    """A graph with memory on a backend.

    - `graph`: the graph; the runner owns it from then on.
    - `backend`, `config`: the backend's name, and its configuration.
    - `threads`: number of threads of an execution.
    """

    @shielded(release=lambda runner: runner.close())
    def __init__(self, graph: Graph, backend: str, config: Any = None, threads: int = 1) -> None:
        self._backend = qnn.Backend(backend, config)
        try:
            handle = self._backend.create_context().add_graph(graph)
            handle.set_config(qnn.GraphConfig.THREADS, threads)
            self._memory = handle.allocate()
        except Exception:
            self._backend.free()
            raise

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Execute once on stored elements of the inputs; return copies of the outputs' stored elements."""
        for name, view in self._memory.inputs.items():
            np.copyto(view, feeds[name])
        self._memory.binding.execute()
        return {name: view.copy() for name, view in self._memory.outputs.items()}

    def __enter__(self) -> GraphRunner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def operation_times(self, feeds: Mapping[str, np.ndarray], runs: int) -> dict[str, float]:
        """Execute several times and return the median time of each operation in microseconds, by its name."""
        with qnn.Profile(self._backend, qnn.ProfileLevel.DETAILED) as profile:
            for _ in range(runs):
                for name, view in self._memory.inputs.items():
                    np.copyto(view, feeds[name])
                self._memory.binding.execute(profile)
            return median_times(profile.get_events())

    @shielded
    def close(self) -> None:
        """Free the graph and its memory."""
        self._backend.free()
        self._memory.close()


def tensors_after_fusion(graph: Graph) -> set[str]:
    """Return the names of the tensors that the steps of a prepared graph write; the others exist only inside a step."""
    written = (tensor for step in rewritten(graph).steps for tensor in step.outputs)
    return {tensor.name for tensor in written if graph.tensors.get(tensor.name) is tensor}


def keep(graph: Graph, names: Iterable[str]) -> None:
    """Turn intermediate tensors of a finalized graph into outputs, so that an execution returns them."""
    for name in names:
        tensor = graph.tensors[name]
        if tensor.type is TensorType.NATIVE:
            tensor.type = TensorType.APP_READ


def to_stored(array: np.ndarray, tensor: Tensor) -> np.ndarray:
    """Convert numbers, or elements that are stored already, to the stored elements of a tensor."""
    if array.dtype == tensor.dtype.numpy:
        return array
    if tensor.dtype.is_fixed_point and array.dtype.kind == "f":
        assert tensor.quantization is not None
        return tensor.quantization.quantize(array, tensor.dtype.numpy)
    return tensor.dtype.encode(array)
