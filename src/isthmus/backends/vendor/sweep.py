"""Many measurements: models times targets, in parallel processes, on this machine or on a cluster of dask.distributed.

What is measured is kept at once. So a sweep that was interrupted continues where it ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.backends.vendor.library import VendorLibrary, find
from isthmus.backends.vendor.measurement import Measurement, MeasurementCache, key_of, measure
from isthmus.backends.vendor.process import VendorProcess
from isthmus.backends.vendor.target import ChipTarget
from isthmus.system import jobs as parallel


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

    @property
    def title(self) -> str:
        """What a progress bar shows of it."""
        return f"{self.model}, {self.target.title}"

    def key(self, build: str) -> str:
        """Return the key of the measurement in the cache."""
        return key_of([content for _, content in self.graphs], self.target, build)


Runner = parallel.Runner[Job, Measurement]
"""Measures jobs."""


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
    return parallel.resumed(jobs, lambda job: job.key(build), cache, runner)


class LocalRunner(parallel.LocalJobs[Job, Measurement]):
    """Measurements in child processes of this one.

    Parameters
    ----------
    library
        The library.
    workers
        How many processes run at a time; 0 for one per processor.
    """

    def __init__(self, library: VendorLibrary, workers: int = 0) -> None:
        super().__init__(lambda job, started: measure(job.graphs, job.target, library, started), workers)


class FarmRunner(parallel.FarmJobs[Job, Measurement]):
    """Measurements by the workers of a dask.distributed cluster, which need this package and the vendor's library.

    Parameters
    ----------
    address
        The address of the scheduler.
    library
        The library's path on the workers; None for the one that is installed there.
    """

    def __init__(self, address: str, library: Path | None = None) -> None:
        path = None if library is None else str(library)
        super().__init__(
            address,
            measure_remotely,
            lambda job: (job.graphs, job.target, path),
            Measurement.from_json,
            lambda problem: Measurement("", problem=problem, is_lasting=False),
        )


def measure_remotely(graphs: Sequence[tuple[str, bytes]], target: ChipTarget, library: str | None) -> dict[str, Any]:
    """Measure on another machine, with the library there; return plain data."""
    with parallel.ended_with_the_task() as started:
        return measure(graphs, target, find(library), started).to_json()


def build_of(library: VendorLibrary) -> str:
    """Return the build of a library, by loading it in a process."""
    with VendorProcess(library) as process:
        return process.build
