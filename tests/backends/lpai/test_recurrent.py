"""Recurrent layers on LPAI: their states are in persistent memory, and nowhere else."""

import numpy as np
import pytest
from support import model_libraries
from support.dlc_write import dlc
from support.recurrent_states import LAYERS, UNITS, Recurrent, check

from backends.lpai.harness import ready
from isthmus import qnn
from isthmus.memory import Buffer
from isthmus.qnn import lpai

pytestmark = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.op)
ENVIRONMENTS = ["x86", "arm"]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A model library with all layers."""
    weights = b"".join(layer.blob for layer in LAYERS)
    return model_libraries.build(tmp_path_factory.mktemp("library"), model_libraries.STATES, weights)


def steps(graph: qnn.Graph, scratch: Buffer, layer: Recurrent) -> list[np.ndarray]:
    """The results of the executions, with garbage in scratch before each of them."""
    random = np.random.default_rng(7)
    results = []
    for frame in layer.frames:
        scratch.array[:] = random.integers(0, 256, scratch.nbytes, np.uint8)
        graph.inputs["x"][...] = frame
        graph.execute()
        results.append(graph.outputs["y"].copy())
    return results


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_states_survive_garbage_in_scratch(layer: Recurrent, environment: str) -> None:
    with qnn.Backend("lpai", {"lpai_backend": {"target_env": environment}}) as backend:
        graph = layer.compose(backend.create_context())
        assert graph.get_property(lpai.PERSISTENT_MEM_SIZE) >= sum(map(layer.is_state, layer.operands)) * 4 * UNITS
        scratch, persistent = ready(backend, graph)
        initial = persistent.array.copy()
        check(layer, steps(graph, scratch, layer))
        persistent.array[:] = initial
        check(layer, steps(graph, scratch, layer))
        graph.reset()
        check(layer, steps(graph, scratch, layer))


def test_a_binary_has_the_layer_with_its_initial_states(layer: Recurrent) -> None:
    with qnn.Backend("lpai") as backend:
        layer.compose(context := backend.create_context())
        binary = context.prepare_offline()
        graph = backend.create_context_from_binary(binary).retrieve(layer.op)
        scratch, _ = ready(backend, graph)
        check(layer, steps(graph, scratch, layer))


def test_a_dlc_has_the_layer_with_its_initial_states(layer: Recurrent, tmp_path) -> None:
    file = tmp_path / "layer.dlc"
    file.write_bytes(dlc([layer.entry()]))
    with qnn.Backend("lpai") as backend:
        graph = backend.create_context().compose(file)
        assert graph.get_property(lpai.PERSISTENT_MEM_SIZE) > 0
        scratch, _ = ready(backend, graph)
        check(layer, steps(graph, scratch, layer))


def test_a_model_library_has_the_layer_with_its_initial_states(layer: Recurrent, library) -> None:
    with qnn.Backend("lpai") as backend:
        graph = backend.create_context().compose(library, graph=layer.op)
        assert graph.get_property(lpai.PERSISTENT_MEM_SIZE) > 0
        scratch, _ = ready(backend, graph)
        check(layer, steps(graph, scratch, layer))
