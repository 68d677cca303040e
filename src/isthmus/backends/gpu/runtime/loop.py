"""What an execution does in native code: put its commands into the queue, then wait for the last one.

One call does both, so a launch costs what the driver takes and no crossing from Python. Waiting spins for a while where
that pays, then sleeps until the driver calls back, or for a part of the time that it took so far where drivers call
back late; it ends after a time in any case, so that whoever waits can look whether it should. All work on a block of
words (`Word`); commands are rows of words (`Row`).

These functions are typed by numba when they are compiled; `call`, `load` and their like are given to them there.
"""
# mypy: ignore-errors
# ruff: noqa: F821

from __future__ import annotations

from enum import IntEnum


class Word(IntEnum):
    """The block: what to do, with which functions, and what came of it."""

    QUEUE = 0
    ROWS = 1
    COUNT = 2
    WAIT_COUNT = 3
    WAIT_LIST = 4
    STATUS = 5
    FAILED_ROW = 6
    EVENT = 7
    """What is waited for; nothing once it is complete."""
    VALUE = 8
    SPIN = 9
    """Nanoseconds to spin for; with a minus sign, making way for whoever wants the processor meanwhile."""
    SLICE = 10
    """Nanoseconds to wait for in all."""
    BELL = 11
    """Where a word is that becomes 1 when the driver calls back."""
    ARMED = 12
    """Whether the driver was asked to."""
    SECONDS = 13
    NANOSECONDS = 14
    LAUNCH = 15
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


class Row(IntEnum):
    """A command: what it is, where its event goes, its operands."""

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


class Kind(IntEnum):
    """Commands."""

    LAUNCH = 0
    """Kernel A with B dimensions; C says whether a local size is given."""
    WRITE = 1
    """To memory A at B, C bytes from address D."""
    READ = 2
    """From memory A at B, C bytes to address D."""
    MAP = 3
    """Memory A from B on, C bytes, for D, which must appear at address E."""
    UNMAP = 4
    """Memory A from address D."""
    REPLAY = 5
    """The recorded commands A, in the queue whose handle stands at B."""
    UNMAPPED = 6
    """Nothing, but refuse if memory A is mapped."""


WORD = 8
IS_MAPPED = 1
MOVED = 2
"""Statuses of our own: memory is mapped by somebody; a mapping appeared elsewhere."""

_MEM_MAP_COUNT = 0x1104
_EXECUTION_STATUS = 0x11D3
_COMPLETE = 0
_PAUSES = 64
_PATIENCE = 5
"""Who waited for some time looks again after a 32nd of it."""


def enqueue(block, unused_b, unused_c, unused_d):
    queue = load(block + WORD * Word.QUEUE)
    row = load(block + WORD * Word.ROWS)
    count = load(block + WORD * Word.COUNT)
    waits = load(block + WORD * Word.WAIT_COUNT)
    wait_list = load(block + WORD * Word.WAIT_LIST)
    status = 0
    index = 0
    while index < count and status == 0:
        kind = load(row)
        event = load(row + WORD * Row.EVENT)
        a = load(row + WORD * Row.A)
        b = load(row + WORD * Row.B)
        c = load(row + WORD * Row.C)
        d = load(row + WORD * Row.D)
        if kind == Kind.LAUNCH:
            sizes = row + WORD * Row.LOCAL if c != 0 else 0
            function = load(block + WORD * Word.LAUNCH)
            status = call(function, queue, a, b, 0, row + WORD * Row.GLOBAL, sizes, waits, wait_list, event, 0)
        elif kind == Kind.WRITE:
            status = call(load(block + WORD * Word.WRITE), queue, a, 0, b, c, d, waits, wait_list, event, 0)
        elif kind == Kind.READ:
            status = call(load(block + WORD * Word.READ), queue, a, 0, b, c, d, waits, wait_list, event, 0)
        elif kind == Kind.MAP:
            store(block + WORD * Word.VALUE, 0)
            function = load(block + WORD * Word.MAP)
            at = call_for_address(function, queue, a, 0, d, b, c, waits, wait_list, event, block + WORD * Word.VALUE)
            status = low_half(load(block + WORD * Word.VALUE))
            if status == 0 and at != load(row + WORD * Row.E):
                status = MOVED
        elif kind == Kind.UNMAP:
            status = call(load(block + WORD * Word.UNMAP), queue, a, d, waits, wait_list, event, 0, 0, 0, 0)
        elif kind == Kind.REPLAY:
            status = call(load(block + WORD * Word.REPLAY), 1, b, a, waits, wait_list, event, 0, 0, 0, 0)
        else:
            store(block + WORD * Word.VALUE, 0)
            function = load(block + WORD * Word.MEM_INFO)
            status = call(function, a, _MEM_MAP_COUNT, 4, block + WORD * Word.VALUE, 0, 0, 0, 0, 0, 0)
            if status == 0 and low_half(load(block + WORD * Word.VALUE)) != 0:
                status = IS_MAPPED
        if kind != Kind.UNMAPPED:
            # The queue keeps the order: what the first command waits for, all do.
            waits = 0
            wait_list = 0
        if status == 0:
            index += 1
            row += WORD * Row.END
    store(block + WORD * Word.STATUS, status)
    store(block + WORD * Word.FAILED_ROW, index)
    flushed = call(load(block + WORD * Word.FLUSH), queue, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    if status == 0:
        store(block + WORD * Word.STATUS, flushed)


def wait(block, unused_b, unused_c, unused_d):
    event = load(block + WORD * Word.EVENT)
    information = load(block + WORD * Word.EVENT_INFO)
    begin = nanoseconds(block + WORD * Word.SECONDS)
    spin = load(block + WORD * Word.SPIN)
    limit = load(block + WORD * Word.SLICE)
    bell = load(block + WORD * Word.BELL)
    polls = 0
    while True:
        store(block + WORD * Word.VALUE, 0)
        status = call(information, event, _EXECUTION_STATUS, 4, block + WORD * Word.VALUE, 0, 0, 0, 0, 0, 0)
        state = low_half(load(block + WORD * Word.VALUE))
        if status != 0 or state <= _COMPLETE:
            store(block + WORD * Word.STATUS, status)
            if status == 0 and state == _COMPLETE:
                store(block + WORD * Word.EVENT, 0)
                call(load(block + WORD * Word.RELEASE), event, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            return
        if load(block + WORD * Word.ARMED) == 0:
            polls += 1
            if spin < 0:
                # To ask takes a lock that the device needs too.
                for _ in range(_PAUSES):
                    pause()
                make_way()
            elif spin > 0 and polls & 7 != 0:
                pause()
                continue
            if nanoseconds(block + WORD * Word.SECONDS) - begin < abs(spin):
                continue
            store(block + WORD * Word.ARMED, 1)
            function = load(block + WORD * Word.CALL_BACK)
            status = call(function, event, _COMPLETE, load(block + WORD * Word.NOTIFY), bell, 0, 0, 0, 0, 0, 0)
            if status != 0:
                store(block + WORD * Word.STATUS, status)
                return
        taken = nanoseconds(block + WORD * Word.SECONDS) - begin
        left = limit - taken
        if left <= 0:
            store(block + WORD * Word.STATUS, 0)
            return
        if load_now(bell) != 0:
            # Some drivers call back a moment before they say so.
            store(block + WORD * Word.SECONDS, 0)
            store(block + WORD * Word.NANOSECONDS, min(left, 20_000))
            sleep(block + WORD * Word.SECONDS)
        else:
            if spin > 0:
                # Drivers of such devices may look only now and then whom to call back (every 20 ms, one of them).
                left = min(left, max(spin, taken) >> _PATIENCE)
            store(block + WORD * Word.SECONDS, left // 1_000_000_000)
            store(block + WORD * Word.NANOSECONDS, left % 1_000_000_000)
            sleep_on(bell, block + WORD * Word.SECONDS)


def execute(block, unused_b, unused_c, unused_d):
    enqueue(block, 0, 0, 0)
    if load(block + WORD * Word.STATUS) == 0:
        wait(block, 0, 0, 0)


def notify(event, state, word, unused_d):
    ring(word)
