"""What tests do to other processes, and what they count of their own."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

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


def holds_since(before: list[holds.Hold]) -> list[str]:
    """Who holds memory that he did not hold then."""
    return [hold.holder for hold in held() if hold not in before]


def held() -> list[holds.Hold]:
    """The holds there are, once what earlier tests dropped has ended."""
    gc.collect()
    run_pending()
    return list(holds.present())


def least_growth(counts: Callable[[], dict[str, int]], deed: Callable[[], object], times: int) -> dict[str, int]:
    """By how much each count grows while something is done so often, in the best of a few series.

    What is lost every time is lost in every series; what an allocator takes because threads happened to run side by
    side, or another test's garbage, is not.
    """
    found: list[dict[str, int]] = []
    for _ in range(_SERIES):
        before = counts()
        for _ in range(times):
            deed()
        after = counts()
        found.append({name: after[name] - before[name] for name in before})
        if not any(found[-1].values()):
            break
    return {name: min(growth[name] for growth in found) for name in found[0]}


def in_child(deed: Callable[[], object], seconds: int = 120) -> int:
    """What a forked child makes of it: 0 if the deed is done; a child that hangs is ended by an alarm."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            deed()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


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
