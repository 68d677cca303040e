"""Many jobs with results that are kept: in parallel processes of this machine, or on a cluster of dask.distributed.

What is finished is kept at once, so a sequence of jobs that was interrupted continues where it ended.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from isthmus.errors import Code, QnnError, one_line
from isthmus.system import reading
from isthmus.system.writing import write_whole

FARM_PACKAGE = "distributed"
INTERRUPTED = "the sweep was interrupted"
# Seconds to wait for the first worker of a cluster, which may be starting.
_PATIENCE = 30
# Seconds between looks whether the result of a task is still wanted.
_LOOK_EVERY = 0.5
# The most bytes of a result that is read.
_MAX_BYTES = 1 << 24

Job = TypeVar("Job")
Result = TypeVar("Result")
Runner = Callable[[Sequence[Job]], Iterator[tuple[Job, Result]]]
"""Does jobs, and yields each with its result as soon as it is there, in any order."""


class Killable(Protocol):
    """A process that another thread can end."""

    def kill(self, reason: str) -> object:
        """End the process, if it has not ended by itself; `reason` is for its messages."""


Started = Callable[[Killable], None]
"""Is called with each process that a job starts, so that an interrupt can end it."""


class ResultFolder:
    """Results on disk as plain data, each in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> Any:
        """Return a result; None if there is none, or none that can be read."""
        with suppress(OSError, ValueError):
            return json.loads(reading.contents(self._folder / f"{key}.json", _MAX_BYTES))
        return None

    def put(self, key: str, result: Any) -> None:
        """Keep a result. A folder that cannot be written is no error."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._folder / f"{key}.json", json.dumps(result).encode())


class Results(Protocol[Result]):
    """Results that are kept by their keys."""

    def get(self, key: str) -> Result | None:
        """Return a result; None if there is none."""

    def put(self, key: str, result: Result) -> None:
        """Keep a result."""


def resume(
    jobs: Sequence[Job], key: Callable[[Job], str], store: Results[Result], runner: Runner[Job, Result]
) -> Iterator[tuple[Job, Result]]:
    """Yield every job with its result, those that are kept first; keep the others when they come.

    `key` returns a job's key: a hash of all that its result depends on. `runner` does the jobs that have no result yet.
    """
    missing = []
    for job in jobs:
        stored = store.get(key(job))
        if stored is None:
            missing.append(job)
        else:
            yield job, stored
    for job, result in runner(missing):
        store.put(key(job), result)
        yield job, result


class LocalJobs(Generic[Job, Result]):
    """Jobs in child processes of this one; each thread of a pool waits for one of them, by default one per processor.

    `work` does a job; it passes the processes that it starts to its second argument.
    """

    def __init__(self, work: Callable[[Job, Started], Result], workers: int = 0) -> None:
        self._work = work
        self._workers = workers or len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._running: set[Killable] = set()
        self._over = False

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Result]]:
        if not jobs:
            return
        self._over = False
        pool = ThreadPoolExecutor(min(self._workers, len(jobs)), thread_name_prefix="isthmus-jobs")
        try:
            futures: dict[Future[Result], Job] = {pool.submit(self._do, job): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            # After an interrupt the processes that still run are killed; their results would be dropped.
            with self._lock:
                self._over = True
                for process in self._running:
                    process.kill(INTERRUPTED)
            pool.shutdown(cancel_futures=True)

    def _do(self, job: Job) -> Result:
        """Do a job, and remember its processes while it lasts."""
        mine: list[Killable] = []

        def remember(process: Killable) -> None:
            mine.append(process)
            with self._lock:
                self._running.add(process)
                if self._over:
                    process.kill(INTERRUPTED)

        try:
            return self._work(job, remember)
        finally:
            with self._lock:
                self._running.difference_update(mine)


class FarmJobs(Generic[Job, Result]):
    """Jobs on the workers of a dask.distributed cluster, which need this package.

    - `function`, `arguments`: What the workers call, and its arguments for a job; the result is plain data.
    - `read`: Turns that data into a result.
    - `failed`: Makes the result of a job whose worker has failed, from a sentence that says how.
    """

    def __init__(
        self,
        address: str,
        function: Callable[..., Any],
        arguments: Callable[[Job], tuple[Any, ...]],
        read: Callable[[Any], Result],
        failed: Callable[[str], Result],
    ) -> None:
        self._address, self._function, self._arguments = address, function, arguments
        self._read, self._failed = read, failed
        if importlib.util.find_spec(FARM_PACKAGE) is None:
            rule, hint = "the package 'distributed' is not installed", "Install it with: pip install 'isthmus[farm]'"
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, f"--scheduler {address}", rule, hint)

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Result]]:
        if not jobs:
            return
        farm: Any = import_module(FARM_PACKAGE)
        with _silent_farm(), self._connect(farm) as client:
            futures = {client.submit(self._function, *self._arguments(job), pure=False): job for job in jobs}
            for future in farm.as_completed(list(futures)):
                yield futures[future], self._result(future)

    def _result(self, future: Any) -> Result:
        """Return the result of a job; whatever ends a worker, or is refused there, costs this job only."""
        try:
            return self._read(future.result())
        except CancelledError:
            return self._failed("the connection to the scheduler was lost")
        except Exception as problem:
            return self._failed(one_line(f"its worker has failed: {type(problem).__name__}: {problem}"))

    def _connect(self, farm: Any) -> Any:
        """Connect to the scheduler."""
        what = f"--scheduler {self._address}"
        try:
            client = farm.Client(self._address)
        except (OSError, ValueError) as problem:
            rule = f"it does not answer: {' '.join(str(problem).split())}"
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, what, rule) from None
        try:
            client.wait_for_workers(1, timeout=_PATIENCE)
        except TimeoutError:
            client.close()
            rule, hint = f"it has had no worker for {_PATIENCE} s", f"Start one with: dask worker {self._address}"
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, what, rule, hint) from None
        return client


@contextmanager
def _silent_farm() -> Iterator[None]:
    """Print no messages of dask.distributed inside the block: what matters becomes a job's result or a refusal."""
    # It has handlers and levels for several of its modules, which it sets up when it is imported.
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == FARM_PACKAGE]
    before = {logger: logger.disabled for logger in map(logging.getLogger, names)}
    try:
        for logger in before:
            logger.disabled = True
        yield
    finally:
        for logger, is_disabled in before.items():
            logger.disabled = is_disabled


@contextmanager
def end_with_task() -> Iterator[Started]:
    """Yield a function for the processes of a cluster's task, which end when the result is no longer wanted.

    A cluster does not stop a task that runs, even if the client that wanted its result is interrupted, killed or
    disconnected. A thread looks now and then whether the worker still holds the task as one to execute.
    """
    processes: list[Killable] = []
    is_wanted, over = _task_check(), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_EVERY):
            if not is_wanted():
                for process in list(processes):
                    process.kill(INTERRUPTED)

    watcher = threading.Thread(target=watch, name="isthmus-task", daemon=True)
    watcher.start()
    try:
        yield processes.append
    finally:
        over.set()
        watcher.join()


def _task_check() -> Callable[[], bool]:
    """Return a function that tells whether the result of this thread's task is wanted; true outside of a task."""
    try:
        worker: Any = import_module(FARM_PACKAGE).get_worker()
        key = worker.get_current_task()
    except (ImportError, AttributeError, ValueError):
        return lambda: True

    def is_wanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is not None and task.state == "executing"

    return is_wanted
