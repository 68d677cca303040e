"""What tests do to other processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def stop(pid: int) -> None:
    """Stop a process, as if it computed for long, and wait until each of its threads has stopped."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    while any(stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in tasks.glob("*/stat")):
        time.sleep(0.001)
