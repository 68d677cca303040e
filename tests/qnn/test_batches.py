"""Executions in Python of a multiple of the batch that a graph was prepared with."""

import numpy as np
import pytest
from support.waiting import PATIENCE

from isthmus import QnnError, memory, qnn
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, Profile, ProfileLevel

WEIGHTS = np.arange(32, dtype=np.float32).reshape(4, 8) / 32


@pytest.fixture
def context():
    with qnn.Backend("htp") as backend:
        yield backend.create_context()


def layer(context, batch=2):
    graph = context.create_graph("layer")
    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (batch, 8))
    y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (batch, 4))
    w = graph.create_tensor("w", qnn.TensorType.STATIC, qnn.DataType.FLOAT_32, WEIGHTS.shape, data=WEIGHTS)
    graph.add_node("fc", "FullyConnected", [x, w], [y])
    graph.finalize()
    return graph


def arrays(multiple):
    x = np.random.default_rng(multiple).random((2 * multiple, 8), np.float32)
    return x, np.zeros((2 * multiple, 4), np.float32)


@pytest.mark.parametrize("multiple", [1, 2, 50])
def test_arrays_of_a_multiple_of_the_batch_are_computed_in_parts(context, multiple) -> None:
    graph, (x, y) = layer(context), arrays(multiple)
    given = [ClientTensor("x", x)], [ClientTensor("y", y)]
    graph.execute(*given)
    np.testing.assert_allclose(y, x @ WEIGHTS.T, rtol=1e-5)
    y[...] = 0
    graph.execute_async(*given).result(PATIENCE)
    np.testing.assert_allclose(y, x @ WEIGHTS.T, rtol=1e-5)
    y[...] = 0
    with graph.bind(*given) as binding, Profile(context.backend, ProfileLevel.DETAILED) as profile:
        binding.execute(profile)
        assert binding.stats.executions == multiple
        assert sum(event.name == "execute" for event in profile.get_events()) == 1
    np.testing.assert_allclose(y, x @ WEIGHTS.T, rtol=1e-5)


def test_registered_memory_has_the_dimensions_of_the_multiple(context) -> None:
    graph, (x, y) = layer(context), arrays(3)
    with rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, x.nbytes) as buffer:
        descriptor = MemDescriptor(x.shape, qnn.DataType.FLOAT_32, DescriptorType.ION, buffer.fd)
        [handle] = context.mem_register([descriptor])
        buffer.window(0, x.nbytes).view(np.float32, x.shape)[...] = x
        given = [ClientTensor("x", mem_handle=handle)], [ClientTensor("y", y)]
        graph.execute(*given)
        np.testing.assert_allclose(y, x @ WEIGHTS.T, rtol=1e-5)
        context.mem_deregister([handle])
        with pytest.raises(QnnError, match="8001"):
            graph.execute(*given)


@pytest.mark.parametrize(
    ("backend", "multiple", "other", "words"),
    [
        ("htp", 3, 2, r"Mismatching input and output batch sizes \(3, 2\)"),
        ("htp", 1, 2, r"Mismatching input and output batch sizes \(1, 2\)"),
        ("cpu", 2, 2, r"its array is float32\[4, 8\], the tensor float32\[2, 8\]"),
    ],
)
def test_other_multiples_are_refused(backend, multiple, other, words) -> None:
    with qnn.Backend(backend) as opened:
        graph = layer(opened.create_context())
        with pytest.raises(QnnError, match=rf"6004 .*{words}"):
            graph.execute([ClientTensor("x", arrays(multiple)[0])], [ClientTensor("y", arrays(other)[1])])


def test_outputs_that_overlap_another_part_of_an_input_are_refused(context) -> None:
    graph = context.create_graph("same")
    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (1, 8))
    y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (1, 8))
    graph.add_node("add", "ElementWiseAdd", [x, x], [y])
    graph.finalize()
    with memory.host(96) as buffer:
        x, y = (buffer.window(offset, 64).view(np.float32, (2, 8)) for offset in (0, 32))
        with pytest.raises(QnnError, match="its buffer overlaps that of tensor 'x'"):
            graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
        x[...] = 3
        graph.execute([ClientTensor("x", x)], [ClientTensor("y", x)])
        assert (x == 6).all()
        del x, y


@pytest.mark.parametrize("wrong", [7, None, "x", np.zeros((2, 8), np.float32)])
def test_what_is_no_tensor_is_refused_as_elsewhere(context, wrong) -> None:
    graph, (x, y) = layer(context), arrays(1)
    for given in (([wrong], [ClientTensor("y", y)]), ([ClientTensor("x", x)], [wrong])):
        for call in (graph.execute, graph.bind):
            with pytest.raises(QnnError):
                call(*given)
