"""What crossing to the accelerator costs: round trips, copies saved, growth over many cycles, death and recovery.

Figures of one row are measured in turn, round by round, so that whatever else the machine does meets them alike.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import zoo

import isthmus
from isthmus import QnnError, qnn
from isthmus.graph import DataType, TensorMemType, TensorType
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, htp

SIZES = tuple(4096 << (2 * n) for n in range(9))
FEW, PIECE = 4, 1024
MODELS = ("okay_nabu", "kws_fp32", "kws_qdq", "face_landmark", "efficientnet_lite0")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller buffers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--only", choices=list(PARTS), action="append", help="only this part; may be repeated")
    options = parser.parse_args()
    # Accelerators are killed here by intent; that each is started again need not be told.
    logging.getLogger("isthmus").setLevel(logging.ERROR)
    figures = {}
    for name, part in PARTS.items():
        if not options.only or name in options.only:
            print(f"\n{part.__doc__.splitlines()[0]}", flush=True)
            figures[name] = part(options.quick)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


# -- graphs ------------------------------------------------------------------------------------------------------------


def first_few(context: qnn.Context, elements: int, mem_type: TensorMemType) -> qnn.Graph:
    """A graph whose work does not depend on its input's size: it takes the first few elements."""
    graph = context.create_graph(f"few of {elements} {mem_type.name}")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, elements), mem_type=mem_type)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, FEW), mem_type=mem_type)
    ranges = np.array([[0, 1, 1], [0, FEW, 1]], np.int32)
    graph.add_node("slice", "StridedSlice", [x], [y], {"ranges": ranges})
    graph.finalize()
    return graph


def spread(context: qnn.Context, elements: int, mem_type: TensorMemType) -> qnn.Graph:
    """A graph with a small input and a large output."""
    graph = context.create_graph(f"spread to {elements} {mem_type.name}")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, PIECE), mem_type=mem_type)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, elements), mem_type=mem_type)
    graph.add_node("tile", "Tile", [x], [y], {"multiples": np.array([1, elements // PIECE], np.uint32)})
    graph.finalize()
    return graph


def raw(graph: qnn.Graph) -> tuple[tuple[ClientTensor, ...], tuple[ClientTensor, ...]]:
    """Raw buffers for a graph, touched."""
    kinds = graph.input_tensors, graph.output_tensors
    made = [tuple(ClientTensor(i.name, np.ones(i.dims, i.dtype.numpy)) for i in infos) for infos in kinds]
    return made[0], made[1]


def shared(
    context: qnn.Context, graph: qnn.Graph, buffers: list[rpcmem.RpcBuffer]
) -> tuple[tuple[ClientTensor, ...], tuple[ClientTensor, ...]]:
    """Registered buffers for a graph."""
    made = []
    for infos in (graph.input_tensors, graph.output_tensors):
        tensors = []
        for info in infos:
            buffers.append(rpcmem.alloc2(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, info.nbytes))
            descriptor = MemDescriptor(info.dims, info.dtype, DescriptorType.ION, fd=buffers[-1].fd)
            tensors.append(ClientTensor(info.name, mem_handle=context.mem_register([descriptor])[0]))
        made.append(tuple(tensors))
    return made[0], made[1]


# -- measuring ---------------------------------------------------------------------------------------------------------


def in_turn(calls: Sequence[Callable[[], object]], rounds: int) -> np.ndarray:
    """Microseconds of each call in each round: the median of a few, after one that finds the caches cold."""
    times = np.zeros((len(calls), rounds))
    for round_ in range(rounds):
        for index, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            few = 1 if time.perf_counter() - begin > 1e-3 else 9
            taken = []
            for _ in range(few):
                begin = time.perf_counter()
                call()
                taken.append(time.perf_counter() - begin)
            times[index, round_] = np.median(taken)
    return times * 1e6


def rounds_for(nbytes: int, quick: bool) -> int:
    return int(np.clip((1 << 31 if quick else 1 << 33) // max(nbytes, 1), 8, 100 if quick else 500))


# -- parts -------------------------------------------------------------------------------------------------------------


def round_trip(quick: bool) -> dict[str, float]:
    """Round trip of a trivial graph, around the Python call (wanted: p50 10 µs back to back, 100 µs after idling)"""
    buffers: list[rpcmem.RpcBuffer] = []
    figures = {}
    with qnn.Backend("htp") as backend:
        context = backend.create_context()
        graph = first_few(context, 64, TensorMemType.MEMHANDLE)
        inputs, outputs = shared(context, graph, buffers)

        def once() -> float:
            begin = time.perf_counter()
            graph.execute(inputs, outputs)
            return (time.perf_counter() - begin) * 1e6

        ways = (("back to back", 0.0, 20_000), ("after 2 ms", 0.002, 1000), ("after 50 ms", 0.05, 100))
        for name, idle, count in ways:
            times = []
            for _ in range(count // 5 if quick else count):
                if idle:
                    time.sleep(idle)
                times.append(once())
            p50, p99 = np.percentile(times, (50, 99))
            figures[f"{name} p50"], figures[f"{name} p99"] = float(p50), float(p99)
            print(f"  {name:14} p50 {p50:7.2f} µs   p99 {p99:7.2f} µs")
    return figures


def copies(quick: bool, make: Callable[..., qnn.Graph], large: str, rounds: int) -> list[dict[str, float]]:
    """A row for each size: registered memory, raw memory, what the one costs more, and a plain copy."""
    sizes = SIZES[:7] if quick else SIZES
    buffers: list[rpcmem.RpcBuffer] = []
    rows = []
    print(f"  {large:>10}  {'memhandle':>11}  {'raw':>11}  {'difference':>11}  {'memcpy':>11}")
    with qnn.Backend("htp") as backend:
        context = backend.create_context()
        graphs = [make(context, nbytes // 4, TensorMemType.MEMHANDLE) for nbytes in sizes]
        handles = [partial(graph.execute, *shared(context, graph, buffers)) for graph in graphs]
        # All sizes in turn, on one queue: what differs between them is the size alone.
        flat = np.median(in_turn(handles, rounds), axis=1)
        for nbytes, handle, cost in zip(sizes, handles, flat, strict=True):
            graph = make(context, nbytes // 4, TensorMemType.RAW)
            source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
            copied = partial(graph.execute, *raw(graph))
            times = in_turn((handle, copied, partial(np.copyto, target, source)), rounds_for(nbytes, quick))
            raw_cost, memcpy = np.median(times[1:], axis=1)
            difference = float(np.median(times[1] - times[0]))
            rows.append(
                {"bytes": nbytes, "memhandle": cost, "raw": raw_cost, "difference": difference, "memcpy": memcpy}
            )
            print(
                f"  {_size(nbytes):>10}  {cost:>8.1f} µs  {raw_cost:>8.1f} µs  {difference:>8.1f} µs  {memcpy:>8.1f} µs"
            )
    for buffer in buffers:
        buffer.close()
    return rows


def large_inputs(quick: bool) -> dict[str, Any]:
    """Inputs of any size with constant work: memhandle is flat, raw grows with memcpy"""
    rows = copies(quick, first_few, "input", 40 if quick else 200)
    costs = [row["memhandle"] for row in rows]
    middle = float(np.median(costs))
    worst = max(abs(cost / middle - 1) for cost in costs)
    print(f"  memhandle stays within {worst:.1%} of its median (wanted: 10 %)")
    return {"rows": rows, "worst": worst}


def large_outputs(quick: bool) -> dict[str, Any]:
    """Outputs of any size: raw minus memhandle is the memcpy"""
    return {"rows": copies(quick, spread, "output", 5)}


def models(quick: bool) -> dict[str, Any]:
    """Real models: memhandle execution beside the engine in this process (wanted: within 3 % or 20 µs)"""
    figures = {}
    for name in MODELS:
        try:
            path = zoo.path(name)
        except zoo.Unavailable as reason:
            print(f"  {reason}")
            continue
        with isthmus.Session(path) as here, isthmus.Session(path, backend="htp") as there:
            for view in (*here.inputs.values(), *there.inputs.values()):
                view[...] = 0
            here.run()
            once = here.stats.last_ms * 1e-3
            rounds = int(np.clip((2 if quick else 8) / max(once, 1e-6) / 4, 20, 3000))
            times = in_turn((here.engine_run, there.engine_run), rounds)
        mine, theirs = np.median(times, axis=1)
        more = float(np.median(times[1] - times[0]))
        good = more <= 20 or more <= 0.03 * mine
        figures[name] = {"in process": mine, "htp": theirs, "more": more}
        verdict = "" if good else "  <- more than wanted"
        print(f"  {name:24} in process {mine:9.1f} µs   htp {theirs:9.1f} µs   {more:+6.1f} µs{verdict}")
    return figures


def cycles(quick: bool) -> dict[str, Any]:
    """10,000 register, execute, deregister cycles and 1,000 contexts from one binary: growth on either side"""
    count, contexts = (1000, 100) if quick else (10_000, 1000)
    figures = {}
    with qnn.Backend("htp") as backend:
        context = backend.create_context()
        graph = first_few(context, 1024, TensorMemType.MEMHANDLE)
        content = context.get_binary()

        def registration() -> None:
            buffers: list[rpcmem.RpcBuffer] = []
            given = shared(context, graph, buffers)
            graph.execute(*given)
            context.mem_deregister([tensor.mem_handle for tensors in given for tensor in tensors])
            for buffer in buffers:
                buffer.close()

        def restored() -> None:
            with backend.create_context_from_binary(content) as other:
                graph = other.retrieve("few of 1024 MEMHANDLE")
                graph.execute(*raw(graph))

        accelerator = context.driver.queue.accelerator  # type: ignore[attr-defined]
        for name, work, times in (("registrations", registration, count), ("contexts", restored, contexts)):
            for _ in range(max(times // 10, 20)):
                work()
            gc.collect()
            before = {**_own_counts(), **{f"far {k}": v for k, v in accelerator.counts().items()}}
            begin = time.perf_counter()
            for _ in range(times):
                work()
            seconds = time.perf_counter() - begin
            gc.collect()
            after = {**_own_counts(), **{f"far {k}": v for k, v in accelerator.counts().items()}}
            growth = {kind: after[kind] - before[kind] for kind in before}
            figures[name] = {"each_us": seconds / times * 1e6, "growth": growth}
            told = ", ".join(f"{kind} {value:+,}" for kind, value in growth.items() if value) or "none"
            print(f"  {times:,} {name}: {seconds / times * 1e6:.0f} µs each; growth: {told}")
    return figures


def _own_counts() -> dict[str, int]:
    with open("/proc/self/statm") as statistics:
        resident = int(statistics.read().split()[1]) * 4096
    with open("/proc/self/maps") as table:
        mappings = sum(1 for _ in table)
    return {"descriptors": len(os.listdir("/proc/self/fd")), "mappings": mappings, "resident_bytes": resident}


def death(quick: bool) -> dict[str, float]:
    """kill -9 while executions run: time to the answer 1007 (wanted: 100 ms), and to a working context again"""
    answers, recoveries = [], []
    with qnn.Backend("htp") as backend:
        for _ in range(5 if quick else 30):
            context = backend.create_context()
            graph = first_few(context, 1 << 20, TensorMemType.RAW)
            given = raw(graph)
            died: list[float] = []

            def work(graph: qnn.Graph = graph, given: Any = given, died: list[float] = died) -> None:
                try:
                    while True:
                        graph.execute(*given)
                except QnnError:
                    died.append(time.perf_counter())

            thread = threading.Thread(target=work)
            thread.start()
            time.sleep(0.02)
            killed = time.perf_counter()
            os.kill(backend.get_property(htp.ACCELERATOR_PID), signal.SIGKILL)
            thread.join()
            answers.append((died[0] - killed) * 1e3)
            begin = time.perf_counter()
            context.free()
            with backend.create_context() as fresh:
                again = first_few(fresh, 1024, TensorMemType.RAW)
                again.execute(*raw(again))
            recoveries.append((time.perf_counter() - begin) * 1e3)
    print(f"  answered after {np.median(answers):.1f} ms (worst {max(answers):.1f}), over {len(answers)} kills")
    print(f"  recovered after {np.median(recoveries):.0f} ms")
    middle = {"answer_ms": float(np.median(answers)), "recovery_ms": float(np.median(recoveries))}
    return {**middle, "worst_ms": max(answers)}


def threads(quick: bool) -> dict[str, float]:
    """8 threads x 1,000 executions over 4 contexts: all results right"""
    count = 100 if quick else 1000
    wrong: list[tuple[int, int]] = []
    with qnn.Backend("htp") as backend:
        contexts = [backend.create_context() for _ in range(4)]
        graphs = [first_few(context, 256, TensorMemType.MEMHANDLE) for context in contexts]

        def work(seed: int) -> None:
            x, y = np.zeros((1, 256), np.float32), np.zeros((1, FEW), np.float32)
            given = (ClientTensor("x", x),), (ClientTensor("y", y),)
            for round_ in range(count):
                x[:] = seed * count + round_
                graphs[seed % 4].execute(*given)
                if not (y == seed * count + round_).all():
                    wrong.append((seed, round_))

        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        begin = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds = time.perf_counter() - begin
    print(f"  {8 * count:,} executions, {len(wrong)} wrong, {8 * count / seconds:,.0f} a second")
    return {"executions": 8 * count, "wrong": len(wrong), "per_second": 8 * count / seconds}


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


PARTS: dict[str, Callable[[bool], Any]] = {
    "round_trip": round_trip,
    "large_inputs": large_inputs,
    "large_outputs": large_outputs,
    "models": models,
    "cycles": cycles,
    "death": death,
    "threads": threads,
}

if __name__ == "__main__":
    sys.exit(main())
