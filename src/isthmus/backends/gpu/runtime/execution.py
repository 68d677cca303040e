"""An execution: commands that are prepared once, enqueued by one native call each time, and waited for with a limit.

An execution changes no kernel arguments. If the driver can record commands, all launches are one command.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_void_p
from dataclasses import dataclass, field

import numpy as np

from isthmus.backends.gpu.runtime import clock, machine, numbers
from isthmus.backends.gpu.runtime.cells import give_back, store_retained
from isthmus.backends.gpu.runtime.clock import ClockPair, CommandTime, CommandTimes
from isthmus.backends.gpu.runtime.commands import Command, record
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.event import ClEvent, Events, device_times
from isthmus.backends.gpu.runtime.library import library
from isthmus.backends.gpu.runtime.loop import IS_MAPPED, MOVED, WORD, CommandKind, CommandRow, CommandWord
from isthmus.backends.gpu.runtime.owned import Owned
from isthmus.backends.gpu.runtime.status import is_loss, refusal
from isthmus.backends.gpu.runtime.waiting import PIECE, CommandBlock, state
from isthmus.errors import Code, QnnError

GRACE = 10.0
"""Seconds that commands may take to end after an execution was given up, because it can end only between commands.
After that the device counts as lost.
"""
CHUNK = 32
"""How many commands are in progress at a time while an execution may be ended early."""

# The kinds of commands whose times are reported.
_TIMED = (CommandKind.LAUNCH, CommandKind.WRITE, CommandKind.READ)
# Seconds to wait before each retry until a mapping is removed, once it should have been.
_MOMENTS = (0.0, 0.0005, 0.002, 0.01)
# Memory of commands on lost devices. It is kept, so that a device that comes back writes to no memory in other use.
_lost: list[object] = []


@dataclass
class RunLimits:
    """The limits of an execution, which are asked again and again while it runs.

    - `left`: Returns the seconds that are left, or None if there is no limit.
    - `stopped`: Returns whether the execution was stopped.
    """

    left: Callable[[], float | None]
    stopped: Callable[[], bool] = field(default=lambda: False)


class Outcome:
    """The outcome of an execution within limits."""

    COMPLETE, TIMED_OUT, STOPPED = range(3)


@dataclass(frozen=True)
class _Table:
    """Commands in the form that native code uses, one `CommandRow` each, and their labels."""

    rows: np.ndarray
    labels: Sequence[str]


class Commands:
    """Commands in order, ready to be enqueued any number of times, by one thread at a time.

    - `patience`: Seconds after which a device that has not finished counts as lost.
    - `may_record`: Whether to record launches if the driver can.
    - `keeps`: Objects that must live as long as this: memory that commands read or write.
    """

    def __init__(
        self,
        context: ClContext,
        commands: Sequence[Command],
        what: str,
        patience: float,
        may_record: bool = True,
        keeps: object = None,
    ) -> None:
        self._keeps = keeps
        self.context, self.commands, self.what, self.patience = context, tuple(commands), what, patience
        launches = sum(command.kind is CommandKind.LAUNCH for command in commands)
        self._block = CommandBlock(context.queue, context.device.kind == "cpu", is_single=launches == 1)
        self._recorded: Owned | None = None
        self._plain = self._rows(self.commands)
        """All commands one by one, for executions in parts and those whose commands are timed."""
        self._table = self._with_recording() if may_record and context.device.command_buffers else self._plain
        """What an execution normally enqueues: launches are one command if the driver can record them."""
        self._loop = machine.load()
        self._latest = math.inf
        """The time at which an aborted execution must have ended."""
        self._use(self._table)

    # -- executing -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Execute and wait."""
        if self.context.lost is not None:
            raise self.context.loss(self.what)
        block = self._block
        words = block.words
        if words[CommandWord.ARMED]:
            block.fresh_bell()
        try:
            self._loop.execute(block.address, 0, 0, 0)
            if words[CommandWord.STATUS] == 0 and words[CommandWord.EVENT] == 0:
                return
            if words[CommandWord.STATUS] == IS_MAPPED:
                self._again_unmapped(self._loop.execute, GRACE)
            self._wait_to_the_end()
        except BaseException:
            self._settle()
            raise

    def run_within(self, limits: RunLimits) -> int:
        """Execute in parts until the end or a limit; return an `Outcome`. All enqueued commands have ended by then.

        Enqueued commands cannot be taken back, so only CHUNK of them are enqueued at a time.
        """
        if self.context.lost is not None:
            raise self.context.loss(self.what)
        table = _Table(self._plain.rows.copy(), self._plain.labels)
        table.rows[CHUNK - 1 :: CHUNK, CommandRow.EVENT] = self._event_address
        return self._in_parts(table, limits)

    def timed(self, limits: RunLimits | None = None) -> tuple[int, CommandTimes]:
        """Execute as `run_within` does; return an `Outcome`, and when each launch and transfer ran (none if the
        execution is not complete).

        Only a separate queue records such times. It does not wait for commands in the context's queue by itself, so the
        host waits for them first, and the execution comes after them like any other.
        """
        if self.context.lost is not None:
            raise self.context.loss(self.what)
        limits, words = limits or RunLimits(lambda: None), self._block.words
        events = Events(len(self.commands))
        table = _Table(self._plain.rows.copy(), self._plain.labels)
        table.rows[:, CommandRow.EVENT] = events.addresses
        begin, pair = clock.now(), None
        try:
            outcome = self._wait_for_queue(limits)
            if outcome == Outcome.COMPLETE:
                words[CommandWord.QUEUE] = self.context.profiling_queue()
                compared = clock.now()
                outcome, pair = self._clock_pair(limits)
                begin = clock.now()
            if outcome == Outcome.COMPLETE:
                outcome = self._in_parts(table, limits, events)
            end = clock.now()
            if outcome != Outcome.COMPLETE:
                return outcome, CommandTimes(begin, end)
            measured = [
                CommandTime(command, *device_times(event, self.what))
                for command, event in zip(self.commands, events.handles, strict=True)
                if event and command.kind in _TIMED
            ]
            return outcome, clock.on_host(pair, measured, begin, end, preparation=begin - compared)
        finally:
            words[CommandWord.QUEUE] = self.context.queue
            events.close()

    def _clock_pair(self, limits: RunLimits) -> tuple[int, ClockPair | None]:
        """Compare the device's clock with the host's; return an `Outcome`, and a moment on both, if there is one."""
        # Without a function for that, the moment is the end of a marker in the queue, for which the host waits.
        pair, earliest = clock.from_timer(self.context.device), clock.now()
        if pair is not None:
            return Outcome.COMPLETE, pair
        marker, functions = Events(1), library().functions
        try:
            self._block.fresh_bell()
            functions["clEnqueueMarkerWithWaitList"](self._block.words[CommandWord.QUEUE], 0, None, *marker.addresses)
            functions["clFlush"](self._block.words[CommandWord.QUEUE])
            self._watch(marker.handles)
            outcome = self._wait_within(limits)
            latest = clock.now()
            if outcome == Outcome.COMPLETE and marker.handles[0]:
                # Some drivers have no times of markers.
                with suppress(QnnError):
                    pair = ClockPair(device_times(marker.handles[0], self.what)[1], earliest, latest)
            return outcome, pair
        finally:
            self._forget_event()
            marker.close()

    def _in_parts(self, table: _Table, limits: RunLimits, events: Events | None = None) -> int:
        """Execute rows in parts until a limit; return an `Outcome`."""
        # - `table`: The rows. If `events` is None, the last row of each part writes its event to the block, where it is
        #   waited for.
        # - `events`: The events to which every row writes its own; the last of each part is waited for.
        words, outcome = self._block.words, Outcome.COMPLETE
        try:
            for first in range(0, len(table.rows), CHUNK):
                part = slice(first, first + CHUNK)
                self._use(_Table(table.rows[part], table.labels[part]))
                self._enqueue(GRACE)
                if words[CommandWord.STATUS]:
                    self._fail()
                if events is not None:
                    self._watch(events.handles[part])
                outcome = self._wait_within(limits)
                if outcome != Outcome.COMPLETE:
                    self._settle()
                    break
        except BaseException:
            self._settle()
            raise
        finally:
            self._use(self._table)
        if self.context.lost is not None:
            raise self.context.loss(self.what)
        return outcome

    def _watch(self, events: Sequence[int]) -> None:
        """Make the last of some events the one that is waited for; checks for mapped memory have no event (0)."""
        last = next((event for event in reversed(events) if event), 0)
        if last:
            store_retained(self._block.words, CommandWord.EVENT, library().functions["clRetainEvent"], last)

    def enqueue(self, wait_for: Sequence[int]) -> ClEvent:
        """Enqueue without waiting; return the event of the end.

        - `wait_for`: Handles of events in the same context, for which the first command waits.
        """
        if self.context.lost is not None:
            raise self.context.loss(self.what)
        words, waits = self._block.words, (c_void_p * max(len(wait_for), 1))(*wait_for)
        words[CommandWord.WAIT_COUNT] = len(wait_for)
        words[CommandWord.WAIT_LIST] = ctypes.addressof(waits) if wait_for else 0
        # The execution before may not have ended, and not every driver accepts a recording that is still running.
        table = self._table if self.context.device.simultaneous else self._plain
        event = ClEvent(self.context, self.what)
        try:
            table.rows[-1, CommandRow.EVENT] = event.address
            self._use(table)
            self._enqueue(PIECE)
            if words[CommandWord.STATUS]:
                self._fail()
            # The native code has written the event's handle; now its kind is recorded.
            event.note()
            return event
        except BaseException:
            # Checks for mapped memory come first: an execution that one of them refuses has nothing in the queue.
            if words[CommandWord.STATUS] != IS_MAPPED:
                self._settle()
            raise
        finally:
            words[CommandWord.WAIT_COUNT] = words[CommandWord.WAIT_LIST] = 0
            table.rows[-1, CommandRow.EVENT] = self._event_address
            self._use(self._table)

    def abort_now(self) -> None:
        """Wait at most GRACE seconds longer for the execution in progress; called from another thread."""
        self._latest = time.monotonic() + GRACE

    def close(self) -> None:
        """Release kernels and recorded commands; safe to call again."""
        if self._recorded is not None:
            self._recorded.close()
        for command in self.commands:
            if command.kernel is not None:
                command.kernel.close()

    # -- ends and failures ---------------------------------------------------------------------------------------------

    def _wait_to_the_end(self) -> None:
        """Continue to wait after the first piece, or report what went wrong."""
        words = self._block.words
        if words[CommandWord.STATUS]:
            self._fail()
        begun = time.monotonic()
        while (
            words[CommandWord.EVENT]
            and state(words) >= numbers.COMPLETE
            and not self._block.wait(self._patience(begun))
        ):
            self._check_patience(begun)
        self._check_end()

    def _patience(self, begun: float) -> float:
        """Return how many seconds to wait at once before checking again whether to give up an execution."""
        # `begun` is the time at which it began.
        return min(begun + self.patience, self._latest, time.monotonic() + 1) - time.monotonic()

    def _check_patience(self, begun: float) -> None:
        """Raise an error if the device is lost; count it as lost if an execution since `begun` takes too long."""
        now = time.monotonic()
        if self.context.lost is not None:
            raise self.context.loss(self.what)
        if now >= begun + self.patience:
            self._lose(f"an execution did not end within {self.patience:g} s")
        if now >= self._latest:
            self._lose(f"an execution did not end within {GRACE:g} s after it was aborted")

    def _wait_within(self, limits: RunLimits) -> int:
        """Wait for the block's event until it has ended or a limit is reached; return an `Outcome`."""
        begun = time.monotonic()
        if not self._block.words[CommandWord.EVENT]:
            # Only checks for mapped memory were enqueued, and these have no events.
            return Outcome.COMPLETE
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
        """Count the device as lost if the awaited command failed: native code clears EVENT only if it succeeded."""
        words = self._block.words
        if words[CommandWord.EVENT]:
            failed = words[CommandWord.STATUS] or state(words)
            self._forget_event()
            self._lose(refusal(int(failed), self.what, "an execution").rule)

    def _fail(self) -> None:
        """Raise the error of a command that the queue did not accept."""
        words = self._block.words
        status, row, labels = int(words[CommandWord.STATUS]), int(words[CommandWord.FAILED_ROW]), self._used.labels
        label = f"{labels[row]} of {self.what}" if row < len(labels) and labels[row] else self.what
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
        """Count the device as lost, keep the memory that it may still use, and raise the error."""
        self.context.lose(why)
        _lost.append(self._keeps)
        raise self.context.loss(self.what)

    def _enqueue(self, patience: float) -> None:
        """Enqueue the rows in use; wait at most `patience` seconds for memory that is mapped; STATUS has the result."""
        self._block.fresh_bell()
        self._loop.enqueue(self._block.address, 0, 0, 0)
        if self._block.words[CommandWord.STATUS] == IS_MAPPED:
            self._again_unmapped(self._loop.enqueue, patience)

    def _again_unmapped(self, do: Callable[..., None], patience: float) -> None:
        """Wait for the end of a mapping, and repeat the call that was refused because of it."""
        # The end of a mapping is a command, so it may still be in the queue. Some drivers remove a mapping a moment
        # after the command that ends it has completed.
        self._catch_up(patience)
        for pause in _MOMENTS:
            time.sleep(pause)
            do(self._block.address, 0, 0, 0)
            if self._block.words[CommandWord.STATUS] != IS_MAPPED:
                break

    def _catch_up(self, seconds: float) -> bool:
        """Wait at most `seconds` for everything that is in the queue; return False if it has not ended by then."""
        # The result is True also if the queue accepts no marker: then there is nothing that could be waited for.
        try:
            self._block.fresh_bell()
            return not self._mark() or self._block.wait(seconds)
        finally:
            self._forget_event()

    def _wait_for_queue(self, limits: RunLimits) -> int:
        """Wait within limits for everything that is in the queue now; return an `Outcome`."""
        try:
            self._block.fresh_bell()
            return self._wait_within(limits) if self._mark() else Outcome.COMPLETE
        finally:
            self._forget_event()

    def _mark(self) -> bool:
        """Make the end of everything in the queue the awaited event; return whether the queue accepts that."""
        functions, queue = library().functions, self._block.words[CommandWord.QUEUE]
        is_accepted = functions["clEnqueueMarkerWithWaitList"](queue, 0, None, self._event_address) == numbers.SUCCESS
        functions["clFlush"](queue)
        return bool(is_accepted)

    def _settle(self) -> None:
        """Wait until everything that was enqueued has ended, before an error is reported."""
        self._forget_event()
        if self.context.lost is None and not self._catch_up(GRACE):
            self.context.lose(f"what was enqueued did not end within {GRACE:g} s")
            _lost.append(self._keeps)

    def _forget_event(self) -> None:
        """Release the event in the block, if there is one."""
        give_back(self._block.words, CommandWord.EVENT, library().functions["clReleaseEvent"])

    # -- rows ----------------------------------------------------------------------------------------------------------

    @property
    def _event_address(self) -> int:
        """The address of the block's word EVENT, to which the last command writes its event."""
        return self._block.address + WORD * CommandWord.EVENT

    def _use(self, table: _Table) -> None:
        """Make these rows the ones that native code enqueues next, and keep them alive."""
        words = self._block.words
        words[CommandWord.ROWS], words[CommandWord.COUNT] = table.rows.ctypes.data, len(table.rows)
        self._used = table

    def _rows(self, commands: Sequence[Command]) -> _Table:
        """Return commands as rows, the last of which writes its event to the block."""
        rows = np.zeros((len(commands), CommandRow.END), np.int64)
        for row, command in zip(rows, commands, strict=True):
            row[CommandRow.KIND] = command.kind
            # Handles and addresses are unsigned 64-bit integers; a row has their bits as signed ones.
            operands = np.array([value & 0xFFFF_FFFF_FFFF_FFFF for value in command.operands], np.uint64)
            row[CommandRow.A : CommandRow.A + len(operands)] = operands.view(np.int64)
            row[CommandRow.GLOBAL : CommandRow.GLOBAL + len(command.global_size)] = command.global_size
            row[CommandRow.LOCAL : CommandRow.LOCAL + len(command.local_size)] = command.local_size
        rows[-1:, CommandRow.EVENT] = self._event_address
        return _Table(rows, [command.label for command in commands])

    def _with_recording(self) -> _Table:
        """Return the rows with all launches, which are consecutive, recorded as one command."""
        kinds = [command.kind for command in self.commands]
        if CommandKind.LAUNCH not in kinds:
            return self._plain
        first = kinds.index(CommandKind.LAUNCH)
        count = kinds.count(CommandKind.LAUNCH)
        assert set(kinds[first : first + count]) == {CommandKind.LAUNCH}
        self._recorded = record(self.context, self.commands[first : first + count], self.what)
        extension = library().extension(self.context.device.platform)
        assert extension is not None
        self._block.words[CommandWord.REPLAY] = ctypes.cast(extension["clEnqueueCommandBufferKHR"], c_void_p).value or 0
        # A replay takes the address of a list of queues, here of one: the block's word, which may change.
        queues = self._block.address + WORD * CommandWord.QUEUE
        replay = Command(CommandKind.REPLAY, (self._recorded.handle, queues), "recorded launches")
        return self._rows((*self.commands[:first], replay, *self.commands[first + count :]))
