"""Small graphs and shared buffers on HTP, for tests."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from isthmus import qnn
from isthmus.graph import DataType, TensorMemType, TensorType
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, htp

WIDTH = 16
DIMS = (1, WIDTH)
NBYTES = 4 * WIDTH
FLOAT = DataType.FLOAT_32


def doubler(
    context: qnn.Context,
    name: str = "double",
    prepared: tuple[TensorMemType, TensorMemType] = (TensorMemType.RAW, TensorMemType.RAW),
    dims: Sequence[int] = DIMS,
) -> qnn.Graph:
    """A finalized graph that doubles its input."""
    graph = context.create_graph(name)
    x = graph.create_tensor("x", TensorType.APP_WRITE, FLOAT, dims, mem_type=prepared[0])
    y = graph.create_tensor("y", TensorType.APP_READ, FLOAT, dims, mem_type=prepared[1])
    two = graph.create_tensor("two", TensorType.STATIC, FLOAT, (1,), None, np.float32([2]))
    graph.add_node("multiply", "ElementWiseMultiply", [x, two], [y])
    graph.finalize()
    return graph


def counter(context: qnn.Context, name: str = "counter") -> qnn.Graph:
    """A finalized graph that adds its input to a state, starting from 1."""
    graph = context.create_graph(name)
    x = graph.create_tensor("x", TensorType.APP_WRITE, FLOAT, DIMS)
    y = graph.create_tensor("y", TensorType.APP_READ, FLOAT, DIMS)
    state = graph.create_tensor("s", TensorType.APP_READWRITE, FLOAT, DIMS, None, np.ones(DIMS, np.float32))
    graph.add_node("add", "ElementWiseAdd", [x, state], [y])
    graph.update_state(state, y)
    graph.finalize()
    return graph


def ion(buffer: rpcmem.RpcBuffer, dims: Sequence[int] = DIMS, dtype: DataType = FLOAT) -> MemDescriptor:
    return MemDescriptor(tuple(dims), dtype, DescriptorType.ION, fd=buffer.fd)


def shared(
    buffer: rpcmem.RpcBuffer, offset: int, dims: Sequence[int] = DIMS, dtype: DataType = FLOAT, size: int | None = None
) -> MemDescriptor:
    custom = htp.Descriptor(buffer.nbytes if size is None else size, buffer.fd, offset)
    return MemDescriptor(tuple(dims), dtype, DescriptorType.CUSTOM, custom=custom)


def alloc(nbytes: int = NBYTES) -> rpcmem.RpcBuffer:
    return rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, nbytes)


class Doubler:
    """A doubling graph with an input and an output buffer that are registered."""

    def __init__(self, context: qnn.Context, name: str = "double") -> None:
        self.context = context
        self.graph = doubler(context, name, (TensorMemType.MEMHANDLE, TensorMemType.MEMHANDLE))
        self.buffers = alloc(), alloc()
        self.x, self.y = (buffer.view(np.float32, DIMS) for buffer in self.buffers)
        self.register()

    def register(self) -> None:
        self.handles = self.context.mem_register(ion(buffer) for buffer in self.buffers)
        self.inputs = (ClientTensor("x", mem_handle=self.handles[0]),)
        self.outputs = (ClientTensor("y", mem_handle=self.handles[1]),)

    def run(self) -> None:
        self.graph.execute(self.inputs, self.outputs)


def kill(backend: qnn.Backend) -> None:
    """Kill the accelerator of a backend."""
    os.kill(backend.get_property(htp.ACCELERATOR_PID), signal.SIGKILL)


def execute_in_turns(contexts: Sequence[qnn.Context], orders: Sequence[np.ndarray], rows: int) -> bool:
    """Execute the chains of several contexts (see `chain_of`) in a thread each, several times.

    Return whether all results are right, and no two executions overlap.
    """
    times, width = 6, len(orders[0])
    x = np.random.default_rng(1).standard_normal((rows, width)).astype(np.float32)
    results: list[bool] = []
    profile = qnn.Profile(contexts[0].backend, qnn.ProfileLevel.DETAILED)

    def execute(context: qnn.Context, order: np.ndarray) -> None:
        y = np.zeros_like(x)
        for _ in range(times):
            context.retrieve("chain").execute([ClientTensor("x", x)], [ClientTensor("y", y)], profile)
            results.append(bool((y == x[:, order]).all()))
            y[...] = 0

    threads = [threading.Thread(target=execute, args=pair) for pair in zip(contexts, orders, strict=True)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    executions = [each.timings.spans for each in profile.get_spans()]
    spans = sorted((min(each.begin for each in steps), max(each.end for each in steps)) for steps in executions)
    assert len(spans) == len(results) == times * len(contexts)
    return all(results) and all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def interrupt_after_unload(accelerator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the client once, when the accelerator has unloaded a graph and the client does not know yet."""
    answer = accelerator.answer

    def interrupted(request: Any, *more: Any) -> Any:
        answered = answer(request, *more)
        if request.name == "unload":
            monkeypatch.undo()
            raise KeyboardInterrupt
        return answered

    monkeypatch.setattr(accelerator, "answer", interrupted)
