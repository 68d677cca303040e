"""Many executions and registrations leave nothing behind, on the host or on the device.

`ISTHMUS_GPU_EXECUTIONS=10000` and `ISTHMUS_GPU_CYCLES=1000` are the long way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from support.growth import growth

from backends.gpu.harness import (
    DIMS,
    bind_handles,
    buffer,
    descriptor,
    doubled,
    gpu,
    opencl_context,
    opencl_queue,
    small_engine,
    values,
)
from isthmus import memory, qnn
from isthmus.backends.gpu import prepare as gpu_prepare
from isthmus.backends.gpu.runtime.handles import references

EXECUTIONS = int(os.environ.get("ISTHMUS_GPU_EXECUTIONS", "400"))
CYCLES = int(os.environ.get("ISTHMUS_GPU_CYCLES", "60"))
WIDTH = 2048
"""Of contexts with many weights: what allocators and the driver's threads keep is little beside them."""
MAY_GROW = 256 << 10
"""Bytes that allocators and the driver's threads may keep of all rounds together, however many."""
A_GRAPH = 2 << 10
"""Bytes that they may keep of each graph besides: threads build its kernels, and as long as they meet in new ways their
allocators grow (2.6 MiB in 800 graphs, 0.6 MiB in the next 2,400). Objects of OpenCL and of Python are counted exactly.
"""


@contextmanager
def opened() -> Iterator[Any]:
    """A backend with the small engine; in the end nothing is left of what the rounds had on the device."""
    gpu_prepare.lower.prepare = small_engine
    with gpu() as backend, memory.statistics("opencl") as counted:
        yield backend
    assert counted.live_bytes == 0


@contextmanager
def executing(*ways: str) -> Iterator[Callable[[], object]]:
    """One execution in each of some ways."""
    with opened() as backend:
        context = backend.create_context()
        graph = doubled(context)
        raw = graph.bind([qnn.ClientTensor("x", values())], [qnn.ClientTensor("y", np.zeros(DIMS, np.float32))])
        handles = context.mem_register([descriptor(buffer(backend)), descriptor(buffer(backend))])
        binding = bind_handles(graph, *handles)

        def watched(by: Any, name: str) -> None:
            binding.execute(**{name: by})
            by.free()

        actions = {
            "registered": binding.execute,
            "raw": raw.execute,
            "enqueued": lambda: binding.execute(wait_for=[]).wait(30),
            "profiled": lambda: watched(qnn.Profile(backend, qnn.ProfileLevel.DETAILED), "profile"),
            "limited": lambda: watched(qnn.Signal(backend, 60_000_000), "signal"),
        }
        with counted(backend):
            yield lambda: [actions[way]() for way in ways]


@contextmanager
def cycling(*ways: str) -> Iterator[Callable[[], object]]:
    """Memory is registered, bound, executed on and let go; or a whole graph is made and freed."""
    with opened() as backend:
        context = backend.create_context()
        graph, given = doubled(context), [buffer(backend), buffer(backend)]

        def registering() -> None:
            handles = context.mem_register([descriptor(one) for one in given])
            with bind_handles(graph, *handles) as binding:
                binding.execute()
            context.mem_deregister(handles)

        def allocating(io: str) -> None:
            given_by_graph = graph.allocate(io)
            given_by_graph.binding.execute()
            given_by_graph.close()

        def composing() -> None:
            another = backend.create_context()
            doubled(another).execute(
                [qnn.ClientTensor("x", values())], [qnn.ClientTensor("y", np.zeros(DIMS, np.float32))]
            )
            another.free()

        actions = {
            "registered": registering,
            "memhandle": lambda: allocating("memhandle"),
            "raw": lambda: allocating("raw"),
            "graphs": composing,
        }
        before = [references(one.int_ptr) for one in given]
        with counted(backend):
            yield lambda: [actions[way]() for way in ways]
        assert [references(one.int_ptr) for one in given] == before


@contextmanager
def counted(backend: Any) -> Iterator[None]:
    """Check that as much memory and as many objects are on the device after the rounds as before."""
    with memory.statistics("opencl") as statistics:
        before = statistics.live_bytes, opencl_context(backend).reference_count
        yield
        # The driver lets go of what a command used a moment after it has ended.
        opencl_queue(backend).finish()
        assert statistics.live_bytes == before[0]
        assert opencl_context(backend).reference_count <= before[1] + 2


def test_executions_leave_nothing_behind() -> None:
    ways = ("registered", "raw", "enqueued", "profiled", "limited")
    left = growth(__file__, "executing", *ways, rounds=EXECUTIONS)
    if left.resident > MAY_GROW:
        # The driver's threads meet in another way each time, and so do their allocators. A leak would be there again.
        left = growth(__file__, "executing", *ways, rounds=EXECUTIONS)
    assert left.resident <= MAY_GROW
    assert (left.descriptors, left.threads, left.records) == (0, 0, {})
    assert left.objects <= 50


def test_memory_and_graphs_that_come_and_go_leave_nothing_behind() -> None:
    left = growth(__file__, "cycling", "registered", "memhandle", "raw", "graphs", rounds=CYCLES)
    assert left.resident <= 4 * MAY_GROW + CYCLES * A_GRAPH
    assert (left.descriptors, left.threads, left.records) == (0, 0, {})
    assert left.objects <= 50


def test_a_context_that_is_freed_gives_back_its_weights_without_the_collector() -> None:
    file = Path(__file__).parents[2] / "qnn" / "test_freed.py"
    left = growth(str(file), "contexts", "gpu", str(WIDTH), rounds=12, collected=False)
    # OpenCL may give back the memory of the last contexts late, however many there were before.
    assert left.resident < 3 * 4 * WIDTH * WIDTH, "twelve would stay"
    assert (left.descriptors, left.threads, left.records) == (0, 0, {})
