"""LPAI's rules for client memory: pools, and buffers of inputs and outputs. Each error names the rule."""

from __future__ import annotations

from collections.abc import Callable

from isthmus.backends.lpai.options import UINT32_MAX, BufferAlignmentReq, LpaiMemType, Mem
from isthmus.errors import Code, QnnError
from isthmus.memory import Window, tcm, window
from isthmus.memory.integers import is_int

_IN_DDR = "Only IO buffers and the model binary can be in TCM."


def pool_window(what: str, memory: Mem, required: int, alignment: BufferAlignmentReq) -> Window | None:
    """Return the client's scratch or persistent memory; refuse it if a graph cannot work in it.

    Returns None for no memory at all, which is correct for a pool of size 0.

    Parameters
    ----------
    what
        The pool, for messages.
    required
        The size that the graph needs.
    """

    def refuse(rule: str, hint: str = "", mistake: str = "") -> QnnError:
        return QnnError(Code.GRAPH_INVALID_ARGUMENT, what, rule, hint, mistake=mistake)

    if not is_int(memory.mem_type) or memory.mem_type != LpaiMemType.DDR:
        name = memory.mem_type.name if isinstance(memory.mem_type, LpaiMemType) else repr(memory.mem_type)
        raise refuse(f"must be in DDR, is given as {name}", _IN_DDR)
    if not is_int(memory.size) or not 0 <= memory.size <= UINT32_MAX:
        raise refuse(f"size {memory.size!r} must be an integer of at most 32 bits")
    size, start, step = int(memory.size), alignment.start_addr_alignment, alignment.size_alignment
    if memory.addr is None or (is_int(memory.addr) and memory.addr == 0):
        if required == 0 and size == 0:
            return None
        raise refuse("its address is null", f"The graph needs {required} bytes.")
    found = window(memory.addr, what, nbytes=size, code=Code.GRAPH_INVALID_ARGUMENT)
    _check_start(refuse, "starts", found.address, start)
    if size % step:
        raise refuse(f"size {size} is not a multiple of {step}", f"Round it up to {alignment.padded(size)}.")
    if size < required:
        raise refuse(f"has {size} bytes, {required} are needed")
    if tcm.pool().touches(found):
        raise refuse("must be in DDR, is in TCM", _IN_DDR)
    return found


def io_window(what: str, source: Window, nbytes: int, alignment: BufferAlignmentReq, tcm_bytes: int | None) -> Window:
    """Return the bytes of a client's buffer that a tensor takes; refuse a buffer that cannot hold it.

    An allocation must have room for the tensor's size rounded up to the size alignment. For a view or a pointer only
    the size that the client gives is known. It must be the tensor's own, as QNN's sample passes it, or a multiple of
    the size alignment.

    Parameters
    ----------
    what
        The tensor, for messages.
    source
        The client's buffer.
    nbytes
        Size of the tensor.
    tcm_bytes
        The size of TCM, if the buffer must be in it; None if it must not.
    """

    def refuse(rule: str, hint: str = "", mistake: str = "") -> QnnError:
        return QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, hint, mistake=mistake)

    if source.nbytes < nbytes:
        raise refuse(f"its buffer has {source.nbytes} bytes, {nbytes} are needed")
    _check_start(refuse, "its buffer starts", source.address, alignment.start_addr_alignment)
    if source.nbytes != nbytes and source.nbytes % alignment.size_alignment:
        raise refuse(
            f"its buffer has {source.nbytes} bytes, neither the tensor's {nbytes} nor "
            f"a multiple of {alignment.size_alignment}",
            f"Round it up to {alignment.padded(source.nbytes)}, or pass the size of the part to use.",
        )
    padded, room = alignment.padded(nbytes), source.buffer.nbytes - source.offset
    if source.buffer.is_allocation and room < padded:
        raise refuse(
            f"its buffer has {room} bytes, {padded} are needed: the tensor's {nbytes} as a multiple of "
            f"{alignment.size_alignment}",
            f"Allocate {padded} bytes.",
        )
    pool, in_tcm = tcm.pool(), tcm_bytes is not None
    if not pool.encloses(source) if in_tcm else pool.touches(source):
        place, other = ("TCM", "DDR") if in_tcm else ("DDR", "TCM")
        raise refuse(f"its buffer is in {other}, the model binary in {place}; memory types cannot be mixed")
    if tcm_bytes is not None and not pool.encloses(source, tcm_bytes):
        raise refuse(f"its buffer is not within the {tcm_bytes} bytes of TCM that the configuration states")
    return source.part(0, nbytes)


def _check_start(refuse: Callable[[str, str, str], QnnError], subject: str, address: int, alignment: int) -> None:
    """Refuse a misaligned address; `subject` is the beginning of the message."""
    if address % alignment:
        raise refuse(
            f"{subject} at {address:#x}, which is not a multiple of {alignment}",
            f"isthmus.memory.host(nbytes, alignment={alignment}) allocates aligned memory.",
            "misaligned",
        )
