"""Runs the wake word on LPAI 100,000 times, on each way that inputs and outputs can take.

Tells latency (p50, p99 and their ratio), how many times faster than real time that is, and what memory and file
descriptors grew by. A growth of nothing is the aim; the allocator's own page or two are not counted as one.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import zoo

from isthmus import memory, qnn
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, lpai

STEP_SECONDS = 0.030
WARM_UP = 2_000
TCM = {"lpai_backend": {"target_env": "adsp"}, "lpai_graph": {"execute": {"mem_type": "tcm"}}}
EXCLUDED = {"lpai_graph": {"prepare": {"exclude_io": True}}}

Run = Callable[[], None]
# A way makes the execution of a finalized graph, with its input view.
Way = Callable[[qnn.Graph], tuple[Run, np.ndarray]]


def planned(graph: qnn.Graph) -> tuple[Run, np.ndarray]:
    """Where the backend planned IO: in scratch, or in TCM."""
    return graph.execute, next(iter(graph.inputs.values()))


def raw(graph: qnn.Graph) -> tuple[Run, np.ndarray]:
    """In the client's own aligned buffers."""
    tensors = []
    views = []
    for infos in (graph.input_tensors, graph.output_tensors):
        buffers = [memory.host(-(-info.nbytes // 128) * 128, 128) for info in infos]
        tensors.append([ClientTensor(info.name, buffer) for info, buffer in zip(infos, buffers, strict=True)])
        views += [b.view(i.dtype.numpy, tuple(i.dims)) for i, b in zip(infos, buffers, strict=True)]
    return lambda: graph.execute(*tensors), views[0]


def shared(graph: qnn.Graph) -> tuple[Run, np.ndarray]:
    """In shared memory, registered by file descriptor and offset."""
    fd = os.memfd_create("io", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 1 << 16)
    infos = (*graph.input_tensors, *graph.output_tensors)
    descriptors = [
        MemDescriptor(tuple(i.dims), i.dtype, DescriptorType.CUSTOM, custom=lpai.MemInfo(fd, 4096 * n))
        for n, i in enumerate(infos)
    ]
    handles = graph.context.mem_register(descriptors)
    view = np.frombuffer(mmap.mmap(fd, 4096), infos[0].dtype.numpy, int(np.prod(infos[0].dims)))
    os.close(fd)
    tensors = [ClientTensor(info.name, mem_handle=handle) for info, handle in zip(infos, handles, strict=True)]
    count = len(graph.input_tensors)
    return lambda: graph.execute(tensors[:count], tensors[count:]), view.reshape(infos[0].dims)


WAYS: dict[str, tuple[Any, Way]] = {
    "in scratch": (None, planned),
    "raw buffers": (EXCLUDED, raw),
    "shared buffers": (EXCLUDED, shared),
    "in TCM": (TCM, planned),
}


def measure(path: Path, config: Any, way: Way, executions: int) -> dict[str, float]:
    """Latencies and growth of one way."""
    frame = np.random.default_rng(0).integers(-128, 128, (1, 3, 40), np.int8)
    with qnn.Backend("lpai", config) as backend:
        graph = backend.create_context().compose(path)
        start = backend.get_property(lpai.ALIGNMENT_REQ).start_addr_alignment
        for size, option in (
            (lpai.SCRATCH_MEM_SIZE, lpai.SCRATCH_MEM),
            (lpai.PERSISTENT_MEM_SIZE, lpai.PERSISTENT_MEM),
        ):
            buffer = memory.host(graph.get_property(size), start)
            graph.set_config(option, lpai.Mem(lpai.MemType.DDR, buffer.nbytes, buffer))
        graph.finalize()
        run, view = way(graph)
        latencies = np.ones(executions, np.int64)  # written, so that its pages are there before memory is measured
        clock = time.perf_counter_ns
        for _ in range(WARM_UP):
            view[...] = frame
            run()
        gc.collect()
        memory_before, descriptors_before = resident_bytes(), open_descriptors()
        for index in range(executions):
            view[...] = frame
            began = clock()
            run()
            latencies[index] = clock() - began
        gc.collect()
        growth = resident_bytes() - memory_before
        stats = graph.stats
    p50, p99 = (float(np.percentile(latencies, q)) / 1e3 for q in (50, 99))
    return {
        "executions": executions,
        "p50_us": p50,
        "p99_us": p99,
        "p99_over_p50": p99 / p50,
        "times_real_time": STEP_SECONDS * 1e6 / p50,
        "times_real_time_on_average": STEP_SECONDS * 1e9 / float(latencies.mean()),
        "memory_growth_bytes": growth,
        "descriptor_growth": open_descriptors() - descriptors_before,
        "copied_bytes": stats.copied_bytes,
    }


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        path = zoo.path("okay_nabu")
    except zoo.Unavailable as reason:
        sys.exit(str(reason))
    results = {name: measure(path, config, way, options.executions) for name, (config, way) in WAYS.items()}
    if options.json:
        print(json.dumps(results))
        return
    print(f"okay_nabu on LPAI, {options.executions:,} executions each")
    print(f"{'IO':16}{'p50':>10}{'p99':>10}{'p99/p50':>9}{'x real time':>13}{'memory':>10}{'fds':>5}{'copied':>8}")
    for name, result in results.items():
        print(
            f"{name:16}{result['p50_us']:>7.1f} µs{result['p99_us']:>7.1f} µs{result['p99_over_p50']:>9.2f}"
            f"{result['times_real_time_on_average']:>13,.0f}{result['memory_growth_bytes']:>+10,}"
            f"{result['descriptor_growth']:>+5}{result['copied_bytes']:>8}"
        )


if __name__ == "__main__":
    main()
