"""A graph on HTP: in the accelerator, bound to registered memory where that lies, and to raw memory by copies."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

from isthmus.backends.accelerator import Queue
from isthmus.backends.htp.memory import HtpRegistration
from isthmus.backends.htp.staging import SharedStaging
from isthmus.backends.seam.binary import ContextBinary, to_bytes
from isthmus.backends.seam.binding import BindingBase, ExecutionCounts
from isthmus.backends.seam.driver import GraphDriver, GraphStats, Memories, TensorMemory, Traffic, check_apart
from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.backends.seam.native import CompiledGraph, NativeGraphDriver
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, TensorInfo, TensorMemType
from isthmus.memory import Window

if TYPE_CHECKING:
    from isthmus.backends.htp.driver import HtpContext


class LaneTurn:
    """A graph's turn on its context's lane, by the priority that the graph has at the time."""

    def __init__(self, lane: Queue, priority: int) -> None:
        self._lane, self.priority = lane, priority

    def __enter__(self) -> None:
        try:
            self._lane.enter(self.priority)
        except BaseException:
            self._lane.leave()
            raise

    def __exit__(self, *exception: object) -> None:
        self._lane.leave()

    def forsake(self) -> None:
        self._lane.leave()


class HtpGraphDriver(NativeGraphDriver):
    """A graph that lives in the accelerator."""

    def __init__(self, context: HtpContext, graph: Graph, prepared: CompiledGraph | None = None) -> None:
        super().__init__(graph, prepared, context.config.threads)
        self.context = context
        # It knows the priority and not the graph, which would keep itself alive.
        self.turn = LaneTurn(context.lane, GraphDriver.priority)
        self.ledger = ExecutionCounts(self.turn)
        self.staging = SharedStaging(context.lane)
        self.number = -1
        """What the accelerator knows it by."""

    @property  # type: ignore[override]
    def priority(self) -> int:
        return self.turn.priority

    @priority.setter
    def priority(self, priority: int) -> None:
        self.turn.priority = priority

    def finalize(self) -> None:
        self.context.check(self.what)
        binary = self.binary()
        reserved = self._reserve()
        try:
            with ContextBinary(to_bytes([binary], "htp")) as content:
                self.loaded(self.context.lane.load(content)[self.graph.name], reserved)
        except BaseException:
            self.staging.close()
            raise

    def loaded(self, number: int, reserved: int | None = None) -> None:
        """Become a graph that the accelerator has."""
        self.number = number
        self.ledger.total.staging_prepare_bytes = self._reserve() if reserved is None else reserved
        self.finalized = True

    def _reserve(self) -> int:
        """Staging memory for what was prepared as raw; how many bytes that took."""
        raw = [index for index, info in enumerate(self.info.tensors) if info.mem_type is TensorMemType.RAW]
        return self.staging.reserve(self.info.tensors, raw)

    def bind(self, memories: Memories) -> HtpBinding:
        return HtpBinding(self, memories, self.ledger)

    def reset(self) -> None:
        self.context.check(self.what)
        self.ledger.in_turn(lambda: self.context.lane.reset(self.number))

    def stats(self) -> GraphStats:
        return self.ledger.stats()

    def close(self) -> None:
        # The lane is closed, and whoever has a turn still ends it soon; in a forked process nobody has one.
        if self.context.lane.accelerator.forked:
            self.ledger.close()
        else:
            self.context.lane.in_turn(self.ledger.close)
        self.staging.close()
        super().close()


class HtpBinding(BindingBase):
    """Memory for a graph in the accelerator: registered memory by its number there, raw memory by a copy."""

    def __init__(self, graph: HtpGraphDriver, memories: Memories, ledger: ExecutionCounts) -> None:
        self._graph = graph
        self._lane = graph.context.lane
        self._begun = 0.0
        super().__init__(graph.what, memories, ledger)

    def _basis(self) -> object:
        self._graph.context.check(self._what)
        return self._graph.number

    def _bind(self) -> tuple[Traffic, list[tuple[str, Window]]]:
        graph, infos = self._graph, self._graph.info.tensors
        graph.context.check(graph.what)
        self._begun = time.perf_counter()
        given = [_checked(graph.what, info, memory) for info, memory in zip(infos, self.memories, strict=True)]
        inputs = len(graph.info.inputs)
        check_apart(graph.what, infos, inputs, [m.window.part(0, i.nbytes) for i, m in zip(infos, given, strict=True)])
        raw = [index for index, memory in enumerate(given) if memory.registration is None]
        graph.ledger.total.staging_execute_bytes += graph.staging.reserve(infos, raw)
        self._slots: list[int] = []
        self._copies_in: list[tuple[int, int, int]] = []
        self._copies_out: list[tuple[int, int, int]] = []
        in_place = 0
        for index, (info, memory) in enumerate(zip(infos, given, strict=True)):
            if isinstance(memory.registration, HtpRegistration):
                self._slots.append(memory.registration.slot)
                in_place += info.nbytes
                continue
            stage, slot = graph.staging[index]
            self._slots.append(slot)
            if index < inputs:
                self._copies_in.append((stage, memory.window.address, info.nbytes))
            else:
                self._copies_out.append((memory.window.address, stage, info.nbytes))
        traffic = Traffic(
            sum(nbytes for _, _, nbytes in self._copies_in),
            sum(nbytes for _, _, nbytes in self._copies_out),
            {"shared": in_place} if in_place else {},
        )
        return traffic, [
            (info.name, memory.window.part(0, info.nbytes)) for info, memory in zip(infos, given, strict=True)
        ]

    def close(self) -> None:
        if not self._lane.accelerator.forked:
            super().close()

    def _run_within(self, limit: ExecutionDeadline) -> None:
        with limit.watched(self._lane.abort):
            self._run(limit.left)

    def _run(self, seconds: float | None = None) -> None:
        for target, source, nbytes in self._copies_in:
            ctypes.memmove(target, source, nbytes)
        self._lane.execute(self._graph.number, self._slots, seconds)
        for target, source, nbytes in self._copies_out:
            ctypes.memmove(target, source, nbytes)
        if self._begun:
            total = self._graph.ledger.total
            total.first_execution_us = total.first_execution_us or (time.perf_counter() - self._begun) * 1e6
            self._begun = 0.0


def _checked(graph: str, info: TensorInfo, memory: TensorMemory | None) -> TensorMemory:
    what = f"tensor '{info.name}' of {graph}"
    if memory is None:
        rule = "needs memory: HTP has none of its own"
        raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, "Pass a raw buffer or a memory handle.")
    if memory.window.nbytes < info.nbytes:
        rule = f"its buffer has {memory.window.nbytes} bytes, {info.nbytes} are needed"
        raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule)
    return memory
