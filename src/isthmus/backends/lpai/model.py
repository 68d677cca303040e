"""The model binary and its IO in the configured memory type: DDR, or TCM in direct mode.

The model binary is a whole context binary, header included. For all graphs of a context created from a binary, it is
that binary; for a composed graph, a binary of this graph alone. This machine executes code that is made of it, in
private memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from isthmus.backends.lpai.config import HARDWARE_WITH_TCM, MEM_TYPES
from isthmus.backends.lpai.options import BufferAlignmentReq, LpaiMemType
from isthmus.backends.seam.planned import FORMAT
from isthmus.errors import Code, QnnError
from isthmus.graph import GraphInfo
from isthmus.log import Log, LogLevel
from isthmus.memory import Buffer, Window, holds, host, tcm


def start_alignment(alignment: BufferAlignmentReq) -> int:
    """Return the alignment of the backend's buffers; it suits model binaries too, which are read in place."""
    return max(alignment.start_addr_alignment, FORMAT.alignment)


def unknown_mem_type(what: str, source: str) -> QnnError:
    """Return the error of memory whose configured type is neither DDR nor TCM; `source` names the configuration."""
    rule = f"cannot be allocated: the memory type in {source} is unknown"
    hint = f"Set lpai_graph.execute.mem_type to {' or '.join(map(repr, MEM_TYPES))}."
    return QnnError(Code.COMMON_MEM_ALLOC, what, rule, hint)


class ModelBinary:
    """A context binary, and its copy in TCM while graphs that it holds are finalized.

    - `content`: Its bytes.
    - `_users`: The names of the graphs that execute from the copy.
    - `_placed`: The copy in TCM while there is one: its buffer, the hold on it, and its contents.
    """

    def __init__(self, content: bytes | memoryview, what: str) -> None:
        self._content, self._what = content, what
        self._users: set[str] = set()
        self._placed: tuple[Buffer, holds.Hold] | None = None

    def place(self, name: str, allocator: Allocator) -> None:
        """Keep the binary in TCM for a graph until the graph releases it. The first call copies it there."""
        if self._placed is None:
            buffer = allocator.allocate(self._what, len(self._content))
            buffer.array[: len(self._content)] = np.frombuffer(self._content, np.uint8)
            # No other graph may use its memory.
            self._placed = buffer, holds.claim(buffer.window(), self._what, self._what)
        self._users.add(name)

    def release(self, name: str) -> None:
        """Release the memory when the last of its graphs has released it; safe to call again."""
        self._users.discard(name)
        if not self._users and self._placed is not None:
            # First, so that no graph finds memory that an interrupt left half released; unreferenced, it is collected.
            placed, self._placed = self._placed, None
            buffer, hold = placed
            hold.release()
            buffer.close()


@dataclass(frozen=True)
class LpaiModel:
    """The memory of a graph, DDR or TCM, and what it occupies there.

    - `name`: The graph's name.
    - `binary`: The model binary in TCM that it is a part of; None in DDR.
    - `io`: Its own memory for each input, then each output in TCM; empty if it has none.
    - `buffers`, `holds`: The buffers of `io`, and the holds on them.
    """

    name: str
    binary: ModelBinary | None = None
    io: tuple[Window, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    holds: tuple[holds.Hold, ...] = ()

    def close(self) -> None:
        """Release the buffers; safe to call again."""
        for hold in self.holds:
            hold.release()
        for buffer in self.buffers:
            buffer.close()
        if self.binary is not None:
            self.binary.release(self.name)


@dataclass(frozen=True)
class Allocator:
    """The allocator of LPAI's backend extensions: buffers for IO and the model binary in the configured memory type.

    - `mem_type`: The type of both; they are never mixed.
    - `target_env`: Where the model runs: TCM exists in ADSP direct mode only.
    - `hw_ver`: The hardware version: TCM exists from v6 on.
    - `alignment`: The required alignment of buffers.
    - `tcm_bytes`: The size of TCM.
    - `source`: Where the configuration comes from, for messages.
    """

    mem_type: LpaiMemType
    target_env: str
    hw_ver: str
    alignment: BufferAlignmentReq
    tcm_bytes: int
    source: str
    log: Log

    def place(self, info: GraphInfo, model: Callable[[], ModelBinary], graph: str, with_io: bool) -> LpaiModel:
        """Place a graph's binary in its memory type, with IO buffers if requested; all of it or nothing.

        In DDR the program stays where it is, and no buffers are needed.

        - `model`: Returns the model binary, if it is needed.
        - `with_io`: Whether TCM also gets a buffer for each input and output.
        """
        if self.mem_type is LpaiMemType.DDR:
            return LpaiModel(info.name)
        model_binary = model()
        placed = LpaiModel(info.name, model_binary)
        try:
            model_binary.place(info.name, self)
            for tensor in info.tensors if with_io else ():
                placed = self._with(placed, f"buffer of tensor '{tensor.name}' of {graph}", tensor.nbytes)
        except Exception:
            placed.close()
            raise
        return placed

    def allocate(self, what: str, nbytes: int) -> Buffer:
        """Allocate a buffer of at least this size. There is no fallback from TCM to DDR.

        Raises COMMON_PLATFORM_NOT_SUPPORTED if there is no TCM, COMMON_MEM_ALLOC if the type is unknown or the pool has
        too little left.
        """
        start = start_alignment(self.alignment)
        if self.mem_type is LpaiMemType.DDR:
            return host(self.alignment.padded(nbytes), start)
        if self.mem_type is not LpaiMemType.TCM:
            self.log(LogLevel.ERROR, "Memory type only supports DDR & TCM")
            raise unknown_mem_type(what, self.source)
        self._check_tcm(what)
        try:
            return tcm.allocate(self.alignment.padded(nbytes), start, self.log, self.tcm_bytes)
        except QnnError as problem:
            raise type(problem)(problem.code, what, problem.rule, problem.hint) from None

    def _check_tcm(self, what: str) -> None:
        """Refuse an allocation in TCM if the configured environment or hardware has none."""
        if self.target_env != "adsp":
            raise QnnError(
                Code.COMMON_PLATFORM_NOT_SUPPORTED,
                what,
                f"TCM is only available in ADSP direct mode, the target environment is {self.target_env}",
                'Set lpai_backend.target_env to "adsp", or lpai_graph.execute.mem_type to "ddr".',
            )
        if self.hw_ver not in HARDWARE_WITH_TCM:
            raise QnnError(
                Code.COMMON_PLATFORM_NOT_SUPPORTED,
                what,
                f"TCM needs {HARDWARE_WITH_TCM[0]} or later, the hardware version is {self.hw_ver}",
                f'Set lpai_backend.enable_hw_ver to "{HARDWARE_WITH_TCM[0]}", or lpai_graph.execute.mem_type to "ddr".',
            )

    def _with(self, model: LpaiModel, what: str, nbytes: int) -> LpaiModel:
        """Return a model with one more IO buffer, which no other graph may use."""
        buffer = self.allocate(what, nbytes)
        hold = holds.claim(buffer.window(), what, what)
        io = (*model.io, buffer.window(0, nbytes))
        return replace(model, io=io, buffers=(*model.buffers, buffer), holds=(*model.holds, hold))
