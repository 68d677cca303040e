"""An executor that runs programs in the accelerator, in pools that the client shares with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from isthmus.backends.accelerator.memory import NOTHING
from isthmus.backends.accelerator.process import Slots
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.accelerator.staging import SharedStaging
from isthmus.backends.seam.binary import ContextBinary, to_bytes
from isthmus.backends.seam.driver import Timings
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.graph import TensorInfo
from isthmus.memory import Window
from isthmus.memory.shareable import mapping_of
from isthmus.system.shield import shielded

MAKER = "accelerator"
"""The backend named in a binary that goes straight to the accelerator and into no file."""
_Shared = tuple[int, int, int]
"""Memory as it is described to the accelerator: descriptor, offset, bytes."""


class RemoteIo:
    """Memory for every input and output of a graph, in the accelerator's terms.

    Parameters
    ----------
    tensors, inputs
        The inputs, then the outputs, and the number of inputs.
    windows
        The client's memory for them.
    known
        Slots of the memory that the accelerator can see, by the index of the tensor. It is used in place; the rest is
        copied through `staging`, before and after an execution (`copies_in`, `copies_out`).
    """

    def __init__(
        self,
        tensors: Sequence[TensorInfo],
        inputs: int,
        windows: Sequence[Window],
        known: Mapping[int, int],
        staging: SharedStaging,
    ) -> None:
        copied = [index for index in range(len(tensors)) if index not in known]
        staging.reserve(tensors, copied)
        self.slots = [known[index] if index in known else staging[index][1] for index in range(len(tensors))]
        moves = [(index, staging[index][0], windows[index].address, tensors[index].nbytes) for index in copied]
        self.copies_in = [(staged, client, nbytes) for index, staged, client, nbytes in moves if index < inputs]
        self.copies_out = [(client, staged, nbytes) for index, staged, client, nbytes in moves if index >= inputs]
        self.copied = frozenset(copied)
        self.registered: Sequence[int] = ()
        """Slots that are deregistered with it."""
        self._accelerator = staging.accelerator

    def close(self) -> None:
        """Deregister its own slots; safe to call again."""
        self._accelerator.deregister(self.registered)


class RemoteExecutor:
    """A program in the accelerator, in shared scratch and state memory, with the interface of an `Executor`.

    Inputs and outputs in shared memory are used in place; others are copied through its staging memory.
    """

    @shielded(release=lambda executor: executor.close())
    def __init__(self, queue: Queue, program: Program, scratch: Window | None, state: Window | None) -> None:
        self.program = program
        self._staging = SharedStaging(queue.accelerator)
        # The indices of the inputs and outputs that have staging memory.
        self._staged: frozenset[int] = frozenset()
        self._queue, self._lock = queue, queue.lock()
        self._io: RemoteIo | None = None
        pools = [
            _describe_pool(f"{what} of graph '{program.name}'", window)
            for what, window in (("scratch memory", scratch), ("persistent memory", state))
        ]
        self._scratch, self._state = (self._register(pool) for pool in pools)
        try:
            with ContextBinary(to_bytes([program], MAKER), verify=False) as binary:
                self._number = queue.load(binary, (_number(self._scratch), _number(self._state)))[program.name]
        except Exception:
            self.close()
            raise

    def bind_scratch(self, window: Window | None) -> None:
        """Use this scratch from the next run on; a refusal changes nothing."""
        shared = _describe_pool(f"scratch memory of graph '{self.program.name}'", window)
        replaced, scratch = self._scratch, self._register(shared)

        def rebind() -> None:
            self._queue.rebind(self._number, _number(scratch))
            self._scratch = scratch

        try:
            self._queue.under_lock(rebind)
        finally:
            # The old memory after a success, the new one after a failure.
            self._queue.accelerator.deregister(replaced if self._scratch is scratch else scratch)

    def bound(self, windows: Sequence[Window], copied: Collection[int] = ()) -> RemoteIo:
        """Return memory for every input and output, checked and registered, for `bind_all_io`.

        The tensors `copied`, by index, are copied even if they are in shared memory.
        """
        infos, inputs = self.program.info.tensors, len(self.program.inputs)
        for info, window in zip(infos, windows, strict=True):
            window.check(f"memory of tensor '{info.name}'", info.nbytes)
        exact = [window.part(0, info.nbytes) for info, window in zip(infos, windows, strict=True)]
        shared = {
            index: span
            for index, window in enumerate(exact)
            if index not in copied and (span := _describe_shared(window)) is not None
        }
        registered = self._queue.accelerator.register(list(shared.values()))
        io = RemoteIo(infos, inputs, exact, dict(zip(shared, registered, strict=True)), self._staging)
        io.registered = registered
        self._staged |= io.copied
        return io

    @property
    def staging_bytes(self) -> int:
        """Bytes of the inputs and outputs that have staging memory."""
        return sum(self.program.info.tensors[index].nbytes for index in self._staged)

    def bind_all_io(self, io: RemoteIo) -> None:
        """Use this memory for inputs and outputs from the next run on."""
        self._io = io

    def run(self, seconds: float | None = None) -> None:
        """Run once, within a time limit."""
        io = self._io
        assert io is not None
        try:
            with self._lock:
                self._queue.execute(self._number, io.slots, seconds, io.copies_in, io.copies_out)
        except BaseException:
            # An interrupt may have come before the lock was released.
            self._lock.release()
            raise

    def run_timed(self, seconds: float | None = None) -> Timings:
        """Run once, within a time limit, and return the time of each step."""
        io = self._io
        assert io is not None
        try:
            with self._lock:
                return self._queue.timed(self._number, io.slots, seconds, io.copies_in, io.copies_out)
        except BaseException:
            self._lock.release()
            raise

    def abort(self) -> None:
        """Abort the current run, if any."""
        self._queue.abort()

    def reset(self) -> None:
        """Write the initial state into state memory."""
        self._queue.under_lock(lambda: self._queue.reset(self._number))

    def close(self) -> None:
        """Deregister the memory; safe to call again."""
        for slots in (self._scratch, self._state):
            self._queue.accelerator.deregister(slots)
        self._io = None
        self._staging.close()

    def _register(self, pool: _Shared | None) -> Slots:
        """Register a pool and return its slots: one, or none for no pool."""
        return self._queue.accelerator.register([] if pool is None else [pool])


def _number(slots: Slots) -> int:
    """Return the slot of a pool as a call names it."""
    return slots[0] if slots else NOTHING


def is_shared(window: Window) -> bool:
    """Return whether the accelerator can use memory in place."""
    return _describe_shared(window) is not None


def _describe_shared(window: Window) -> _Shared | None:
    """Return memory as it is described to the accelerator, or None if it is not shared."""
    if len(window.spans) != 1:
        return None
    [span] = window.spans
    mapping = mapping_of(span.identity)
    if mapping is None or mapping.fd is None:
        return None
    return mapping.fd, span.start, window.nbytes


def _describe_pool(what: str, window: Window | None) -> _Shared | None:
    """Return a pool as it is described to the accelerator; None for a pool of size 0."""
    if window is None or window.nbytes == 0:
        return None
    shared = _describe_shared(window)
    if shared is None:
        raise QnnError(
            Code.GRAPH_INVALID_ARGUMENT,
            what,
            "it is not shared memory, and the accelerator sees no other",
            "Allocate it with isthmus.memory.rpcmem.",
        )
    return shared
