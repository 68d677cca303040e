"""A small graph in an accelerator, and what processes there are, for the tests of this folder."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import tiny

from isthmus import binary
from isthmus.accelerator import Accelerator, Lane
from isthmus.backends import native
from isthmus.frontends import load
from isthmus.memory import rpcmem

SIZE = 1000


def gate_binary(folder: Path) -> bytes:
    """y = sigmoid(x) * x + s, as a context binary."""
    program = native.prepare(load(tiny.gate(folder / "gate.onnx", SIZE))).program
    return binary.to_bytes([binary.GraphBinary(program)], "htp")


def expected(x: np.ndarray, s: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x)) + s


class Site:
    """A lane with the graph loaded and one shared buffer for each tensor."""

    def __init__(self, accelerator: Accelerator, content: bytes) -> None:
        self.accelerator = accelerator
        self.lane = Lane(accelerator)
        with binary.ContextBinary(content) as opened:
            self.graph = self.lane.load(opened)["gate"]
        self.buffers = [rpcmem.alloc(25, 1, 4 * SIZE) for _ in range(3)]
        self.x, self.s, self.y = (buffer.view(np.float32, (SIZE,)) for buffer in self.buffers)
        self.slots = accelerator.register([(buffer.fd, 0, buffer.nbytes) for buffer in self.buffers])

    def run(self) -> None:
        self.lane.enter(100)
        try:
            self.lane.execute(self.graph, self.slots)
        finally:
            self.lane.leave()

    def close(self) -> None:
        self.lane.close()
        if self.accelerator.alive:
            self.accelerator.deregister(self.slots)


def stop(pid: int) -> None:
    """Stop a process, as if it computed for long, and wait until each of its threads has stopped."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    while any(stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in tasks.glob("*/stat")):
        time.sleep(0.001)


def exists(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children() -> set[int]:
    """The processes that this one has started."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stat:
                    if int(stat.read().rpartition(")")[2].split()[1]) == os.getpid():
                        found.add(int(name))
            except OSError:
                continue
    return found
