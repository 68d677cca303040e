"""The callback that another runtime calls: it runs a program on that runtime's tensors, or hands the call on."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from isthmus import qnn
from isthmus.delegate import structures
from isthmus.delegate.block import Block, Operand, invoke_address

HANDED_ON = 41


class Runtime:
    """A runtime with tensors in an array of structures, and a node that knows its block."""

    def __init__(self, block: Block, *arrays: np.ndarray) -> None:
        self.arrays = arrays
        self.tensors = (structures.Tensor * len(arrays))()
        for tensor, array in zip(self.tensors, arrays, strict=True):
            tensor.data, tensor.bytes = array.ctypes.data, array.nbytes
        self.context = structures.Context()
        self.move()
        self.node = structures.Node(user_data=block.address)

    def move(self) -> None:
        """Have the tensors' structures lie elsewhere."""
        moved = (structures.Tensor * len(self.tensors))(*self.tensors)
        self.tensors, self._before = moved, self.tensors
        self.context.tensors = ctypes.cast(self.tensors, ctypes.POINTER(structures.Tensor))

    def invoke(self) -> int:
        entry = structures.KernelCall(invoke_address())
        return entry(ctypes.addressof(self.context), ctypes.addressof(self.node))


@pytest.fixture
def graph():
    with qnn.Backend("cpu") as backend:
        made = backend.create_context().create_graph("double")
        x = made.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (1, 4))
        y = made.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (1, 4))
        made.add_node("add", "ElementWiseAdd", [x, x], [y])
        made.finalize()
        yield made


@pytest.fixture
def block():
    handed = []
    otherwise = structures.KernelCall(lambda context, node: handed.append(node) or HANDED_ON)
    made = Block(ctypes.cast(otherwise, ctypes.c_void_p).value)
    made.handed, made.otherwise = handed, otherwise
    return made


def test_a_block_that_is_pointed_at_nothing_hands_every_call_on(block) -> None:
    runtime = Runtime(block, np.zeros(4, np.float32))
    assert runtime.invoke() == HANDED_ON
    assert block.handed == [ctypes.addressof(runtime.node)]


def test_a_program_runs_where_the_tensors_lie_at_that_moment(block, graph) -> None:
    block.point(graph.driver.native_call(), [Operand(0, 16), Operand(2, 16)])
    runtime = Runtime(block, np.float32([1, 2, 3, 4]), np.zeros(1), np.zeros(4, np.float32))
    assert runtime.invoke() == 0
    assert runtime.arrays[2].tolist() == [2, 4, 6, 8]
    elsewhere = np.float32([5, 6, 7, 8])
    runtime.tensors[0].data = elsewhere.ctypes.data
    runtime.move()
    assert runtime.invoke() == 0
    assert runtime.arrays[2].tolist() == [10, 12, 14, 16]
    assert (block.runs, block.handed) == (2, [])


def test_a_result_that_replaces_its_input_is_copied_after_the_run(block, graph) -> None:
    aside = np.zeros(4, np.float32)
    block.point(graph.driver.native_call(), [Operand(0, 16), Operand(0, 16, aside.ctypes.data)])
    runtime = Runtime(block, np.float32([1, 2, 3, 4]))
    for factor in (2, 4, 8):
        assert runtime.invoke() == 0
        assert runtime.arrays[0].tolist() == [factor * value for value in (1, 2, 3, 4)]


@pytest.mark.parametrize(("field", "value"), [("data", None), ("bytes", 15), ("bytes", 17)])
def test_a_tensor_that_is_not_as_prepared_for_hands_the_call_on(field, value, block, graph) -> None:
    block.point(graph.driver.native_call(), [Operand(0, 16), Operand(1, 16)])
    runtime = Runtime(block, np.ones(4, np.float32), np.zeros(4, np.float32))
    for index in (0, 1):
        before = getattr(runtime.tensors[index], field)
        setattr(runtime.tensors[index], field, value)
        assert runtime.invoke() == HANDED_ON
        setattr(runtime.tensors[index], field, before)
    assert not runtime.arrays[1].any()
    assert runtime.invoke() == 0


def test_a_block_that_is_stopped_hands_calls_on_again(block, graph) -> None:
    block.point(graph.driver.native_call(), [Operand(0, 16), Operand(1, 16)])
    runtime = Runtime(block, np.ones(4, np.float32), np.zeros(4, np.float32))
    assert runtime.invoke() == 0
    block.stop()
    assert runtime.invoke() == HANDED_ON
    assert block.runs == 1


def test_a_binding_made_after_native_calls_runs_on_its_own_memory(block, graph) -> None:
    x, y = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
    with graph.bind([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)]) as binding:
        binding.execute()
        block.point(graph.driver.native_call(), [Operand(0, 16), Operand(1, 16)])
        Runtime(block, np.full(4, 7, np.float32), np.zeros(4, np.float32)).invoke()
        x[...] = 3
        binding.execute()
    assert y.tolist() == [[6, 6, 6, 6]]
