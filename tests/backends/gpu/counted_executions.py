"""A process of its own that executes on the GPU while a layer counts the calls of the OpenCL library itself.

It prints, as JSON, how often each function was called up to the first execution of a graph, and in so many others: with
registered buffers, and with raw memory. The argument is the layer.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from backends.gpu.harness import (
    bind_handles,
    buffer,
    descriptor,
    doubled,
    expected,
    gpu,
    put,
    read_back,
    small_engine,
    values,
)
from isthmus import qnn
from isthmus.backends.gpu import prepare as gpu_prepare

EXECUTIONS = 100
FUNCTIONS = {
    14: "clCreateBuffer", 20: "clGetMemObjectInfo", 38: "clSetKernelArg", 42: "clGetEventInfo", 44: "clReleaseEvent",
    46: "clFlush", 48: "clEnqueueReadBuffer", 49: "clEnqueueWriteBuffer", 50: "clEnqueueCopyBuffer",
    56: "clEnqueueMapBuffer", 58: "clEnqueueUnmapMemObject", 59: "clEnqueueNDRangeKernel", 81: "clSetEventCallback",
}  # fmt: skip
"""The places of functions in the table, as every driver has them."""


def main() -> None:
    gpu_prepare.lower.prepare = small_engine
    calls = (ctypes.c_long * 128).in_dll(ctypes.CDLL(sys.argv[1]), "isthmus_calls")

    def counted(execute):
        execute()
        before = list(calls)
        for _ in range(EXECUTIONS):
            execute()
        return more_since(before)

    def more_since(before):
        more = [now - then for now, then in zip(calls, before, strict=True)]
        return {FUNCTIONS.get(place, f"function {place}"): count for place, count in enumerate(more) if count}

    with gpu() as backend:
        context, array = backend.create_context(), values()
        x, y = buffer(backend), buffer(backend)
        put(backend, x, array)
        before = list(calls)
        graph = doubled(context, prepared=qnn.TensorMemType.MEMHANDLE)
        binding = bind_handles(graph, *context.mem_register([descriptor(x), descriptor(y)]))
        binding.execute()
        report = {"executions": EXECUTIONS, "registered first": more_since(before)}
        report["registered"] = counted(binding.execute)
        np.testing.assert_allclose(read_back(backend, y), expected(array), rtol=1e-5, atol=1e-6)
        report["bytes"] = binding.stats.copied_bytes
        output = np.zeros_like(array)
        before = list(calls)
        graph = doubled(context, "raw")
        raw = graph.bind([qnn.ClientTensor("x", array)], [qnn.ClientTensor("y", output)])
        raw.execute()
        report["raw first"] = more_since(before)
        report["raw"] = counted(raw.execute)
        report["raw bytes"] = raw.stats.copied_bytes
    print(json.dumps(report))


if __name__ == "__main__":
    main()
