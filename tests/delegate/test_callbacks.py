"""An exception in a callback is an error of the interpreter; an invocation is native code where a backend allows it."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from frontends.tflite.test_control_flow import lstm

from delegate.harness import chain, doubled, plain, run, with_delegate
from delegate.test_foreign import Foreign
from isthmus.delegate import (
    Profiling,
    SkipOptions,
    callbacks,
    delegate,
    modify_graph_with_delegate,
    set_custom_allocation,
    structures,
)
from isthmus.delegate.block import NodeBlock, functions
from isthmus.delegate.partition import Partition
from isthmus.delegate.runners import BoundRunner
from isthmus.engine.native import callback
from isthmus.qnn import htp
from isthmus.system import shield

VECTOR = np.float32([[1, 2, 3, 4]])


class Odd(BaseException):
    """No subclass of Exception, so that `except Exception` does not catch it."""


def failing(*_: object) -> None:
    raise Odd("100 % unforeseen, %s and %d too")


def test_an_exception_while_a_delegate_prepares_leaves_the_interpreter_as_it_was(make, monkeypatch) -> None:
    monkeypatch.setattr(delegate, "survey", failing)
    interpreter = plain(doubled(1, 4))
    with pytest.raises(RuntimeError, match="Odd: 100 % unforeseen, %s and %d too"):
        interpreter._interpreter.ModifyGraphWithDelegate(make()._get_native_delegate_pointer())
    interpreter.allocate_tensors()
    assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all()


@pytest.mark.parametrize("when", ["prepare", "__init__"])
def test_an_exception_while_a_node_is_made_leaves_the_interpreter_as_it_was(when, make, monkeypatch) -> None:
    monkeypatch.setattr(Partition, when, failing)
    interpreter = plain(doubled(1, 4))
    interpreter.allocate_tensors()
    with pytest.raises(RuntimeError, match="Odd: 100 % unforeseen, %s and %d too\n"):
        modify_graph_with_delegate(interpreter, make())
    assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all()


def test_an_exception_while_a_node_runs_fails_the_invocation_and_only_that(make, monkeypatch) -> None:
    interpreter = with_delegate(doubled(1, 4), make("HTP"))
    with monkeypatch.context() as broken:
        broken.setattr(BoundRunner, "execute", failing)
        with pytest.raises(RuntimeError, match=r"%s and %d too\nNode number 1 \(TfLiteQnnDelegate\) failed to invoke"):
            interpreter.invoke()
    assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all()
    del interpreter


def test_an_exception_while_a_node_ends_is_swallowed(make, monkeypatch) -> None:
    qnn_delegate, raised = make(), []
    interpreter = with_delegate(doubled(1, 4), qnn_delegate)
    [partition] = qnn_delegate.partitions

    def partitions_of_delegate() -> list[Partition]:
        return [each for owner, each in callbacks.partitions.values() if owner is qnn_delegate]

    def noted(*arguments: object) -> None:
        raised.append("in vain")
        failing()

    monkeypatch.setattr(sys, "unraisablehook", lambda problem: raised.append(problem.exc_value))
    with monkeypatch.context() as broken:
        broken.setattr(delegate.QnnDelegate, "_give_up", noted)
        del interpreter
        gc.collect()
    assert raised == ["in vain"], "it was to end once, and nobody heard that it could not"
    assert (partitions_of_delegate(), list(qnn_delegate.partitions)) == ([partition], [partition])
    callbacks.sweep()
    assert (partitions_of_delegate(), list(qnn_delegate.partitions)) == ([], []), "it is given up at the next occasion"


def test_a_node_that_is_being_freed_is_not_given_up_by_another_thread(make) -> None:
    qnn_delegate = make()
    held = [with_delegate(doubled(1, 4), qnn_delegate)]
    [partition] = qnn_delegate.partitions
    block = weakref.ref(partition.block)
    address = partition.block.address
    seen = []

    def late(context: int, freed: int, answer: int) -> None:
        # The node is freed, and before Python hears of it another thread has its turn there.
        seen.append(callbacks.partitions[freed][1].block.is_left)
        callbacks.sweep()
        held.append(with_delegate(doubled(1, 4), qnn_delegate))
        seen.append([each.block.address == address for each in qnn_delegate.partitions])
        structures.Asked(callbacks.NODE.free)(context, freed, answer)

    thunk = structures.Asked(late)
    partition.block._set(callback.FREE, ctypes.cast(thunk, ctypes.c_void_p).value)
    del held[0]
    assert seen == [False, [True, False]], "its address is no other's until it is freed"
    del partition
    gc.collect()
    assert block() is None
    assert list(callbacks.partitions) == [each.block.address for each in qnn_delegate.partitions]
    assert len(callbacks.partitions) == 1
    for rows in (1, 2):
        held[0].resize_tensor_input(0, (rows, 4))
        held[0].allocate_tensors()
        assert (run(held[0], np.repeat(VECTOR, rows, 0))[0] == 2 * VECTOR).all()
    held.clear()


def test_a_node_that_was_given_up_before_it_is_freed_is_done_with(make) -> None:
    messages = []
    reporter = structures.ReportError(lambda address, text: messages.append(text))
    context = structures.Context(report_error=reporter)
    block = NodeBlock(callbacks.NODE)
    structures.KernelFree(functions().free)(ctypes.addressof(context), block.address)
    assert block.is_ending
    assert not block.is_left
    assert messages == []
    block.release()


def invoke_often(interpreter) -> None:
    for _ in range(100):
        interpreter.invoke()


def test_a_restarted_accelerator_is_an_error_of_the_interpreter(make) -> None:
    qnn_delegate = make("HTP")
    interpreter = with_delegate(doubled(1, 4), qnn_delegate)
    run(interpreter, VECTOR)
    os.kill(qnn_delegate._state.backend.get_property(htp.ACCELERATOR_PID), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="1007 COMMON_SYSTEM_COMMUNICATION"):
        invoke_often(interpreter)
    for _ in range(3):
        assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all(), "the next invocation starts a new one"
    del interpreter


def test_shared_tensors_are_registered_again_with_a_new_accelerator(make) -> None:
    qnn_delegate = make("HTP")
    interpreter = plain(doubled(1, 4))
    memory = qnn_delegate.alloc_custom_mem(16)
    set_custom_allocation(interpreter, 0, memory)
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, qnn_delegate)
    interpreter.invoke()
    memory.view(np.float32, (1, 4))[...] = VECTOR
    os.kill(qnn_delegate._state.backend.get_property(htp.ACCELERATOR_PID), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="1007 COMMON_SYSTEM_COMMUNICATION"):
        invoke_often(interpreter)
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(1), 2 * VECTOR)
    assert qnn_delegate.lines.count("INFO: Tensor 0 is successfully registered to shared memory.") == 2
    del interpreter
    qnn_delegate.free_custom_mem(memory)


# -- native invocation -------------------------------------------------------------------------------------------------


def entered(interpreter, times: int = 3) -> list[str]:
    """The functions of Python's that native code calls during some invocations."""
    names = []

    def note(frame, event: str, argument: object) -> None:
        caller = frame.f_back
        if event == "call" and caller is not None and caller.f_code is Interpreter.invoke.__code__:
            names.append(frame.f_code)

    sys.setprofile(note)
    try:
        for _ in range(times):
            interpreter.invoke()
    finally:
        sys.setprofile(None)
    files = [Path(code.co_filename) for code in names]
    return [file.stem for file in files if file.parent == Path(callbacks.__file__).parent]


def test_an_invocation_on_the_cpu_never_enters_python(make) -> None:
    qnn_delegate = make("CPU")
    interpreter = with_delegate(chain("NEG", "ABS"), qnn_delegate)
    for step in range(5):
        assert (run(interpreter, VECTOR * step)[0] == VECTOR * step).all()
    assert entered(interpreter) == []
    assert qnn_delegate.stats.executions == 8
    del interpreter


@pytest.mark.parametrize("backend", ["HTP", "LPAI", "GPU"])
def test_an_invocation_on_another_backend_enters_python_once_for_each_node(backend, make) -> None:
    if backend == "GPU":
        pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")
    qnn_delegate = make(backend, skip_options=SkipOptions(skip_delegate_ops=["LOG_SOFTMAX"]))
    one, two = (
        with_delegate(chain("NEG"), qnn_delegate),
        with_delegate(chain("NEG", "LOG_SOFTMAX", "ABS"), qnn_delegate),
    )
    for interpreter in (one, two):
        run(interpreter, VECTOR)
    assert entered(one, 5) == ["callbacks"] * 5
    assert entered(two, 5) == ["callbacks"] * 10
    del one, two, interpreter


def test_an_invocation_on_htp_with_shared_tensors_enters_python_once_and_copies_nothing(make) -> None:
    qnn_delegate = make("HTP")
    interpreter = plain(doubled(1, 4))
    memories = [qnn_delegate.alloc_custom_mem(16) for _ in range(2)]
    for index, memory in enumerate(memories):
        set_custom_allocation(interpreter, index, memory)
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, qnn_delegate)
    interpreter.invoke()
    assert entered(interpreter, 5) == ["callbacks"] * 5
    assert (qnn_delegate.stats.executions, qnn_delegate.stats.copied_bytes) == (6, 0)
    del interpreter
    for memory in memories:
        qnn_delegate.free_custom_mem(memory)


def test_an_invocation_on_the_cpu_with_variable_tensors_never_enters_python(make, monkeypatch) -> None:
    qnn_delegate = make("CPU")
    interpreter, theirs = with_delegate(lstm(True), qnn_delegate), plain(lstm(True))
    theirs.allocate_tensors()
    monkeypatch.setattr(Partition, "invoke", failing)
    x = np.random.default_rng(0).standard_normal(interpreter.get_input_details()[0]["shape"]).astype(np.float32)
    for _ in range(3):
        np.testing.assert_allclose(run(interpreter, x)[0], run(theirs, x)[0], rtol=1e-5, atol=1e-6)
    assert qnn_delegate.stats.copied_out_bytes == 3 * 2 * 8 * 4, "new states are copied into the variables"
    del interpreter


def test_a_tensor_that_lost_its_memory_is_reported_by_python(make) -> None:
    qnn_delegate = make("CPU")
    interpreter = with_delegate(doubled(1, 4), qnn_delegate)
    [partition] = qnn_delegate.partitions
    tensor = partition.nodes.tensor(1)
    for field, value in (("data", None), ("bytes", 3)):
        before = getattr(tensor, field)
        setattr(tensor, field, value)
        with pytest.raises(RuntimeError, match=r"tensor 1 \('y'\): it has [03] bytes of memory, its node needs 16"):
            interpreter.invoke()
        setattr(tensor, field, before)
    assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all()
    del interpreter, partition


@pytest.mark.parametrize("backend", ["HTP", "LPAI", "GPU"])
def test_an_invocation_makes_no_shielded_call(backend, make, monkeypatch) -> None:
    """Waiting for a helper thread would take longer than a small graph."""
    if backend == "GPU":
        pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")
    calls, run_shielded = [], shield._run
    monkeypatch.setattr(shield, "_run", lambda function, *rest: calls.append(function) or run_shielded(function, *rest))
    interpreter = with_delegate(doubled(1, 4), make(backend))
    run(interpreter, VECTOR)
    assert calls, "nodes are taken over in shielded calls"
    calls.clear()
    interpreter.invoke()
    assert calls == []
    del interpreter


@pytest.mark.parametrize("backend", ["CPU", "HTP", "LPAI"])
def test_profiling_records_each_execution(backend, make) -> None:
    qnn_delegate = make(backend, profiling=Profiling.PER_OP)
    interpreter = with_delegate(doubled(1, 4), qnn_delegate)
    assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all()
    names = [event.name for event in qnn_delegate.profile.get_events()]
    assert "execute" in names
    assert "copied in" in names
    del interpreter


def test_foreign_nodes_and_delegates_are_refused_by_the_callbacks() -> None:
    messages = []
    reporter = structures.ReportError(lambda address, text: messages.append(text))
    foreign_runtime = Foreign(report_error=reporter)
    context = foreign_runtime.context
    address = ctypes.addressof(context)
    foreign = structures.Delegate(data=callbacks.DELEGATE)
    apply = structures.DelegatePrepare(functions().apply)
    assert apply(address, ctypes.addressof(foreign)) == structures.ERROR
    replaced = structures.DelegateParams(delegate=ctypes.addressof(foreign))
    assert structures.KernelInit(functions().begin)(address, ctypes.addressof(replaced), 0) is None
    block = NodeBlock(callbacks.NODE)
    for node in (structures.Node(user_data=None), structures.Node(user_data=block.address)):
        for function in (functions().prepare, functions().invoke):
            assert structures.KernelCall(function)(address, ctypes.addressof(node)) == structures.ERROR
    free = structures.KernelFree(functions().free)
    free(address, None)
    free(address, block.address)
    block.release()
    assert b"not one of isthmus" in messages[0]
    assert [text for text in messages if b"not taken over" in text] == [
        b"RuntimeError: the node was not taken over\n"
    ] * 2


def test_a_long_message_is_cut_at_a_whole_character_and_ends_its_line() -> None:
    messages = []
    reporter = structures.ReportError(lambda address, text: messages.append(text))
    foreign_runtime = Foreign(report_error=reporter)
    context = foreign_runtime.context
    callbacks.report(ctypes.addressof(context), ValueError("ä" * 5000))
    [text] = messages
    assert len(text) <= callbacks.MAX_MESSAGE + 1
    assert text.decode().startswith("ValueError: ääää")
    assert text.endswith(b"\xc3\xa4\n")
