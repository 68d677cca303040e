"""What LPAI asks of the memory it is given: pools, and buffers of inputs and outputs. Each refusal names the rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.backends.lpai_options import UINT32_MAX, BufferAlignmentReq, Mem, MemType
from isthmus.errors import Code, QnnError
from isthmus.memory import Region, holds
from isthmus.memory.tcm import pool as tcm_pool


def pool_region(what: str, memory: Mem, required: int, alignment: BufferAlignmentReq) -> Region:
    """The region that a client means by scratch or persistent memory, if a graph can work in it."""

    def refuse(rule: str, hint: str = "") -> QnnError:
        return QnnError(Code.GRAPH_INVALID_ARGUMENT, what, rule, hint)

    if memory.mem_type != MemType.DDR:
        given = memory.mem_type.name if isinstance(memory.mem_type, MemType) else repr(memory.mem_type)
        raise refuse(f"must be in DDR, is given as {given}", "Only IO buffers and the model binary can be in TCM.")
    size, start, step = _whole(memory.size), alignment.start_addr_alignment, alignment.size_alignment
    if size is None or not 0 <= size <= UINT32_MAX:
        raise refuse(f"size {memory.size!r} must be a whole number of at most 32 bits")
    address = 0 if memory.addr is None else _whole(memory.addr)
    if address == 0:
        if required == 0 and size == 0:
            return Region(0, 0, None)
        raise refuse("its address is null", f"The graph needs {required} bytes.")
    if address is not None:
        region = Region(address, size, None)
    else:
        whole = Region.of(memory.addr, what)
        if whole.nbytes < size:
            raise refuse(f"is said to have {size} bytes, its buffer has {whole.nbytes}")
        region = Region(whole.address, size, whole.owner)
    _check_start(refuse, "starts", region.address, start)
    if size % step:
        raise refuse(f"size {size} is not a multiple of {step}", f"Round it up to {alignment.padded(size)}.")
    if size < required:
        raise refuse(f"has {size} bytes, {required} are needed")
    if tcm_pool().holds(region):
        raise refuse("must be in DDR, lies in TCM", "Only IO buffers and the model binary can be in TCM.")
    return region


def io_region(what: str, given: Region, nbytes: int, alignment: BufferAlignmentReq, in_tcm: bool) -> Region:
    """The bytes of a client's buffer that a tensor takes, if it can lie there."""

    def refuse(rule: str, hint: str = "") -> QnnError:
        return QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, hint)

    if given.nbytes < nbytes:
        raise refuse(f"its buffer has {given.nbytes} bytes, {nbytes} are needed")
    _check_start(refuse, "its buffer starts", given.address, alignment.start_addr_alignment)
    if tcm_pool().holds(given) is not in_tcm:
        place, other = ("TCM", "DDR") if in_tcm else ("DDR", "TCM")
        raise refuse(f"its buffer is in {other}, the model binary in {place}; memory types cannot be mixed")
    return Region(given.address, nbytes, given.owner)


def check_free(what: str, region: Region, allowed: holds.Hold | None) -> None:
    """Refuse an IO buffer that lies in a pool, other than at the graph's own place in its scratch."""
    for hold in holds.holders(region):
        if hold.active is None and hold is not allowed:
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, f"its buffer overlaps the {hold.holder}")


def _whole(value: Any) -> int | None:
    """A whole number, also one of numpy's; None for anything else."""
    return int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None


def _check_start(refuse: Callable[[str, str], QnnError], subject: str, address: int, alignment: int) -> None:
    if address % alignment:
        raise refuse(
            f"{subject} at {address:#x}, which is not a multiple of {alignment}",
            f"isthmus.memory.host(nbytes, alignment={alignment}) allocates aligned memory.",
        )
