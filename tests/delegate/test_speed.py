"""Tensors in shared memory take less time than others, and large ones save the most (see `timing`)."""

from __future__ import annotations

from collections.abc import Callable

from support.suites import LONG
from support.timing import holds, least, ratio

from delegate.harness import LoggingDelegate, doubled, plain
from isthmus.delegate import modify_graph_with_delegate, set_custom_allocation

DIMS = (1 << 12, 1 << 10)

pytestmark = LONG
"""Times say little while other tests run beside."""


def invocation(delegate: LoggingDelegate, dims: tuple[int, int], shared: bool) -> Callable[[], object]:
    """Invoke a model that is delegated whole, its input and output in shared memory or not."""
    interpreter = plain(doubled(*dims))
    for index in (0, 1) if shared else ():
        memory = delegate.alloc_custom_mem(4 * dims[0] * dims[1])
        set_custom_allocation(interpreter, index, memory)
        delegate.free_custom_mem(memory)
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, delegate)
    return interpreter.invoke


def test_shared_tensors_take_less_time_than_ordinary_ones(make) -> None:
    delegate = make("HTP")
    shared, ordinary = (invocation(delegate, DIMS, is_shared) for is_shared in (True, False))
    assert holds(lambda: ratio(shared, ordinary) < 0.8)


def test_huge_inputs_and_outputs_benefit_the_most(make) -> None:
    delegate = make("HTP")

    def saved(dims: tuple[int, int]) -> float:
        ordinary, shared = least(invocation(delegate, dims, False), invocation(delegate, dims, True))
        return ordinary - shared

    assert holds(lambda: saved(DIMS) > 10 * saved((16, 16)))
