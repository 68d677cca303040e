"""Races: contestants that take turns in one process, so that whatever else the machine does meets all alike."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

OURS = "Isthmus"
DISTURBED = 0.15  # cores that others may use before a race is called disturbed
BATCH_SECONDS = 200e-6  # calls are timed in batches of this length: the clock costs nothing then


@dataclass
class Contestant:
    """One runtime with one model loaded, ready to be called."""

    name: str
    call: Callable[[], object]
    close: Callable[[], None] = lambda: None
    seconds: list[float] = field(default_factory=list)  # per call, one figure for each round


def race(contestants: Sequence[Contestant], rounds: int, slice_seconds: float) -> float | None:
    """Let contestants take turns, then close them; return how many cores other processes kept busy meanwhile."""
    with strangers() as busy:
        for turn in range(rounds):
            start = turn % len(contestants)  # nobody always follows the same one
            for contestant in (*contestants[start:], *contestants[:start]):
                contestant.seconds.append(_slice(contestant.call, slice_seconds))
    for contestant in contestants:
        contestant.close()
    return busy[0] if busy else None


def _slice(call: Callable[[], object], seconds: float) -> float:
    """Seconds per call: the median over batches that fill the slice."""
    _wait_for_quiet()
    # Warm-up: the thread pool wakes, caches and clock speed settle, and the batch size shows.
    calls, started = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - started < seconds / 5:
        call()
        calls += 1
    batch = max(1, math.ceil(BATCH_SECONDS * calls / (time.perf_counter() - started)))
    samples: list[float] = []
    deadline = time.perf_counter() + seconds
    while True:
        before = time.perf_counter()
        for _ in range(batch):
            call()
        after = time.perf_counter()
        samples.append((after - before) / batch)
        if after >= deadline:
            return statistics.median(samples)


def _wait_for_quiet() -> None:
    """Sleep until the thread pools of the contestant before have gone to sleep as well.

    The runtimes' idle threads spin for a while in hope of more work. Forbidding that would slow down the one
    being timed, so spinning stays on for everybody, and everybody starts on cores that are really free.
    """
    for _ in range(200):
        wall, busy = time.perf_counter(), time.process_time()
        time.sleep(0.002)
        if time.process_time() - busy < 0.1 * (time.perf_counter() - wall):
            return


def geometric_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.exp(statistics.fmean(math.log(value) for value in known)) if known else None


@contextlib.contextmanager
def strangers() -> Iterator[list[float]]:
    """Learns how many cores other processes kept busy meanwhile; stays empty where the system does not say."""
    found: list[float] = []
    try:
        busy = _busy_seconds()
    except (OSError, ValueError):
        yield found
        return
    wall, own = time.perf_counter(), time.process_time()
    yield found
    others = (_busy_seconds() - busy) - (time.process_time() - own)
    found.append(max(0.0, others) / (time.perf_counter() - wall))


def _busy_seconds() -> float:
    user, nice, system = (int(text) for text in Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("isthmus", "ai-edge-litert", "onnxruntime", "openvino", "MNN", "ncnn", "pnnx"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
