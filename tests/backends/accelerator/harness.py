"""A small graph in an accelerator, and what processes there are, for the tests of this folder."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
from support import tiny

from isthmus import Code, QnnError
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam import binary, native
from isthmus.engine.native.target import Target
from isthmus.frontends import load
from isthmus.memory import rpcmem

SIZE = 1000
LONG_SIZE, LONG_REPEATS = 1 << 22, 20_000
"""Of an execution that takes longer than anybody waits for it, in many short instructions."""


def gate_binary(folder: Path, size: int = SIZE, repeats: int = 1, target: Target | None = None) -> bytes:
    """y = sigmoid(x) * x + s, computed again and again, as a context binary."""
    program = native.prepare(load(tiny.gate(folder / "gate.onnx", size)), target=target).program
    # Each instruction has words of its own, one behind the other.
    table = np.tile(program.table, (repeats, 1))
    table[:, 1] += np.repeat(np.arange(repeats) * len(program.words), len(program.table))
    words = np.tile(program.words, repeats)
    program = replace(program, table=table, words=words, labels=program.labels * repeats)
    return binary.to_bytes([program], "htp")


def expected(x: np.ndarray, s: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x)) + s


class LoadedGraph:
    """A queue with the graph loaded and one shared buffer for each tensor."""

    def __init__(self, accelerator: Accelerator, content: bytes, size: int = SIZE) -> None:
        self.accelerator = accelerator
        self.queue = Queue(accelerator)
        with binary.ContextBinary(content) as opened:
            self.graph = self.queue.load(opened)["gate"]
        self.buffers = [rpcmem.alloc(25, 1, 4 * size) for _ in range(3)]
        self.x, self.s, self.y = (buffer.view(np.float32, (size,)) for buffer in self.buffers)
        self.slots = accelerator.register([(buffer.fd, 0, buffer.nbytes) for buffer in self.buffers])

    def run(self, seconds: float | None = None) -> None:
        with self.queue.lock():
            self.queue.execute(self.graph, self.slots, seconds)

    def check(self) -> None:
        """Run on new numbers, and see that the result is right."""
        self.x[:], self.s[:] = np.random.default_rng().standard_normal((2, len(self.x)))
        self.y[:] = 0
        self.run()
        np.testing.assert_allclose(self.y, expected(self.x, self.s), rtol=1e-5, atol=1e-6)

    def close(self) -> None:
        self.queue.close()
        if self.accelerator.alive:
            self.accelerator.deregister(self.slots)


def under_way(loaded: LoadedGraph) -> bool:
    """Return whether an execution has been posted and not answered."""
    return loaded.queue._page.request.value != loaded.queue._page.response.value


def start_run(loaded: LoadedGraph) -> tuple[threading.Thread, list[Code]]:
    """Run in another thread, which adds the code of an error to a list; return both."""
    codes: list[Code] = []

    def run() -> None:
        try:
            loaded.run()
        except QnnError as problem:
            codes.append(problem.code)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, codes


def exists(pid: int) -> bool:
    """Return whether a process runs, and is no zombie."""
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
