"""What tests do to other processes, and what they count of their own."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


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


def in_child(deed: Callable[[], object], seconds: int = 30) -> int:
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
