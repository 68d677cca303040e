"""What a network on all threads takes from another process, beside the peers.

    python bench/beside.py [--network NAME] [--threads N] [--seconds S]

The other process multiplies and adds in registers, on one thread, and counts. Beside it each runtime executes a
network, first without a pause, then once every 20 ms, as a program does that follows a camera. `other` is the rate of
the other process as a part of its rate alone, `time` the time of an execution as a multiple of its time alone, and
`processor` the processor time of an execution, which contains what idle threads spin.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from networks import Settings, field_of, file_of
from ops import multiply_and_add

PERIOD = 0.02
TURNS = 20_000
"""What the other process does before it counts, a fraction of a millisecond."""


def _count(pieces: Any) -> None:
    """Work and count until the process is ended."""
    work, sink = multiply_and_add(), np.full(64, 0.5, np.float32)
    while True:
        work(TURNS, sink.ctypes.data)
        pieces.value += 1


def _executions(call: Callable[[], object], seconds: float, period: float) -> tuple[float, float]:
    """Execute for some seconds; return the median time of a call and the mean processor time of one."""
    times: list[float] = []
    started, busy = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
        time.sleep(max(0.0, period - times[-1]))
    return statistics.median(times), (time.process_time() - busy) / len(times)


def main() -> None:
    """Measure each runtime alone and beside the other process, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="mobilenet_v2", help="a network of bench/networks.py (mobilenet_v2)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of a runtime (all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="the time of each measurement (3)")
    parser.add_argument("--folder", type=Path, default=Path(".cache/networks"), help="where files go (.cache/networks)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    pieces: Any = context.Value(ctypes.c_long, 0, lock=False)

    def beside(work: Callable[[], Any]) -> tuple[Any, float]:
        """Return the result of some work, and the rate of the other process meanwhile."""
        count, started = pieces.value, time.perf_counter()
        result = work()
        return result, (pieces.value - count) / (time.perf_counter() - started)

    field = field_of(*file_of(arguments.network, "float32", Settings(arguments.folder)), arguments.threads)
    periods = (0.0, PERIOD)
    alone = [[_executions(each.call, arguments.seconds, period) for period in periods] for each in field.contestants]
    other = context.Process(target=_count, args=(pieces,), daemon=True)
    other.start()
    while not pieces.value:
        time.sleep(0.01)
    _, rate = beside(lambda: time.sleep(arguments.seconds))
    print(f"{arguments.network}, {arguments.threads} threads, {len(os.sched_getaffinity(0))} cores")
    print(f"{'runtime':16}{'alone ms':>10}{'processor ms':>14}{'':>22}{'other':>8}{'time':>8}{'processor ms':>14}")
    for contestant, figures in zip(field.contestants, alone, strict=True):
        for period, (usual, busy) in zip(periods, figures, strict=True):
            (median, processor), left = beside(partial(_executions, contestant.call, arguments.seconds, period))
            how = "one after the other" if not period else f"every {1e3 * period:.0f} ms"
            print(f"{contestant.name:16}{1e3 * usual:>10.2f}{1e3 * busy:>14.2f}{how:>22}{left / rate:>8.0%}"
                  f"{median / usual:>8.2f}{1e3 * processor:>14.2f}", flush=True)  # fmt: skip
    other.kill()


if __name__ == "__main__":
    main()
