"""A graph prepared for LPAI, and the memory of the model binary and of IO where the configuration asks for TCM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isthmus.backends.lpai_config import MEM_TYPES
from isthmus.backends.lpai_options import BufferAlignmentReq, MemType
from isthmus.binary import GraphBinary
from isthmus.engine.native import lower, serialization
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import by_name, runnable
from isthmus.engine.native.target import host as host_target
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph
from isthmus.log import Log, LogLevel
from isthmus.memory import Region
from isthmus.memory.tcm import TcmBuffer
from isthmus.memory.tcm import pool as tcm_pool
from isthmus.prepare import schedule
from isthmus.prepare.schedule import Plan


@dataclass(frozen=True)
class Prepared:
    """A graph ready for memory: its program, and where IO lies in scratch (empty: planned out)."""

    program: Program
    io_offsets: tuple[int, ...]


def prepare(graph: Graph, alignment: int, exclude_io: bool) -> tuple[Prepared, Plan]:
    """Plan a complete graph for the core, which runs it on one thread."""
    target = host_target()
    planned = schedule(
        graph,
        work_bytes=lambda step: lower.work_bytes(step, target, 1),
        alignment=alignment,
        io_in_scratch=not exclude_io,
    )
    return Prepared(lower.lower(planned, target, 1), planned.io_offsets), planned.plan


def restored(binary: GraphBinary, alignment: int) -> Prepared:
    """A graph out of a context binary, if this machine and the configured alignment can run it."""
    program = binary.program

    def refuse(rule: str) -> QnnError:
        what = f"graph '{program.name}'"
        return QnnError(Code.COMMON_INCOMPATIBLE_BINARIES, what, rule, "Generate the binary again.")

    if not runnable(by_name(program.target)):
        raise refuse(f"it was prepared for {program.target}, which this machine is not")
    if program.threads != 1:
        raise refuse(f"it was prepared for {program.threads} threads, an LPAI core runs one")
    if alignment % program.alignment:
        raise refuse(f"its pools must start at multiples of {program.alignment}, the backend asks for {alignment} only")
    return Prepared(program, binary.io_offsets)


@dataclass(frozen=True)
class Model:
    """A program where it executes from, its own IO regions if it has any, and the buffers that belong to it."""

    program: Program
    io: tuple[Region, ...] = ()
    buffers: tuple[TcmBuffer, ...] = ()

    def close(self) -> None:
        """Give the buffers back; safe to call again."""
        for buffer in self.buffers:
            buffer.close()


@dataclass(frozen=True)
class Allocator:
    """What LPAI's backend extensions do: buffers for IO and the model binary in the configured memory type.

    Parameters
    ----------
    mem_type
        The type of both; they are never mixed.
    source
        Where the configuration comes from, for messages.
    """

    mem_type: MemType
    alignment: BufferAlignmentReq
    source: str
    log: Log

    def place(self, program: Program, graph: str, with_io: bool) -> Model:
        """The program in its memory type, with IO buffers beside it if asked; all of it or nothing."""
        if self.mem_type is MemType.DDR:
            return Model(program)
        buffers: list[TcmBuffer] = []
        io = []
        try:
            binary = serialization.to_bytes(program)
            buffers.append(self._buffer(f"model binary of {graph}", len(binary)))
            place = buffers[-1].array[: len(binary)]
            place[:] = np.frombuffer(binary, np.uint8)
            program = serialization.from_bytes(place.data)
            for info in (*program.inputs, *program.outputs) if with_io else ():
                buffers.append(self._buffer(f"buffer of tensor '{info.name}' of {graph}", info.nbytes))
                io.append(Region(buffers[-1].region.address, info.nbytes, buffers[-1].array))
        except BaseException:
            Model(program, buffers=tuple(buffers)).close()
            raise
        return Model(program, tuple(io), tuple(buffers))

    def _buffer(self, what: str, nbytes: int) -> TcmBuffer:
        if self.mem_type is not MemType.TCM:
            self.log(LogLevel.ERROR, "Memory type only supports DDR & TCM")
            raise QnnError(
                Code.COMMON_MEM_ALLOC,
                what,
                f"cannot be allocated: the memory type in {self.source} is unknown",
                f"Set lpai_graph.execute.mem_type to {' or '.join(map(repr, MEM_TYPES))}.",
            )
        start = max(self.alignment.start_addr_alignment, serialization.ALIGNMENT)
        return tcm_pool().require(self.alignment.padded(nbytes), start, self.log, what)
