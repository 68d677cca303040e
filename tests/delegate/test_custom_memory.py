"""Tensors in shared memory: checked, registered, used in place, and freed only when no interpreter has them."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from frontends.tflite.build import Op, Subgraph, T, model, options
from support.interruption import check_every_interrupt, everywhere
from support.processes import descriptors, opened_since

from delegate.harness import chain, doubled, plain, run, with_delegate
from isthmus.delegate import (
    CustomAllocation,
    QnnDelegate,
    SkipOptions,
    c_names,
    custom_memory,
    library,
    modify_graph_with_delegate,
    set_custom_allocation,
    structures,
)
from isthmus.delegate import interpreter as interpreters
from isthmus.errors import Code, QnnError

SHAPE = (1, 64)
NBYTES = 256


@pytest.fixture(autouse=True)
def nothing_left():
    """Every test frees what it has allocated."""
    yield
    gc.collect()
    left = list(custom_memory._memories.values())
    for memory in left:
        custom_memory.free(memory)
    assert not left


def shared(content: bytes, delegate: QnnDelegate, *indices: int) -> tuple[Interpreter, list]:
    """An interpreter by the steps of the tutorial, some tensors in shared memory."""
    interpreter = plain(content)
    memories = [delegate.alloc_custom_mem(NBYTES, 64) for _ in indices]
    for index, memory in zip(indices, memories, strict=True):
        set_custom_allocation(interpreter, index, CustomAllocation(memory, NBYTES))
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, delegate)
    return interpreter, memories


def refused(code: Code, match: str, call, *arguments) -> None:
    with pytest.raises(QnnError, match=match) as caught:
        call(*arguments)
    assert caught.value.code is code


def test_shared_tensors_are_registered_and_used_in_place_with_nothing_reserved_for_copies(make) -> None:
    delegate = make("HTP")
    interpreter, memories = shared(doubled(*SHAPE), delegate, 0, 1)
    assert delegate.lines == [
        "INFO: TfLiteQnnDelegate delegate: 1 nodes delegated out of 1 nodes with 1 partitions.",
        "INFO: Replacing 1 node(s) with delegate (TfLiteQnnDelegate) node, yielding 1 partitions.",
        "INFO: Tensor 0 is successfully registered to shared memory.",
        "INFO: Tensor 1 is successfully registered to shared memory.",
    ]
    x, y = (memory.view(np.float32, SHAPE) for memory in memories)
    for step in range(10):
        x[...] = step
        interpreter.invoke()
        assert (y == 2 * step).all()
    stats = delegate.stats
    assert (stats.executions, stats.copied_bytes, stats.staging_bytes) == (10, 0, 0)
    assert stats.in_place_bytes == {"shared": 10 * 2 * NBYTES}
    del interpreter
    for memory in memories:
        delegate.free_custom_mem(memory)


def test_another_mapping_of_the_memory_sees_and_is_seen_by_interpreter_and_accelerator(make) -> None:
    delegate = make("HTP")
    interpreter, memories = shared(doubled(*SHAPE), delegate, 0, 1)
    maps = [mmap.mmap(memory.buffer.fd, NBYTES) for memory in memories]
    input_view, output_view = (np.frombuffer(each, np.float32).reshape(SHAPE) for each in maps)
    input_view[...] = np.arange(64)
    interpreter.invoke()
    np.testing.assert_array_equal(output_view, 2 * np.arange(64, dtype=np.float32).reshape(SHAPE))
    np.testing.assert_array_equal(interpreter.get_tensor(0), input_view)
    interpreter.set_tensor(0, np.full(SHAPE, 7, np.float32))
    assert (input_view == 7).all()
    assert delegate.stats.copied_bytes == 0
    del interpreter
    for memory in memories:
        delegate.free_custom_mem(memory)


@pytest.mark.parametrize("turns", [False, True], ids=["element by element", "transposed"])
def test_an_output_may_be_in_the_memory_of_its_input(make, turns) -> None:
    delegate = make("HTP")
    tensors = [T("f32", (8, 8), name="x"), T("f32", (8, 8), name="y"), T("i32", (2,), np.int32([1, 0]))]
    node = Op("TRANSPOSE", [0, 2], [1]) if turns else Op("RELU", [0], [1])
    interpreter = plain(model(Subgraph(tensors, [node], [0], [1])))
    memory = delegate.alloc_custom_mem(NBYTES, 64)
    for index in (0, 1):
        set_custom_allocation(interpreter, index, CustomAllocation(memory, NBYTES))
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, delegate)
    values = memory.view(np.float32, (8, 8))
    values[...] = np.arange(-32, 32).reshape(8, 8)
    for _ in range(3):
        expected = values.T.copy() if turns else np.maximum(values, 0)
        interpreter.invoke()
        np.testing.assert_array_equal(values, expected)
    assert delegate.stats.copied_bytes == (3 * NBYTES if turns else 0)
    del interpreter
    delegate.free_custom_mem(memory)


def test_shared_and_ordinary_tensors_are_mixed(make) -> None:
    delegate = make("HTP")
    interpreter, [memory] = shared(doubled(*SHAPE), delegate, 0)
    memory.view(np.float32, SHAPE)[...] = 3
    interpreter.invoke()
    assert (interpreter.get_tensor(1) == 6).all()
    stats = delegate.stats
    assert (stats.copied_in_bytes, stats.copied_out_bytes) == (0, NBYTES)
    del interpreter
    delegate.free_custom_mem(memory)


def test_a_delegate_that_was_applied_first_registers_when_tensors_are_allocated_again(make) -> None:
    delegate = make("HTP")
    interpreter = with_delegate(doubled(*SHAPE), delegate)
    x = np.ones(SHAPE, np.float32)
    np.testing.assert_array_equal(run(interpreter, x)[0], 2 * x)
    memory = delegate.alloc_custom_mem(NBYTES)
    set_custom_allocation(interpreter, 0, memory)
    with pytest.raises(RuntimeError, match="not ready"):
        interpreter.invoke()
    interpreter.allocate_tensors()
    assert delegate.lines[-1] == "INFO: Tensor 0 is successfully registered to shared memory."
    memory.view(np.float32, SHAPE)[...] = 5
    interpreter.invoke()
    assert (interpreter.get_tensor(1) == 10).all()
    other = delegate.alloc_custom_mem(NBYTES)
    set_custom_allocation(interpreter, 0, other)
    interpreter.allocate_tensors()
    delegate.free_custom_mem(memory)
    other.view(np.float32, SHAPE)[...] = 6
    interpreter.invoke()
    assert (interpreter.get_tensor(1) == 12).all()
    del interpreter
    delegate.free_custom_mem(other)


def test_two_tensors_share_one_piece_of_memory(make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(2 * NBYTES)
    interpreter = plain(doubled(*SHAPE))
    set_custom_allocation(interpreter, 0, CustomAllocation(memory.address, NBYTES))
    set_custom_allocation(interpreter, 1, CustomAllocation(memory.address + NBYTES, NBYTES))
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, delegate)
    memory.view(np.float32, SHAPE)[...] = 4
    interpreter.invoke()
    assert (memory.view(np.float32, SHAPE, NBYTES) == 8).all()
    del interpreter
    delegate.free_custom_mem(memory)


def test_an_output_over_a_part_of_its_input_is_refused(make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(2 * NBYTES, 64)
    interpreter = plain(doubled(*SHAPE))
    for index in (0, 1):
        set_custom_allocation(interpreter, index, CustomAllocation(memory.address + 64 * index, NBYTES))
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, delegate)
    with pytest.raises(RuntimeError, match=r"6004 GRAPH_INVALID_TENSOR.*overlaps that of tensor"):
        interpreter.invoke()
    del interpreter
    gc.collect()
    delegate.free_custom_mem(memory)


def test_tensors_between_partitions_are_registered_by_both(make) -> None:
    delegate = make("HTP", skip_options=SkipOptions(skip_delegate_node_ids=[1]))
    memories = [delegate.alloc_custom_mem(64) for _ in range(4)]
    interpreter = plain(chain("NEG", "ABS", "NEG"))
    for index, memory in enumerate(memories):
        set_custom_allocation(interpreter, index, CustomAllocation(memory, 16))
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, delegate)
    assert delegate.taken == [(2, 3, 2)]
    lines = [line for line in delegate.lines if "registered" in line]
    assert lines == [f"INFO: Tensor {index} is successfully registered to shared memory." for index in range(4)]
    values = [memory.view(np.float32, (1, 4)) for memory in memories]
    values[0][...] = 1, -2, 3, -4
    interpreter.invoke()
    for array, expected in zip(values[1:], ([-1, 2, -3, 4], [1, 2, 3, 4], [-1, -2, -3, -4]), strict=True):
        np.testing.assert_array_equal(array, [expected])
    assert delegate.stats.copied_bytes == 0
    for memory in memories:
        delegate.free_custom_mem(memory)


def test_a_model_that_is_cut_copies_what_crosses_and_one_that_is_whole_copies_nothing(make) -> None:
    copied = []
    for skipped in ([], [1]):
        delegate = make("HTP", skip_options=SkipOptions(skip_delegate_node_ids=skipped))
        memories = {index: delegate.alloc_custom_mem(64) for index in (0, 3)}
        interpreter = plain(chain("NEG", "ABS", "NEG"))
        for index, memory in memories.items():
            set_custom_allocation(interpreter, index, CustomAllocation(memory, 16))
        interpreter.allocate_tensors()
        modify_graph_with_delegate(interpreter, delegate)
        interpreter.invoke()
        copied.append(delegate.stats.copied_bytes)
        for memory in memories.values():
            delegate.free_custom_mem(memory)
        del interpreter
    assert copied == [0, 2 * 16]


def test_a_tensor_inside_a_partition_is_noted_once(make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(64)
    interpreter = plain(chain("NEG", "ABS"))
    set_custom_allocation(interpreter, 1, memory)
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, delegate)
    interpreter.allocate_tensors()
    np.testing.assert_array_equal(run(interpreter, np.float32([[1, -2, 3, -4]]))[0], [[1, 2, 3, 4]])
    note = "WARN: Tensor 1 is inside a partition: it is not registered to shared memory, and never written."
    assert delegate.lines.count(note) == 1
    assert not memory.buffer.array.any()
    delegate.free_custom_mem(memory)


# -- what is allocated, and what is not --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, 1 << 62, "16", None, 1.5, True])
def test_a_size_that_cannot_be_had_answers_none(size, make) -> None:
    delegate = make("HTP")
    assert delegate.alloc_custom_mem(size, 64) is None
    assert delegate.lines[-1].startswith("ERROR: Custom memory")


@pytest.mark.parametrize("alignment", [0, -64, 3, 1 << 20, None, "64"])
def test_an_alignment_that_cannot_be_had_answers_none(alignment, make) -> None:
    assert make("HTP").alloc_custom_mem(64, alignment) is None


@pytest.mark.parametrize("alignment", [1, 64, 4096])
def test_memory_is_aligned_as_asked_for(alignment, make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(100, alignment)
    assert (memory.nbytes, memory.address % alignment) == (100, 0)
    delegate.free_custom_mem(memory)


@pytest.mark.parametrize("backend", ["CPU", "LPAI", "GPU"])
def test_other_backends_have_no_shared_memory(backend, make) -> None:
    if backend == "GPU":
        pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")
    delegate = make(backend)
    refused(Code.COMMON_NOT_SUPPORTED, "shares no memory", delegate.alloc_custom_mem, 64)
    memory = custom_memory.allocate(NBYTES)
    interpreter = plain(doubled(*SHAPE))
    set_custom_allocation(interpreter, 0, memory)
    interpreter.allocate_tensors()
    with pytest.raises(RuntimeError, match=f"backend '{backend.lower()}' shares no memory"):
        modify_graph_with_delegate(interpreter, delegate)
    interpreter.allocate_tensors()
    interpreter.invoke()
    del interpreter
    custom_memory.free(memory)


# -- what a tensor takes -----------------------------------------------------------------------------------------------


@pytest.fixture
def one(make):
    """An interpreter, and memory for one of its tensors."""
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(NBYTES + 64)
    both = [plain(doubled(*SHAPE)), memory]
    yield both
    both.clear()
    gc.collect()
    custom_memory.free(memory)


@pytest.mark.parametrize("null", [None, 0])
def test_a_null_pointer_is_refused(null, one) -> None:
    refused(Code.COMMON_INVALID_ARGUMENT, "null", set_custom_allocation, one[0], 0, CustomAllocation(null, NBYTES))


def test_a_foreign_pointer_is_refused(one) -> None:
    mine = np.zeros(NBYTES, np.uint8)
    for address in (mine.ctypes.data, 64, one[1].address - 64, one[1].address + (1 << 30), -64):
        refused(
            Code.COMMON_INVALID_ARGUMENT,
            "not an address of custom memory",
            set_custom_allocation,
            one[0],
            0,
            CustomAllocation(address, NBYTES),
        )


@pytest.mark.parametrize("wrong", [object(), "memory", np.zeros(4), 1.5])
def test_what_is_no_memory_is_refused(wrong, one) -> None:
    refused(Code.COMMON_INVALID_ARGUMENT, "must be", set_custom_allocation, one[0], 0, wrong)
    refused(Code.COMMON_INVALID_ARGUMENT, "must be a number", set_custom_allocation, one[0], 0,
            CustomAllocation(wrong, NBYTES))  # fmt: skip


def test_an_unaligned_pointer_is_refused(one) -> None:
    given = CustomAllocation(one[1].address + 4, NBYTES)
    refused(Code.MEM_INVALID_SHAPE, "not a multiple of 64", set_custom_allocation, one[0], 0, given)


@pytest.mark.parametrize("nbytes", [NBYTES - 1, 1])
def test_memory_that_is_too_small_is_refused(nbytes, one) -> None:
    given = CustomAllocation(one[1], nbytes)
    rule = f"has {nbytes} bytes, the tensor takes 256"
    refused(Code.MEM_INVALID_SHAPE, rule, set_custom_allocation, one[0], 0, given)


@pytest.mark.parametrize("nbytes", [0, -1, None, "256", 2.0])
def test_a_size_that_is_no_positive_integer_is_refused(nbytes, one) -> None:
    given = CustomAllocation(one[1], nbytes)
    refused(Code.COMMON_INVALID_ARGUMENT, "size must be", set_custom_allocation, one[0], 0, given)


def test_memory_that_is_declared_larger_than_it_is_is_refused(one) -> None:
    given = CustomAllocation(one[1], one[1].nbytes + 1)
    refused(Code.MEM_INVALID_SHAPE, "reach beyond", set_custom_allocation, one[0], 0, given)


@pytest.mark.parametrize("index", [-1, 2, 1 << 40, None, "x", True])
def test_a_tensor_that_is_not_there_is_refused(index, one) -> None:
    refused(Code.COMMON_INVALID_ARGUMENT, "there is no tensor", set_custom_allocation, one[0], index, one[1])


def test_what_is_no_interpreter_is_refused(one) -> None:
    for wrong in (None, 7, object()):
        refused(Code.COMMON_INVALID_ARGUMENT, "must be an ai_edge_litert", set_custom_allocation, wrong, 0, one[1])


def test_a_constant_cannot_lie_in_memory_of_the_clients(make) -> None:
    tensors = [T("f32", SHAPE, name="x"), T("f32", SHAPE, np.ones(SHAPE)), T("f32", SHAPE, name="y")]
    interpreter = plain(model(Subgraph(tensors, [Op("ADD", [0, 1], [2], options("Add"))], [0], [2])))
    memory = make("HTP").alloc_custom_mem(NBYTES)
    refused(Code.COMMON_OPERATION_NOT_PERMITTED, "a constant", set_custom_allocation, interpreter, 1, memory)
    custom_memory.free(memory)


def repeated_at_run_time() -> bytes:
    """A model that repeats a tensor as often as an input says: the result's shape is known only when it runs."""
    tensors = [
        T("f32", SHAPE, name="x"), T("i32", (2,), name="times"), T("f32", SHAPE, name="a"), T("f32", SHAPE, name="y"),
    ]  # fmt: skip
    operators = [Op("NEG", [0], [2]), Op("TILE", [2, 1], [3], options("Tile"))]
    return model(Subgraph(tensors, operators, [0, 1], [3]))


def test_a_dynamic_output_is_refused_once_it_is_known_to_be_one(make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(NBYTES)
    interpreter = plain(repeated_at_run_time())
    interpreter.allocate_tensors()
    refused(Code.COMMON_OPERATION_NOT_PERMITTED, "dynamic", set_custom_allocation, interpreter, 3, memory)
    early = plain(repeated_at_run_time())
    set_custom_allocation(early, 3, memory)
    early.allocate_tensors()
    with pytest.raises(RuntimeError, match="custom memory of tensor 3: the tensor is dynamic"):
        modify_graph_with_delegate(early, delegate)
    del early, interpreter
    gc.collect()
    custom_memory.free(memory)


def test_memory_is_checked_again_after_each_resize(make) -> None:
    delegate = make("HTP")
    interpreter, [memory] = shared(doubled(*SHAPE, signature=(-1, 64)), delegate, 0)
    interpreter.resize_tensor_input(0, (2, 64))
    with pytest.raises(RuntimeError, match="it has 256 bytes, the tensor now takes 512"):
        interpreter.allocate_tensors()
    with pytest.raises(RuntimeError):
        interpreter.invoke()
    larger = delegate.alloc_custom_mem(2 * NBYTES)
    set_custom_allocation(interpreter, 0, larger)
    interpreter.allocate_tensors()
    larger.view(np.float32, (2, 64))[...] = 1
    interpreter.invoke()
    assert (interpreter.get_tensor(1) == np.full((2, 64), 2)).all()
    interpreter.resize_tensor_input(0, SHAPE)
    interpreter.allocate_tensors()
    interpreter.invoke()
    assert interpreter.get_tensor(1).shape == SHAPE
    del interpreter
    for each in (memory, larger):
        delegate.free_custom_mem(each)


def test_memory_is_checked_by_the_interpreter_too_where_no_delegate_was_applied(make) -> None:
    memory = make("HTP").alloc_custom_mem(NBYTES)
    interpreter = plain(doubled(*SHAPE, signature=(-1, 64)))
    set_custom_allocation(interpreter, 0, memory)
    interpreter.resize_tensor_input(0, (2, 64))
    with pytest.raises(RuntimeError, match="too small"):
        interpreter.allocate_tensors()
    del interpreter
    gc.collect()
    custom_memory.free(memory)


def test_xnnpack_works_on_the_memory_where_no_delegate_was_applied(make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(NBYTES)
    interpreter = Interpreter(model_content=doubled(*SHAPE))
    set_custom_allocation(interpreter, 1, memory)
    interpreter.allocate_tensors()
    x = np.random.default_rng(0).random(SHAPE, np.float32)
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    np.testing.assert_array_equal(memory.view(np.float32, SHAPE), 2 * x)
    del interpreter
    delegate.free_custom_mem(memory)


def test_tensors_cannot_move_while_arrays_of_them_are_about(one) -> None:
    interpreter, memory = one
    interpreter.allocate_tensors()
    view = interpreter.tensor(0)()
    refused(Code.COMMON_OPERATION_NOT_PERMITTED, "views of its tensors", set_custom_allocation, interpreter, 0, memory)
    del view
    set_custom_allocation(interpreter, 0, memory)


# -- what is on record -------------------------------------------------------------------------------------------------


def tensor_of(interpreter: Interpreter, index: int) -> structures.Tensor:
    return structures.Context.from_address(interpreters._context(interpreter)).tensors[index]


def test_memory_that_litert_has_is_recorded_despite_an_interrupt_at_any_place(make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(NBYTES)

    def allocated() -> Interpreter:
        made = plain(doubled(*SHAPE))
        made.allocate_tensors()
        interpreters._context(made)
        return made

    current = [allocated()]

    def has_it() -> bool:
        return tensor_of(current[0], 0).data == memory.address

    seen = set()
    for where in everywhere(lambda: set_custom_allocation(current[0], 0, memory)):
        seen.add(has_it())
        if has_it():
            assert [use.tensor for use in custom_memory.uses_of(interpreters._context(current[0]))] == [0]
            with pytest.raises(RuntimeError, match="not ready"):
                current[0].invoke()
        assert current[0].get_input_details()[0]["shape"].tolist() == list(SHAPE), where
        current[0] = allocated()
    assert seen == {True, False}
    current.clear()
    gc.collect()
    delegate.free_custom_mem(memory)


def test_memory_that_litert_refuses_is_taken_off_the_record_and_what_the_tensor_had_stays(make, monkeypatch) -> None:
    delegate = make("HTP")
    interpreter, [memory] = shared(doubled(*SHAPE), delegate, 0)
    other = delegate.alloc_custom_mem(NBYTES)
    with monkeypatch.context() as stubborn:
        refuses = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(lambda *_: structures.ERROR)
        stubborn.setattr(library, "set_custom_allocation", lambda: refuses)
        rule = "LiteRT does not take it"
        refused(Code.COMMON_OPERATION_NOT_PERMITTED, rule, set_custom_allocation, interpreter, 0, other)
    delegate.free_custom_mem(other)
    assert other.buffer.is_closed
    delegate.free_custom_mem(memory)
    memory.view(np.float32, SHAPE)[...] = 3
    interpreter.invoke()
    assert (interpreter.get_tensor(1) == 6).all(), "nothing has changed"
    del interpreter
    gc.collect()
    assert memory.buffer.is_closed


def test_memory_that_is_freed_before_litert_takes_it_is_refused(make, monkeypatch) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(NBYTES)
    interpreter = plain(doubled(*SHAPE))
    reshaping = interpreters._reshaping

    def late(interpreter: Interpreter) -> list:
        delegate.free_custom_mem(memory)
        return reshaping(interpreter)

    monkeypatch.setattr(interpreters, "_reshaping", late)
    refused(Code.COMMON_INVALID_ARGUMENT, "has been freed", set_custom_allocation, interpreter, 0, memory)
    assert tensor_of(interpreter, 0).allocation_type == structures.Allocation.ARENA_RW


def test_memory_without_references_ends_after_the_interpreter_that_uses_it(make) -> None:
    check_memory_ends_with_its_interpreter(make("HTP"))


def check_memory_ends_with_its_interpreter(delegate) -> None:
    before = descriptors()
    delegate.alloc_custom_mem(NBYTES)
    assert opened_since(before) == []
    memory = delegate.alloc_custom_mem(NBYTES)
    address, its_own = memory.address, set(descriptors()) - set(before)
    interpreter = plain(doubled(*SHAPE))
    set_custom_allocation(interpreter, 0, memory)
    interpreter.allocate_tensors()
    del memory
    assert its_own <= set(descriptors())
    interpreter.set_tensor(0, np.ones(SHAPE, np.float32))
    interpreter.invoke()
    assert custom_memory.find(address) is not None
    del interpreter
    assert opened_since(before) == []
    assert custom_memory.find(address) is None


def test_an_interrupted_allocation_leaves_nothing(make) -> None:
    delegate = make("HTP")

    def action() -> None:
        memory = delegate.alloc_custom_mem(NBYTES)
        delegate.free_custom_mem(memory)

    assert check_every_interrupt(action) > 20
    check_memory_ends_with_its_interpreter(delegate)


# -- order -------------------------------------------------------------------------------------------------------------


def test_memory_that_is_freed_right_after_an_invocation_ends_with_the_interpreter(make) -> None:
    delegate = make("HTP")
    interpreter, [x, y] = shared(doubled(*SHAPE), delegate, 0, 1)
    interpreter.invoke()
    address = x.address
    for memory in (x, y):
        delegate.free_custom_mem(memory)
    for again in (x, address):
        refused(Code.COMMON_INVALID_ARGUMENT, "it has been freed", delegate.free_custom_mem, again)
    assert not x.buffer.is_closed
    for value in (3, 4):
        interpreter.set_tensor(0, np.full(SHAPE, value, np.float32))
        interpreter.invoke()
        assert (interpreter.get_tensor(1) == 2 * value).all()
    # What is set up anew is still in the memory that the interpreter has.
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.full(SHAPE, 5, np.float32))
    interpreter.invoke()
    assert (interpreter.get_tensor(1) == 10).all()
    assert delegate.stats.copied_bytes == 0
    kept = interpreter.tensor(1)()
    del interpreter
    assert not y.buffer.is_closed, "an array of a tensor keeps the interpreter"
    del kept
    assert x.buffer.is_closed
    assert y.buffer.is_closed
    assert custom_memory.find(address) is None


def test_memory_that_is_freed_and_replaced_ends_when_no_tensor_has_it(make) -> None:
    delegate = make("HTP")
    interpreter, [first] = shared(doubled(*SHAPE), delegate, 0)
    delegate.free_custom_mem(first)
    refused(Code.COMMON_INVALID_ARGUMENT, "not an address of custom", set_custom_allocation, interpreter, 1, first)
    other = delegate.alloc_custom_mem(NBYTES)
    set_custom_allocation(interpreter, 0, other)
    interpreter.allocate_tensors()
    assert first.buffer.is_closed
    other.view(np.float32, SHAPE)[...] = 6
    interpreter.invoke()
    assert (interpreter.get_tensor(1) == 12).all()
    del interpreter
    delegate.free_custom_mem(other)


def test_memory_that_is_freed_before_a_delegate_is_applied_is_registered_all_the_same(make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(NBYTES)
    interpreter = plain(doubled(*SHAPE))
    set_custom_allocation(interpreter, 0, memory)
    delegate.free_custom_mem(memory)
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, delegate)
    assert delegate.lines[-1] == "INFO: Tensor 0 is successfully registered to shared memory."
    memory.view(np.float32, SHAPE)[...] = 2
    interpreter.invoke()
    assert (interpreter.get_tensor(1) == 4).all()
    del interpreter
    assert memory.buffer.is_closed


def test_freeing_that_is_interrupted_is_done_or_can_be_done_again(make) -> None:
    delegate = make("HTP")
    content = doubled(*SHAPE)

    def lying_there() -> tuple[Interpreter, custom_memory.CustomMemory]:
        interpreter, memory = plain(content), delegate.alloc_custom_mem(NBYTES)
        set_custom_allocation(interpreter, 0, memory)
        return interpreter, memory

    def free() -> None:
        with suppress(QnnError):
            delegate.free_custom_mem(current[1])

    current = lying_there()
    for where in everywhere(free):
        free()
        interpreter, memory = current
        assert not memory.buffer.is_closed, where
        current = ()
        del interpreter
        assert memory.buffer.is_closed, where
        current = lying_there()
    free()
    current = ()


def test_memory_is_freed_once_and_null_always(make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(64)
    address = memory.address
    delegate.free_custom_mem(memory)
    for again in (memory, address):
        refused(Code.COMMON_INVALID_ARGUMENT, "not allocated", delegate.free_custom_mem, again)
    for wrong in ("x", 5, 1.5, object()):
        refused(Code.COMMON_INVALID_ARGUMENT, "not allocated", delegate.free_custom_mem, wrong)
    delegate.free_custom_mem(None)
    delegate.free_custom_mem(0)


def test_freed_memory_is_no_memory_for_a_tensor(make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(NBYTES)
    delegate.free_custom_mem(memory)
    interpreter = plain(doubled(*SHAPE))
    refused(Code.COMMON_INVALID_ARGUMENT, "not an address of custom", set_custom_allocation, interpreter, 0, memory)


def test_a_delegate_is_not_applied_before_tensors_in_custom_memory_are_allocated(make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(NBYTES)
    interpreter = plain(doubled(*SHAPE))
    set_custom_allocation(interpreter, 0, memory)
    with pytest.raises(RuntimeError, match="Call AllocateTensors after SetCustomAllocationForTensor"):
        modify_graph_with_delegate(interpreter, delegate)
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, delegate)
    interpreter.invoke()
    del interpreter
    delegate.free_custom_mem(memory)


def test_nothing_is_invoked_before_tensors_in_custom_memory_are_allocated(make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(NBYTES)
    for allocated in (False, True):
        interpreter = plain(doubled(*SHAPE))
        if allocated:
            interpreter.allocate_tensors()
        set_custom_allocation(interpreter, 0, memory)
        with pytest.raises(RuntimeError, match="not ready"):
            interpreter.invoke()
        del interpreter
    delegate.free_custom_mem(memory)


def test_memory_outlives_the_delegate_it_came_from(make) -> None:
    first, second = make("HTP"), make("HTP")
    memory = first.alloc_custom_mem(NBYTES)
    first.close()
    refused(Code.COMMON_INVALID_ARGUMENT, "deleted", first.alloc_custom_mem, 64)
    interpreter = plain(doubled(*SHAPE))
    set_custom_allocation(interpreter, 0, memory)
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, second)
    interpreter.invoke()
    del interpreter
    first.free_custom_mem(memory)


def test_freeing_memory_does_not_touch_a_new_owner_of_its_address(monkeypatch) -> None:
    """Whoever frees memory has it off the record before its address can be given out again."""
    given: list[int] = []
    other = threading.Thread(target=lambda: given.append(c_names.TfLiteQnnDelegateAllocCustomMem(4096, 64)))
    mine = c_names.TfLiteQnnDelegateAllocCustomMem(4096, 64)
    free = custom_memory.free

    def freed_and_asked_for(address: int) -> None:
        free(address)
        other.start()
        # The other thread must wait until this call is done; if it does not, it has time to do harm here.
        other.join(0.2)

    monkeypatch.setattr(custom_memory, "free", freed_and_asked_for)
    c_names.TfLiteQnnDelegateFreeCustomMem(mine)
    monkeypatch.undo()
    other.join()
    assert custom_memory.find(given[0]) is not None
    c_names.TfLiteQnnDelegateFreeCustomMem(given[0])


def test_an_interrupt_while_freed_memory_ends_leaves_the_rest_to_the_next_call(make, monkeypatch) -> None:
    delegate = make("HTP")
    interpreter, memories = shared(doubled(*SHAPE), delegate, 0, 1)
    for memory in memories:
        delegate.free_custom_mem(memory)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(memories[1].buffer, "close", interrupted)
        patched.setattr(sys, "unraisablehook", lambda problem: None)
        del interpreter
        assert memories[1] in custom_memory._freed
    # As if an interrupt had come after the other memory was closed and before it was removed from the set.
    custom_memory._freed.add(memories[0])
    address = c_names.TfLiteQnnDelegateAllocCustomMem(4096, 64)
    assert not len(custom_memory._freed)
    assert all(memory.buffer.is_closed for memory in memories)
    c_names.TfLiteQnnDelegateFreeCustomMem(address)
    assert custom_memory.find(address) is None
