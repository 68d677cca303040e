"""Pipelining of tiles: each thread takes the next iteration of a repetition, with results in an arena of its own.

Data that an iteration keeps for the next one passes between threads. So an iteration stays as many instructions behind
the one before it as the program says. It never waits for an iteration that no thread has taken, because iterations are
taken in order.
"""

from __future__ import annotations

from typing import Any

from isthmus.compiled.instructions import YIELD, atomic_add, atomic_load, atomic_store, system_call
from isthmus.engine.native.control import (
    ABORT,
    ABORT_NUMBER,
    BASE_WORDS,
    BODY,
    CONTROL,
    HEADER_WORDS,
    LINE,
    NEXT_ITERATION,
    PROGRESS,
    ROW_WORDS,
)
from isthmus.engine.native.kernels.atomics import architecture, pause_of
from isthmus.engine.native.kernels.base import device, generated, load_i64, store_i64, word
from isthmus.engine.native.kernels.executor import SPINS_BEFORE_YIELD, call_kernel
from isthmus.engine.native.signatures.tiles import PIPELINE
from isthmus.engine.native.target import Target
from isthmus.prepare.schedule import Pool

_WORDS = PIPELINE.place
_SCRATCH = int(Pool.SCRATCH)


@device
def _point(p, b, iteration):  # type: ignore[no-untyped-def]
    """Point the cursors of a thread at their positions in an iteration."""
    first, cursors = word(p, _WORDS.first_cursor) + 1, word(p, _WORDS.cursors)
    for i in range(cursors):
        pool, stride = word(p, _WORDS.pools + i), word(p, _WORDS.pools + cursors + i)
        store_i64(b, first + i, load_i64(b, pool) + iteration * stride)


@generated
def take(target: Target, variant: str) -> Any:
    """Take iterations until none is left. With one thread, only point the cursors at the first one (for profiles)."""
    pause, yield_number = pause_of(target), YIELD[architecture(target)]

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        instructions, times, lead = word(p, _WORDS.instructions), word(p, _WORDS.times), word(p, _WORDS.lead)
        arena = word(p, _WORDS.first_cursor)
        # The base table of this thread: a copy of the first thread's, except for arena and cursors.
        own = b + 8 * tid * load_i64(b, BASE_WORDS)
        if tid > 0:
            for i in range(-HEADER_WORDS, arena):
                store_i64(own, i, load_i64(b, i))
        store_i64(own, arena, load_i64(own, _SCRATCH) + tid * word(p, _WORDS.arena_bytes))
        if nt == 1:
            _point(p, own, 0)
            return
        control = load_i64(b, CONTROL)
        body, abort, number = (
            load_i64(control + BODY, 0),
            load_i64(control + ABORT, 0),
            load_i64(control + ABORT_NUMBER, 0),
        )
        while True:
            iteration = atomic_add(control + NEXT_ITERATION, 1)
            if iteration >= times:
                return
            _point(p, own, iteration)
            # The word is reused by an iteration that cannot begin before this one has ended.
            progress = control + PROGRESS + LINE * (iteration % nt)
            progress_before = control + PROGRESS + LINE * ((iteration + nt - 1) % nt)
            done = 0
            for i in range(instructions):
                # How far the iteration before must be: ahead by `lead`, or finished.
                wanted = (iteration - 1) * instructions + min(i + 1 + lead, instructions)
                spins = 0
                while iteration > 0 and done < wanted:
                    done = atomic_load(progress_before)
                    if done < wanted:
                        pause()
                        spins += 1
                        if spins > SPINS_BEFORE_YIELD:
                            system_call(yield_number, 0, 0, 0, 0)
                            spins = 0
                # In an aborted run all iterations are still taken, since other threads wait for them, but nothing is
                # computed.
                if abort == 0 or atomic_load(abort) != number:
                    row = body + 8 * ROW_WORDS * i
                    call_kernel(load_i64(row, 0), load_i64(row, 1), own, 0, 1)
                atomic_store(progress, iteration * instructions + i + 1)

    return kernel
