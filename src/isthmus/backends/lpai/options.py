"""LPAI's options, each declared once: for C as QNN's headers name them, for configuration files and for Python."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from isthmus.backends.seam.config import ConfigError, check_by, choice, number, setting, truth
from isthmus.backends.seam.driver import member
from isthmus.errors import Code, QnnError
from isthmus.memory.integers import is_int
from isthmus.prepare.tiling import ScratchLimit

UINT32_MAX = (1 << 32) - 1


class LpaiBackendProperty(IntEnum):
    """QNN_LPAI_BACKEND_GET_PROP_*; numbers from 20001 on are this project's own."""

    ALIGNMENT_REQ = 0
    """The alignments that pools must have: of their start, and of their size."""
    REQUIRE_PERSISTENT_BINARY = 1
    """Whether the client must keep the memory of a context binary until its context is freed."""
    SHARED_POOLS = 20001
    """Whether scratch and persistent memory must be shared memory, because the core sees nothing else."""


class LpaiBackendOption(IntEnum):
    """QNN_LPAI_BACKEND_CUSTOM_CFG_*."""

    HW_INFO = 0
    """The target environment and the hardware version; a configuration file has both."""


class LpaiTarget(IntEnum):
    """QNN_LPAI_BACKEND_TARGET_*."""

    X86 = 0
    ARM = 1
    ADSP = 2
    TENSILICA = 3


class LpaiHwVersion(IntEnum):
    """QNN_LPAI_BACKEND_HW_VERSION_*: the minor version is in the high half."""

    NA = 0
    V1 = 1
    V2 = 2
    V3 = 3
    V4 = 4
    V5 = 5
    V5_1 = 0x00010005
    V6 = 6
    V7 = 7
    DEFAULT = V5


class LpaiContextOption(IntEnum):
    """QNN_LPAI_CONTEXT_SET_CFG_*."""

    MODEL_BUFFER_MEM_TYPE = 1
    """The kind of memory that holds the model, an `LpaiMemType`."""
    ENABLE_ISLAND = 11
    """Whether graphs run in an island, a low-power mode. It has no effect here."""


class GraphProperty(IntEnum):
    """QNN_LPAI_GRAPH_GET_PROP_*; numbers from 20001 on are this project's own."""

    SCRATCH_MEM_SIZE = 1
    """Bytes of scratch memory that the graph needs."""
    PERSISTENT_MEM_SIZE = 101
    """Bytes of persistent memory that the graph needs."""
    IO_OFFSETS = 20001
    """The offset of each input, then each output in scratch; empty if IO is planned outside it."""


class LpaiGraphOption(IntEnum):
    """QNN_LPAI_GRAPH_SET_CFG_*; numbers from 20001 on are this project's own."""

    SCRATCH_MEM = 1
    """The client's scratch memory, a `Mem`."""
    PERSISTENT_MEM = 101
    """The client's persistent memory, a `Mem`."""
    PERF_CFG = 201
    """Frames per second and the like, a `PerfCfg`."""
    CORE_AFFINITY = 301
    """Which core the graph runs on, a `CoreAffinity`."""
    PREPARE = 10001
    """Options of preparation, a `Prepare`; set it before the graph is finalized."""
    RESET_STATE = 20001
    """Write the initial state into persistent memory; takes None."""


class LpaiMemType(IntEnum):
    """QNN_LPAI_MEM_TYPE_*."""

    DDR = 1
    LLC = 2
    TCM = 3
    UNDEFINED = 0x7FFFFFFF


class ClientType(IntEnum):
    """QNN_LPAI_GRAPH_CLIENT_PERF_TYPE_*."""

    REAL_TIME = 1
    NON_REAL_TIME = 2


class Affinity(IntEnum):
    """QNN_LPAI_GRAPH_CORE_AFFINITY_*."""

    SOFT = 1
    HARD = 2


@dataclass(frozen=True)
class BufferAlignmentReq:
    """The alignment of addresses and sizes of scratch, persistent and user IO memory."""

    start_addr_alignment: int
    size_alignment: int

    def padded(self, nbytes: int) -> int:
        """Return the smallest allowed size that is not less than a number of bytes."""
        return -(-nbytes // self.size_alignment) * self.size_alignment


@dataclass(frozen=True)
class Mem:
    """Memory that the client gives to a graph (QnnLpaiGraph_Mem_t).

    - `mem_type`: Scratch and persistent memory are always DDR.
    - `size`: Size in bytes.
    - `addr`: A buffer, an array or a bare address. A Python object is kept alive.
    """

    mem_type: LpaiMemType = LpaiMemType.DDR
    size: int = 0
    addr: Any = None


def _core(value: Any) -> int:
    """Check a selection of cores, one bit for each."""
    mask = int(number(0, UINT32_MAX)(value))
    if mask & (mask - 1):
        raise ConfigError(f"must select one core (one bit set) or none, is {mask:#x}")
    return mask


@dataclass(frozen=True)
class PerfCfg:
    """The required rate and speed of a graph (QnnLpaiGraph_PerfCfg_t). Accepted and reported; it has no effect here.

    - `fps`: Executions per second.
    - `ftrt_ratio`: QNN's factor "faster than real time".
    - `client_type`: Whether the client is a real-time one.
    """

    fps: int = setting(1, number(1, UINT32_MAX))
    ftrt_ratio: int = setting(10, number(0, UINT32_MAX))
    client_type: ClientType = setting(ClientType.REAL_TIME, choice({each.name.lower(): each for each in ClientType}))

    def __post_init__(self) -> None:
        kind = member(self.client_type, ClientType, "client_type", Code.GRAPH_INVALID_ARGUMENT)
        fps, ratio = _uint32("fps", self.fps, 1), _uint32("ftrt_ratio", self.ftrt_ratio, 0)
        vars(self).update(fps=fps, ftrt_ratio=ratio, client_type=kind)


@dataclass(frozen=True)
class CoreAffinity:
    """The core that a graph prefers or requires (QnnLpaiGraph_CoreAffinity_t). It has no effect here.

    - `affinity`: Whether the graph prefers the core (SOFT) or requires it (HARD).
    - `core_selection`: The core as a set bit; 0 means any core.
    """

    affinity: Affinity = setting(Affinity.SOFT, choice({each.name.lower(): each for each in Affinity}))
    core_selection: int = setting(0, _core)

    def __post_init__(self) -> None:
        affinity = member(self.affinity, Affinity, "affinity", Code.GRAPH_INVALID_ARGUMENT)
        vars(self).update(affinity=affinity, core_selection=_uint32("core_selection", self.core_selection, 0))
        if self.core_selection & (self.core_selection - 1):
            raise QnnError(
                Code.GRAPH_INVALID_ARGUMENT,
                f"core_selection={self.core_selection:#x}",
                "selects several cores; a graph runs on one",
                "Set one bit, or none for any core.",
            )


@dataclass(frozen=True)
class Prepare:
    """Options of preparation (QnnLpaiGraph_CustomConfigPrepare_t).

    - `enable_batchnorm_fold`: Accepted and reported; preparation always folds.
    - `exclude_io`: Plan inputs and outputs outside scratch: the client provides their memory.
    - `scratch_limit`: The limit on scratch: parts that do not fit as a whole are computed in tiles. This project's own
      option.
    """

    enable_batchnorm_fold: bool = setting(False, truth)
    exclude_io: bool = setting(False, truth)
    scratch_limit: ScratchLimit | None = setting(None, check_by(ScratchLimit.of))

    def __post_init__(self) -> None:
        for name in ("enable_batchnorm_fold", "exclude_io"):
            if not isinstance(getattr(self, name), bool):
                raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"{name}={getattr(self, name)!r}", "must be true or false")
        if self.scratch_limit is not None:
            object.__setattr__(self, "scratch_limit", ScratchLimit.of(self.scratch_limit))


@dataclass(frozen=True)
class MemInfo:
    """A shared buffer for one tensor (QnnLpaiMem_MemInfoCustom_t): a file descriptor and a 32-bit offset in it."""

    fd: int
    offset: int = 0


class GraphStructure(NamedTuple):
    """A graph option whose value in C is a structure of its own.

    - `kind`: Its dataclass, with the structure's members in order; `Prepare` has no structure in C.
    - `name`: The structure in ``headers.txt``.
    - `effective`: Whether setting it has an effect.
    """

    kind: type[Any]
    name: str
    effective: bool = False


GRAPH_STRUCTURES = {
    LpaiGraphOption.SCRATCH_MEM: GraphStructure(Mem, "QnnLpaiGraph_Mem_t", effective=True),
    LpaiGraphOption.PERSISTENT_MEM: GraphStructure(Mem, "QnnLpaiGraph_Mem_t", effective=True),
    LpaiGraphOption.PERF_CFG: GraphStructure(PerfCfg, "QnnLpaiGraph_PerfCfg_t"),
    LpaiGraphOption.CORE_AFFINITY: GraphStructure(CoreAffinity, "QnnLpaiGraph_CoreAffinity_t"),
}
"""The graph options that are structures."""


def _uint32(name: str, value: Any, least: int) -> int:
    """Return a field's value as an integer; refuse it outside `least` to 32 bits."""
    if not is_int(value) or not least <= value <= UINT32_MAX:
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"{name}={value!r}", f"must be an integer, {least} to {UINT32_MAX}")
    return int(value)
