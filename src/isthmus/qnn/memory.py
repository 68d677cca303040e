"""A graph with all the memory it needs, as its backend prefers it; used by sessions and tools."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from isthmus import audit_log
from isthmus.backends.seam.driver import Memories, Registration, TensorMemory
from isthmus.memory import Buffer
from isthmus.qnn.binding import Binding
from isthmus.system.interrupts import Finalizer
from isthmus.system.shield import shielded, unless_exiting

if TYPE_CHECKING:
    from isthmus.qnn.graph import QnnGraph


class GraphMemory:
    """The pools, inputs and outputs of a graph, allocated for it. Created by `QnnGraph.allocate`."""

    def __init__(self, graph: QnnGraph, io: str | None) -> None:
        entry, driver = graph.context.backend.entry, graph.driver
        # Refuses an unknown kind before anything is allocated.
        entry.io_kind(io)
        self._buffers: list[Buffer] = []
        self._registrations: list[Registration] = []
        try:
            if not graph.finalized:
                self._buffers += entry.io.pools(driver)
                graph.finalize()
            since = time.monotonic()
            provision = entry.io.io(driver, io)
            # Kept, so that they are deregistered with the context or by `close`, not when they are collected.
            self._registrations += [each.registration for each in provision.memories if each and each.registration]
            if audit_log.active:
                _report(graph, provision.memories, since)
            self._buffers += provision.buffers
            self._provided = provision.memories
            self.binding = Binding(graph, driver.bind(provision.memories))
            """The graph bound to this memory."""
        except Exception:
            # Held pools stay with the graph, which is freed with its context.
            self._buffers.clear()
            self._registrations.clear()
            raise
        views = []
        for index, (info, memory) in enumerate(zip(driver.info.tensors, provision.memories, strict=True)):
            # No memory was allocated for a tensor that has a place in the backend's own.
            window = driver.place(index) if memory is None else memory.window
            assert window is not None
            views.append((info.name, window.part(0, info.nbytes).view(info.dtype.numpy, info.dims)))
        count = len(driver.info.inputs)
        self.inputs = MappingProxyType(dict(views[:count]))
        """Views of the memory that the graph reads, by name."""
        self.outputs = MappingProxyType(dict(views[count:]))
        """Views of the memory that the graph writes, by name."""
        planned = any(memory is None for memory in provision.memories[:count])
        self.inputs_survive = driver.inputs_survive or not planned
        """Whether an execution leaves the inputs unchanged."""

    @property
    def memories(self) -> list[TensorMemory]:
        """The memory of each input, then each output."""
        driver, memories = self.binding.graph.driver, []
        for index, memory in enumerate(self._provided):
            window = driver.place(index) if memory is None else memory.window
            assert window is not None
            memories.append(memory or TensorMemory(window))
        return memories

    @unless_exiting
    @shielded
    def close(self) -> None:
        """Free the memory, after the context; safe to call again. Existing views stay readable."""
        if self.binding.graph.is_inherited:
            # In a forked child: the parent's graph holds the memory.
            return
        self.binding.close()
        for registration in self._registrations:
            registration.close()
        self._registrations.clear()
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()


def _report(graph: QnnGraph, memories: Memories, since: float) -> None:
    """Report to the audits in progress what a backend's own memory is for, and that it is registered."""
    for info, memory in zip(graph.driver.info.tensors, memories, strict=True):
        if memory is None:
            continue
        window, registration = memory.window, memory.registration
        if registration is not None:
            registration.audit_key = audit_log.new_key()
            # It may be collected instead of closed.
            Finalizer(registration, audit_log.end, registration.audit_key)
            audit_log.begin(
                registration.audit_key, audit_log.Action.REGISTER, f"memory of {graph.what}", window.nbytes,
                spans=window.spans, since=since, owner="backend",
            )  # fmt: skip
        audit_log.name_memory(window.spans, f"'{info.name}'")
