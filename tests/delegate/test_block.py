"""The callback that another runtime calls: it runs a program on that runtime's tensors, or hands the call on."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest

from isthmus import qnn
from isthmus.delegate import ownership, structures
from isthmus.delegate.block import Answering, BlockOperand, NodeBlock, functions
from isthmus.engine.native.callback import ANSWERED, DELEGATE_WORDS

HANDED_ON = 41
ERROR = structures.ERROR


class Runtime:
    """A runtime with tensors in an array of structures, and a node that knows its block."""

    def __init__(self, block: NodeBlock, *arrays: np.ndarray) -> None:
        self.arrays = arrays
        self.tensors = (structures.Tensor * len(arrays))()
        for tensor, array in zip(self.tensors, arrays, strict=True):
            tensor.data, tensor.bytes = array.ctypes.data, array.nbytes
        self.context = structures.Context()
        self.move()
        self.node = structures.Node(user_data=block.address)

    def move(self) -> None:
        """Move the tensors' structures to other addresses."""
        moved = (structures.Tensor * len(self.tensors))(*self.tensors)
        self.tensors, self._before = moved, self.tensors
        self.context.tensors = ctypes.cast(self.tensors, ctypes.POINTER(structures.Tensor))

    def invoke(self) -> int:
        return self.call(functions().invoke)

    def call(self, function: int) -> int:
        return structures.KernelCall(function)(ctypes.addressof(self.context), ctypes.addressof(self.node))


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

    def said(answer: int, status: int) -> None:
        ctypes.c_int64.from_address(answer).value = ANSWERED + status

    made = answering(
        lambda context, node, answer: handed.append(node) or said(answer, HANDED_ON),
        lambda context, node, answer: handed.append("prepared") or said(answer, structures.OK),
        lambda context, block, answer: handed.append(block) or said(answer, structures.OK),
    )
    made.handed = handed
    yield made
    made.release()


def answering(*functions: object) -> NodeBlock:
    """A block whose compiled functions pass calls on to these functions of Python."""
    thunks = [structures.Asked(function) for function in functions]
    made = NodeBlock(Answering(*(ctypes.cast(each, ctypes.c_void_p).value for each in thunks)))
    made.keeps = thunks
    return made


def test_a_block_that_is_pointed_at_nothing_hands_every_call_on(block) -> None:
    runtime = Runtime(block, np.zeros(4, np.float32))
    assert runtime.invoke() == HANDED_ON
    assert block.handed == [ctypes.addressof(runtime.node)]


def test_a_program_runs_where_the_tensors_lie_at_that_moment(block, graph) -> None:
    block.point(graph.driver.native_call(), [BlockOperand(0, 16), BlockOperand(2, 16)])
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
    block.point(graph.driver.native_call(), [BlockOperand(0, 16), BlockOperand(0, 16, aside.ctypes.data)])
    runtime = Runtime(block, np.float32([1, 2, 3, 4]))
    for factor in (2, 4, 8):
        assert runtime.invoke() == 0
        assert runtime.arrays[0].tolist() == [factor * value for value in (1, 2, 3, 4)]


@pytest.mark.parametrize(("field", "value"), [("data", None), ("bytes", 15), ("bytes", 17)])
def test_a_tensor_that_is_not_as_prepared_for_hands_the_call_on(field, value, block, graph) -> None:
    block.point(graph.driver.native_call(), [BlockOperand(0, 16), BlockOperand(1, 16)])
    runtime = Runtime(block, np.ones(4, np.float32), np.zeros(4, np.float32))
    for index in (0, 1):
        before = getattr(runtime.tensors[index], field)
        setattr(runtime.tensors[index], field, value)
        assert runtime.invoke() == HANDED_ON
        setattr(runtime.tensors[index], field, before)
    assert not runtime.arrays[1].any()
    assert runtime.invoke() == 0


def test_a_block_that_is_stopped_hands_calls_on_again(block, graph) -> None:
    block.point(graph.driver.native_call(), [BlockOperand(0, 16), BlockOperand(1, 16)])
    runtime = Runtime(block, np.ones(4, np.float32), np.zeros(4, np.float32))
    assert runtime.invoke() == 0
    block.stop()
    assert runtime.invoke() == HANDED_ON
    assert block.runs == 1


def test_a_binding_made_after_native_calls_runs_on_its_own_memory(block, graph) -> None:
    x, y = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
    with graph.bind([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)]) as binding:
        binding.execute()
        block.point(graph.driver.native_call(), [BlockOperand(0, 16), BlockOperand(1, 16)])
        Runtime(block, np.full(4, 7, np.float32), np.zeros(4, np.float32)).invoke()
        x[...] = 3
        binding.execute()
    assert y.tolist() == [[6, 6, 6, 6]]


# -- what a signal may do to functions of Python's ---------------------------------------------------------------------


class Odd(BaseException):
    """What the handler of a signal raises where a function begins, before anybody can catch it."""


@pytest.fixture
def silent(block, monkeypatch):
    """A block whose functions of Python all fail before they have begun."""

    def odd(*_: object) -> int:
        raise Odd

    monkeypatch.setattr(sys, "unraisablehook", lambda problem: None)
    made = answering(odd, odd, odd)
    yield made
    made.release()


def test_a_function_that_returned_no_status_has_failed(silent) -> None:
    runtime = Runtime(silent, np.zeros(4, np.float32))
    assert runtime.invoke() == ERROR
    assert runtime.call(functions().prepare) == ERROR


def test_a_node_whose_preparation_has_failed_does_not_run_as_it_was_prepared_before(silent, graph) -> None:
    silent.point(graph.driver.native_call(), [BlockOperand(0, 16), BlockOperand(1, 16)])
    runtime = Runtime(silent, np.ones(4, np.float32), np.zeros(4, np.float32))
    assert runtime.invoke() == 0
    runtime.call(functions().prepare)
    assert runtime.invoke() == ERROR
    assert silent.runs == 1


def test_the_end_of_a_node_is_noted_whatever_becomes_of_the_call(block, silent) -> None:
    free = structures.KernelFree(functions().free)
    for each in (block, silent):
        assert not each.is_ending
        free(0, each.address)
        assert each.is_ending
    assert block.handed == [block.address]
    assert silent.is_left, "nobody has heard of it"
    assert not block.is_left, "whoever has answered may have given its memory back: it is not written to again"
    free(0, None)


def test_a_preparation_is_handed_on_and_its_status_passed_back(block) -> None:
    assert Runtime(block, np.zeros(4, np.float32)).call(functions().prepare) == 0
    assert block.handed == ["prepared"]


def test_a_call_without_a_result_counts_as_failed(monkeypatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda problem: None)
    answers = iter((ANSWERED + 2, ANSWERED))

    def prepare(context: int, delegate: int, answer: int) -> None:
        ctypes.c_int64.from_address(answer).value = next(answers)

    thunk = structures.Asked(prepare)
    words = (ctypes.c_int64 * DELEGATE_WORDS)(ctypes.cast(thunk, ctypes.c_void_p).value, 0, ownership.OWN)
    made = structures.Delegate(data=ctypes.addressof(words))
    apply = structures.DelegatePrepare(functions().apply)
    assert [apply(0, ctypes.addressof(made)) for _ in range(3)] == [2, 0, ERROR]


def test_a_node_that_was_not_made_has_no_block(monkeypatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda problem: None)
    answers = iter((4096,))

    def begin(context: int, replaced: int, answer: int) -> None:
        ctypes.c_int64.from_address(answer).value = next(answers)

    thunk = structures.Asked(begin)
    words = (ctypes.c_int64 * DELEGATE_WORDS)(0, ctypes.cast(thunk, ctypes.c_void_p).value, ownership.OWN)
    made = structures.Delegate(data=ctypes.addressof(words))
    replaced = structures.DelegateParams(delegate=ctypes.addressof(made))
    entry = structures.KernelInit(functions().begin)
    assert [entry(0, ctypes.addressof(replaced), 0) for _ in range(2)] == [4096, None]


def test_a_node_without_a_block_fails(block) -> None:
    runtime = Runtime(block, np.zeros(4, np.float32))
    runtime.node.user_data = None
    assert runtime.invoke() == ERROR
    assert runtime.call(functions().prepare) == ERROR
    assert block.handed == []


# -- in a copy of the process ------------------------------------------------------------------------------------------


def test_a_process_that_is_a_copy_runs_nothing_and_calls_nothing(block, graph, monkeypatch) -> None:
    block.point(graph.driver.native_call(), [BlockOperand(0, 16), BlockOperand(1, 16)])
    runtime = Runtime(block, np.ones(4, np.float32), np.zeros(4, np.float32))
    called = []
    thunk = structures.Asked(lambda context, subject, answer: called.append(subject))
    function = ctypes.cast(thunk, ctypes.c_void_p).value
    words = (ctypes.c_int64 * DELEGATE_WORDS)(function, function, ownership.OWN)
    made = structures.Delegate(data=ctypes.addressof(words))
    replaced = structures.DelegateParams(delegate=ctypes.addressof(made))
    monkeypatch.setattr(ownership._word, "value", 0)
    assert runtime.invoke() == ERROR
    assert runtime.call(functions().prepare) == ERROR
    structures.KernelFree(functions().free)(0, block.address)
    assert structures.DelegatePrepare(functions().apply)(0, ctypes.addressof(made)) == ERROR
    assert structures.KernelInit(functions().begin)(0, ctypes.addressof(replaced), 0) is None
    assert (block.runs, block.handed, block.is_ending, called) == (0, [], False, [])
    monkeypatch.undo()
    assert runtime.invoke() == 0
    assert runtime.arrays[1].tolist() == [2, 2, 2, 2]
