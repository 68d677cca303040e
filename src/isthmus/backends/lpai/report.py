"""The memory that a model needs on LPAI: the three pools, padding, and whether it fits TCM."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from isthmus.backends.lpai.config import HARDWARE_WITH_TCM, LpaiConfig
from isthmus.backends.lpai.model import start_alignment
from isthmus.backends.lpai.options import BufferAlignmentReq
from isthmus.backends.seam.binary import to_bytes
from isthmus.backends.seam.planned import PlannedGraph, plan
from isthmus.graph import Graph
from isthmus.memory.tcm import MAX_ALLOCATIONS, POOL_BYTES


@dataclass(frozen=True)
class PoolNeed:
    """One pool: the bytes to provide, and how many of them are padding for alignment."""

    bytes: int
    padding: int


@dataclass(frozen=True)
class TcmFit:
    """The verdict whether IO and the model binary fit TCM.

    Parameters
    ----------
    bytes, padding
        The bytes that they take in the pool, and how many of them are padding for alignment.
    binary_bytes, io_bytes
        The sizes of the two separately.
    buffers
        Number of buffers.
    spare
        Bytes left in the pool; negative if it is too small.
    remedies
        Changes that would make it fit, if it does not.
    hw_ver
        The hardware version, if it has no TCM.
    """

    bytes: int
    padding: int
    binary_bytes: int
    io_bytes: int
    buffers: int
    spare: int
    remedies: tuple[str, ...]
    hw_ver: str = ""

    @property
    def fits(self) -> bool:
        """Whether there is TCM that can hold all of it."""
        return not self.hw_ver and self.spare >= 0 and self.buffers <= MAX_ALLOCATIONS


@dataclass(frozen=True)
class PoolReport:
    """The memory of one model on LPAI.

    Parameters
    ----------
    hw_ver, alignment
        The hardware version and the alignment that it requires.
    scratch, persistent, io
        The bytes of the three pools.
    io_in_scratch
        Whether scratch holds IO too; its size then contains that of IO.
    tcm
        Whether IO and the model binary would fit TCM.
    """

    hw_ver: str
    alignment: BufferAlignmentReq
    scratch: PoolNeed
    persistent: PoolNeed
    io: PoolNeed
    io_in_scratch: bool
    tcm: TcmFit

    @property
    def fits(self) -> bool:
        """Whether IO and the model binary fit TCM, if the hardware has TCM."""
        return self.tcm.fits or bool(self.tcm.hw_ver)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        tcm = self.tcm
        limit = {
            "name": "TCM: binary and IO", "bytes": tcm.bytes, "limit": 0 if tcm.hw_ver else POOL_BYTES,
            "note": self._verdict, "remedies": list(tcm.remedies),
        }  # fmt: skip
        pools = {**asdict(self), "tcm": {**asdict(tcm), "fits": tcm.fits, "pool_bytes": POOL_BYTES}}
        return {**pools, "limits": [limit]}

    @property
    def _verdict(self) -> str:
        """Whether binary and IO fit TCM, in words."""
        return f"fits, {self.tcm.spare:,} bytes to spare" if self.tcm.fits else f"does not fit: {_excess(self.tcm)}"

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        start, size = self.alignment.start_addr_alignment, self.alignment.size_alignment
        place = "inside scratch" if self.io_in_scratch else "provided by the client"
        tcm = self.tcm
        return [
            f"LPAI {self.hw_ver}: addresses a multiple of {start}, sizes of {size}",
            f"  scratch     {self.scratch.bytes:>11,} bytes, {self.scratch.padding:,} of them for alignment",
            f"  persistent  {self.persistent.bytes:>11,} bytes, {self.persistent.padding:,} of them for alignment",
            f"  io          {self.io.bytes:>11,} bytes, {self.io.padding:,} of them for alignment; {place}",
            f"  tcm         {tcm.bytes:>11,} bytes for binary {tcm.binary_bytes:,} and io {tcm.io_bytes:,} "
            f"of {POOL_BYTES:,}: {self._verdict}",
            *(f"              {remedy}" for remedy in tcm.remedies),
        ]


def describe_pools(graph: Graph, config: LpaiConfig, prepared: PlannedGraph | None = None) -> PoolReport:
    """Return what a complete graph needs on LPAI with a configuration.

    Parameters
    ----------
    graph
        A finalized graph.
    prepared
        The graph planned with that configuration, if the caller has it.
    """
    alignment, exclude_io, limit = config.alignment, config.prepare.exclude_io, config.prepare.scratch_limit

    def planned(start: int, io_in_scratch: bool) -> PlannedGraph:
        """Plan the graph with its pools at multiples of `start`."""
        return plan(graph, alignment=start, io_in_scratch=io_in_scratch, limit=limit)

    start = alignment.start_addr_alignment
    prepared = prepared or planned(start, not exclude_io)
    # What the same plan takes without alignment: the difference is padding.
    packed = planned(1, not exclude_io)
    schedule = prepared.schedule
    sizes = [tensor.nbytes for tensor in (*schedule.inputs, *schedule.outputs)]
    scratch = alignment.padded(schedule.scratch_bytes)
    persistent = alignment.padded(schedule.state_bytes)
    # In TCM, IO is never inside scratch.
    for_tcm = prepared if exclude_io else planned(start, False)
    return PoolReport(
        hw_ver=config.hw_ver,
        alignment=alignment,
        # Two searches for the best plan may end differently; padding must not become negative.
        scratch=PoolNeed(scratch, max(0, scratch - packed.schedule.scratch_bytes)),
        persistent=PoolNeed(persistent, persistent - sum(tensor.nbytes for tensor in schedule.states)),
        io=PoolNeed(_total(sizes, alignment), _total(sizes, alignment) - sum(sizes)),
        io_in_scratch=not exclude_io,
        tcm=_tcm_fit(graph, for_tcm, sizes, config),
    )


def _tcm_fit(graph: Graph, prepared: PlannedGraph, io: list[int], config: LpaiConfig) -> TcmFit:
    """Return whether a graph fits TCM, and if not, what would make it fit; `io` are the sizes of inputs and outputs."""
    binary = len(to_bytes([prepared], "lpai"))
    alignment = replace(config.alignment, start_addr_alignment=start_alignment(config.alignment))
    total = _total([binary, *io], alignment)
    fit = TcmFit(
        bytes=total,
        padding=total - binary - sum(io),
        binary_bytes=binary,
        io_bytes=sum(io),
        buffers=1 + len(io),
        spare=POOL_BYTES - total,
        remedies=(),
        hw_ver="" if config.hw_ver in HARDWARE_WITH_TCM else config.hw_ver,
    )
    if fit.fits:
        return fit
    used = {tensor.name: tensor for node in graph.nodes for tensor in node.inputs if tensor is not None}
    weights = sum(tensor.nbytes for tensor in used.values() if tensor.is_static and tensor.dtype.is_float)
    # Preparation drops constants that fold away; no more can be saved than there is.
    float_weights = min(weights, prepared.info.memory.constant_bytes)
    return replace(fit, remedies=tuple(_remedies(fit, float_weights)))


def _remedies(fit: TcmFit, float_weights: int) -> list[str]:
    """Return changes that help a graph to fit TCM, or to do without it; `float_weights` is their size in bytes."""
    remedies = []
    over = -fit.spare
    if fit.hw_ver:
        remedies.append(f"take hardware of version {HARDWARE_WITH_TCM[0]} or later")
    if fit.buffers > MAX_ALLOCATIONS:
        remedies.append(f"have at most {MAX_ALLOCATIONS - 1} inputs and outputs")
    if over > 0:
        # From 32 bits to 8.
        saved = float_weights * 3 // 4
        if saved >= over:
            remedies.append(f"quantize the weights to 8 bits, which saves about {saved:,} bytes")
        if fit.io_bytes > over:
            remedies.append(f"make inputs and outputs {over:,} bytes smaller; they take {fit.io_bytes:,}")
        if fit.binary_bytes > over:
            remedies.append(f"make the model binary {over:,} bytes smaller; it takes {fit.binary_bytes:,}")
    return [*remedies, 'leave mem_type at "ddr"']


def _excess(fit: TcmFit) -> str:
    """Return why a graph does not fit TCM."""
    if fit.hw_ver:
        return f"{fit.hw_ver} has no TCM"
    if fit.spare < 0:
        return f"{-fit.spare:,} bytes too many"
    return f"{fit.buffers} buffers, the allocator has {MAX_ALLOCATIONS}"


def _total(sizes: list[int], alignment: BufferAlignmentReq) -> int:
    """Return the bytes that buffers of these sizes take one after the other."""
    end = 0
    for nbytes in sizes:
        end = -(-end // alignment.start_addr_alignment) * alignment.start_addr_alignment + alignment.padded(nbytes)
    return end
