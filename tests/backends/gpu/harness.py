"""What tests of the GPU backend share: a device, graphs, and an engine of three kernels.

The rules of memory and queues do not depend on how operations are computed, so most tests use the small engine here,
whose kernels build at once; the real one is tested in `tests/backends/gpu/compile` and `tests/models`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from support.opencl_device import cl as cl
from support.plans import plan_graph

from isthmus import qnn
from isthmus.backends.gpu import prepare as gpu_prepare
from isthmus.backends.gpu.compile.program import BufferRef, KernelPool, KernelProgram, Launch, Unit
from isthmus.backends.gpu.compile.traits import FloatStorage
from isthmus.graph import TensorInfo
from isthmus.prepare.schedule import Pool as Planned

DIMS = (64, 128)
NBYTES = 64 * 128 * 4

SOURCE = """
#define AT(type, memory, offset) ((global type *)((global char *)(memory) + (offset)))
kernel void add(global char *a, long ao, global char *b, long bo, global char *y, long yo) {
    size_t i = get_global_id(0);
    AT(float, y, yo)[i] = AT(const float, a, ao)[i] + AT(const float, b, bo)[i];
}
kernel void relu(global char *x, long xo, global char *y, long yo) {
    size_t i = get_global_id(0);
    AT(float, y, yo)[i] = fmax(AT(const float, x, xo)[i], 0.0f);
}
kernel void work(global char *x, long xo, global char *y, long yo) {
    size_t i = get_global_id(0);
    float v = AT(const float, x, xo)[i];
    for (int k = 0; k < ROUNDS; k++) v = sin(v) + 1.0f;
    AT(float, y, yo)[i] = v;
}
"""
KERNELS = {"ElementWiseAdd": "add", "Relu": "relu", "Sigmoid": "work"}


def small_engine(graph, traits, precision=FloatStorage.FP32, fuse=True, optimize_memory=True, rounds=1, source=SOURCE):
    """`lower.prepare` for graphs of these kernels; Sigmoid stands for something that takes long."""
    planned = plan_graph(
        graph, alignment=traits.alignment, reuse_memory=optimize_memory, optimize_order=optimize_memory
    )  # fmt: skip
    launches = []
    for index, step in enumerate(planned.steps):
        arguments = []
        for tensor, writes in (*((t, False) for t in step.inputs), *((t, True) for t in step.outputs)):
            place = planned.places[tensor]
            pool, number = KernelPool.SCRATCH, 0
            if place.pool == Planned.STATE:
                pool = KernelPool.STATE
            elif place.pool >= Planned.IO:
                number = place.pool - Planned.IO
                pool = KernelPool.INPUT
                if number >= len(planned.inputs):
                    pool, number = KernelPool.OUTPUT, number - len(planned.inputs)
            arguments.append(BufferRef(pool, number, place.offset, tensor.nbytes, writes))
        size = int(np.prod(step.outputs[0].dims))
        launches.append(Launch(0, KERNELS[step.op], tuple(arguments), (size,), (), index))
    return KernelProgram(
        name=graph.name, traits=traits, precision=precision,
        units=(Unit(source, (f"-DROUNDS={rounds}",)),), launches=tuple(launches),
        steps=tuple(f"{step.op} {step.name}" for step in planned.steps), constants=np.zeros(0, np.uint8),
        inputs=tuple(map(TensorInfo.of, planned.inputs)), outputs=tuple(map(TensorInfo.of, planned.outputs)),
        states=tuple(map(TensorInfo.of, planned.states)), state_offsets=planned.state_offsets,
        scratch_bytes=planned.scratch_bytes,
        alignment=traits.alignment, schedule=planned,
    )  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    """The GPU backend with the small engine."""
    monkeypatch.setattr(gpu_prepare.lower, "prepare", small_engine)


@contextmanager
def gpu(config=None, **more) -> Iterator[qnn.Backend]:
    with qnn.Backend("gpu", config, **more) as backend:
        yield backend


def doubled(context, name="double", dims=DIMS, finalize=True, prepared=qnn.TensorMemType.RAW):
    """A graph: y = relu(x + x)."""
    graph = context.create_graph(name)
    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, dims, mem_type=prepared)
    s = graph.create_tensor("s", qnn.TensorType.NATIVE, qnn.DataType.FLOAT_32, dims)
    y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, dims, mem_type=prepared)
    graph.add_node("add", "ElementWiseAdd", [x, x], [s])
    graph.add_node("relu", "Sigmoid", [s], [y])
    if finalize:
        graph.finalize()
    return graph


def expected(x, rounds=1):
    v = x + x
    for _ in range(rounds):
        v = np.sin(v) + np.float32(1)
    return v


def opencl_context(backend):
    return backend.get_property(qnn.gpu.CL_CONTEXT)


def opencl_queue(backend):
    return backend.get_property(qnn.gpu.CL_QUEUE)


def buffer(backend, nbytes=NBYTES, flags=None, hostbuf=None):
    return cl.Buffer(opencl_context(backend), flags or cl.mem_flags.READ_WRITE, nbytes, hostbuf)


def descriptor(given, dims=DIMS, dtype=qnn.DataType.FLOAT_32, mem_type=qnn.gpu.MemType.OPENCL):
    return qnn.MemDescriptor(dims, dtype, qnn.DescriptorType.CUSTOM, custom=qnn.gpu.GpuMemInfo(mem_type, given))


def bind_handles(graph, *handles):
    """The graph bound to a handle for x and one for y."""
    return graph.bind([qnn.ClientTensor("x", mem_handle=handles[0])], [qnn.ClientTensor("y", mem_handle=handles[1])])


def values(dims=DIMS, seed=0):
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)


def put(backend, target, array):
    cl.enqueue_copy(opencl_queue(backend), target, array).wait()


def read_back(backend, source, dims=DIMS):
    array = np.empty(dims, np.float32)
    cl.enqueue_copy(opencl_queue(backend), array, source).wait()
    return array
