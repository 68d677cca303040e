"""Memory that is shared or registered takes less time than memory that is copied, on each backend (see `timing`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.suites import LONG
from support.timing import holds, least, ratio, seconds

from backends.htp.harness import alloc, doubler, ion
from isthmus import memory, qnn
from isthmus.graph import DataType, TensorMemType, TensorType
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, lpai

DIMS, NBYTES = (1 << 12, 1 << 10), 16 << 20

pytestmark = LONG
"""Times say little while other tests run beside."""


# -- HTP ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def context():
    with qnn.Backend("htp") as backend:
        yield backend.create_context()


def by_handles(context: qnn.Context, graph: qnn.Graph) -> Callable[[], object]:
    buffers = [alloc(NBYTES) for _ in "xy"]
    handles = context.mem_register([ion(buffer, DIMS) for buffer in buffers])
    given = [ClientTensor(name, mem_handle=handle) for name, handle in zip("xy", handles, strict=True)]
    return lambda: graph.execute(given[:1], given[1:])


def by_copies(graph: qnn.Graph) -> Callable[[], object]:
    given = [ClientTensor(name, np.ones(DIMS, np.float32)) for name in "xy"]
    return lambda: graph.execute(given[:1], given[1:])


def test_the_first_raw_inference_after_the_hint_takes_longer_than_those_that_follow(context) -> None:
    def claim() -> bool:
        graph = doubler(context, f"hinted {time.perf_counter_ns()}", (TensorMemType.MEMHANDLE,) * 2, DIMS)
        execute = by_copies(graph)
        first = seconds(execute)
        return first > 1.5 * least(execute)[0]

    assert holds(claim)


def test_handles_take_less_time_than_copies_and_as_much_with_the_hint_as_without(context) -> None:
    raw, hinted = (
        doubler(context, kind.name, (kind, kind), DIMS) for kind in (TensorMemType.RAW, TensorMemType.MEMHANDLE)
    )
    without, with_ = by_handles(context, raw), by_handles(context, hinted)
    assert holds(lambda: ratio(without, by_copies(raw)) < 0.8)
    assert holds(lambda: 0.5 < ratio(without, with_) < 2)


# -- LPAI --------------------------------------------------------------------------------------------------------------


def test_shared_buffers_take_less_time_than_copies_on_lpai() -> None:
    config = {"lpai_backend": {"target_env": "arm"}, "lpai_graph": {"prepare": {"exclude_io": True}}}
    with qnn.Backend("lpai", config) as backend:
        graph = backend.create_context().create_graph("double")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, DIMS)
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, DIMS)
        graph.add_node("relu", "Relu", [x], [y])
        for size, option in (
            (lpai.SCRATCH_MEM_SIZE, lpai.SCRATCH_MEM),
            (lpai.PERSISTENT_MEM_SIZE, lpai.PERSISTENT_MEM),
        ):
            pool = rpcmem.share(max(graph.get_property(size), 128))
            graph.set_config(option, lpai.Mem(lpai.MemType.DDR, pool.nbytes, pool))
        graph.finalize()

        def on(buffers: list[Any]) -> Callable[[], object]:
            given = [ClientTensor(name, buffer) for name, buffer in zip("xy", buffers, strict=True)]
            return lambda: graph.execute(given[:1], given[1:])

        shared = on([rpcmem.share(NBYTES) for _ in "xy"])
        copied = on([memory.host(NBYTES, 128) for _ in "xy"])
        assert holds(lambda: ratio(shared, copied) < 0.8)


# -- GPU ---------------------------------------------------------------------------------------------------------------


def test_registered_buffers_take_less_time_than_transfers_on_the_gpu() -> None:
    pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")
    from backends.gpu.harness import bind_handles, buffer, descriptor, gpu

    with gpu() as backend:
        context = backend.create_context()
        graph = context.create_graph("relu")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, DIMS)
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, DIMS)
        graph.add_node("relu", "Relu", [x], [y])
        graph.finalize()
        buffers = [buffer(backend, NBYTES) for _ in "xy"]
        registered = bind_handles(graph, *context.mem_register([descriptor(each, DIMS) for each in buffers]))
        raw = graph.bind(*([ClientTensor(name, np.ones(DIMS, np.float32))] for name in "xy"))
        assert holds(lambda: ratio(registered.execute, raw.execute) < 0.8)
