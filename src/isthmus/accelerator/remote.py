"""An executor whose work is done by the accelerator, in pools that the client shares with it."""

from __future__ import annotations

import ctypes

from isthmus.accelerator.lane import Lane
from isthmus.accelerator.memory import NOTHING
from isthmus.binary import ContextBinary, GraphBinary, to_bytes
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.graph.datatypes import MemType
from isthmus.memory import Region, rpcmem

_NORMAL = 100


class RemoteExecutor:
    """A program in the accelerator, bound to the client's scratch and state memory, with the calls of an `Executor`.

    Inputs and outputs in shared memory are used in place; others are copied through memory of its own.

    Parameters
    ----------
    lane
        The way to the accelerator.
    scratch, state
        Regions of shared memory.
    """

    def __init__(self, lane: Lane, program: Program, scratch: Region, state: Region) -> None:
        self.program = program
        self._lane = lane
        self._windows: dict[tuple[int, int], int] = {}
        self._stages: dict[int, rpcmem.RpcBuffer] = {}
        infos = (*program.inputs, *program.outputs)
        self._slots = [NOTHING] * len(infos)
        self._copies: dict[int, tuple[int, int, int]] = {}
        pools = self._pool("scratch memory", scratch), self._pool("persistent memory", state)
        graph = GraphBinary(program, (MemType.MEMHANDLE,) * len(infos))
        with ContextBinary(to_bytes([graph], "lpai")) as binary:
            self._number = lane.load(binary, pools)[program.name]

    def bind_scratch(self, region: Region) -> None:
        """Use this scratch from the next run on."""
        slot = self._pool("scratch memory", region)
        self._lane.enter(_NORMAL)
        try:
            self._lane.rebind(self._number, slot)
        finally:
            self._lane.leave()

    def bind_io(self, index: int, region: Region) -> None:
        """Use this memory for an input or output (inputs first) from the next run on."""
        info = (*self.program.inputs, *self.program.outputs)[index]
        region.check(f"memory of tensor '{info.name}'", info.nbytes)
        self._copies.pop(index, None)
        slots = list(self._slots)
        window = self._window(Region(region.address, info.nbytes, region.owner))
        if window is None:
            if index not in self._stages:
                self._stages[index] = rpcmem.alloc2(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, max(info.nbytes, 1))
            stage = self._stages[index].region
            window = self._window(Region(stage.address, info.nbytes, stage.owner))
            assert window is not None
            if info.nbytes:
                self._copies[index] = region.address, stage.address, info.nbytes
        slots[index] = window
        self._slots = slots

    def copies(self, index: int) -> bool:
        """Whether a run copies an input or output, since it lies in memory that is not shared."""
        return index in self._copies

    def run(self) -> None:
        """Run once."""
        inputs = len(self.program.inputs)
        self._lane.enter(_NORMAL)
        try:
            for index, (mine, stage, nbytes) in self._copies.items():
                if index < inputs:
                    ctypes.memmove(stage, mine, nbytes)
            self._lane.execute(self._number, self._slots)
            for index, (mine, stage, nbytes) in self._copies.items():
                if index >= inputs:
                    ctypes.memmove(mine, stage, nbytes)
        finally:
            self._lane.leave()

    def reset(self) -> None:
        """Put the initial state into state memory."""
        self._lane.enter(_NORMAL)
        try:
            self._lane.reset(self._number)
        finally:
            self._lane.leave()

    def close(self) -> None:
        """Take the memory away from the accelerator; safe to call again."""
        slots = list(self._windows.values())
        self._windows.clear()
        self._stages.clear()
        self._lane.accelerator.deregister(slots)

    def _pool(self, what: str, region: Region) -> int:
        if region.nbytes == 0:
            return NOTHING
        slot = self._window(region)
        if slot is None:
            raise QnnError(
                Code.GRAPH_INVALID_ARGUMENT,
                f"{what} of graph '{self.program.name}'",
                "it is not shared memory, and the accelerator sees no other",
                "Allocate it with isthmus.memory.rpcmem.",
            )
        return slot

    def _window(self, region: Region) -> int | None:
        """The accelerator's number of a region, if that lies in shared memory."""
        key = region.address, region.nbytes
        if key not in self._windows:
            buffer = rpcmem.buffer_around(region)
            if buffer is None:
                return None
            offset = region.address - buffer.region.address
            [self._windows[key]] = self._lane.accelerator.register([(buffer.fd, offset, region.nbytes)])
        return self._windows[key]
