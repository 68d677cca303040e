"""The Qmem graph's table, measured: what raw and registered memory cost, by what the graph was prepared for."""

from __future__ import annotations

import itertools
import time

import numpy as np

from isthmus import qnn
from isthmus.graph import DataType, TensorMemType, TensorType
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor

DIMS = (1, 1 << 20)
NBYTES = 4 << 20
ROUNDS = 30


def measure(context: qnn.Context, prepared: TensorMemType, executed: TensorMemType) -> list[str]:
    """One row: staging at prepare, staging at the first execution, bytes copied by each, first and later times."""
    graph = context.create_graph(f"{prepared.name} {executed.name}")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, DIMS, mem_type=prepared)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, DIMS, mem_type=prepared)
    graph.add_node("relu", "Relu", [x], [y])
    graph.finalize()
    if executed is TensorMemType.MEMHANDLE:
        buffers = [rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, NBYTES) for _ in "xy"]
        handles = context.mem_register(
            MemDescriptor(DIMS, DataType.FLOAT_32, DescriptorType.ION, fd=buffer.fd) for buffer in buffers
        )
        given = [[ClientTensor(name, mem_handle=handle)] for name, handle in zip("xy", handles, strict=True)]
    else:
        given = [[ClientTensor(name, np.ones(DIMS, np.float32))] for name in "xy"]
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        graph.execute(*given)
        times.append(time.perf_counter() - begin)
    stats = graph.stats
    return [
        prepared.name.lower(),
        executed.name.lower(),
        f"{stats.staging_prepare_bytes / 2**20:g} MiB",
        f"{stats.staging_execute_bytes / 2**20:g} MiB",
        f"{stats.copied_bytes / stats.executions / 2**20:g} MiB",
        f"{times[0] * 1e6:,.0f} µs",
        f"{np.median(times[1:]) * 1e6:,.0f} µs",
    ]


def main() -> None:
    """Print the table."""
    header = ["prepared", "executed", "reserved then", "reserved later", "copied each", "first", "later"]
    with qnn.Backend("htp") as backend:
        context = backend.create_context()
        kinds = (TensorMemType.RAW, TensorMemType.MEMHANDLE)
        # The first graph of a process pays for what all later ones find ready.
        measure(backend.create_context(), TensorMemType.RAW, TensorMemType.RAW)
        rows = [header, *(measure(context, *pair) for pair in itertools.product(kinds, kinds))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"An input and an output of {NBYTES / 2**20:g} MiB each:\n")
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
