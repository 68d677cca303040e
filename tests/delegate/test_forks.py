"""A forked child learns at once that a delegate is its parent's, can make its own, and does the parent no harm."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest
from support.processes import in_child

from delegate.harness import LoggingDelegate, doubled, plain, run, with_delegate
from isthmus.delegate import custom_memory, modify_graph_with_delegate, set_custom_allocation
from isthmus.errors import Code, QnnError

VECTOR = np.float32([[1, 2, 3, 4]])
PARENTS = "belongs to the process that this one was forked from"


def refused(action: Callable[[], object]) -> None:
    with pytest.raises(QnnError, match=PARENTS) as caught:
        action()
    assert caught.value.code is Code.COMMON_SYSTEM_COMMUNICATION


def fails(action: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=PARENTS):
        action()


def works(backend: str) -> None:
    delegate = LoggingDelegate(backend)
    interpreter = with_delegate(doubled(1, 4), delegate)
    assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all()
    del interpreter
    delegate.close()


@pytest.mark.parametrize("backend", ["CPU", "HTP", "LPAI"])
def test_a_child_is_refused_by_its_parents_delegate_and_makes_its_own(backend, make) -> None:
    delegate = make(backend)
    held = [with_delegate(doubled(1, 4), delegate, num_threads=2)]
    assert (run(held[0], VECTOR)[0] == 2 * VECTOR).all()
    other = plain(doubled(1, 4))

    def child() -> None:
        for _ in range(2):
            fails(held[0].invoke)
        held[0].resize_tensor_input(0, (2, 4))
        fails(held[0].allocate_tensors)
        refused(lambda: delegate.stats)
        refused(lambda: modify_graph_with_delegate(other, delegate))
        refused(lambda: delegate.alloc_custom_mem(64))
        with pytest.raises(QnnError, match="an interpreter still runs 1 of its nodes"):
            delegate.close()
        held.clear()
        gc.collect()
        delegate.close()
        delegate.close()
        works(backend)

    assert in_child(child, 60) == 0
    for _ in range(3):
        assert (run(held[0], VECTOR)[0] == 2 * VECTOR).all()
    assert delegate.stats.executions == 4
    held.clear()


def test_a_child_that_exits_with_everything_alive_does_no_harm(make) -> None:
    delegate = make("HTP")
    interpreter = with_delegate(doubled(1, 4), delegate)
    assert in_child(lambda: fails(interpreter.invoke), 60) == 0
    assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all()


def test_shared_memory_that_the_parent_has_registered_is_not_freed_by_a_child(make) -> None:
    delegate = make("HTP")
    memory = delegate.alloc_custom_mem(16)
    held = [plain(doubled(1, 4))]
    set_custom_allocation(held[0], 0, memory)
    held[0].allocate_tensors()
    modify_graph_with_delegate(held[0], delegate)

    def child() -> None:
        fails(held[0].invoke)
        custom_memory.free(memory)
        assert not memory.buffer.is_closed, "an interpreter has a tensor there"
        held.clear()
        gc.collect()
        assert not memory.buffer.is_closed, "it is the memory of a handle of the parent's"

    assert in_child(child, 60) == 0
    memory.view(np.float32, (1, 4))[...] = VECTOR
    held[0].invoke()
    np.testing.assert_array_equal(held[0].get_tensor(1), 2 * VECTOR)
    assert delegate.stats.copied_in_bytes == 0
    held.clear()
    delegate.free_custom_mem(memory)


@pytest.mark.parametrize("backend", ["CPU", "HTP"])
def test_a_process_forks_while_another_thread_invokes(backend, make) -> None:
    delegate = make(backend)
    interpreter = with_delegate(doubled(1, 4), delegate)
    mine = with_delegate(doubled(1, 4), delegate)
    run(mine, VECTOR)
    over = threading.Event()
    wrong = []

    def work() -> None:
        while not over.is_set():
            if not (run(interpreter, VECTOR)[0] == 2 * VECTOR).all():
                wrong.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            assert in_child(lambda: (fails(mine.invoke), works("CPU")), 60) == 0
    finally:
        over.set()
        thread.join()
    assert not wrong
    assert (run(mine, VECTOR)[0] == 2 * VECTOR).all()
