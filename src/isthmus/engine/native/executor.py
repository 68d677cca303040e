"""Runs a program: binds it to the caller's memory, then makes one native call per inference.

Nothing is allocated during a run. With several threads, the caller's thread is one of them; the others wait in native
code and never hold the GIL.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from isthmus.engine.native import control, loader
from isthmus.engine.native.control import ROW_WORDS
from isthmus.engine.native.program import CURSORS, Program
from isthmus.engine.native.target import by_name
from isthmus.errors import Code, QnnError
from isthmus.graph import GraphInfo
from isthmus.memory import Buffer, Window, host
from isthmus.prepare.schedule import Pool
from isthmus.system.interrupts import Finalizer, start

# The C type of kernels.
_KERNEL_TYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
# The C type of ``executor:run``, which returns a status.
_RUN_TYPE = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
KERNELS = ("executor:run", "executor:work", "executor:stop")
"""The kernels that every program needs besides its own."""


class BoundIo:
    """Memory for every input and output of a program, checked and ready to be bound at once.

    Attributes
    ----------
    addresses
        The address of each input, then of each output.
    windows
        The windows by pool number; an executor keeps them, and so their memory, while they are bound.
    """

    def __init__(self, program: Program | GraphInfo, windows: Sequence[Window]) -> None:
        for info, window in zip((*program.inputs, *program.outputs), windows, strict=True):
            window.check(f"memory of tensor '{info.name}'", info.nbytes)
        self.addresses = np.array([window.address for window in windows], np.int64)
        self.windows = {Pool.IO + index: window for index, window in enumerate(windows)}


class Executor:
    """A program bound to memory.

    Parameters
    ----------
    program
        The program to run; it must have been lowered for a target that this machine supports.
    scratch
        At least `program.scratch_bytes`, aligned to `program.alignment`. Its contents need not last between runs.
    state
        At least `program.state_bytes`, with the same alignment. Call `reset` before the first run.
    io
        One window per input, then one per output; None for tensors that will be bound before the first run. An output
        may share bytes with another tensor only if the plan says so.
    """

    def __init__(
        self, program: Program, scratch: Window | None, state: Window | None, io: Sequence[Window | None]
    ) -> None:
        self._code = loader.addresses((*program.kernels, *KERNELS), by_name(program.target))
        owned = [_align(array) for array in (program.constants, *program.segments)]
        self._constants = [memory for memory, _ in owned]
        # It need not keep the constants that it was given if it has a copy.
        constants, *segments = map(_array, self._constants)
        self.program = program = replace(program, constants=constants, segments=tuple(segments))
        self._control_buffer = host(control.control_bytes(program.threads), 64)
        self._control = self._control_buffer.address
        self._pools = Pool.IO + len(program.inputs) + len(program.outputs)
        cursors = CURSORS * bool(program.repeats or program.pipelines or segments) + len(segments)
        # A base table holds the address of each pool, cursor and segment, by number, after a header (see `control`).
        # Pipelining threads have cursors of their own, so each has a base table of its own, which it fills from the
        # first, except for segments.
        tables = np.zeros(
            (program.threads if program.pipelines else 1, control.HEADER_WORDS + self._pools + cursors), np.int64
        )
        self._bases = tables[0, control.HEADER_WORDS :]
        self._bases[Pool.CONSTANT] = owned[0][1]
        if segments:
            tables[:, -len(segments) :] = [address for _, address in owned[1:]]
        self._table = self._native_table()
        tables[0, control.HEADER_WORDS + control.WORDS] = self._words.ctypes.data
        tables[0, control.HEADER_WORDS + control.CONTROL] = self._control
        tables[0, control.HEADER_WORDS + control.BASE_WORDS] = tables.shape[1]
        words = self._control_buffer.array.view(np.int64)
        words[control.TABLE // 8] = self._table.ctypes.data
        words[control.COUNT // 8] = len(self._table)
        words[control.BASES // 8] = self._bases.ctypes.data
        # The bound windows by pool number, which keeps their memory alive.
        self._kept: dict[int, Window] = {}
        self.bind_scratch(scratch)
        self.bind_state(state)
        if len(io) != len(program.inputs) + len(program.outputs):
            raise QnnError(
                Code.COMMON_INVALID_ARGUMENT,
                f"program '{program.name}'",
                f"has {len(program.inputs)} inputs and {len(program.outputs)} outputs, {len(io)} windows given",
            )
        for index, window in enumerate(io):
            if window is not None:
                self.bind_io(index, window)
        run = _RUN_TYPE(self._code["executor:run"])
        # A reference to the call keeps all memory alive that the call uses. So it stays safe after the executor is
        # closed or collected.
        owners = (self._control_buffer.array, self._table, self._bases, self._words, *self._constants, self._kept)
        run.owners = owners  # type: ignore[attr-defined]
        self._entry = run
        self.run: Callable[[], int] = partial(run, self._control, 0, 0, program.threads)
        """Run the program once, with exactly one native call. It returns 0 unless the run failed; `check` says why."""
        workers = _Workers(self._code, self._control, program.threads, owners)
        # The finalizer comes first: an interrupt may arrive while the threads are being started.
        self._ending = Finalizer(self, workers.stop, at_exit=True)
        workers.start()

    @property
    def control(self) -> int:
        """The address of the control block, which native code needs to run the program."""
        return self._control

    @property
    def bound(self) -> Mapping[int, Window]:
        """The windows that it is bound to, by pool number."""
        return self._kept

    @property
    def entry(self) -> int:
        """The address of the function that runs the program; see `run` of `isthmus.engine.native.kernels.executor`."""
        return self._code["executor:run"]

    @property
    def io_addresses(self) -> int:
        """The address where native code may write the addresses of inputs and outputs before a run."""
        return int(self._bases[Pool.IO :].ctypes.data)

    def bind_scratch(self, window: Window | None) -> None:
        """Use this scratch from the next run on; None if the program needs no scratch."""
        self._bind_pool(Pool.SCRATCH, window, "scratch memory", self.program.scratch_bytes)

    def bind_state(self, window: Window | None) -> None:
        """Use this state memory from the next run on; None if the program needs no state."""
        self._bind_pool(Pool.STATE, window, "state memory", self.program.state_bytes)

    def bind_io(self, index: int, window: Window) -> None:
        """Use this memory for an input or output (inputs first) from the next run on."""
        info = (*self.program.inputs, *self.program.outputs)[index]
        window.check(f"memory of tensor '{info.name}'", info.nbytes)
        self._bases[Pool.IO + index] = window.address
        self._kept[Pool.IO + index] = window

    def bind_all_io(self, io: BoundIo) -> None:
        """Use all memory in `io` from the next run on."""
        self._bases[Pool.IO : self._pools] = io.addresses
        self._kept.update(io.windows)

    def _bind_pool(self, pool: Pool, window: Window | None, what: str, nbytes: int) -> None:
        """Bind a pool to a window of at least `nbytes`; `what` names it in errors."""
        if window is None:
            if nbytes:
                raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"it is missing, {nbytes} bytes are needed")
            self._bases[pool] = 0
            self._kept.pop(pool, None)
            return
        window.check(what, nbytes, self.program.alignment)
        self._bases[pool] = window.address
        self._kept[pool] = window

    def run_abortable(self, word: ctypes.c_int64) -> bool:
        """Run once, or until 1 is written into `word`; return whether the run was not aborted."""
        self._entry(self._control, ctypes.addressof(word), 1, self.program.threads)
        return word.value != 1

    def check(self, what: str) -> None:
        """Raise an error if the last run failed because an index was out of range; `what` names the graph."""
        words = self._control_buffer.array.view(np.int64)
        # The address of the instruction, as the index of its first word.
        rows = np.flatnonzero(self.program.table[:, 1] == (words[control.FAULT // 8] - self._words.ctypes.data) // 8)
        if len(rows):
            rule = f"an index that '{self.program.labels[rows[0]]}' reads from a tensor is out of range"
            hint = "Its outputs and states are undefined; reset() restores states."
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, hint)

    def reset(self) -> None:
        """Write the initial state into state memory."""
        initial = self.program.state_initial
        if initial.nbytes:
            ctypes.memmove(int(self._bases[Pool.STATE]), initial.ctypes.data, initial.nbytes)

    def step(self, index: int) -> None:
        """Run one instruction alone on the calling thread, for profiles; a repeated one as in its first iteration.

        The instructions that change its words or set its cursors are run before it.
        """
        for before in self.program.varies:
            if before < index:
                self._call(before)
        # The first word of a repetition is the number of instructions that it repeats.
        for repeat in (*self.program.repeats, *self.program.pipelines):
            if repeat < index <= repeat + self.program.words[self.program.table[repeat, 1]]:
                self.step(repeat)
        self._call(index)

    def _call(self, index: int) -> None:
        """Call the kernel of one instruction as if it had a single thread."""
        _KERNEL_TYPE(int(self._table[index, 0]))(int(self._table[index, 1]), self._bases.ctypes.data, 0, 1)

    def close(self) -> None:
        """Stop the threads; safe to call again."""
        self._ending.run()

    def _native_table(self) -> np.ndarray:
        """Return the program's table with addresses of kernels and instructions (see `control.ROW_WORDS`)."""
        program = self.program
        # If instructions change others, each executor needs its own copy of the words.
        copy_words = np.array if program.varies else np.ascontiguousarray
        self._words = copy_words(program.words, np.int64)
        table = np.empty((len(program.table), ROW_WORDS), np.int64)
        code = np.array([self._code[name] for name in program.kernels], np.int64)
        if len(table):
            table[:, 0] = code[program.table[:, 0]]
            table[:, 1] = self._words.ctypes.data + 8 * program.table[:, 1].astype(np.int64)
            table[:, 2] = program.table[:, 2]
        for repeat in program.repeats:
            table[repeat, 2] = -self._words[program.table[repeat, 1]]
        for row in (*program.pipelines, *program.branches):
            table[row, 2] |= self._words[program.table[row, 1]] << control.SKIP_BITS
        return table


def _align(constants: np.ndarray) -> tuple[np.ndarray | Buffer, int]:
    """Return the owner of the constants' memory and their address; they are copied if they are not aligned."""
    if constants.ctypes.data % 64 == 0:
        return constants, constants.ctypes.data
    buffer = host(constants.nbytes, 64)
    buffer.array[:] = constants
    return buffer, buffer.address


def _array(memory: np.ndarray | Buffer) -> np.ndarray:
    """Return memory as an array."""
    return memory.array if isinstance(memory, Buffer) else memory


class _Workers:
    """Threads 1 to `threads` - 1 of a program; they wait in native code for shares of its instructions.

    Parameters
    ----------
    code
        Addresses of the executor's kernels.
    address
        The address of the control block that they work on.
    owners
        Objects that keep all memory alive that the threads access.
    """

    def __init__(self, code: dict[str, int], address: int, threads: int, owners: tuple[object, ...]) -> None:
        self._control, self._thread_count = address, threads
        self._work, self._stop = _KERNEL_TYPE(code["executor:work"]), _KERNEL_TYPE(code["executor:stop"])
        # Each thread keeps the memory that it uses alive, whatever else is collected.
        self._work.owners = self._stop.owners = owners  # type: ignore[attr-defined]
        self._threads = [
            threading.Thread(target=_work, args=(self._work, address, tid, threads), name=f"isthmus-{tid}", daemon=True)
            for tid in range(1, threads)
        ]

    def start(self) -> None:
        """Start all threads, or stop them and raise an error."""
        try:
            for thread in self._threads:
                start(thread)
        except RuntimeError as problem:
            self.stop()
            what, rule = f"{len(self._threads) + 1} threads", f"the system starts no more: {problem}"
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, what, rule) from None

    def stop(self) -> None:
        """Stop the threads and wait for them; a thread that has not begun yet ends at once. Safe to call again."""
        if self._threads:
            self._stop(self._control, 0, 0, self._thread_count)
            for thread in self._threads:
                if thread.ident is not None:
                    thread.join()


def _work(work: Callable[..., None], address: int, tid: int, threads: int) -> None:
    """Run the native loop of one thread until it is stopped; `address` is that of the control block."""
    work(address, 0, tid, threads)
