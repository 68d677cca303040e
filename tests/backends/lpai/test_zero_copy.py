"""LPAI's memory, seen from outside: inputs, outputs and pools are used where the client has them, and nowhere else.

In the arm environment the client is denied all of its memory while the core works in it. In the others the core is this
process: there the engine's own table tells which addresses it works at. The operating system tells what memory
processes have.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest
from support.alone import alone
from support.occupancy import growth_during, without_access

from backends.lpai.harness import IN_TCM, OUT_OF_SCRATCH, WIDTH, count, counter, ddr, pools, ready
from isthmus import memory, qnn
from isthmus.graph import DataType, TensorType
from isthmus.memory import rpcmem, tcm
from isthmus.prepare.schedule import Pool
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, lpai

ARM = {"lpai_backend": {"target_env": "arm"}}
ALIGNMENT = 128
LARGE, LARGE_BYTES = (1 << 13, 1 << 10), 4 << 23
"""A tensor that cannot be missed beside whatever else an interpreter takes meanwhile."""


def in_place(graph: qnn.Graph, kind: str, dims: tuple[int, ...]) -> tuple[list[ClientTensor], list[Any], list[Any]]:
    """Memory of the client's for x and y: tensors to execute on, the buffers, and arrays to look at them.

    "registered" are handles to one shared buffer, "shared" are shared buffers without a handle, "raw" is memory of this
    process alone, "planned" is where the backend has planned them.
    """
    padded = -(-4 * int(np.prod(dims)) // ALIGNMENT) * ALIGNMENT
    if kind == "planned":
        return [], [], [graph.inputs["x"], graph.outputs["y"]]
    if kind == "registered":
        buffer, offsets = rpcmem.share(2 * padded), (0, padded)
        handles = graph.context.mem_register(
            MemDescriptor(dims, DataType.FLOAT_32, DescriptorType.CUSTOM, custom=lpai.MemInfo(buffer.fd, offset))
            for offset in offsets
        )
        tensors = [ClientTensor(name, mem_handle=handle) for name, handle in zip("xy", handles, strict=True)]
        return tensors, [buffer], [buffer.view(np.float32, dims, offset) for offset in offsets]
    made = [rpcmem.share(padded) if kind == "shared" else memory.host(padded, ALIGNMENT) for _ in "xy"]
    tensors = [ClientTensor(name, buffer) for name, buffer in zip("xy", made, strict=True)]
    return tensors, made, [buffer.view(np.float32, dims) for buffer in made]


# -- the client is denied its memory -----------------------------------------------------------------------------------


def executed_denied(kind: str) -> list[float]:
    """Count three times in the arm environment, without access to pools, inputs and outputs meanwhile."""
    with qnn.Backend("lpai", ARM) as backend:
        graph = counter(backend.create_context(), width=1024)
        held = ready(backend, graph)
        tensors, buffers, (x, y) = in_place(graph, kind, (1, 1024))
        answers = []
        for _ in range(3):
            # Where they are planned into scratch, an output may lie over an input.
            y[...], x[...] = 0, 1
            with without_access(*(buffer.fd for buffer in (*held, *buffers))):
                graph.execute(tensors[:1], tensors[1:])
            assert (y == y[0, 0]).all()
            answers.append(float(y[0, 0]))
        return answers


@pytest.mark.parametrize("kind", ["planned", "registered", "shared"])
def test_the_core_works_in_shared_memory_while_the_client_has_no_access_to_it(kind) -> None:
    assert alone(__file__, "executed_denied", kind) == [4, 6, 8]


# -- what memory processes have ----------------------------------------------------------------------------------------


def doubler(context: qnn.Context, dims: tuple[int, ...] = LARGE) -> qnn.Graph:
    """A graph that doubles its input, not finalized."""
    graph = context.create_graph("double")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, dims)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, dims)
    two = graph.create_tensor("two", TensorType.STATIC, DataType.FLOAT_32, (1,), None, np.float32([2]))
    graph.add_node("double", "ElementWiseMultiply", [x, two], [y])
    return graph


def large_tensors_taken(target: str, kind: str) -> list[dict[str, dict[str, int]]]:
    """How many large tensors' memory processes have more after finalizing a graph and after each of two executions."""
    config = {"lpai_backend": {"target_env": target}, **({} if kind == "planned" else OUT_OF_SCRATCH)}
    with qnn.Backend("lpai", config) as backend:
        # What a first execution loads is not taken for a tensor.
        first = doubler(backend.create_context(), (1, 128))
        ready(backend, first)
        small, _, _ = in_place(first, kind, (1, 128))
        first.execute(small[:1], small[1:])
        pids = {"client": os.getpid()}
        if target == "arm":
            pids["accelerator"] = backend.driver.device.accelerator().pid
        graph = doubler(backend.create_context())
        scratch, persistent = pools(backend, graph)
        for option, pool in ((lpai.SCRATCH_MEM, scratch), (lpai.PERSISTENT_MEM, persistent)):
            graph.set_config(option, lpai.Mem(lpai.MemType.DDR, pool.nbytes, pool))
        steps = [growth_during(graph.finalize, LARGE_BYTES, **pids)]
        tensors, _, (x, y) = in_place(graph, kind, LARGE)
        for value in (3, -5):
            y[...], x[...] = 0, value
            steps.append(growth_during(lambda: graph.execute(tensors[:1], tensors[1:]), LARGE_BYTES, **pids))
            assert (y == 2 * value).all()
        return steps


def all_of(count: int) -> dict[str, int]:
    return {"writable": count, "files": count, "peak": count}


@pytest.mark.parametrize("kind", ["planned", "raw", "registered"])
def test_a_core_in_this_process_takes_no_memory_for_inputs_and_outputs(kind) -> None:
    assert alone(__file__, "large_tensors_taken", "x86", kind) == [{"client": all_of(0)}] * 3


@pytest.mark.parametrize(("kind", "mapped"), [("planned", [2, 0, 0]), ("registered", [0, 2, 0])])
def test_a_core_in_another_process_maps_the_clients_memory_and_takes_no_other(kind, mapped) -> None:
    assert alone(__file__, "large_tensors_taken", "arm", kind) == [
        {"client": all_of(0), "accelerator": all_of(tensors)} for tensors in mapped
    ]


# -- the addresses that the engine works at ----------------------------------------------------------------------------


def engine_addresses(graph: qnn.Graph) -> list[int]:
    """Return where native code reads inputs and writes outputs, out of the table that it uses."""
    executor = graph.driver.executor()
    return list((ctypes.c_int64 * len(graph.info.tensors)).from_address(executor.io_addresses))


@pytest.mark.parametrize("kind", ["planned", "raw", "shared", "registered"])
@pytest.mark.parametrize("target", ["x86", "adsp"])
def test_the_engine_works_at_the_addresses_of_the_client(target, kind) -> None:
    with qnn.Backend("lpai", {"lpai_backend": {"target_env": target}}) as backend:
        graph = counter(backend.create_context())
        scratch, persistent = ready(backend, graph)
        tensors, _, (x, y) = in_place(graph, kind, (1, WIDTH))
        for expected in (4, 6):
            x[...] = 1
            graph.execute(tensors[:1], tensors[1:])
            assert (y == expected).all()
            assert engine_addresses(graph) == [x.ctypes.data, y.ctypes.data]
            bases = graph.driver.executor()._bases
            assert (bases[Pool.SCRATCH], bases[Pool.STATE]) == (scratch.address, persistent.address)


@pytest.mark.parametrize("target", ["x86", "arm", "adsp"])
def test_intermediates_are_in_the_scratch_memory_that_is_set_and_in_none_that_was_replaced(target) -> None:
    with qnn.Backend("lpai", {"lpai_backend": {"target_env": target}, **OUT_OF_SCRATCH}) as backend:
        graph = backend.create_context().create_graph("two steps")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 64))
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 1))
        between = graph.create_tensor("between", TensorType.NATIVE, DataType.FLOAT_32, (1, 64))
        graph.add_node("first", "Softmax", [x], [between])
        graph.add_node("second", "ReduceSum", [between], [y], {"axes": np.uint32([1]), "keep_dims": True})
        first, _ = ready(backend, graph)
        second, _ = pools(backend, graph)
        buffers = [memory.host(256, ALIGNMENT), memory.host(128, ALIGNMENT)]
        tensors = [ClientTensor(name, buffer) for name, buffer in zip("xy", buffers, strict=True)]
        used = []
        for scratch in (first, second, first):
            if used:
                graph.set_config(lpai.SCRATCH_MEM, ddr(scratch))
            for each in (first, second):
                each.array[:] = 0xAA
            graph.execute(tensors[:1], tensors[1:])
            np.testing.assert_allclose(buffers[1].view(np.float32, (1,)), 1, rtol=1e-6)
            used.append([bool((each.array != 0xAA).any()) for each in (first, second)])
        assert used == [[True, False], [False, True], [True, False]]


def test_in_direct_mode_the_engine_works_in_tcm() -> None:
    with qnn.Backend("lpai", IN_TCM) as backend:
        graph = counter(backend.create_context())
        ready(backend, graph)
        assert [count(graph, 1), count(graph, 1)] == [4, 6]
        for address in engine_addresses(graph):
            word = np.frombuffer(ctypes.c_int64.from_address(address), np.int64)
            assert tcm.pool().encloses(memory.window(word))
