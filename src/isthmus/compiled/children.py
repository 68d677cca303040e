"""Compilers as isolated child processes, one per processor, with progress on the terminal.

The process that uses the code never loads numba; only its children do. They end with the thread that waits for them,
and none may spend more than a limited time on one job.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import IO

from isthmus.compiled.folder import Folder
from isthmus.compiled.patience import seconds_of_patience
from isthmus.errors import Code, QnnError
from isthmus.system import isolated
from isthmus.system.progress import Progress, is_terminal, shown
from isthmus.system.shield import check, shielded

_LOOK_EVERY = 0.1
"""Seconds between checks for an interrupt of the caller."""


@shielded
def compile_into(folder: Folder, module: str, arguments: Sequence[str], jobs: Sequence[str], what: str) -> None:
    """Run jobs in children, as ``module PARENT *arguments JOB...``, and wait for them. PARENT is this process's id.

    Parameters
    ----------
    folder
        Where the children keep compiled code; they get it as ``ISTHMUS_CACHE_DIR``.
    module
        A program of ours. It prints the name of each completed job in a line on its standard output.
    arguments, jobs
        Arguments for all children, and jobs that are divided among them.
    what
        What is compiled, for messages.
    """
    processors = len(os.sched_getaffinity(0))
    shares = [share for share in (jobs[first::processors] for first in range(processors)) if share]
    children: list[_Child] = []
    if sys.stderr is not None and not is_terminal():
        print(f"isthmus: compiling {what}, once", file=sys.stderr, flush=True)
    with shown(Progress("parts", len(jobs), f"isthmus: compiling {what}, once")) as work:
        try:
            for share in shares:
                children.append(_Child(folder, module, arguments, share))
            _follow(children, work.step, what)
        finally:
            # Interrupted, or one child has failed: the work of the others is no longer needed.
            for child in children:
                child.end()


def _follow(children: Sequence[_Child], completed: Callable[[str], None], what: str) -> None:
    """Read the children's output until all have ended successfully.

    Parameters
    ----------
    completed
        Called with the name of each job that a child has completed.
    what
        What is compiled, for messages.

    Raises
    ------
    QnnError
        If a child fails, or takes too long for one job.
    """
    patience = seconds_of_patience()
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.output, selectors.EVENT_READ, (child, child.take_output))
            selector.register(child.errors, selectors.EVENT_READ, (child, child.take_errors))
        while selector.get_map():
            # A child is registered until it has closed both of its streams.
            running = [entry.data[0] for entry in selector.get_map().values()]
            slowest = min(running, key=lambda child: child.since)
            seconds_left = slowest.since + patience - time.monotonic()
            if seconds_left <= 0:
                raise QnnError(
                    Code.COMMON_SYSTEM,
                    f"compiling {what}",
                    f"{slowest.job} took more than {patience:g} seconds",
                    "Set ISTHMUS_COMPILE_SECONDS to more if the machine is that slow.",
                )
            check()
            for ready, _ in selector.select(min(seconds_left, _LOOK_EVERY)):
                child, take = ready.data
                content = os.read(ready.fd, 1 << 16)
                if not content:
                    selector.unregister(ready.fileobj)
                for job in take(content):
                    completed(job)
    for child in children:
        problem = child.problem()
        if problem:
            raise QnnError(Code.COMMON_SYSTEM, f"compiling {what}", f"the compiler failed: {problem}")


class _Child:
    """One compiler process and its share of the jobs.

    Attributes
    ----------
    since
        When it began its present job, by the monotonic clock.
    output, errors
        Its standard output, where it reports completed jobs, and its standard error.
    """

    def __init__(self, folder: Folder, module: str, arguments: Sequence[str], jobs: Sequence[str]) -> None:
        self.jobs = jobs
        self.since = time.monotonic()
        self._done = 0
        # The beginning of an incomplete line of output, and the end of the error output.
        self._line, self._error_text = b"", b""
        self._process = subprocess.Popen(
            isolated.command(module, str(os.getpid()), *arguments, *jobs),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**isolated.environment(), "ISTHMUS_CACHE_DIR": str(folder.path)},
            cwd="/",  # numba reads its settings from a file in the working folder
            start_new_session=True,  # this process responds to an interrupt from the terminal
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.output: IO[bytes] = self._process.stdout
        self.errors: IO[bytes] = self._process.stderr

    @property
    def job(self) -> str:
        """The job that it is working on."""
        return self.jobs[min(self._done, len(self.jobs) - 1)]

    def take_output(self, content: bytes) -> list[str]:
        """Return the jobs that a piece of its output reports as done."""
        *lines, self._line = (self._line + content).split(b"\n")
        if lines:
            self._done += len(lines)
            self.since = time.monotonic()
        return [line.decode(errors="replace") for line in lines]

    def take_errors(self, content: bytes) -> list[str]:
        """Collect a piece of its error output, of which the end is kept. No job is done by that."""
        self._error_text = (self._error_text + content)[-(1 << 16) :]
        return []

    def problem(self) -> str:
        """Wait for its end and return why it failed, or an empty string."""
        status = self._process.wait()
        if status == 0:
            return ""
        if status < 0:
            return f"ended by signal {-status} ({signal.strsignal(-status)}) while at {self.job}"
        lines = self._error_text.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with status {status} while at {self.job}"

    def end(self) -> None:
        """Kill the process if it is still running."""
        self._process.kill()
        self._process.wait()
        self.output.close()
        self.errors.close()
