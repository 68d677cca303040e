"""Memory handles on HTP, seen from outside: neither side copies them, and nothing is reserved for them.

What the backend counts of itself is not believed here. The client is denied its own memory while the accelerator works
in it, and the operating system is asked what memory both processes have.
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from support.alone import alone, process
from support.occupancy import growth_during, mappings, without_access
from support.suites import sampled

from backends.htp.harness import DIMS, NBYTES, Doubler, alloc, doubler, ion, shared
from isthmus import memory, qnn
from isthmus.graph import TensorMemType
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, htp

LARGE, LARGE_BYTES = (1 << 13, 1 << 10), 4 << 23
"""A tensor that cannot be missed beside a thread's stack, or whatever else an interpreter takes meanwhile."""


# -- large tensors, in a process of its own ----------------------------------------------------------------------------


def client_memory(
    context: qnn.Context, kind: str
) -> tuple[list[rpcmem.RpcBuffer], list[np.ndarray], list[ClientTensor]]:
    """Memory of the client's for x and y: what is shared of it, arrays to look at it, and tensors to execute on."""
    if kind == "raw":
        arrays = [np.ones(LARGE, np.float32) for _ in "xy"]
        return [], arrays, [ClientTensor(name, array) for name, array in zip("xy", arrays, strict=True)]
    if kind == "one buffer":
        buffers = [alloc(2 * LARGE_BYTES)]
        descriptors = [shared(buffers[0], offset, LARGE) for offset in (0, LARGE_BYTES)]
        arrays = list(buffers[0].view(np.float32, (2, *LARGE)))
    else:
        buffers = [alloc(LARGE_BYTES) for _ in "xy"]
        descriptors = [ion(buffer, LARGE) for buffer in buffers]
        arrays = [buffer.view(np.float32, LARGE) for buffer in buffers]
    handles = context.mem_register(descriptors)
    return buffers, arrays, [ClientTensor(name, mem_handle=handle) for name, handle in zip("xy", handles, strict=True)]


def large_tensors_taken(origin: str, prepared: str, kind: str, how: str) -> list[dict[str, dict[str, int]]]:
    """Return how many large tensors' memory client and accelerator have more after each step.

    The steps are the preparation of a graph, or its loading from a binary, the allocation and registration of the
    client's memory, and two executions, during which the client has no access to what it shares. Results must be right.
    """
    with qnn.Backend("htp") as backend:
        context = backend.create_context()
        ones = [ClientTensor(name, np.ones(DIMS, np.float32)) for name in "xy"]
        # What a first execution loads or starts is not taken for a tensor.
        doubler(context, "first").execute_async(ones[:1], ones[1:]).result()
        pids = {"client": os.getpid(), "accelerator": backend.get_property(htp.ACCELERATOR_PID)}
        types = TensorMemType[prepared], TensorMemType[prepared]
        with backend.create_context() as offline:
            doubler(offline, "double", types, LARGE)
            content = offline.get_binary()
        graphs: list[qnn.Graph] = []
        brought: list[tuple[list[rpcmem.RpcBuffer], list[np.ndarray], list[ClientTensor]]] = []

        def prepare() -> None:
            if origin == "composed":
                graphs.append(doubler(context, "double", types, LARGE))
            else:
                graphs.append(backend.create_context_from_binary(content).retrieve("double"))

        def execute() -> None:
            with without_access(*(buffer.fd for buffer in buffers)):
                if how == "asynchronous":
                    graph.execute_async(tensors[:1], tensors[1:]).result()
                else:
                    graph.execute(tensors[:1], tensors[1:])

        steps = [growth_during(prepare, LARGE_BYTES, **pids)]
        [graph] = graphs
        steps.append(growth_during(lambda: brought.append(client_memory(graph.context, kind)), LARGE_BYTES, **pids))
        [(buffers, (x, y), tensors)] = brought
        for value in (3, -5):
            x[...], y[...] = value, 0
            steps.append(growth_during(execute, LARGE_BYTES, **pids))
            np.testing.assert_array_equal(y, 2 * x)
        return steps


ROWS = [
    pytest.param("composed", "RAW", "raw", "synchronous", [2, 0, 0], id="raw-raw"),
    pytest.param("composed", "RAW", "a buffer each", "synchronous", [2, 0, 0], id="raw-memhandle"),
    pytest.param("composed", "MEMHANDLE", "raw", "synchronous", [0, 2, 0], id="memhandle-raw"),
    pytest.param("composed", "MEMHANDLE", "a buffer each", "synchronous", [0, 0, 0], id="memhandle-memhandle"),
    pytest.param("composed", "MEMHANDLE", "one buffer", "asynchronous", [0, 0, 0], id="one-buffer-asynchronous"),
    pytest.param("binary", "RAW", "one buffer", "synchronous", [2, 0, 0], id="binary-raw-memhandle"),
    pytest.param("binary", "MEMHANDLE", "one buffer", "synchronous", [0, 0, 0], id="binary-memhandle-memhandle"),
]


@pytest.mark.parametrize(("origin", "prepared", "kind", "how", "tensors"), sampled(ROWS, 3))
def test_processes_take_the_memory_that_the_table_says_and_the_client_needs_no_access(
    origin, prepared, kind, how, tensors
) -> None:
    prepare, first, second = (
        {who: {"writable": count, "files": count, "peak": count} for who in ("client", "accelerator")}
        for count in tensors
    )
    own = {"writable": 2, "files": 0 if kind == "raw" else 2, "peak": 2}
    seen = {"writable": 0, "files": 0, "peak": 0} if kind == "raw" else own
    assert alone(__file__, "large_tensors_taken", origin, prepared, kind, how) == [
        prepare,
        {"client": own, "accelerator": seen},
        first,
        second,
    ]


def copy_denied() -> None:
    """Execute on shared memory as if it were raw, so that it is copied, while the client has no access to it."""
    with qnn.Backend("htp") as backend:
        graph = doubler(backend.create_context())
        buffer = alloc()
        given = [ClientTensor("x", buffer.view(np.float32, DIMS))], [ClientTensor("y", np.zeros(DIMS, np.float32))]
        graph.execute(*given)
        with without_access(buffer.fd):
            graph.execute(*given)


def test_a_client_that_copies_memory_it_has_no_access_to_ends() -> None:
    assert process(__file__, "copy_denied").returncode == -signal.SIGSEGV


# -- what this process allocates, and what the accelerator has registered ----------------------------------------------


def registered(context: qnn.Context) -> int:
    """Return how many windows of memory the accelerator has."""
    return context.driver.queue.accelerator.counts()["memory"]


@pytest.mark.parametrize("origin", ["composed", "binary"])
@pytest.mark.parametrize(
    ("prepared", "executed", "reserved"),
    [
        ("RAW", "RAW", [1, 1]),
        ("RAW", "MEMHANDLE", [1, 1]),
        ("MEMHANDLE", "RAW", [0, 1]),
        ("MEMHANDLE", "MEMHANDLE", [0, 0]),
    ],
)
def test_shared_memory_is_allocated_and_registered_as_the_table_says(
    backend, origin, prepared, executed, reserved
) -> None:
    types = TensorMemType[prepared], TensorMemType[prepared]
    with backend.create_context() as offline:
        doubler(offline, "double", types)
        content = offline.get_binary()
    with backend.create_context() as context, memory.statistics() as counted:
        before = registered(context)
        if origin == "composed":
            graph = doubler(context, "double", types)
        else:
            graph = backend.create_context_from_binary(content).retrieve("double")
        assert counted.of("rpcmem").live_bytes == reserved[0] * 2 * NBYTES
        assert registered(context) - before == reserved[0] * 2
        if executed == "RAW":
            given = [ClientTensor(name, np.ones(DIMS, np.float32)) for name in "xy"]
            own = windows = 0
        else:
            buffers = [alloc() for _ in "xy"]
            handles = graph.context.mem_register([ion(buffer) for buffer in buffers])
            given = [ClientTensor(name, mem_handle=handle) for name, handle in zip("xy", handles, strict=True)]
            own, windows = 2 * NBYTES, 2
        for _ in range(2):
            graph.execute(given[:1], given[1:])
            assert counted.of("rpcmem").live_bytes - own == reserved[1] * 2 * NBYTES
            assert registered(context) - before - windows == reserved[1] * 2
        if graph.context is not context:
            graph.context.free()


def test_memory_that_is_deregistered_is_mapped_by_the_client_alone(backend) -> None:
    with backend.create_context() as context:
        both = Doubler(context)
        both.run()
        pid = backend.get_property(htp.ACCELERATOR_PID)
        inodes = {os.fstat(buffer.fd).st_ino for buffer in both.buffers}

        def mapped() -> list[str]:
            return [mapping.access for mapping in mappings(pid) if mapping.inode in inodes]

        assert mapped() == ["rw-s", "rw-s"]
        context.mem_deregister(both.handles)
        assert mapped() == []
