"""The commands of an execution: written down once, enqueued by one native call each time, waited for with an end.

Every launch has a kernel object of its own whose arguments were set before, so an execution touches none. Where the
driver can record commands (cl_khr_command_buffer), all launches are one command.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from ctypes import c_int32, c_uint64, c_void_p
from dataclasses import dataclass, field

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.opencl import machine, numbers
from isthmus.opencl.context import Context
from isthmus.opencl.event import Event
from isthmus.opencl.handles import Owned
from isthmus.opencl.library import library
from isthmus.opencl.loop import IS_MAPPED, MOVED, WORD, Kind, Row, Word
from isthmus.opencl.status import check, is_loss, refusal
from isthmus.opencl.waiting import PIECE, Block, state

GRACE = 10.0
"""Seconds that commands may take to end after an execution was given up: it ends between commands only. Then the device
counts as lost."""
CHUNK = 32
"""How many commands are under way at a time while an execution may be ended early."""


_lost: list[object] = []
"""What commands of lost devices worked in: should one come back, it writes where nobody else is."""


@dataclass(frozen=True)
class Command:
    """One command.

    Parameters
    ----------
    operands
        What the kind says, see `Kind`.
    label
        What it is for, for messages.
    kernel
        What it launches, which is kept alive.
    """

    kind: Kind
    operands: tuple[int, ...]
    label: str = ""
    kernel: Owned | None = None
    global_size: tuple[int, ...] = ()
    local_size: tuple[int, ...] = ()


def launch(kernel: Owned, global_size: Sequence[int], local_size: Sequence[int], label: str) -> Command:
    """Run a kernel whose arguments are set; without a local size the driver chooses one."""
    operands = (kernel.handle, len(global_size), int(bool(local_size)))
    return Command(Kind.LAUNCH, operands, label, kernel, tuple(global_size), tuple(local_size))


def write(memory: int, offset: int, nbytes: int, address: int, label: str) -> Command:
    """Transfer host memory to the device."""
    return Command(Kind.WRITE, (memory, offset, nbytes, address), label)


def read(memory: int, offset: int, nbytes: int, address: int, label: str) -> Command:
    """Transfer memory of the device to the host."""
    return Command(Kind.READ, (memory, offset, nbytes, address), label)


def map_at(memory: int, nbytes: int, address: int, label: str) -> Command:
    """Hand memory over to the host, which sees it at an address."""
    return Command(Kind.MAP, (memory, 0, nbytes, numbers.MAP_READ | numbers.MAP_WRITE, address), label)


def unmap(memory: int, address: int, label: str) -> Command:
    """Hand memory over to the device."""
    return Command(Kind.UNMAP, (memory, 0, 0, address), label)


def refuse_mapped(memory: int, label: str) -> Command:
    """Refuse the execution if somebody has the memory mapped."""
    return Command(Kind.UNMAPPED, (memory,), label)


@dataclass
class Limits:
    """When an execution is to end early: what is left of its time in seconds, and whether somebody ended it."""

    left: Callable[[], float | None]
    stopped: Callable[[], bool] = field(default=lambda: False)


class Outcome:
    """How an execution within limits ended."""

    COMPLETE, TIMED_OUT, STOPPED = range(3)


class Commands:
    """Commands in order, ready to be enqueued any number of times, by one thread at a time.

    Parameters
    ----------
    context
        Whose queue they go into.
    commands
        What to do.
    what
        Whose execution it is, for messages.
    patience
        Seconds after which a device that has not come to the end counts as lost.
    record
        Whether to record launches where the driver can.
    keeps
        What must live as long as this: memory that commands read or write.
    """

    def __init__(
        self,
        context: Context,
        commands: Sequence[Command],
        what: str,
        patience: float,
        record: bool = True,
        keeps: object = None,
    ) -> None:
        self._keeps = keeps
        self.context, self.commands, self.what, self.patience = context, tuple(commands), what, patience
        self._block = Block(context.queue, context.device.kind != "cpu")
        self._recorded: Owned | None = None
        self._plain = self._rows(self.commands)
        self._table = self._with_recording() if record and context.device.command_buffers else self._plain
        self._loop = machine.load()
        self._latest = math.inf
        self._use(self._table, self._block.words)

    # -- executing -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Execute and wait."""
        if self.context.lost is not None:
            raise self.context.loss(self.what)
        block = self._block
        words = block.words
        if words[Word.ARMED]:
            block.fresh_bell()
        try:
            self._loop.execute(block.address, 0, 0, 0)
            if words[Word.STATUS] == 0 and words[Word.EVENT] == 0:
                return
            if words[Word.STATUS] == IS_MAPPED:
                self._catch_up(GRACE)
                self._loop.execute(block.address, 0, 0, 0)
            self._see_to_the_end()
        except BaseException:
            self._settle()
            raise

    def run_within(self, limits: Limits) -> int:
        """Execute in parts until the end or a limit; an `Outcome`. What was enqueued has ended in any case."""
        if self.context.lost is not None:
            raise self.context.loss(self.what)
        rows = self._plain.copy()
        words = self._block.words
        rows[CHUNK - 1 :: CHUNK, Row.EVENT] = self._event_address
        outcome = Outcome.COMPLETE
        try:
            for first in range(0, len(rows), CHUNK):
                part = rows[first : first + CHUNK]
                self._use(part, words)
                self._enqueue(GRACE)
                if words[Word.STATUS]:
                    self._fail(first)
                outcome = self._wait_within(limits)
                if outcome != Outcome.COMPLETE:
                    break
        except BaseException:
            self._settle()
            raise
        finally:
            self._use(self._table, words)
        if outcome != Outcome.COMPLETE:
            self._settle()
            if self.context.lost is not None:
                raise self.context.loss(self.what)
        return outcome

    def enqueue(self, wait_for: Sequence[int]) -> Event:
        """Enqueue after events of the context; the answer is the event of the end."""
        if self.context.lost is not None:
            raise self.context.loss(self.what)
        words, waits = self._block.words, (c_void_p * max(len(wait_for), 1))(*wait_for)
        words[Word.WAIT_COUNT] = len(wait_for)
        words[Word.WAIT_LIST] = ctypes.addressof(waits) if wait_for else 0
        again = self._table is self._plain or self.context.device.simultaneous
        try:
            if not again:
                self._use(self._plain, words)
            self._enqueue(PIECE)
            if words[Word.STATUS]:
                self._fail(0)
            event, words[Word.EVENT] = words[Word.EVENT], 0
            return Event(self.context, event, self.what)
        except BaseException:
            self._settle()
            raise
        finally:
            words[Word.WAIT_COUNT] = words[Word.WAIT_LIST] = 0
            if not again:
                self._use(self._table, words)

    def timed(self) -> list[tuple[str, float]]:
        """Execute and wait; what each launch took, by its label, in microseconds as the device has them."""
        if self.context.lost is not None:
            raise self.context.loss(self.what)
        rows, words, found = self._plain.copy(), self._block.words, library()
        events = np.zeros(len(rows), np.int64)
        rows[:, Row.EVENT] = events.ctypes.data + WORD * np.arange(len(rows))
        queue, words[Word.QUEUE] = words[Word.QUEUE], self.context.profiling_queue()
        held: list[Event | None] = []
        try:
            self._use(rows, words)
            self._enqueue(GRACE)
            held = [Event(self.context, int(event), self.what) if event else None for event in events]
            if words[Word.STATUS]:
                self._fail(0)
            last = next(event for event in reversed(held) if event is not None)
            found.call(self.what, "clRetainEvent", last.handle)
            words[Word.EVENT] = last.handle
            self._see_to_the_end()
            return [
                (command.label, event.profile() / 1e3)
                for command, event in zip(self.commands, held, strict=True)
                if event is not None and command.kind is Kind.LAUNCH
            ]
        except BaseException:
            self._settle()
            raise
        finally:
            words[Word.QUEUE] = queue
            self._use(self._table, words)

    def hurry(self) -> None:
        """Wait a little longer and no more for what is under way: somebody wants it to end, from another thread."""
        self._latest = time.monotonic() + GRACE

    def close(self) -> None:
        """Let kernels and what was recorded go; safe to call again."""
        if self._recorded is not None:
            self._recorded.close()
        for command in self.commands:
            if command.kernel is not None:
                command.kernel.close()

    # -- ends and failures ---------------------------------------------------------------------------------------------

    def _see_to_the_end(self) -> None:
        """After a first piece of waiting: wait on, or tell what went wrong."""
        words = self._block.words
        if words[Word.STATUS]:
            self._fail(0)
        begun = time.monotonic()
        while words[Word.EVENT] and state(words) >= numbers.COMPLETE and not self._block.wait(self._left(begun)):
            self._check_patience(begun)
        self._check_end()

    def _left(self, begun: float) -> float:
        """How long to wait in one go, before somebody may want it to end."""
        return min(begun + self.patience, self._latest, time.monotonic() + 1) - time.monotonic()

    def _check_patience(self, begun: float) -> None:
        now = time.monotonic()
        if self.context.lost is not None:
            raise self.context.loss(self.what)
        if now >= begun + self.patience:
            self._lose(f"an execution has not ended within {self.patience:g} s")
        if now >= self._latest:
            self._lose(f"an execution has not ended {GRACE:g} s after it was to")

    def _wait_within(self, limits: Limits) -> int:
        begun = time.monotonic()
        while True:
            left = limits.left()
            if limits.stopped():
                return Outcome.STOPPED
            if left is not None and left <= 0:
                return Outcome.TIMED_OUT
            if self._block.wait(PIECE if left is None else min(PIECE, left)):
                self._check_end()
                return Outcome.COMPLETE
            self._check_patience(begun)

    def _check_end(self) -> None:
        words = self._block.words
        if words[Word.EVENT]:
            failed = words[Word.STATUS] or state(words)
            self._forget_event()
            self._lose(refusal(int(failed), self.what, "an execution").rule)

    def _fail(self, first: int) -> None:
        """Tell why a command was not taken by the queue."""
        words = self._block.words
        status, row = int(words[Word.STATUS]), first + int(words[Word.FAILED_ROW])
        commands = self.commands
        command = commands[row] if self._table is self._plain and row < len(commands) else None
        label = f"{command.label} of {self.what}" if command is not None and command.label else self.what
        if status == IS_MAPPED:
            raise QnnError(
                Code.COMMON_OPERATION_NOT_PERMITTED, label, "its OpenCL buffer is mapped", "Unmap it before executing."
            )
        if status == MOVED:
            raise QnnError(Code.MEM_MAPPING, label, "the driver maps its memory to another address than before")
        if is_loss(status):
            self._lose(refusal(status, label, "the queue").rule)
        raise refusal(status, label, "the queue")

    def _lose(self, why: str) -> None:
        self.context.lose(why)
        _lost.append(self._keeps)
        raise self.context.loss(self.what)

    def _enqueue(self, patience: float) -> None:
        self._block.fresh_bell()
        self._loop.enqueue(self._block.address, 0, 0, 0)
        if self._block.words[Word.STATUS] == IS_MAPPED:
            self._catch_up(patience)
            self._loop.enqueue(self._block.address, 0, 0, 0)

    def _catch_up(self, seconds: float) -> bool:
        """Wait a while for all that is in the queue: the end of a mapping is a command too. Whether it has ended."""
        found, words = library(), self._block.words
        marker = c_void_p()
        if found.functions["clEnqueueMarkerWithWaitList"](words[Word.QUEUE], 0, None, ctypes.byref(marker)):
            return True
        found.functions["clFlush"](words[Word.QUEUE])
        self._block.fresh_bell()
        words[Word.EVENT] = marker.value or 0
        try:
            return self._block.wait(seconds)
        finally:
            self._forget_event()

    def _settle(self) -> None:
        """Have all that was enqueued come to its end, before whatever went wrong is told."""
        self._forget_event()
        if self.context.lost is None and not self._catch_up(GRACE):
            self.context.lose(f"what was enqueued has not ended within {GRACE:g} s")
            _lost.append(self._keeps)

    def _forget_event(self) -> None:
        words = self._block.words
        if words[Word.EVENT]:
            library().functions["clReleaseEvent"](words[Word.EVENT])
            words[Word.EVENT] = 0

    # -- rows ----------------------------------------------------------------------------------------------------------

    @property
    def _event_address(self) -> int:
        return self._block.address + WORD * Word.EVENT

    def _use(self, rows: np.ndarray, words: ctypes.Array[ctypes.c_int64]) -> None:
        words[Word.ROWS], words[Word.COUNT] = rows.ctypes.data, len(rows)
        self._kept = rows

    def _rows(self, commands: Sequence[Command]) -> np.ndarray:
        rows = np.zeros((len(commands), Row.END), np.int64)
        for row, command in zip(rows, commands, strict=True):
            row[Row.KIND] = command.kind
            # Handles and addresses have 64 bits without a sign.
            operands = np.array([value & 0xFFFF_FFFF_FFFF_FFFF for value in command.operands], np.uint64)
            row[Row.A : Row.A + len(operands)] = operands.view(np.int64)
            row[Row.GLOBAL : Row.GLOBAL + len(command.global_size)] = command.global_size
            row[Row.LOCAL : Row.LOCAL + len(command.local_size)] = command.local_size
        rows[-1:, Row.EVENT] = self._event_address
        return rows

    def _with_recording(self) -> np.ndarray:
        """The rows with all launches, which follow one another, recorded as one command."""
        kinds = [command.kind for command in self.commands]
        if Kind.LAUNCH not in kinds:
            return self._plain
        first = kinds.index(Kind.LAUNCH)
        count = kinds.count(Kind.LAUNCH)
        assert set(kinds[first : first + count]) == {Kind.LAUNCH}
        self._recorded = _record(self.context, self.commands[first : first + count], self.what)
        extension = library().extension(self.context.device.platform)
        assert extension is not None
        self._block.words[Word.REPLAY] = ctypes.cast(extension["clEnqueueCommandBufferKHR"], c_void_p).value or 0
        queues = self._block.address + WORD * Word.QUEUE
        replay = Command(Kind.REPLAY, (self._recorded.handle, queues), "recorded launches")
        return self._rows((*self.commands[:first], replay, *self.commands[first + count :]))


def _record(context: Context, launches: Sequence[Command], what: str) -> Owned:
    extension = library().extension(context.device.platform)
    assert extension is not None
    queues, status = (c_void_p * 1)(context.queue), c_int32()
    flags = numbers.COMMAND_BUFFER_SIMULTANEOUS_USE_KHR if context.device.simultaneous else 0
    properties = (c_uint64 * 3)(numbers.COMMAND_BUFFER_FLAGS_KHR, flags, 0)
    made = extension["clCreateCommandBufferKHR"](1, queues, properties, ctypes.byref(status))
    check(status.value, what, "clCreateCommandBufferKHR")
    recording = Owned(made, extension["clReleaseCommandBufferKHR"])
    for command in launches:
        kernel, dims, has_local = command.operands
        sizes = (ctypes.c_size_t * dims)(*command.global_size)
        groups = (ctypes.c_size_t * dims)(*command.local_size) if has_local else None
        answer = extension["clCommandNDRangeKernelKHR"](
            made, None, None, kernel, dims, None, sizes, groups, 0, None, None, None
        )
        check(answer, what, "clCommandNDRangeKernelKHR")
    check(extension["clFinalizeCommandBufferKHR"](made), what, "clFinalizeCommandBufferKHR")
    return recording
