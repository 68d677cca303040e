"""A log callback may call any function: whatever it frees or executes, at whichever message, every call returns."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import answer
from support.suites import long

from capi.qnn_calls import Client, at
from isthmus.backends.lpai import headers as lpai_headers
from isthmus.cabi import objects, types
from isthmus.cabi import tables as interface
from isthmus.graph import DataType, TensorType

DEBUG = 5
SECONDS = 120
BACKENDS: dict[str, dict[str, Any]] = {
    "Htp": {},
    "Lpai": {"lpai_backend": {"target_env": "adsp"}, "lpai_graph": {"execute": {"mem_type": "tcm"}}},
    "Gpu": {},
}
"""The libraries whose back ends say something, and their configurations."""


class Program:
    """A client's life, with something done in the middle of one message."""

    def __init__(self, library: str, moment: int, action: Callable[[Program], object]) -> None:
        self.client = Client(Path(library))
        self.made: dict[str, int] = {}
        self.messages = 0
        self.inside = False

        @interface.LOG_CALLBACK
        def callback(*_: Any) -> None:
            self.messages += 1
            if self.messages == moment and not self.inside:
                self.inside = True
                action(self)
                self.inside = False

        self._callback = callback

    def create(self, function: str, *arguments: Any) -> int:
        """Call a function that makes something; the handle, or 0 where it is refused."""
        out = ctypes.c_void_p()
        getattr(self.client, function)(*arguments, ctypes.byref(out))
        self.made[function] = out.value or 0
        return self.made[function]

    def run(self) -> None:
        """Do all of it; whatever a call answers, the next one follows."""
        c = self.client
        log = self.create("logCreate", self._callback, DEBUG)
        backend = self.create("backendCreate", log, None)
        context = self.create("contextCreate", backend, None, None)
        graph = self.create("graphCreate", context, b"twice", None)
        x = c.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
        y = c.tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))
        for tensor in (x, y):
            c.tensorCreateGraphTensor(graph, ctypes.byref(tensor))
        c.graphAddNode(graph, c.operation("add", "ElementWiseAdd", [x, x], [y]))
        self.pools = self._set_pools(graph)
        c.graphFinalize(graph, None, None)
        given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
        self.execution = (graph, (types.Tensor * 1)(at(x, given)), 1, (types.Tensor * 1)(at(y, made)), 1, None, None)
        c.graphExecute(*self.execution)
        c.contextFree(0x77, None)
        c.backendFree(backend)
        c.logFree(log)

    def _set_pools(self, graph: int) -> list[np.ndarray]:
        """Set the pools that LPAI needs before a graph is finalized; other back ends refuse the call."""
        pools = []
        for option in (1, 101):  # SCRATCH_MEM, PERSISTENT_MEM
            memory = np.zeros(1 << 16, np.uint8)
            start = -memory.ctypes.data % 64
            pool = self.client.keep(lpai_headers.STRUCTURES[option](1, memory.nbytes - 64, memory.ctypes.data + start))
            own = self.client.keep(lpai_headers.CUSTOM(option, ctypes.addressof(pool)))
            config = self.client.keep(objects.GraphConfig(objects.GraphOption.CUSTOM))
            config.customConfig = ctypes.addressof(own)
            self.client.graphSetConfig(graph, (ctypes.POINTER(objects.GraphConfig) * 2)(ctypes.pointer(config)))
            pools.append(memory)
        return pools


DEEDS: dict[str, Callable[[Program], object]] = {
    "free the back end": lambda p: p.client.backendFree(p.made.get("backendCreate", 0)),
    "free the context": lambda p: p.client.contextFree(p.made.get("contextCreate", 0), None),
    "free the log": lambda p: p.client.logFree(p.made.get("logCreate", 0)),
    "finalize": lambda p: p.client.graphFinalize(p.made.get("graphCreate", 0), None, None),
    "create a context": lambda p: p.create("contextCreate", p.made.get("backendCreate", 0), None, None),
    "begin again": lambda p: Program(p.client.library._name, 0, lambda _: None).run(),
}


def at_every_message(library: str, action: str) -> list[int]:
    """Run a program once for every message that it brings; how many there were each time."""
    plain = Program(library, 0, lambda _: None)
    plain.run()
    found = [plain.messages]
    for moment in range(1, plain.messages + 1):
        program = Program(library, moment, DEEDS[action])
        program.run()
        found.append(program.messages)
    return found


SHORT = {(backend, "free the back end") for backend in BACKENDS} | {("Lpai", "finalize")}


@pytest.mark.parametrize(
    ("backend", "action"),
    [pair if pair in SHORT else long(*pair) for pair in itertools.product(BACKENDS, DEEDS)],
)
def test_a_callback_may_call_back_at_any_message(libraries: Path, tmp_path: Path, backend: str, action: str) -> None:
    """In a child: what waits for itself does not end."""
    if backend == "Gpu":
        pytest.importorskip("pyopencl", reason="needs OpenCL")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(BACKENDS[backend]))
    here = Path(__file__).parent
    code = (
        "import json, sys\n"
        f"sys.path[:0] = {[str(here.parent)]!r}\n"
        "from capi.test_log_callbacks import at_every_message\n"
        "print(json.dumps(at_every_message(*sys.argv[1:])))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, libraries / f"libQnn{backend}.so", action],
        capture_output=True, text=True, timeout=SECONDS,
        env={**os.environ, f"ISTHMUS_{backend.upper()}_CONFIG": str(config)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    counts = answer(done.stdout)
    assert counts[0] >= 2, "the back end has said something, and a refusal was told"
    assert len(counts) == counts[0] + 1
