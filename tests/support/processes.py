"""What tests do to other processes, and what they count of their own."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from isthmus.memory import holds
from isthmus.system.interrupts import run_pending
from support.waiting import eventually

_SERIES = 4


def stop(pid: int) -> None:
    """Stop a process, as if it computed for long, and wait until each of its threads has stopped."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    while any(stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in tasks.glob("*/stat")):
        time.sleep(0.001)


def descriptors() -> list[str]:
    """The descriptors this process has open, once what earlier tests dropped is collected."""
    gc.collect()
    return sorted(os.listdir("/proc/self/fd"))


def opened_since(before: list[str]) -> list[str]:
    """Descriptors that were not open then, once what is about to close them has; none, if nothing is lost.

    Those that were open then may have been closed since: whoever had them may have been just about to.
    """
    eventually(lambda: not set(descriptors()) - set(before))
    return sorted(set(descriptors()) - set(before))


def context_copies() -> set[str]:
    """Copies of context binaries that this process has mapped, by inode; those of earlier tests may end at any time."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in maps if "isthmus-context" in line}


def holds_since(before: list[holds.Hold]) -> list[str]:
    """The holders of memory that was not held at an earlier time."""
    return [hold.holder for hold in held() if hold not in before]


def held() -> list[holds.Hold]:
    """The holds there are, once what earlier tests dropped has ended."""
    gc.collect()
    run_pending()
    return list(holds.present())


def least_growth(counts: Callable[[], dict[str, int]], action: Callable[[], object], times: int) -> dict[str, int]:
    """By how much each count grows while something is done so often, in the best of a few series.

    What is lost every time is lost in every series; what an allocator takes because threads happened to run side by
    side, or another test's garbage, is not. A count that falls, because an earlier test's garbage went, grows by 0.
    """
    found: list[dict[str, int]] = []
    for _ in range(_SERIES):
        before = counts()
        for _ in range(times):
            action()
        after = counts()
        found.append({name: max(after[name] - before[name], 0) for name in before})
        if not any(found[-1].values()):
            break
    return {name: min(growth[name] for growth in found) for name in found[0]}


def in_child(action: Callable[[], object], seconds: int = 300) -> int:
    """Run an action in a forked child; its exit code, 0 if nothing was raised. An alarm ends a child that hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def small_disk(nbytes: int) -> Iterator[None]:
    """Let no file grow beyond some bytes; writing more fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def answer(output: str) -> Any:
    """Read the last line of JSON that a child printed; QNN's libraries print lines of their own, some at the end."""
    for line in reversed(output.splitlines()):
        with suppress(ValueError):
            return json.loads(line)
    raise AssertionError(f"no line of JSON in {output!r}")


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    tables = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for table in tables for child in table.read_text().split()]


def work_with_links(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Link all files of another folder into one, and make it the working folder."""
    for file in source.iterdir():
        (folder / file.name).symlink_to(file)
    monkeypatch.chdir(folder)


def run_client(code: str, *arguments: Any, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python code that may import what tests import, in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, *options, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": path}, check=False
    )


def mapped_bytes(pid: int | str, what: str) -> dict[str, int]:
    """The resident bytes of a process in mappings whose file has a name with this part, by inode."""
    found: dict[str, int] = {}
    inode = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            inode = words[4] if what in line else ""
        elif words[0] == "Rss:" and inode:
            found[inode] = found.get(inode, 0) + 1024 * int(words[1])
    return found


def peak_bytes() -> int:
    """The most memory that this process has had resident since the last call of `forget_peak`."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


def forget_peak() -> None:
    """Begin to count `peak_bytes` anew."""
    Path("/proc/self/clear_refs").write_text("5")
