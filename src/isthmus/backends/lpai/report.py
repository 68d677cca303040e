"""The memory that a model needs on LPAI: the three pools, padding, and whether it fits.

Scratch and persistent memory are in DDR, for which no limit is documented. Inputs, outputs and the model binary are in
the memory type of the configuration. They must fit TCM if that is the type, and also if the configuration names none:
who asks what a model needs wants to know whether TCM can hold it. For the type "ddr" the fit in TCM is a remark. The
size of TCM is the configuration's, or that of QNN's documents.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from isthmus.backends.lpai.config import HARDWARE_WITH_TCM, LpaiConfig
from isthmus.backends.lpai.memory import plan_pools
from isthmus.backends.lpai.model import start_alignment
from isthmus.backends.lpai.options import BufferAlignmentReq, LpaiMemType
from isthmus.backends.seam.binary import to_bytes
from isthmus.backends.seam.planned import PlannedGraph
from isthmus.errors import counted
from isthmus.graph import Graph
from isthmus.memory.tcm import MAX_ALLOCATIONS
from isthmus.prepare.tensor_entries import stored_bytes

# How a verdict on TCM begins, by whether the model is judged by it, and whether everything fits.
_VERDICTS = {
    (True, True): "fits, ",
    (True, False): "does not fit: ",
    (False, True): "would fit, ",
    (False, False): "would not fit: ",
}
_UNSTATED = "this size of TCM is that of QNN's documents; --tcm SIZE states that of your device"


@dataclass(frozen=True)
class PoolNeed:
    """One pool: the bytes to provide, and how many of them are padding for alignment."""

    bytes: int
    padding: int

    def __str__(self) -> str:
        return f"{self.bytes:>11,} bytes: {self.bytes - self.padding:,} + {self.padding:,} for alignment"


@dataclass(frozen=True)
class TcmFit:
    """What IO and the model binary take in TCM, and whether they fit.

    - `bytes`, `padding`: The bytes that they take in the pool, and how many of them are padding for alignment.
    - `binary_bytes`, `io_bytes`: The sizes of the two separately.
    - `buffers`: Number of buffers.
    - `pool_bytes`: The size of TCM.
    - `remedies`: Changes that would make it fit, if it does not.
    - `hw_ver`: The hardware version, if it has no TCM.
    """

    bytes: int
    padding: int
    binary_bytes: int
    io_bytes: int
    buffers: int
    pool_bytes: int
    remedies: tuple[str, ...]
    hw_ver: str = ""

    @property
    def spare(self) -> int:
        """Bytes left in TCM; negative if it is too small."""
        return self.pool_bytes - self.bytes

    @property
    def fits(self) -> bool:
        """Whether there is TCM that can hold all of it."""
        return not self.hw_ver and self.spare >= 0 and self.buffers <= MAX_ALLOCATIONS

    @property
    def reason(self) -> str:
        """How many bytes are left, or why it does not fit."""
        if self.fits:
            return f"{counted(self.spare, 'byte')} to spare"
        if self.hw_ver:
            return f"{self.hw_ver} has no TCM"
        if self.spare < 0:
            return f"{counted(-self.spare, 'byte')} too many"
        return f"{self.buffers} buffers, the allocator has {MAX_ALLOCATIONS}"


@dataclass(frozen=True)
class PoolReport:
    """The memory of one model on LPAI.

    - `hw_ver`, `alignment`: The hardware version and the alignment that it requires.
    - `mem_type`: The memory type of IO and the model binary: "ddr" or "tcm".
    - `states_mem_type`, `states_tcm_size`: Whether the configuration names the type, and the size of TCM; if not, they
      are the defaults.
    - `scratch`, `persistent`, `io`: The bytes of the three pools; IO is counted as buffers of the client.
    - `io_in_scratch`: Whether scratch has room for IO.
    - `tcm`: What IO and the model binary take in TCM, or would take there.
    """

    hw_ver: str
    alignment: BufferAlignmentReq
    mem_type: str
    states_mem_type: bool
    states_tcm_size: bool
    scratch: PoolNeed
    persistent: PoolNeed
    io: PoolNeed
    io_in_scratch: bool
    tcm: TcmFit

    @property
    def in_tcm(self) -> bool:
        """Whether IO and the model binary are in TCM."""
        return self.mem_type == "tcm"

    @property
    def judges_tcm(self) -> bool:
        """Whether the model must fit TCM: it is in TCM, or it might be, as the configuration names no memory type.

        Hardware without TCM counts only if the configuration states the size of TCM.
        """
        may_be_in_tcm = self.states_tcm_size or not self.tcm.hw_ver
        return self.in_tcm or (may_be_in_tcm and not self.states_mem_type)

    @property
    def fits(self) -> bool:
        """Whether the model fits the memory that it is judged by; DDR has no limit."""
        return self.tcm.fits or not self.judges_tcm

    @property
    def ddr_bytes(self) -> int:
        """The bytes of all pools in DDR."""
        return sum(pool.bytes for _, pool in self._in_ddr)

    @property
    def _in_ddr(self) -> list[tuple[str, PoolNeed]]:
        """The pools in DDR, with their names."""
        pools = [("scratch", self.scratch), ("persistent", self.persistent)]
        return pools if self.io_in_scratch or self.in_tcm else [*pools, ("io", self.io)]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        tcm = self.tcm
        pools = {**asdict(self), "tcm": {**asdict(tcm), "fits": tcm.fits, "spare": tcm.spare}}
        return {**pools, "fits": self.fits, "ddr_bytes": self.ddr_bytes, "limits": list(self.limits)}

    @property
    def limits(self) -> tuple[dict[str, Any], ...]:
        """The limit of TCM."""
        tcm = self.tcm
        limit = {
            "name": "TCM: binary and IO", "bytes": tcm.bytes, "limit": 0 if tcm.hw_ver else tcm.pool_bytes,
            "fits": tcm.fits, "applies": self.judges_tcm, "stated": self.in_tcm or self.states_tcm_size,
            "binary_bytes": tcm.binary_bytes, "note": self._verdict, "remedies": list(tcm.remedies),
        }  # fmt: skip
        return (limit,)

    @property
    def _verdict(self) -> str:
        """Whether binary and IO fit TCM, in words; where the model is not judged by it, whether they would."""
        return f"{_VERDICTS[self.judges_tcm, self.tcm.fits]}{self.tcm.reason}"

    def lines(self) -> list[str]:
        """Return the report as lines of text. The terms of each sum are shown, and so is its alignment."""
        start, size = self.alignment.start_addr_alignment, self.alignment.size_alignment
        outside = "in TCM" if self.in_tcm else "provided by the client"
        place = "inside scratch unless you pass buffers" if self.io_in_scratch else outside
        tcm, ddr = self.tcm, " + ".join(f"{name} {pool.bytes:,}" for name, pool in self._in_ddr)
        beside = "" if self.in_tcm else ", without the model binary"
        limit = "" if tcm.hw_ver else f" of {tcm.pool_bytes:,}"
        mem_type = self.mem_type if self.states_mem_type else f"{self.mem_type} by default"
        return [
            f"LPAI {self.hw_ver}: addresses a multiple of {start}, sizes of {size}; mem_type is {mem_type}",
            f"  scratch     {self.scratch}",
            f"  persistent  {self.persistent}",
            f"  io          {self.io}; {place}",
            f"  ddr         {self.ddr_bytes:>11,} bytes: {ddr}{beside}: fits, no limit is documented",
            f"  tcm         {tcm.bytes:>11,} bytes{limit}: binary {tcm.binary_bytes:,} + io {tcm.io_bytes:,} "
            f"+ {tcm.padding:,} for alignment: {self._verdict}",
            *(f"              {remedy}" for remedy in tcm.remedies),
            *[f"              {_UNSTATED}"] * (not self.states_tcm_size and not tcm.hw_ver),
        ]


def describe_pools(graph: Graph, config: LpaiConfig, prepared: PlannedGraph | None = None) -> PoolReport:
    """Return what a complete graph needs on LPAI with a configuration.

    - `prepared`: The graph planned with that configuration, if the caller has it.
    """
    alignment, inside, limit = config.alignment, config.io_in_scratch, config.prepare.scratch_limit

    prepared = prepared or plan_pools(graph, alignment, inside, limit)
    # What the same plan takes without alignment: the difference is padding.
    packed = plan_pools(graph, BufferAlignmentReq(1, 1), inside, limit)
    schedule = prepared.schedule
    sizes = [tensor.nbytes for tensor in (*schedule.inputs, *schedule.outputs)]
    scratch, persistent = schedule.scratch_bytes, schedule.state_bytes
    # In TCM, IO is never inside scratch.
    for_tcm = plan_pools(graph, alignment, False, limit) if inside else prepared
    return PoolReport(
        hw_ver=config.hw_ver,
        alignment=alignment,
        mem_type=config.mem_type.name.lower(),
        states_mem_type=config.states_mem_type,
        states_tcm_size=config.tcm_size is not None,
        # Two searches for the best plan may end differently; padding must not become negative.
        scratch=PoolNeed(scratch, max(0, scratch - packed.schedule.scratch_bytes)),
        persistent=PoolNeed(persistent, persistent - sum(tensor.nbytes for tensor in schedule.states)),
        io=PoolNeed(_total(sizes, alignment), _total(sizes, alignment) - sum(sizes)),
        io_in_scratch=inside,
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
        pool_bytes=config.tcm_bytes,
        remedies=(),
        hw_ver="" if config.hw_ver in HARDWARE_WITH_TCM else config.hw_ver,
    )
    if fit.fits:
        return fit
    used = {tensor.name: tensor for node in graph.nodes for tensor in node.inputs if tensor is not None}
    weights = [tensor for tensor in used.values() if tensor.is_static and tensor.dtype.is_float]
    saved = sum(stored_bytes(tensor) - tensor.elements for tensor in weights)
    # Preparation drops constants that fold away; no more can be saved than there is.
    remedies = _remedies(fit, min(saved, prepared.info.memory.constant_bytes * 3 // 4))
    if config.mem_type is LpaiMemType.TCM:
        remedies.append('set mem_type to "ddr"')
    elif not config.states_mem_type:
        rule = "leave it in DDR: --set lpai_graph.execute.mem_type=ddr makes this a remark"
        remedies.append(f"or {rule}" if remedies else rule)
    return replace(fit, remedies=tuple(remedies))


def _remedies(fit: TcmFit, saved: int) -> list[str]:
    """Return changes that help a graph to fit TCM; 8-bit weights would make its binary `saved` bytes smaller."""
    remedies = []
    over = -fit.spare
    if fit.hw_ver:
        remedies.append(f"take hardware of version {HARDWARE_WITH_TCM[0]} or later")
    if fit.buffers > MAX_ALLOCATIONS:
        remedies.append(f"have at most {MAX_ALLOCATIONS - 1} inputs and outputs")
    if over > 0:
        if saved >= over:
            remedies.append(f"quantize the weights to 8 bits, which saves about {counted(saved, 'byte')}")
        if fit.io_bytes > over:
            remedies.append(f"make inputs and outputs {counted(over, 'byte')} smaller; they take {fit.io_bytes:,}")
        if fit.binary_bytes > over:
            remedies.append(f"make the model binary {counted(over, 'byte')} smaller; it takes {fit.binary_bytes:,}")
    return remedies


def _total(sizes: list[int], alignment: BufferAlignmentReq) -> int:
    """Return the bytes that buffers of these sizes take one after the other."""
    end = 0
    for nbytes in sizes:
        end = -(-end // alignment.start_addr_alignment) * alignment.start_addr_alignment + alignment.padded(nbytes)
    return end
