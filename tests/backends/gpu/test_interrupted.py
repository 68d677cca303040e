"""A call of the GPU backend that is interrupted, at any place, leaves nothing behind, and the rest as it was."""

import gc

import numpy as np
import pytest
from support.interruption import Interrupt, account, everywhere, left, wait_until_restored
from support.opencl_device import Gate, client_context
from support.suites import long

from backends.gpu.harness import (
    DIMS,
    bind_handles,
    buffer,
    cl,
    descriptor,
    doubled,
    expected,
    gpu,
    opencl_queue,
    values,
)
from backends.gpu.harness import small as small
from isthmus import QnnError, qnn
from isthmus.backends.gpu.runtime.handles import references
from isthmus.system.interrupts import run_pending

pytestmark = [pytest.mark.usefixtures("small"), pytest.mark.filterwarnings("ignore::ResourceWarning")]
OUTSIDE = (
    "/graph/", "/prepare/", "/planning/", "/compile/", "/mixed_precision/", "json", "dataclasses", "<string>",
    "enum.py", "functools", "numpy", "ctypes", "hashlib", "pathlib", "posixpath", "folder.py", "/gpu/harness",
    "inspect.py", "/gpu/test_",
)  # fmt: skip
"""What only computes, or is interrupted in tests of its own."""


@pytest.fixture
def backend():
    """One that works in a context of the client's, whose references tell how many objects there are in it."""
    with gpu({"gpu": {"context": client_context()}}) as opened:
        yield opened


def check_every_interrupt(backend, action, most, more=lambda: ()):
    """As `interruption.check_every_interrupt`, and no object of OpenCL stays in the context."""
    context = backend.get_property(qnn.gpu.CL_CONTEXT)

    def counted():
        run_pending()
        opencl_queue(backend).finish()
        return context.reference_count, more()

    action()
    kept = list(backend._owned)
    gc.collect()
    before, tasks = counted(), account()
    for where in everywhere(action, outside=OUTSIDE, most=most):
        for handle in set(backend._owned) - set(kept):
            handle.free()
        assert wait_until_restored(counted, before), where
        assert not left(tasks), where


def surely(end):
    """End something, and once more if an interrupt came in between, which is then raised."""
    try:
        end()
    except Interrupt:
        end()
        raise


@pytest.mark.parametrize("io", ["memhandle", long("raw")])
def test_the_life_of_a_graph_may_be_interrupted_anywhere(backend, io) -> None:
    def action():
        made, context = None, backend.create_context()
        try:
            made = doubled(context, finalize=False).allocate(io)
            made.binding.execute()
        finally:
            surely(context.free)
            if made is not None:
                surely(made.close)

    check_every_interrupt(backend, action, most=24)


def test_a_registration_may_be_interrupted_anywhere(backend) -> None:
    context = backend.create_context()
    given = [buffer(backend), buffer(backend)]

    def action():
        context.mem_deregister(context.mem_register([descriptor(one) for one in given]))

    def counted():
        for handle in [each for each in context._owned if isinstance(each, qnn.MemHandle)]:
            handle.free()
        return [references(one.int_ptr) for one in given]

    check_every_interrupt(backend, action, most=40, more=counted)
    context.mem_register([descriptor(one) for one in given])


@pytest.mark.parametrize("how", ["plain", "enqueued", "profiled"])
def test_an_execution_may_be_interrupted_anywhere(backend, how) -> None:
    context = backend.create_context()
    graph, given = doubled(context), [buffer(backend), buffer(backend)]
    binding = bind_handles(graph, *context.mem_register([descriptor(one) for one in given]))
    cl.enqueue_copy(opencl_queue(backend), given[0], values())
    # Drivers may start threads when they are first asked to call back, which then stay.
    with Gate(backend.get_property(qnn.gpu.CL_CONTEXT)) as gate:
        ended = binding.execute(wait_for=[gate.event])
        with pytest.raises(QnnError, match="did not end within"):
            ended.wait(0.01)
    ended.wait(60)

    def action():
        if how == "enqueued":
            binding.execute(wait_for=[]).wait(30)
        else:
            binding.execute(qnn.Profile(backend, qnn.ProfileLevel.DETAILED) if how == "profiled" else None)

    check_every_interrupt(backend, action, most=40)
    binding.execute()
    result = np.empty(DIMS, np.float32)
    cl.enqueue_copy(opencl_queue(backend), result, given[1])
    np.testing.assert_allclose(result, expected(values()), rtol=1e-5, atol=1e-6)
