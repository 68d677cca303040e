"""A node writes a state: the same on every backend, through QNN's own API."""

import numpy as np
import pytest
from support.recurrent_states import LAYERS, Recurrent, check

from isthmus import qnn
from isthmus.graph import DataType, Quantization, TensorType

F32 = DataType.FLOAT_32
BACKENDS = ["cpu", "htp", "lpai", "gpu"]
layers = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.op)


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param == "gpu":
        from support import opencl_device  # noqa: F401 -- skips where there is no driver
    with qnn.Backend(request.param) as made:
        yield made


def accumulator(context: qnn.Context) -> qnn.Graph:
    """A graph whose state begins at 5: it gives -state, adds x to the state, and gives the new -state."""
    graph = context.create_graph("accumulator")
    shape = (1, 8)
    x = graph.create_tensor("x", TensorType.APP_WRITE, F32, shape)
    before = graph.create_tensor("before", TensorType.APP_READ, F32, shape)
    after = graph.create_tensor("after", TensorType.APP_READ, F32, shape)
    state = graph.create_tensor("state", TensorType.APP_READWRITE, F32, shape, data=np.full(shape, 5, np.float32))
    graph.add_node("read", "ElementWiseNeg", [state], [before])
    graph.add_node("write", "ElementWiseAdd", [x, state], [state])
    graph.add_node("read again", "ElementWiseNeg", [state], [after])
    return graph


def run(memory, **inputs):
    for name, value in inputs.items():
        memory.inputs[name][...] = value
    memory.binding.execute()
    return {name: array.copy() for name, array in memory.outputs.items()}


def numbers(memory, *values: float) -> list[tuple[float, float]]:
    """The state before and after each execution of an accumulator, for these values as its input."""
    results = [run(memory, x=value) for value in values]
    for result in results:
        assert all((array == array[0, 0]).all() for array in result.values())
    return [(-float(result["before"][0, 0]), -float(result["after"][0, 0])) for result in results]


def test_nodes_before_the_write_read_the_old_value_and_nodes_after_it_the_new_one(backend) -> None:
    graph = accumulator(backend.create_context())
    memory = graph.allocate()
    assert numbers(memory, 1, 10, 100) == [(5, 6), (6, 16), (16, 116)]
    graph.reset()
    assert numbers(memory, 2) == [(5, 7)]


def test_a_graph_from_a_context_binary_begins_with_the_initial_state(backend) -> None:
    graph = accumulator(backend.create_context())
    memory = graph.allocate()
    numbers(memory, 1)  # the state is 6 now; the binary has its initial value, 5
    binary = graph.context.get_binary()
    restored = backend.create_context_from_binary(binary).retrieve("accumulator")
    memory = restored.allocate()
    assert numbers(memory, 1, 10) == [(5, 6), (6, 16)]


@layers
def test_a_recurrent_layer_keeps_its_states(backend, layer: Recurrent) -> None:
    graph = layer.compose(backend.create_context())
    memory = graph.allocate()
    check(layer, [run(memory, x=frame)["y"] for frame in layer.frames])
    graph.reset()
    check(layer, [run(memory, x=frame)["y"] for frame in layer.frames])


def test_two_states_may_exchange_their_values(backend) -> None:
    graph = backend.create_context().create_graph("exchange")
    a, b = (
        graph.create_tensor(name, TensorType.APP_READWRITE, F32, (4,), data=np.full(4, value, np.float32))
        for name, value in (("a", 1), ("b", 2))
    )
    y = graph.create_tensor("y", TensorType.APP_READ, F32, (4,))
    held = graph.create_tensor("held", TensorType.NATIVE, F32, (4,))
    graph.add_node("hold", "Reshape", [a], [held])
    graph.add_node("to a", "Reshape", [b], [a])
    graph.add_node("to b", "Reshape", [held], [b])
    graph.add_node("read", "ElementWiseNeg", [a], [y])
    memory = graph.allocate()
    assert [float(run(memory)["y"][0]) for _ in range(3)] == [-2, -1, -2]


def test_a_state_without_an_initial_value_starts_at_zero(backend) -> None:
    graph = backend.create_context().create_graph("zero")
    quantization = Quantization.per_tensor(0.5, zero_point=100)
    x, state, y = (
        graph.create_tensor(name, kind, DataType.UFIXED_POINT_8, (1, 16), quantization)
        for name, kind in (("x", TensorType.APP_WRITE), ("s", TensorType.APP_READWRITE), ("y", TensorType.APP_READ))
    )
    graph.add_node("write", "ElementWiseAdd", [x, state], [state])
    graph.add_node("read", "Reshape", [state], [y])
    memory = graph.allocate()
    assert [int(run(memory, x=102)["y"][0, 0]) for _ in range(3)] == [102, 104, 106]
