"""The model binary and its IO in the memory type that the configuration asks for: DDR, or TCM in direct mode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isthmus.backends.lpai_config import MEM_TYPES
from isthmus.backends.lpai_options import BufferAlignmentReq, MemType
from isthmus.engine.native import serialization
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel
from isthmus.memory import Buffer, Window, holds, tcm


@dataclass(frozen=True)
class Model:
    """A program where it executes from, its own IO windows if it has any, and what it holds of TCM."""

    program: Program
    io: tuple[Window, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    holds: tuple[holds.Hold, ...] = ()

    def close(self) -> None:
        """Give the buffers back; safe to call again."""
        for hold in self.holds:
            hold.release()
        for buffer in self.buffers:
            buffer.close()


@dataclass(frozen=True)
class Allocator:
    """What LPAI's backend extensions do: buffers for IO and the model binary in the configured memory type.

    Parameters
    ----------
    mem_type
        The type of both; they are never mixed.
    target_env
        Where the model runs: TCM is there in ADSP direct mode only.
    source
        Where the configuration comes from, for messages.
    """

    mem_type: MemType
    target_env: str
    alignment: BufferAlignmentReq
    source: str
    log: Log

    def place(self, program: Program, graph: str, with_io: bool) -> Model:
        """The program in its memory type, with IO buffers beside it if asked; all of it or nothing."""
        if self.mem_type is MemType.DDR:
            return Model(program)
        model = Model(program)
        try:
            binary = serialization.to_bytes(program)
            model = self._with(model, f"model binary of {graph}", len(binary))
            place = model.buffers[0].array[: len(binary)]
            place[:] = np.frombuffer(binary, np.uint8)
            placed = serialization.from_bytes(place.data)
            model = Model(placed, (), model.buffers, model.holds)
            for info in (*program.inputs, *program.outputs) if with_io else ():
                model = self._with(model, f"buffer of tensor '{info.name}' of {graph}", info.nbytes)
                io = (*model.io, model.buffers[-1].window(0, info.nbytes))
                model = Model(placed, io, model.buffers, model.holds)
        except BaseException:
            model.close()
            raise
        return model

    def allocate(self, what: str, nbytes: int) -> Buffer:
        """A buffer of TCM that can hold so many bytes. There is no fallback to DDR.

        Raises
        ------
        QnnError
            COMMON_PLATFORM_NOT_SUPPORTED where there is no TCM, COMMON_MEM_ALLOC where the type is unknown or the pool
            has too little left.
        """
        if self.mem_type is not MemType.TCM:
            self.log(LogLevel.ERROR, "Memory type only supports DDR & TCM")
            raise QnnError(
                Code.COMMON_MEM_ALLOC,
                what,
                f"cannot be allocated: the memory type in {self.source} is unknown",
                f"Set lpai_graph.execute.mem_type to {' or '.join(map(repr, MEM_TYPES))}.",
            )
        if self.target_env != "adsp":
            raise QnnError(
                Code.COMMON_PLATFORM_NOT_SUPPORTED,
                what,
                f"TCM is only available in ADSP direct mode, the target environment is {self.target_env}",
                'Set lpai_backend.target_env to "adsp", or lpai_graph.execute.mem_type to "ddr".',
            )
        start = max(self.alignment.start_addr_alignment, serialization.ALIGNMENT)
        try:
            return tcm.allocate(self.alignment.padded(nbytes), start, self.log)
        except QnnError as problem:
            raise QnnError(problem.code, what, problem.rule, problem.hint) from None

    def _with(self, model: Model, what: str, nbytes: int) -> Model:
        """The model with one buffer more, which nobody else may use."""
        buffer = self.allocate(what, nbytes)
        hold = holds.claim(buffer.window(), what, what)
        return Model(model.program, model.io, (*model.buffers, buffer), (*model.holds, hold))
