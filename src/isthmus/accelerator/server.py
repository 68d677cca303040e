"""The accelerator's side: answers control messages, and serves each lane on a thread that stays in native code."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isthmus import binary
from isthmus.accelerator.channel import Channel, ChannelClosed, refusal_to_json
from isthmus.accelerator.memory import SharedMemory
from isthmus.engine.native import doorbell, loader
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.target import host as host_target
from isthmus.errors import Code, QnnError
from isthmus.memory import Buffer, Window, host

MAX_GRAPHS = 1 << 14
_SECONDS_TO_END = 2.0
_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


@dataclass(eq=False)
class _Graph:
    number: int
    executor: Executor
    sizes: np.ndarray
    state: Buffer | None
    """Its state memory, unless the client brought it."""


@dataclass(eq=False)
class _Lane:
    page: np.ndarray
    scratch: Buffer
    graphs: list[_Graph] = field(default_factory=list)
    thread: threading.Thread | None = None


class Server:
    """All that lives in the accelerator.

    Parameters
    ----------
    channel
        Where calls come from.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._memory = SharedMemory()
        self._rows = np.zeros((MAX_GRAPHS, doorbell.GRAPH_ROW // 8), np.int64)
        self._graphs: dict[int, _Graph] = {}
        self._free_numbers = list(range(MAX_GRAPHS - 1, -1, -1))
        self._lanes: dict[int, _Lane] = {}
        self._next_lane = 0
        code = loader.addresses(("doorbell:serve", "executor:run"), host_target())
        self._serve = _ENTRY(code["doorbell:serve"])
        self._service = np.zeros(doorbell.SERVICE_BYTES // 8, np.int64)
        for word, value in (
            (doorbell.RUN, code["executor:run"]),
            (doorbell.GRAPHS, self._rows.ctypes.data),
            (doorbell.GRAPH_COUNT, MAX_GRAPHS),
            (doorbell.MEMORY, self._memory.table.ctypes.data),
            (doorbell.MEMORY_COUNT, len(self._memory.table)),
        ):
            self._service[word // 8] = value

    def run(self) -> None:
        """Answer calls until the client closes its end."""
        while True:
            try:
                message, fds = self._channel.receive()
            except ChannelClosed:
                return
            try:
                answer = self._answer(message, fds)
            finally:
                for fd in fds:
                    os.close(fd)
            try:
                self._channel.send(answer)
            except ChannelClosed:
                return

    def _answer(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        calls: dict[str, Callable[..., dict[str, Any]]] = {
            "hello": self._hello,
            "register": self._register,
            "deregister": self._deregister,
            "open": self._open,
            "load": self._load,
            "reset": self._reset,
            "rebind": self._rebind,
            "close": self._close,
            "counts": self._counts,
        }
        try:
            return calls[message.pop("call")](fds, **message)
        except QnnError as refusal:
            return refusal_to_json(refusal)
        except MemoryError:
            return refusal_to_json(QnnError(Code.COMMON_MEM_ALLOC, "accelerator", "it has no more memory"))
        except Exception as problem:
            # Whatever a call meets, the accelerator goes on serving the others.
            return refusal_to_json(QnnError(Code.COMMON_GENERAL, "accelerator", f"{type(problem).__name__}: {problem}"))

    def _hello(self, fds: list[int]) -> dict[str, Any]:
        return {"pid": os.getpid()}

    def _register(self, fds: list[int], spans: list[list[int]]) -> dict[str, Any]:
        slots: list[int] = []
        try:
            for fd, (offset, nbytes) in zip(fds, spans, strict=True):
                slots.append(self._memory.register(fd, offset, nbytes))
        except BaseException:
            self._deregister([], slots)
            raise
        return {"slots": slots}

    def _deregister(self, fds: list[int], slots: list[int]) -> dict[str, Any]:
        for slot in slots:
            self._memory.deregister(slot)
        return {}

    def _open(self, fds: list[int]) -> dict[str, Any]:
        page = np.frombuffer(mmap.mmap(fds[0], doorbell.PAGE_BYTES), np.int64)
        lane = _Lane(page, host(0))
        self._next_lane += 1
        self._lanes[self._next_lane] = lane
        lane.thread = threading.Thread(
            target=self._serve, args=(page.ctypes.data, self._service.ctypes.data, doorbell.IDLE_SPINS, 0), daemon=True
        )
        lane.thread.start()
        return {"lane": self._next_lane}

    def _load(self, fds: list[int], lane: int, pools: list[int] | None = None) -> dict[str, Any]:
        """Load a binary; `pools` are the client's own scratch and state memory, for its one graph."""
        here = self._lanes[lane]
        content = mmap.mmap(
            fds[0], 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ
        )
        # What nobody can change was checked by the client.
        graphs = binary.read(content, verify=not binary.is_sealed(fds[0])).graphs
        if len(graphs) > len(self._free_numbers):
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, "accelerator", f"it has {MAX_GRAPHS} graphs already")
        wanted = 0 if pools else max((graph.program.scratch_bytes for graph in graphs.values()), default=0)
        scratch = here.scratch if here.scratch.nbytes >= wanted else host(wanted, binary.SECTION_ALIGNMENT)
        made: dict[str, _Graph] = {}
        try:
            for name, graph in graphs.items():
                made[name] = self._new_graph(graph, scratch.window(), pools)
        except BaseException:
            for loaded in made.values():
                self._unload(loaded)
            raise
        here.scratch = scratch
        for older in here.graphs:
            if older.state is not None:
                older.executor.bind_scratch(scratch.window())
        here.graphs += made.values()
        return {"graphs": {name: graph.number for name, graph in made.items()}}

    def _new_graph(self, graph: binary.GraphBinary, scratch: Window | None, pools: list[int] | None) -> _Graph:
        program = graph.program
        state = None if pools else host(program.state_bytes, program.alignment)
        if pools:
            scratch = self._memory.window(pools[0])
        persistent = self._memory.window(pools[1]) if pools else state.window()  # type: ignore[union-attr]
        sizes = np.array([info.nbytes for info in graph.tensors], np.int64)
        # Inputs and outputs are bound by each request.
        executor = Executor(program, scratch, persistent, [None] * len(graph.tensors))
        executor.reset()
        made = _Graph(self._free_numbers.pop(), executor, sizes, state)
        self._graphs[made.number] = made
        self._rows[made.number] = executor.control, program.threads, len(sizes), sizes.ctypes.data
        return made

    def _unload(self, graph: _Graph) -> None:
        self._rows[graph.number] = 0
        del self._graphs[graph.number]
        self._free_numbers.append(graph.number)
        graph.executor.close()

    def _reset(self, fds: list[int], graph: int) -> dict[str, Any]:
        self._graphs[graph].executor.reset()
        return {}

    def _rebind(self, fds: list[int], graph: int, scratch: int) -> dict[str, Any]:
        self._graphs[graph].executor.bind_scratch(self._memory.window(scratch))
        return {}

    def _close(self, fds: list[int], lane: int) -> dict[str, Any]:
        """End a lane, whose service the client has ended through its doorbell."""
        ended = self._lanes[lane]
        if ended.thread is not None:
            ended.thread.join(_SECONDS_TO_END)
            if ended.thread.is_alive():
                raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, f"lane {lane}", "it is still in use")
        del self._lanes[lane]
        for graph in ended.graphs:
            self._unload(graph)
        return {}

    def _counts(self, fds: list[int]) -> dict[str, Any]:
        with open("/proc/self/statm") as statistics:
            resident = int(statistics.read().split()[1]) * mmap.PAGESIZE
        with open("/proc/self/maps") as table:
            mappings = sum(1 for _ in table)
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "mappings": mappings,
            "resident_bytes": resident,
            "lanes": len(self._lanes),
            "graphs": len(self._graphs),
            "memory": len(self._memory),
        }
