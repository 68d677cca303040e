"""The executor: walks a program's table and calls one kernel after the other, alone or with worker threads.

Only instructions that are worth it are split into shares. Any free thread takes the next share, also the caller's. So a
worker that sleeps, or that the system has suspended, delays nothing. Shares do not depend on which thread takes them,
so results do not either. All shared words are in the control block; its layout is in `isthmus.engine.native.control`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from isthmus.compiled.instructions import FUTEX, YIELD, atomic_add, atomic_load, atomic_store, system_call
from isthmus.engine.native.control import (
    ABORT,
    ABORT_NUMBER,
    BASES,
    BODY,
    COUNT,
    COUNT_BITS,
    DONE,
    FAULT,
    LINE,
    NEXT_ITERATION,
    PROGRESS,
    ROW_BITS,
    ROW_WORDS,
    SHARE_BITS,
    SKIP_BITS,
    SLEEPERS,
    STOP,
    TABLE,
    TICKET,
    WAKE,
)
from isthmus.engine.native.kernels.atomics import architecture, pause_of
from isthmus.engine.native.kernels.base import I64, device, generated, load_i64, store_i64
from isthmus.engine.native.target import Target

# How often a worker looks for work before it sleeps.
_SPINS_BEFORE_SLEEP = 4_000
SPINS_BEFORE_YIELD = 400
"""How often a thread looks for another one's progress before it gives up the processor for a moment."""
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129


@intrinsic
def call_kernel(typing_context: Any, function: Any, p: Any, b: Any, tid: Any, nt: Any) -> Any:
    """Call the kernel at the address `function` with four numbers."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 4)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), emit


@device
def _row(table, ticket):  # type: ignore[no-untyped-def]
    """Return the row of the table that a ticket refers to."""
    return table + 8 * ROW_WORDS * ((ticket >> SHARE_BITS) & ((1 << ROW_BITS) - 1))


@device
def _shares(row):  # type: ignore[no-untyped-def]
    """Return the number of shares into which a row's instruction is split."""
    return load_i64(row, 2) & ((1 << SKIP_BITS) - 1)


@device
def _take_shares(control):  # type: ignore[no-untyped-def]
    """Compute shares of the shared instruction until none is left."""
    table, bases = load_i64(control + TABLE, 0), load_i64(control + BASES, 0)
    last_share = (1 << SHARE_BITS) - 1
    while True:
        # Reading first keeps the share number from growing while nothing is shared.
        ticket = atomic_load(control + TICKET)
        if ticket & last_share >= _shares(_row(table, ticket)):
            return
        # A ticket names its own row, so it stays valid however late its holder uses it. And an instruction does not end
        # before every share that was taken is finished.
        ticket = atomic_add(control + TICKET, 1)
        row, share = _row(table, ticket), ticket & last_share
        shares = _shares(row)
        if share >= shares:
            return
        call_kernel(load_i64(row, 0), load_i64(row, 1), bases, share, shares)
        atomic_add(control + DONE, 1)


@device
def _begin_pipeline(control, body, abort, number, threads):  # type: ignore[no-untyped-def]
    """Initialize what an instruction that executes those after it needs, while no thread computes.

    `body` is the address of the first of their rows; `abort` and `number` are those of `run`.
    """
    store_i64(control + BODY, 0, body)
    store_i64(control + ABORT, 0, abort)
    store_i64(control + ABORT_NUMBER, 0, number)
    for thread in range(threads):
        atomic_store(control + PROGRESS + LINE * thread, 0)
    atomic_store(control + NEXT_ITERATION, 0)


@generated
def run(target: Target, variant: str) -> Any:
    """Run the program once on the calling thread and any workers, or until it is aborted.

    Arguments: control block, the address of a word (or 0), the number that is written there to abort this run, threads.
    The result is the address of an instruction that met an index outside its axis, or 0.
    """
    pause, futex, yield_number = pause_of(target), FUTEX[architecture(target)], YIELD[architecture(target)]

    @device
    def run_program(control, abort, number, nt):  # type: ignore[no-untyped-def]
        table, count, bases = load_i64(control + TABLE, 0), load_i64(control + COUNT, 0), load_i64(control + BASES, 0)
        # The row of the repeating instruction, the index of the last repeated one, and the remaining iterations.
        repeat, last, left = table, -1, 0
        store_i64(control + FAULT, 0, 0)
        i = -1
        while True:
            if i == last and left > 0:
                left -= 1
                if left > 0:
                    # Cursors move while no thread computes: all shares of the last instruction are finished.
                    times = load_i64(load_i64(repeat, 1), 1)
                    call_kernel(load_i64(repeat, 0), load_i64(repeat, 1), bases, times - left, times)
                    i += load_i64(repeat, 2)
            i += 1
            if i >= count or (abort != 0 and atomic_load(abort) == number):
                return load_i64(control + FAULT, 0)
            row = table + 8 * ROW_WORDS * i
            shares = load_i64(row, 2)
            if shares == 1:
                call_kernel(load_i64(row, 0), load_i64(row, 1), bases, 0, 1)
                continue
            if shares < 0:
                # This many of the following instructions are executed as often as the second word says.
                repeat, last, left = row, i - shares, load_i64(load_i64(row, 1), 1)
                call_kernel(load_i64(row, 0), load_i64(row, 1), bases, 0, left)
                continue
            skip = shares >> SKIP_BITS
            if skip > 0:
                # This many of the following instructions are executed by the shares of this one.
                shares = _shares(row)
                _begin_pipeline(control, row + 8 * ROW_WORDS, abort, number, min(shares, nt))
            atomic_store(control + DONE, 0)
            shared = (atomic_load(control + TICKET) >> (SHARE_BITS + ROW_BITS)) + 1
            shared &= (1 << COUNT_BITS) - 1
            # The first share belongs to this thread, without taking a ticket.
            atomic_store(control + TICKET, (shared << ROW_BITS | i) << SHARE_BITS | 1)
            if atomic_load(control + SLEEPERS) > 0:
                atomic_add(control + WAKE, 1)
                system_call(futex, control + WAKE, _FUTEX_WAKE_PRIVATE, 1 << 30, 0)
            call_kernel(load_i64(row, 0), load_i64(row, 1), bases, 0, shares)
            _take_shares(control)
            spins = 0
            while atomic_load(control + DONE) < shares - 1:
                pause()
                spins += 1
                if spins > SPINS_BEFORE_YIELD:
                    # The thread that computes the last share may be waiting for this processor.
                    system_call(yield_number, 0, 0, 0, 0)
                    spins = 0
            i += skip

    return run_program


@generated
def work(target: Target, variant: str) -> Any:
    """Run a worker thread: take shares while there are any, else spin and sleep, until stopped.

    Arguments: control block, 0, thread, threads.
    """
    pause, futex = pause_of(target), FUTEX[architecture(target)]

    @device
    def work_until_stopped(control, unused, tid, nt):  # type: ignore[no-untyped-def]
        # The count and row of the last shared instruction that this thread took shares of.
        seen, spins = atomic_load(control + TICKET) >> SHARE_BITS, 0
        while atomic_load(control + STOP) == 0:
            shared = atomic_load(control + TICKET) >> SHARE_BITS
            if shared != seen:
                seen, spins = shared, 0
                _take_shares(control)
            elif spins < _SPINS_BEFORE_SLEEP:
                pause()
                spins += 1
            else:
                spins = 0
                awake = atomic_load(control + WAKE)
                atomic_add(control + SLEEPERS, 1)
                if atomic_load(control + TICKET) >> SHARE_BITS == seen and atomic_load(control + STOP) == 0:
                    # The futex compares the low 32 bits of the counter.
                    system_call(futex, control + WAKE, _FUTEX_WAIT_PRIVATE, awake & 0xFFFFFFFF, 0)
                atomic_add(control + SLEEPERS, -1)

    return work_until_stopped


@generated
def stop(target: Target, variant: str) -> Any:
    """Stop the workers. Arguments: control block, 0, 0, threads."""
    futex = FUTEX[architecture(target)]

    @device
    def stop_workers(control, unused, zero, nt):  # type: ignore[no-untyped-def]
        atomic_store(control + STOP, 1)
        atomic_add(control + WAKE, 1)
        system_call(futex, control + WAKE, _FUTEX_WAKE_PRIVATE, 1 << 30, 0)

    return stop_workers
