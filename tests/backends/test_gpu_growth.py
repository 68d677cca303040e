"""Many executions leave nothing behind, on the host or on the device.

`ISTHMUS_GPU_EXECUTIONS=10000` (and `ISTHMUS_GPU_CYCLES=1000` for registrations) is the long way.
"""

import gc
import os
import resource

import numpy as np
import pytest
from gpu_harness import DIMS, bound, buffer, descriptor, doubled, gpu, opencl_queue, values
from gpu_harness import small as small

from isthmus import memory, qnn

pytestmark = pytest.mark.usefixtures("small")
EXECUTIONS = int(os.environ.get("ISTHMUS_GPU_EXECUTIONS", "1000"))
MAY_GROW = 4 << 20
"""What allocators keep for themselves, in bytes; an execution that left a cache line behind would be seen."""


def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def grown(act, rounds):
    """How much larger the process is after so many rounds than after some."""
    for _ in range(max(rounds // 4, 50)):
        act()
    before = resident()
    for _ in range(rounds):
        act()
    return resident() - before


@pytest.mark.parametrize("how", ["registered", "raw", "enqueued"])
def test_executions_leave_nothing_behind(how):
    with gpu() as backend, memory.statistics() as counted:
        context = backend.create_context()
        graph = doubled(context)
        if how == "raw":
            binding = graph.bind([qnn.ClientTensor("x", values())], [qnn.ClientTensor("y", np.zeros(DIMS, np.float32))])
        else:
            handles = context.mem_register([descriptor(buffer(backend)), descriptor(buffer(backend))])
            binding = bound(graph, *handles)
        act = binding.execute
        if how == "enqueued":

            def act():
                binding.execute(wait_for=[]).wait(30)

        live = counted.live_bytes, counted.live_allocations
        more = grown(act, EXECUTIONS)
        assert (counted.live_bytes, counted.live_allocations) == live
        assert more < MAY_GROW


def test_bindings_that_come_and_go_leave_nothing_behind():
    with gpu() as backend, memory.statistics() as counted:
        context = backend.create_context()
        graph = doubled(context)
        given = [buffer(backend), buffer(backend)]

        def act():
            handles = context.mem_register([descriptor(one) for one in given])
            with bound(graph, *handles) as binding:
                binding.execute()
            context.mem_deregister(handles)

        act()
        live = counted.live_bytes, counted.live_allocations
        more = grown(act, max(EXECUTIONS // 10, 100))
        opencl_queue(backend).finish()
        assert (counted.live_bytes, counted.live_allocations) == live
        assert more < MAY_GROW
