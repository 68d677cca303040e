"""An executor that runs programs in the accelerator, in pools that the client shares with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from isthmus.backends.accelerator.memory import NOTHING
from isthmus.backends.accelerator.process import Slots
from isthmus.backends.accelerator.queue import LoadSlots, Queue, SegmentPlace
from isthmus.backends.accelerator.staging import SharedStaging
from isthmus.backends.seam.binary import ContextBinary, to_bytes
from isthmus.backends.seam.driver import Timings
from isthmus.engine.native.program import Program
from isthmus.engine.native.serialization import segment_name
from isthmus.errors import Code, QnnError
from isthmus.graph import TensorInfo
from isthmus.memory import Window
from isthmus.memory.shareable import mapping_of
from isthmus.system.shield import shielded

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Result = TypeVar("_Result")
MAKER = "accelerator"
"""The backend named in a binary that goes straight to the accelerator and into no file."""
# Memory as it is described to the accelerator: descriptor, offset, bytes.
_Shared = tuple[int, int, int]


class RemoteIo:
    """Memory for every input and output of a graph, in the accelerator's terms.

    - `tensors`, `inputs`: The inputs, then the outputs, and the number of inputs.
    - `windows`: The client's memory for them.
    - `visible`: Slots of the memory that the accelerator can see, by the index of the tensor. It is used in place; the
      rest is copied through `staging`, before and after an execution (`copies_in`, `copies_out`).
    """

    def __init__(
        self,
        tensors: Sequence[TensorInfo],
        inputs: int,
        windows: Sequence[Window],
        visible: Mapping[int, int],
        staging: SharedStaging,
    ) -> None:
        copied = [index for index in range(len(tensors)) if index not in visible]
        staging.reserve(tensors, copied)
        self.slots = [visible[index] if index in visible else staging[index][1] for index in range(len(tensors))]
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
            own = _number(self._scratch), _number(self._state)
            self._number = load_programs(queue, [program], True, own)[program.name]
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
            # After a success the old memory is deregistered, after a failure the new one.
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
        self._run_by(self._queue.execute, seconds)

    def run_timed(self, seconds: float | None = None) -> Timings:
        """Run once, within a time limit, and return the time of each step."""
        return self._run_by(self._queue.execute_timed, seconds)

    def _run_by(self, execute: Callable[..., _Result], seconds: float | None) -> _Result:
        """Run once by a method of the queue, under the queue's lock."""
        io = self._io
        assert io is not None
        try:
            with self._lock:
                return execute(self._number, io.slots, seconds, io.copies_in, io.copies_out)
        except BaseException:
            # An interrupt may have come before the lock was released.
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


def load_programs(
    queue: Queue,
    programs: Sequence[Program],
    shares: bool,
    pools: tuple[int, int] | None = None,
    **slots: Unpack[LoadSlots],
) -> dict[str, int]:
    """Load programs into a queue and return the numbers to run them by.

    - `shares`: Whether graphs of the queue that were loaded so use equal segments together, also those loaded before.
    - `pools`, `slots`: As for `Queue.load`.
    """
    # What goes into the client's memory is sent apart, so that nothing of it stays elsewhere.
    is_apart = shares or slots.get("weights") is not None
    apart = _segments(programs) if is_apart else {}
    content = to_bytes(programs, MAKER, shares=shares, apart=is_apart)
    with ContextBinary(content, verify=False, apart=apart) as binary:
        return queue.load(binary, pools, apart, **slots)


def load_placed(
    queue: Queue,
    programs: Sequence[Program],
    place: Callable[[Mapping[str, np.ndarray]], Mapping[str, SegmentPlace]],
    scratch: int | None = None,
) -> dict[str, int]:
    """Load programs whose segments are in memory that is registered already; equal ones are there once.

    - `place`: Puts segments by name into that memory, and returns the places of those that it has put there. The others
      are sent.
    - `scratch`: As for `Queue.load`.
    """
    apart = _segments(programs)
    places = place(apart)
    content = to_bytes(programs, MAKER, apart=True)
    with ContextBinary(content, verify=False, apart=apart) as binary:
        return queue.load(binary, None, apart, places, scratch=scratch)


def _segments(programs: Sequence[Program]) -> dict[str, np.ndarray]:
    """Return the segments of programs by their names."""
    return {segment_name(segment): segment for program in programs for segment in program.segments}


def _number(slots: Slots) -> int:
    """Return the slot of a pool, or `NOTHING` if there is no pool, as calls to the accelerator name it."""
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
