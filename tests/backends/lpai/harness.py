"""Small graphs and short ways through LPAI's workflow, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from isthmus import memory, qnn
from isthmus.graph import DataType, TensorType
from isthmus.memory import Buffer, rpcmem
from isthmus.qnn import lpai

WIDTH = 40
DIRECT = {"lpai_backend": {"target_env": "adsp"}}
IN_TCM = {**DIRECT, "lpai_graph": {"execute": {"mem_type": "tcm"}}}
OUT_OF_SCRATCH = {"lpai_graph": {"prepare": {"exclude_io": True}}}


def counter(context: qnn.Context, name: str = "counter", width: int = WIDTH) -> qnn.Graph:
    """A graph that adds its input to a state, starting from 1, and gives twice the sum: inputs of 1 give 4, then 6."""
    graph = context.create_graph(name)
    shape = (1, width)
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, shape)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, shape)
    start = np.ones(shape, np.float32)
    state = graph.create_tensor("state", TensorType.APP_READWRITE, DataType.FLOAT_32, shape, None, start)
    total = graph.create_tensor("total", TensorType.NATIVE, DataType.FLOAT_32, shape)
    soft = graph.create_tensor("soft", TensorType.NATIVE, DataType.FLOAT_32, shape)
    two = graph.create_tensor("two", TensorType.STATIC, DataType.FLOAT_32, (1,), None, np.float32([2]))
    graph.add_node("add", "ElementWiseAdd", [x, state], [total])
    graph.add_node("soft", "Softmax", [total], [soft])
    graph.add_node("double", "ElementWiseMultiply", [total, two], [y])
    graph.update_state(state, total)
    return graph


def pools(backend: qnn.Backend, graph: qnn.Graph) -> tuple[Buffer, Buffer]:
    """Scratch and persistent memory of the sizes and alignment that the graph needs, not yet set."""
    if backend.get_property(lpai.SHARED_POOLS):
        sizes = [graph.get_property(size) for size in (lpai.SCRATCH_MEM_SIZE, lpai.PERSISTENT_MEM_SIZE)]
        scratch, persistent = (rpcmem.alloc(25, 1, max(nbytes, 128)) for nbytes in sizes)
        return scratch, persistent
    start = backend.get_property(lpai.ALIGNMENT_REQ).start_addr_alignment
    return (
        memory.host(graph.get_property(lpai.SCRATCH_MEM_SIZE), start),
        memory.host(graph.get_property(lpai.PERSISTENT_MEM_SIZE), start),
    )


def ddr(buffer: Any) -> lpai.Mem:
    """The config value that makes a whole buffer a pool in DDR."""
    return lpai.Mem(lpai.MemType.DDR, buffer.nbytes, buffer)


def ready(backend: qnn.Backend, graph: qnn.Graph) -> tuple[Buffer, Buffer]:
    """Give a graph its pools and finalize it."""
    scratch, persistent = pools(backend, graph)
    graph.set_config(lpai.SCRATCH_MEM, ddr(scratch))
    graph.set_config(lpai.PERSISTENT_MEM, ddr(persistent))
    graph.finalize()
    return scratch, persistent


@contextlib.contextmanager
def running(config: Any = None, log: Any = None) -> Iterator[qnn.Graph]:
    """A counter on LPAI, finalized."""
    with qnn.Backend("lpai", config, log) as backend:
        graph = counter(backend.create_context())
        ready(backend, graph)
        yield graph


def count(graph: qnn.Graph, value: float) -> float:
    """Execute on a number in the graph's own IO memory, and return the result, which all elements must have."""
    graph.inputs["x"][...] = value
    graph.execute()
    result = graph.outputs["y"]
    assert (result == result[0, 0]).all()
    return float(result[0, 0])
