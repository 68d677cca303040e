"""Pipelining of tiles: each thread takes the next iteration of a repetition, with results in an arena of its own.

Data that an iteration keeps for the next one passes between threads. So an iteration stays as many instructions behind
the one before it as the program says. It never waits for an iteration that no thread has taken, because iterations are
taken in order.

Branches need none of that: their instructions do not depend on each other, so threads take shares of all of them.
"""

from __future__ import annotations

from typing import Any

from isthmus.compiled.instructions import YIELD, atomic_add, atomic_load, atomic_store, system_call
from isthmus.engine.native import control as layout
from isthmus.engine.native.kernels.atomics import architecture, pause_of
from isthmus.engine.native.kernels.base import generated, kernel, load_i64, store_i64
from isthmus.engine.native.kernels.executor import SPINS_BEFORE_YIELD, call_kernel
from isthmus.engine.native.kernels.tiles import point_cursors
from isthmus.engine.native.signatures.tiles import BRANCHES, PIPELINE
from isthmus.engine.native.target import Target
from isthmus.prepare.schedule import Pool

_SCRATCH = int(Pool.SCRATCH)


@generated
def take(target: Target, variant: str) -> Any:
    """Take iterations until none is left, and execute the repeated instructions for each.

    With one thread nothing is executed: a profile runs the instructions itself (`Executor.step`), one by one as in the
    first iteration, and only needs the cursors (bases that advance by a stride each iteration, see `signatures.tiles`)
    to point at it. Before instruction i, an iteration waits until the previous one has executed instruction i + `lead`.
    """
    pause, yield_number = pause_of(target), YIELD[architecture(target)]

    @kernel(PIPELINE)
    def execute(instructions, times, first_cursor, arena_bytes, lead, cursors, pools, strides, bases, tid, nt):
        # The base table of this thread: a copy of the first thread's, except for arena and cursors.
        own = bases + 8 * tid * load_i64(bases, layout.BASE_WORDS)
        if tid > 0:
            for i in range(-layout.HEADER_WORDS, first_cursor):
                store_i64(own, i, load_i64(bases, i))
        store_i64(own, first_cursor, load_i64(own, _SCRATCH) + tid * arena_bytes)
        if nt == 1:
            point_cursors(own, first_cursor + 1, cursors, pools, strides, 0)
            return
        control = load_i64(bases, layout.CONTROL)
        body, abort = load_i64(control + layout.BODY, 0), load_i64(control + layout.ABORT, 0)
        number = load_i64(control + layout.ABORT_NUMBER, 0)
        while True:
            iteration = atomic_add(control + layout.NEXT_ITERATION, 1)
            if iteration >= times:
                return
            point_cursors(own, first_cursor + 1, cursors, pools, strides, iteration)
            # The word is reused by an iteration that cannot begin before this one has ended.
            progress = control + layout.PROGRESS + layout.LINE * (iteration % nt)
            progress_before = control + layout.PROGRESS + layout.LINE * ((iteration + nt - 1) % nt)
            done = 0
            for i in range(instructions):
                # Instructions that the iteration before must have completed: up to this one plus `lead`, or all.
                least = (iteration - 1) * instructions + min(i + 1 + lead, instructions)
                spins = 0
                while iteration > 0 and done < least:
                    done = atomic_load(progress_before)
                    if done < least:
                        pause()
                        spins += 1
                        if spins > SPINS_BEFORE_YIELD:
                            system_call(yield_number, 0, 0, 0, 0)
                            spins = 0
                # In an aborted run all iterations are still taken, since other threads wait for them, but nothing is
                # computed.
                if abort == 0 or atomic_load(abort) != number:
                    row = body + 8 * layout.ROW_WORDS * i
                    call_kernel(load_i64(row, 0), load_i64(row, 1), own, 0, 1)
                atomic_store(progress, iteration * instructions + i + 1)

    return execute


@generated
def branches(target: Target, variant: str) -> Any:
    """Compute a share of one of the following instructions, whose shares are counted one after the other.

    With one thread nothing is computed, as for `take`; nor in an aborted run.
    """

    @kernel(BRANCHES)
    def execute(instructions, bases, tid, nt):
        if nt == 1:
            return
        control = load_i64(bases, layout.CONTROL)
        abort, number = load_i64(control + layout.ABORT, 0), load_i64(control + layout.ABORT_NUMBER, 0)
        if abort != 0 and atomic_load(abort) == number:
            return
        row, share = load_i64(control + layout.BODY, 0), tid
        for _ in range(instructions):
            shares = load_i64(row, 2)
            if share < shares:
                call_kernel(load_i64(row, 0), load_i64(row, 1), bases, share, shares)
                return
            share -= shares
            row += 8 * layout.ROW_WORDS

    return execute
