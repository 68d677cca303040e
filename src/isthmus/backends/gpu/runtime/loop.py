"""The native part of an execution: enqueue its commands, then wait for the last one.

One call does both, so a launch costs only the time of the driver and no transition from Python. Waiting spins for a
while where that pays. Then it sleeps until the driver calls back or, where drivers call back late, for a fraction of
the time waited so far. It always ends after a time limit, so that the caller can check whether to go on. All functions
work on a block of words (`CommandWord`); commands are rows of words (`CommandRow`).

numba types these functions when they are compiled; `call`, `load` and similar names are provided there.
"""
# mypy: ignore-errors
# ruff: noqa: F821

from __future__ import annotations

from enum import IntEnum


class CommandWord(IntEnum):
    """The words of a block: what to do, with which functions, and the outcome."""

    QUEUE = 0
    ROWS = 1
    """The address of the first command's row."""
    COUNT = 2
    """The number of rows."""
    WAIT_COUNT = 3
    WAIT_LIST = 4
    """The number of events that the first command waits for, and the address of their handles."""
    STATUS = 5
    """The status of the first call that failed, OpenCL's or one of `IS_MAPPED` and `MOVED`; 0 if none failed."""
    FAILED_ROW = 6
    """The index of the row that was refused."""
    EVENT = 7
    """The event that is waited for; 0 once it is complete."""
    VALUE = 8
    """Where the result of an OpenCL query is written; after a wait it is the event's execution status."""
    SPIN = 9
    """Nanoseconds to spin; if negative, the spinning thread yields the processor to others."""
    SLICE = 10
    """Nanoseconds to wait in total."""
    BELL = 11
    """The address of a word that becomes 1 when the driver calls back."""
    ARMED = 12
    """Whether the driver was asked to call back."""
    SECONDS = 13
    NANOSECONDS = 14
    """Two words for a time of the system (C's timespec)."""
    LAUNCH = 15
    """From here on: the addresses of the functions to call. REPLAY enqueues recorded commands, NOTIFY is `notify`."""
    WRITE = 16
    READ = 17
    MAP = 18
    UNMAP = 19
    FLUSH = 20
    MEM_INFO = 21
    REPLAY = 22
    EVENT_INFO = 23
    CALL_BACK = 24
    RELEASE = 25
    NOTIFY = 26
    END = 27


class CommandRow(IntEnum):
    """The words of a command: its kind, the address for its event (0 if none is needed), its operands, and the global
    and local size of a launch, with three words each.
    """

    KIND = 0
    EVENT = 1
    A = 2
    B = 3
    C = 4
    D = 5
    E = 6
    GLOBAL = 7
    LOCAL = 10
    END = 13


class CommandKind(IntEnum):
    """The kinds of commands, with their operands."""

    LAUNCH = 0
    """A launch of kernel A with B dimensions; C tells whether a local size is given."""
    WRITE = 1
    """A transfer to memory A at offset B, of C bytes from address D."""
    READ = 2
    """A transfer from memory A at offset B, of C bytes to address D."""
    MAP = 3
    """A mapping of memory A from offset B on, of C bytes, with flags D; it must appear at address E."""
    UNMAP = 4
    """The end of a mapping of memory A at address D."""
    REPLAY = 5
    """A replay of the recorded commands A, in the queue whose handle is at address B."""
    UNMAPPED = 6
    """A check that refuses the execution if memory A is mapped."""


WORD = 8
"""Bytes of a word."""
IS_MAPPED = 1
MOVED = 2
"""Statuses of our own: memory is mapped; a mapping appeared at another address."""

_MEM_MAP_COUNT = 0x1104
_EXECUTION_STATUS = 0x11D3
_COMPLETE = 0
# Pause instructions between two queries of an event on a device that computes on the host's processors.
_PAUSES = 64
# The shift that gives the pause before the next check: a 32nd of the time waited so far.
_PATIENCE = 5


def enqueue(block, unused_b, unused_c, unused_d):
    """Enqueue all rows of a block, up to the first that is refused, and flush the queue.

    STATUS and FAILED_ROW tell the outcome. All functions here have four operands, because `CommandLoop` calls them all
    in the same way.
    """
    queue = load(block + WORD * CommandWord.QUEUE)
    row = load(block + WORD * CommandWord.ROWS)
    count = load(block + WORD * CommandWord.COUNT)
    waits = load(block + WORD * CommandWord.WAIT_COUNT)
    wait_list = load(block + WORD * CommandWord.WAIT_LIST)
    status = 0
    index = 0
    while index < count and status == 0:
        kind = load(row)
        event = load(row + WORD * CommandRow.EVENT)
        a = load(row + WORD * CommandRow.A)
        b = load(row + WORD * CommandRow.B)
        c = load(row + WORD * CommandRow.C)
        d = load(row + WORD * CommandRow.D)
        if kind == CommandKind.LAUNCH:
            sizes = row + WORD * CommandRow.LOCAL if c != 0 else 0
            function = load(block + WORD * CommandWord.LAUNCH)
            status = call(function, queue, a, b, 0, row + WORD * CommandRow.GLOBAL, sizes, waits, wait_list, event, 0)
        elif kind == CommandKind.WRITE:
            status = call(load(block + WORD * CommandWord.WRITE), queue, a, 0, b, c, d, waits, wait_list, event, 0)
        elif kind == CommandKind.READ:
            status = call(load(block + WORD * CommandWord.READ), queue, a, 0, b, c, d, waits, wait_list, event, 0)
        elif kind == CommandKind.MAP:
            store(block + WORD * CommandWord.VALUE, 0)
            function = load(block + WORD * CommandWord.MAP)
            at = call_for_address(
                function, queue, a, 0, d, b, c, waits, wait_list, event, block + WORD * CommandWord.VALUE
            )
            status = low_half(load(block + WORD * CommandWord.VALUE))
            if status == 0 and at != load(row + WORD * CommandRow.E):
                status = MOVED
        elif kind == CommandKind.UNMAP:
            status = call(load(block + WORD * CommandWord.UNMAP), queue, a, d, waits, wait_list, event, 0, 0, 0, 0)
        elif kind == CommandKind.REPLAY:
            status = call(load(block + WORD * CommandWord.REPLAY), 1, b, a, waits, wait_list, event, 0, 0, 0, 0)
        else:
            store(block + WORD * CommandWord.VALUE, 0)
            function = load(block + WORD * CommandWord.MEM_INFO)
            status = call(function, a, _MEM_MAP_COUNT, 4, block + WORD * CommandWord.VALUE, 0, 0, 0, 0, 0, 0)
            if status == 0 and low_half(load(block + WORD * CommandWord.VALUE)) != 0:
                status = IS_MAPPED
        if kind != CommandKind.UNMAPPED:
            # The queue is in order, so all commands wait for what the first one waits for.
            waits = 0
            wait_list = 0
        if status == 0:
            index += 1
            row += WORD * CommandRow.END
    store(block + WORD * CommandWord.STATUS, status)
    store(block + WORD * CommandWord.FAILED_ROW, index)
    flushed = call(load(block + WORD * CommandWord.FLUSH), queue, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    if status == 0:
        store(block + WORD * CommandWord.STATUS, flushed)


def wait(block, unused_b, unused_c, unused_d):
    """Wait for a block's EVENT until it has ended, or for SLICE nanoseconds.

    If it is complete, it is released and EVENT becomes 0. Otherwise STATUS has the error of a call, and VALUE has the
    event's execution status: negative if its command failed, positive if it has not ended.
    """
    event = load(block + WORD * CommandWord.EVENT)
    information = load(block + WORD * CommandWord.EVENT_INFO)
    begin = nanoseconds(block + WORD * CommandWord.SECONDS)
    spin = load(block + WORD * CommandWord.SPIN)
    limit = load(block + WORD * CommandWord.SLICE)
    bell = load(block + WORD * CommandWord.BELL)
    polls = 0
    while True:
        store(block + WORD * CommandWord.VALUE, 0)
        status = call(information, event, _EXECUTION_STATUS, 4, block + WORD * CommandWord.VALUE, 0, 0, 0, 0, 0, 0)
        state = low_half(load(block + WORD * CommandWord.VALUE))
        if status != 0 or state <= _COMPLETE:
            store(block + WORD * CommandWord.STATUS, status)
            if status == 0 and state == _COMPLETE:
                store(block + WORD * CommandWord.EVENT, 0)
                call(load(block + WORD * CommandWord.RELEASE), event, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            return
        if load(block + WORD * CommandWord.ARMED) == 0:
            # Spin until SPIN nanoseconds have passed, then ask for a callback.
            polls += 1
            if spin < 0:
                # Querying the event takes a lock that the device needs too.
                for _ in range(_PAUSES):
                    pause()
                make_way()
            elif spin > 0 and polls & 7 != 0:
                # The clock is read at every 8th query only.
                pause()
                continue
            if nanoseconds(block + WORD * CommandWord.SECONDS) - begin < abs(spin):
                continue
            store(block + WORD * CommandWord.ARMED, 1)
            function = load(block + WORD * CommandWord.CALL_BACK)
            status = call(function, event, _COMPLETE, load(block + WORD * CommandWord.NOTIFY), bell, 0, 0, 0, 0, 0, 0)
            if status != 0:
                store(block + WORD * CommandWord.STATUS, status)
                return
        taken = nanoseconds(block + WORD * CommandWord.SECONDS) - begin
        left = limit - taken
        if left <= 0:
            store(block + WORD * CommandWord.STATUS, 0)
            return
        if load_now(bell) != 0:
            # Some drivers call back a moment before they report completion.
            store(block + WORD * CommandWord.SECONDS, 0)
            store(block + WORD * CommandWord.NANOSECONDS, min(left, 20_000))
            sleep(block + WORD * CommandWord.SECONDS)
        else:
            if spin > 0:
                # A device with its own processors: its driver may look for due callbacks only occasionally (one of them
                # every 20 ms), so query the event before that.
                left = min(left, max(spin, taken) >> _PATIENCE)
            store(block + WORD * CommandWord.SECONDS, left // 1_000_000_000)
            store(block + WORD * CommandWord.NANOSECONDS, left % 1_000_000_000)
            sleep_on(bell, block + WORD * CommandWord.SECONDS)


def execute(block, unused_b, unused_c, unused_d):
    """Enqueue all rows of a block, and wait for its EVENT if all were accepted."""
    enqueue(block, 0, 0, 0)
    if load(block + WORD * CommandWord.STATUS) == 0:
        wait(block, 0, 0, 0)


def notify(event, state, word, unused_d):
    """Ring a bell; the driver calls this when an event has ended, with the bell's address as the client's data."""
    ring(word)
