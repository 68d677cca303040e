"""Buffers of a client in which a context has its weights and its spill-fill, instead of memory of the backend.

The client creates a context with deferred graphs, asks for its properties, allocates, and registers each buffer once
before it finalizes the context. From then on the accelerator has the weights in the client's memory, and the scratch
of all graphs. Until the context is freed the contents belong to it, also if the client deregisters a buffer before.

A weights buffer belongs to one context. A spill-fill buffer may be registered with several contexts of one device,
whose executions then take turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isthmus.backends.accelerator.memory import PLACE
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.htp.options import HtpContextProperty, HtpDescriptor, HtpMemType
from isthmus.engine.native.program import Program
from isthmus.engine.native.serialization import segment_name
from isthmus.errors import Code, QnnError
from isthmus.memory import SharedFd, Window
from isthmus.memory.holds import Hold, claim
from isthmus.memory.identity import Identity
from isthmus.memory.integers import is_int
from isthmus.memory.shareable import mapped_window, shared_file

BUFFER_ALIGNMENT = 4096
"""The alignment of the buffers."""
SIZES: Mapping[HtpMemType, HtpContextProperty] = {
    HtpMemType.WEIGHTS_BUFFER: HtpContextProperty.WEIGHTS_BUFFER_SIZE,
    HtpMemType.SHARED_SPILLFILL_BUFFER: HtpContextProperty.MAX_SPILLFILL_BUFFER_SIZE,
    HtpMemType.SHARED_VTCMBACKUP_BUFFER: HtpContextProperty.MAX_VTCMBACKUP_BUFFER_SIZE,
}
"""The property that says how large a buffer must be, by its type."""


def window_of(what: str, custom: HtpDescriptor, least: int) -> Window:
    """Return the memory of a buffer that needs at least so many bytes; refuse what cannot be one."""
    name = custom.type.name
    for field, value in (("offset", custom.offset), ("size", custom.size)):
        if not is_int(value) or value < 0:
            rule = f"{field} {value!r} of its {name} must be an integer and not negative"
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, rule)
    offset, size = int(custom.offset), int(custom.size)
    if offset % BUFFER_ALIGNMENT:
        rule = f"its {name} begins at {offset}, which is not a multiple of {BUFFER_ALIGNMENT}"
        hint = "BUFFER_START_ALIGNMENT of the context is the alignment."
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, rule, hint, mistake="misaligned")
    if size - offset < max(least, 1):
        rule = f"its {name} has {max(size - offset, 0)} bytes, the context needs {least}"
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, rule, f"{SIZES[custom.type].name} of the context is the size.")
    file = shared_file(custom.fd, what)
    if size > file.nbytes:
        raise QnnError(Code.MEM_MAPPING, what, f"its buffer is said to have {size} bytes, it has {file.nbytes}")
    return mapped_window(SharedFd(custom.fd, offset, size - offset), what, untouched=True, file=file)


def claim_buffer(what: str, kind: HtpMemType, window: Window, accelerator: Accelerator) -> Hold:
    """Claim a buffer for a context. Only spill-fill and VTCM backup may be in the buffers of other contexts too, on the
    same accelerator: contexts on two would not wait for each other.
    """
    holder = f"{kind.name} of an HTP context"
    group = None if kind is HtpMemType.WEIGHTS_BUFFER else turns(kind, window, accelerator)
    return claim(window, what, holder, group=group, code=Code.MEM_ALREADY_REGISTERED)


def turns(kind: HtpMemType, window: Window, accelerator: Accelerator) -> tuple[HtpMemType, Identity, int]:
    """Return what contexts of an accelerator have in common whose buffers of a type are in one file."""
    return kind, window.buffer.identity, accelerator.pid


def weights_bytes(programs: Sequence[Program]) -> int:
    """Return how many bytes of a weights buffer programs take: each of their constants once.

    >>> weights_bytes([])
    0
    """
    segments = {segment_name(each): each.nbytes for program in programs for each in program.segments}
    sizes = [*segments.values(), *(program.constants.nbytes for program in programs)]
    return sum(-(-size // PLACE) * PLACE for size in sizes)
