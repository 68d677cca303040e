"""The steps of the shared-memory tutorial in every order: each is done, or refused as its rule says."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from support.suites import only

from delegate.harness import LoggingDelegate, doubled, plain
from isthmus.delegate import custom_memory, modify_graph_with_delegate, set_custom_allocation
from isthmus.errors import QnnError

VECTOR = np.float32([[1, 2, 3, 4]])
PARTS = 4
"""Into how many tests the orders are divided."""


class Tutorial:
    """An interpreter, memory for its input, and the steps; beside them what the rules say of each.

    A step answers why it must be refused, or nothing.
    """

    def __init__(self, delegate: LoggingDelegate) -> None:
        self.delegate = delegate
        self.interpreter = plain(doubled(1, 4))
        self.memory = delegate.alloc_custom_mem(16) if delegate.backend_name == "htp" else None
        self.is_set = self.is_applied = self.is_freed = self.is_deleted = False
        self.is_allocated = self.is_ready = False

    def rule(self, step: str) -> str:
        """Return why a step is refused now; an empty text if it is not."""
        rules = {
            "set": [(self.is_freed, "not an address of custom memory")],
            "modify": [
                (self.is_deleted, "it has been deleted"),
                (self.is_set and not self.is_allocated, "Call AllocateTensors after SetCustomAllocationForTensor"),
            ],
            "invoke": [(not self.is_ready, "not ready")],
            "free": [(self.is_freed, "it has been freed" if self.is_set else "it is not allocated")],
            "delete": [(self.is_applied, "an interpreter still runs 1 of its nodes")],
        }
        return next((rule for applies, rule in rules.get(step, ()) if applies), "")

    def take(self, step: str, order: tuple[str, ...] = ()) -> None:
        """Do it, and see what becomes of it."""
        rule, said = self.rule(step), ""
        try:
            getattr(self, step)()
        except (QnnError, RuntimeError) as refusal:
            said = str(refusal)
        assert rule in said if rule else not said, (order, step, rule, said)
        if step == "modify" and "AllocateTensors" in said:
            # LiteRT restores what it has, and allocates tensors for that, which checks the memory.
            self.is_allocated = self.is_ready = True

    def set(self) -> None:
        set_custom_allocation(self.interpreter, 0, self.memory)
        self.is_set, self.is_ready = True, False

    def allocate(self) -> None:
        self.interpreter.allocate_tensors()
        self.is_allocated = self.is_ready = True

    def modify(self) -> None:
        modify_graph_with_delegate(self.interpreter, self.delegate)
        self.is_applied = True

    def invoke(self) -> None:
        if self.is_ready:
            self.interpreter.set_tensor(0, VECTOR)
        self.interpreter.invoke()
        np.testing.assert_array_equal(self.interpreter.get_tensor(1), 2 * VECTOR)

    def free(self) -> None:
        self.delegate.free_custom_mem(self.memory)
        self.is_freed = True

    def delete(self) -> None:
        self.delegate.close()
        self.is_deleted = True

    def end(self) -> None:
        """Let go of the interpreter, and of what it kept."""
        self.interpreter = None
        if self.memory is not None:
            if not self.is_freed:
                custom_memory.free(self.memory)
            assert self.memory.buffer.is_closed


@pytest.mark.parametrize("part", only((0,), range(PARTS)))
def test_allocation_application_invocation_and_freeing_in_every_order(make, part: int) -> None:
    delegate = make("HTP")
    for order in list(permutations(("set", "allocate", "modify", "invoke", "free")))[part::PARTS]:
        tutorial = Tutorial(delegate)
        for step in (*order, "allocate", "invoke"):
            tutorial.take(step, order)
        tutorial.end()
    assert delegate.stats.executions > 100 // PARTS
    delegate.close()


def test_deletion_allocation_application_and_invocation_in_every_order() -> None:
    for order in permutations(("allocate", "modify", "invoke", "delete")):
        tutorial = Tutorial(LoggingDelegate("CPU"))
        for step in (*order, "allocate", "invoke"):
            tutorial.take(step, order)
        tutorial.end()
        tutorial.delegate.close()


def test_the_listing_in_its_own_order(make) -> None:
    """Free right after Invoke, while the interpreter lives; delete after it."""
    delegate = make("HTP")
    tutorial = Tutorial(delegate)
    for step in ("set", "allocate", "modify", "invoke", "free"):
        tutorial.take(step)
    for step in ("invoke", "free", "set", "delete", "invoke"):
        tutorial.take(step)
    assert not tutorial.memory.buffer.is_closed
    tutorial.end()
    delegate.close()


@pytest.mark.parametrize("backend", ["CPU", "HTP"])
def test_each_step_may_be_repeated_but_the_application_of_a_delegate(backend) -> None:
    tutorial = Tutorial(LoggingDelegate(backend))
    steps = ("set", "allocate") if backend == "HTP" else ("allocate",)
    for step in (*steps, *steps, "modify", "invoke", "invoke", "allocate", "allocate", "invoke"):
        tutorial.take(step)
    with pytest.raises(RuntimeError, match=r"a delegate has it already\. Apply a delegate once\."):
        tutorial.modify()
    tutorial.take("invoke")
    tutorial.end()
    tutorial.delegate.close()
    tutorial.delegate.close()
