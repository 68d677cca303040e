"""An executor whose work is done by the accelerator, in pools that the client shares with it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from isthmus.backends.accelerator.memory import NOTHING
from isthmus.backends.accelerator.process import Accelerator, Slots
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam.binary import ContextBinary, GraphBinary, to_bytes
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.memory import Buffer, Window, rpcmem
from isthmus.memory.shareable import mapping_of

_NORMAL = 100
_MAKER = "accelerator"
"""Who a binary says that it was made for which goes straight to the accelerator, and into no file."""
_Shared = tuple[int, int, int]
"""What the accelerator is told of memory: descriptor, offset, bytes."""


class RemoteIo:
    """Memory for every input and output of a program, as the accelerator knows it.

    Parameters
    ----------
    windows
        The client's memory; what of it is shared is used in place.
    stages
        Shared memory by index, through which the rest is copied.
    inputs
        How many of the windows are inputs.
    """

    def __init__(
        self, accelerator: Accelerator, windows: Sequence[Window], stages: dict[int, Buffer], inputs: int
    ) -> None:
        self.windows = tuple(windows)
        self.copied = frozenset(stages)
        """Which inputs and outputs a run copies, since they lie in memory that is not shared."""
        self._accelerator = accelerator
        self._stages = stages
        used = [stages[i].window(0, mine.nbytes) if i in stages else mine for i, mine in enumerate(windows)]
        self.slots = accelerator.register([_required(window) for window in used])
        moves = [(mine.address, used[i].address, mine.nbytes) for i, mine in enumerate(windows) if i in stages]
        split = sum(i < inputs for i in stages)
        self.copies_in = [(stage, mine, nbytes) for mine, stage, nbytes in moves[:split] if nbytes]
        self.copies_out = [move for move in moves[split:] if move[2]]

    def close(self) -> None:
        """Take the memory away from the accelerator; safe to call again."""
        self._accelerator.deregister(self.slots)


class RemoteExecutor:
    """A program in the accelerator, bound to the client's scratch and state memory, with the calls of an `Executor`.

    Inputs and outputs in shared memory are used in place; others are copied through memory of its own.

    Parameters
    ----------
    lane
        The way to the accelerator.
    scratch, state
        Shared memory; none where the program needs none.
    """

    def __init__(self, lane: Queue, program: Program, scratch: Window | None, state: Window | None) -> None:
        self.program = program
        self.staging_bytes = 0
        """Memory that is reserved for copies."""
        self._lane = lane
        self._stages: dict[int, Buffer] = {}
        self._io: RemoteIo | None = None
        pools = [
            _shared_pool(f"{what} of graph '{program.name}'", window)
            for what, window in (("scratch memory", scratch), ("persistent memory", state))
        ]
        self._scratch, self._state = (self._registered(pool) for pool in pools)
        try:
            with ContextBinary(to_bytes([GraphBinary(program)], _MAKER)) as binary:
                self._number = lane.load(binary, (_number(self._scratch), _number(self._state)))[program.name]
        except BaseException:
            self.close()
            raise

    def bind_scratch(self, window: Window | None) -> None:
        """Use this scratch from the next run on; refused whole or done whole."""
        shared = _shared_pool(f"scratch memory of graph '{self.program.name}'", window)
        replaced, scratch = self._scratch, self._registered(shared)

        def rebind() -> None:
            self._lane.rebind(self._number, _number(scratch))
            self._scratch = scratch

        try:
            self._lane.in_turn(rebind)
        finally:
            self._lane.accelerator.deregister(replaced if self._scratch is scratch else scratch)

    def bound(self, windows: Sequence[Window]) -> RemoteIo:
        """Memory for every input and output, checked and ready to be bound in one move."""
        infos = (*self.program.inputs, *self.program.outputs)
        for info, window in zip(infos, windows, strict=True):
            window.check(f"memory of tensor '{info.name}'", info.nbytes)
        exact = [window.part(0, info.nbytes) for info, window in zip(infos, windows, strict=True)]
        stages = {index: self._stage(index, window) for index, window in enumerate(exact) if _shared(window) is None}
        return RemoteIo(self._lane.accelerator, exact, stages, len(self.program.inputs))

    def bind_all_io(self, io: RemoteIo) -> None:
        """Use all of this memory from the next run on."""
        self._io = io

    def run(self, seconds: float | None = None) -> None:
        """Run once, in at most so many seconds."""
        io = self._io
        assert io is not None
        try:
            try:
                self._lane.enter(_NORMAL)
                for stage, mine, nbytes in io.copies_in:
                    ctypes.memmove(stage, mine, nbytes)
                self._lane.execute(self._number, io.slots, seconds)
                for mine, stage, nbytes in io.copies_out:
                    ctypes.memmove(mine, stage, nbytes)
            finally:
                self._lane.leave()
        except BaseException:
            # As `Queue.in_turn`, without the calls that it costs.
            self._lane.leave()
            raise

    def abort(self) -> None:
        """Have the run that is under way, if any, end early."""
        self._lane.abort()

    def reset(self) -> None:
        """Put the initial state into state memory."""
        self._lane.in_turn(lambda: self._lane.reset(self._number))

    def close(self) -> None:
        """Take the memory away from the accelerator; safe to call again."""
        for slots in (self._scratch, self._state):
            self._lane.accelerator.deregister(slots)
        self._io = None
        self._stages.clear()

    def _registered(self, pool: _Shared | None) -> Slots:
        """A pool as the accelerator knows it: one slot, or none."""
        return self._lane.accelerator.register([] if pool is None else [pool])

    def _stage(self, index: int, window: Window) -> Buffer:
        """Memory to copy an input or output through, the same for all who bind memory that is not shared."""
        if index not in self._stages:
            self._stages[index] = rpcmem.share(window.nbytes)
            self.staging_bytes += self._stages[index].nbytes
        return self._stages[index]


def _number(slots: Slots) -> int:
    return slots[0] if slots else NOTHING


def _shared(window: Window) -> _Shared | None:
    """Memory as the accelerator can be told of it, if it is shared."""
    if len(window.spans) != 1:
        return None
    [span] = window.spans
    mapping = mapping_of(span.identity)
    if mapping is None or mapping.fd is None:
        return None
    return mapping.fd, span.start, window.nbytes


def _required(window: Window) -> _Shared:
    shared = _shared(window)
    assert shared is not None
    return shared


def _shared_pool(what: str, window: Window | None) -> _Shared | None:
    """A pool as the accelerator is told of it; none for a pool of size 0."""
    if window is None or window.nbytes == 0:
        return None
    shared = _shared(window)
    if shared is None:
        raise QnnError(
            Code.GRAPH_INVALID_ARGUMENT,
            what,
            "it is not shared memory, and the accelerator sees no other",
            "Allocate it with isthmus.memory.rpcmem.",
        )
    return shared
