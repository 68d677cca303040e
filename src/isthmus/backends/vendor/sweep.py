"""Many measurements: models times targets, in parallel processes, on this machine or on a cluster of dask.distributed.

What is measured is kept at once. So a sweep that was interrupted continues where it ended.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from isthmus.backends.vendor.library import VendorLibrary, find
from isthmus.backends.vendor.measurement import Measurement, MeasurementCache, key_of, measure
from isthmus.backends.vendor.process import VendorProcess
from isthmus.backends.vendor.target import ChipTarget
from isthmus.errors import Code, QnnError

FARM_PACKAGE = "distributed"
_INTERRUPTED = "the sweep was interrupted"


@dataclass(frozen=True)
class Job:
    """A model and a target.

    Parameters
    ----------
    number
        Its place in the sweep.
    model
        The model's name in reports.
    graphs
        Its graphs by name, as `measure` takes them.
    """

    number: int
    model: str
    graphs: Sequence[tuple[str, bytes]]
    target: ChipTarget

    def key(self, build: str) -> str:
        """Return the key of the measurement in the cache."""
        return key_of([content for _, content in self.graphs], self.target, build)


Runner = Callable[[Sequence[Job]], Iterator[tuple[Job, Measurement]]]
"""Measures jobs, and yields each with its result as soon as it is there, in any order."""


def sweep(
    jobs: Sequence[Job], build: str, cache: MeasurementCache, runner: Runner
) -> Iterator[tuple[Job, Measurement]]:
    """Yield every job with its result, those in the cache first; keep the others when they come.

    Parameters
    ----------
    build
        The build of the library, for the keys.
    runner
        Measures what is not in the cache.
    """
    missing = []
    for job in jobs:
        known = cache.get(job.key(build))
        if known is None:
            missing.append(job)
        else:
            yield job, known
    for job, measurement in runner(missing):
        cache.put(job.key(build), measurement)
        yield job, measurement


class LocalRunner:
    """Measurements in child processes of this one.

    Parameters
    ----------
    library
        The library.
    workers
        How many processes run at a time; 0 for one per processor.
    """

    def __init__(self, library: VendorLibrary, workers: int = 0) -> None:
        self._library = library
        self._workers = workers or len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._running: set[VendorProcess] = set()
        self._over = False

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Measurement]]:
        if not jobs:
            return
        self._over = False
        pool = ThreadPoolExecutor(min(self._workers, len(jobs)), thread_name_prefix="isthmus-sweep")
        try:
            futures: dict[Future[Measurement], Job] = {pool.submit(self._measure, job): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            # After an interrupt the processes that still compile are killed; their results would be dropped.
            with self._lock:
                self._over = True
                for process in self._running:
                    process.kill(_INTERRUPTED)
            pool.shutdown(cancel_futures=True)

    def _measure(self, job: Job) -> Measurement:
        mine: list[VendorProcess] = []

        def started(process: VendorProcess) -> None:
            mine.append(process)
            with self._lock:
                self._running.add(process)
                if self._over:
                    process.kill(_INTERRUPTED)

        try:
            return measure(job.graphs, job.target, self._library, started)
        finally:
            with self._lock:
                self._running.difference_update(mine)


class FarmRunner:
    """Measurements by the workers of a dask.distributed cluster, which need this package and the vendor's library.

    Parameters
    ----------
    address
        The address of the scheduler.
    library
        The library's path on the workers; None for the one that is installed there.
    """

    def __init__(self, address: str, library: Path | None = None) -> None:
        self._address, self._library = address, library
        if importlib.util.find_spec(FARM_PACKAGE) is None:
            rule, hint = "the package 'distributed' is not installed", "Install it with: pip install 'isthmus[farm]'"
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, f"--scheduler {address}", rule, hint)

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Measurement]]:
        if not jobs:
            return
        farm: Any = import_module(FARM_PACKAGE)
        with self._connected(farm) as client:
            path = None if self._library is None else str(self._library)
            futures = {client.submit(measure_remotely, job.graphs, job.target, path, pure=False): job for job in jobs}
            for future in farm.as_completed(list(futures)):
                yield futures[future], Measurement.from_json(future.result())

    def _connected(self, farm: Any) -> Any:
        try:
            return farm.Client(self._address)
        except OSError as problem:
            rule = f"it does not answer: {' '.join(str(problem).split())}"
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, f"--scheduler {self._address}", rule) from None


def measure_remotely(
    graphs: Sequence[tuple[str, bytes]], target: ChipTarget, library: str | None
) -> dict[str, Any]:
    """Measure on another machine, with the library there; return plain data."""
    return measure(graphs, target, find(library)).to_json()


def build_of(library: VendorLibrary) -> str:
    """Return the build of a library, by loading it in a process."""
    with VendorProcess(library) as process:
        return process.build
