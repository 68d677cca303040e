"""A lane to the accelerator: one doorbell, the graphs that are run through it, one execution at a time."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence

import numpy as np

from isthmus.accelerator.process import SERVING, Accelerator, gone
from isthmus.binary import ContextBinary
from isthmus.engine.native import doorbell, loader
from isthmus.engine.native.target import by_name, runnable
from isthmus.engine.native.target import host as host_target
from isthmus.errors import Code, QnnError

_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
_NORMAL = 100
_END = -1


class Lane:
    """An order of executions, as a context needs it. A context manager.

    Parameters
    ----------
    accelerator
        Where they run.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        code = loader.addresses(("doorbell:call", "doorbell:hang_up"), host_target())
        self._call, self._hang_up = _ENTRY(code["doorbell:call"]), _ENTRY(code["doorbell:hang_up"])
        fd = os.memfd_create("isthmus-doorbell", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, doorbell.PAGE_BYTES)
            self._words = np.frombuffer(mmap.mmap(fd, doorbell.PAGE_BYTES), np.int64)
            self._page = self._words.ctypes.data
            self._status = ctypes.c_int64.from_address(self._page + doorbell.STATUS)
            self._response = ctypes.c_int64.from_address(self._page + doorbell.RESPONSE)
            self._open = True
            self._asked: tuple[int, Sequence[int]] | None = None
            self._id: int = accelerator.call("open", [fd])["lane"]
        finally:
            os.close(fd)
        accelerator.watch_over(self)

    def load(self, binary: ContextBinary, pools: tuple[int, int] | None = None) -> dict[str, int]:
        """Load the graphs of a binary; the numbers to run them by.

        Parameters
        ----------
        pools
            Registered memory for scratch and state of its one graph; without it they are the accelerator's own.
        """
        for name, graph in binary.graphs.items():
            target = by_name(graph.program.target)
            if not runnable(target):
                raise QnnError(
                    Code.COMMON_INCOMPATIBLE_BINARIES,
                    f"graph '{name}'",
                    f"it was prepared for {target.name}, which this machine is not",
                    "Generate the binary again from its model.",
                )
            if len(graph.tensors) > doorbell.MAX_IO:
                rule = f"has {len(graph.tensors)} inputs and outputs, {doorbell.MAX_IO} are the most"
                raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, f"graph '{name}'", rule)
            loader.ensure((*graph.program.kernels, *SERVING), target)
        self.enter(_NORMAL)
        try:
            self._check_open()
            return self.accelerator.call("load", [binary.fd], lane=self._id, pools=pools)["graphs"]
        finally:
            self.leave()

    def enter(self, priority: int) -> None:
        """Wait for this lane's turn."""
        self.accelerator.gate.enter(self, priority)

    def leave(self) -> None:
        """End the turn."""
        self.accelerator.gate.leave(self)

    def execute(self, graph: int, slots: Sequence[int]) -> None:
        """Run a graph once on registered memory, in a turn of this lane. The same list object means the same memory."""
        asked = self._asked
        if asked is None or asked[0] != graph or asked[1] is not slots:
            self._check_open()
            self._asked = None
            self._words[doorbell.GRAPH // 8] = graph
            first = doorbell.SLOTS // 8
            self._words[first : first + len(slots)] = slots
            self._asked = (graph, slots)
        self._ring()
        status = self._status.value
        if status:
            raise QnnError(Code(status), f"graph {graph} of the accelerator", "it cannot run on this memory")

    def _ring(self) -> None:
        if not self.accelerator.alive:
            raise gone("execution")
        number = self._response.value + 1
        self._call(self._page, number, doorbell.WORKING_SPINS, 0)
        if self._response.value != number:
            raise gone("execution")

    def rebind(self, graph: int, scratch: int) -> None:
        """Have a graph use other scratch memory, in a turn of this lane."""
        self._check_open()
        self.accelerator.call("rebind", graph=graph, scratch=scratch)

    def reset(self, graph: int) -> None:
        """Put the initial state into a graph's state memory, in a turn of this lane."""
        self._check_open()
        self.accelerator.call("reset", graph=graph)

    def hang_up(self) -> None:
        """The accelerator is gone: release whoever waits for it."""
        self._hang_up(self._page, 0, 0, 0)

    def close(self) -> None:
        """End the lane and unload its graphs, after an execution that is under way. Safe to call again."""
        if not self._open:
            return
        self.enter(_NORMAL)
        try:
            if not self._open:
                return
            self._open, self._asked = False, None
            if self.accelerator.alive:
                self._words[doorbell.GRAPH // 8] = _END
                self._ring()
                self.accelerator.call("close", lane=self._id)
        except QnnError as problem:
            # With the process gone there is nothing left to close.
            if problem.code is not Code.COMMON_SYSTEM_COMMUNICATION:
                raise
        finally:
            self.leave()

    def _check_open(self) -> None:
        if not self._open:
            raise QnnError(Code.CONTEXT_INVALID_HANDLE, "execution", "its context has been freed")

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
