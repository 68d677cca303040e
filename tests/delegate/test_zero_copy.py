"""Tensors in shared memory, seen from outside: the delegate copies none of them, and takes no other memory for them.

What the delegate counts of itself is not believed here. The client is denied the memory of its tensors while the
accelerator works in it, and the operating system is asked what memory both processes have.
"""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
from support.alone import alone
from support.occupancy import growth_during, without_access

import isthmus
from delegate.harness import LoggingDelegate, doubled, plain
from isthmus import memory
from isthmus.delegate import modify_graph_with_delegate, set_custom_allocation

LARGE, LARGE_BYTES = (1 << 13, 1 << 10), 4 << 23
"""A tensor that cannot be missed beside a thread's stack, or whatever else an interpreter takes meanwhile."""


def large_tensors_taken() -> list[dict[str, dict[str, int]]]:
    """Return how many large tensors' memory client and accelerator have more after each step.

    The steps are ModifyGraphWithDelegate and two invocations, during which the client has no access to its tensors.
    """
    delegate = LoggingDelegate("HTP")
    # What a first invocation loads is not taken for a tensor.
    first = plain(doubled(1, 4))
    first.allocate_tensors()
    modify_graph_with_delegate(first, delegate)
    first.invoke()
    driver = delegate.partitions[0]._context.driver
    pids = {"client": os.getpid(), "accelerator": driver.queue.accelerator.pid}
    interpreter = plain(doubled(*LARGE))
    memories = [delegate.alloc_custom_mem(LARGE_BYTES) for _ in "xy"]
    for index, each in enumerate(memories):
        set_custom_allocation(interpreter, index, each)
    interpreter.allocate_tensors()

    def invoke() -> None:
        with without_access(*(each.buffer.fd for each in memories)):
            interpreter.invoke()

    steps = [growth_during(lambda: modify_graph_with_delegate(interpreter, delegate), LARGE_BYTES, **pids)]
    x, y = (each.view(np.float32, LARGE) for each in memories)
    for value in (3, -5):
        x[...], y[...] = value, 0
        steps.append(growth_during(invoke, LARGE_BYTES, **pids))
        np.testing.assert_array_equal(y, 2 * x)
    return steps


def test_tensors_in_shared_memory_are_mapped_by_the_accelerator_while_the_client_has_no_access_to_them() -> None:
    assert alone(__file__, "large_tensors_taken") == [
        {
            "client": {"writable": 0, "files": 0, "peak": 0},
            "accelerator": {"writable": mapped, "files": mapped, "peak": mapped},
        }
        for mapped in (2, 0, 0)
    ]


def test_no_shared_memory_is_allocated_beside_that_of_the_tensors(make) -> None:
    delegate = make("HTP")
    with memory.statistics() as counted:
        interpreter = plain(doubled(1, 64))
        memories = [delegate.alloc_custom_mem(256) for _ in "xy"]
        for index, each in enumerate(memories):
            set_custom_allocation(interpreter, index, each)
        interpreter.allocate_tensors()
        modify_graph_with_delegate(interpreter, delegate)
        for _ in range(2):
            interpreter.invoke()
        shared = counted.of("rpcmem")
        assert (shared.allocations, shared.total_bytes) == (2, 2 * 256)
        del interpreter
        for each in memories:
            delegate.free_custom_mem(each)


def test_an_audit_of_a_delegate_finds_no_mistakes_and_no_copies() -> None:
    with isthmus.audit() as log:
        delegate, interpreter = LoggingDelegate("HTP"), plain(doubled(1, 64))
        memories = [delegate.alloc_custom_mem(256) for _ in "xy"]
        for index, each in enumerate(memories):
            set_custom_allocation(interpreter, index, each)
        interpreter.allocate_tensors()
        modify_graph_with_delegate(interpreter, delegate)
        interpreter.invoke()
        del interpreter
        for each in memories:
            delegate.free_custom_mem(each)
        delegate.close()
    counts = Counter(event.action.value for event in log.events)
    assert (counts["register"], counts["deregister"], log.copied_bytes, log.mistakes) == (2, 2, 0, [])
