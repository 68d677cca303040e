"""Validation of lifetimes around contexts: memory that must stay as it is, and calls that must wait.

A client's binary, binary sections and buffers belong to the library until their context is freed. They are looked at
when the client makes a call; what happens between calls shows at the next one.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isthmus.backends.seam.driver import DescriptorType
from isthmus.backends.seam.facets import Feature
from isthmus.cabi.client import BadPointer, read, read_into
from isthmus.cabi.notation import type_named
from isthmus.cabi.objects import MemDescriptor
from isthmus.capi import exclusions

if TYPE_CHECKING:
    from isthmus.capi.validation import Object, Validation

PART = 1 << 18
"""How many bytes of a binary have a checksum of their own; a call looks at one part."""
_LIST = "contextCreateFromBinaryListAsync"
_NEED_MEMORY = ("graphExecute", "graphExecuteAsync", "contextFinalize", "contextFree")
# QNN_CONTEXTMEMTYPE_RAW.
_RAW = 0
_Buffer: Any = type_named("QnnContext_Buffer_t")


@dataclass
class ClientMemory:
    """A client's memory that must stay as it is until a context is freed.

    - `turn`: The part that the next call looks at.
    """

    what: str
    address: int
    nbytes: int
    sums: list[int] = field(default_factory=list)
    turn: int = 0

    def __post_init__(self) -> None:
        self._copy = (ctypes.c_char * PART)()
        self.sums = [self._sum(index) for index in range(-(-self.nbytes // PART))]

    def _sum(self, index: int) -> int:
        """Return the checksum of a part."""
        count = min(PART, self.nbytes - index * PART)
        read_into(ctypes.addressof(self._copy), self.address + index * PART, count)
        return zlib.crc32(memoryview(self._copy)[:count])

    def fault(self, whole: bool) -> str:
        """Return what has happened to it, as far as the next part shows, or all parts; empty if nothing."""
        count = len(self.sums)
        indices = range(count) if whole else [self.turn] * bool(count)
        self.turn = (self.turn + 1) % max(count, 1)
        try:
            is_same = all(self._sum(index) == self.sums[index] for index in indices)
        except BadPointer:
            return "is no longer memory of this process"
        return "" if is_same else "has changed"


@dataclass
class LentBuffer:
    """A buffer of the client's that a context uses: its descriptor, its file, and where the client had mapped it."""

    fd: int
    file: tuple[int, int]
    places: set[int]

    def fault(self, whole: bool) -> str:
        """Return what has happened to it; with `whole`, whether it is still mapped is asked too."""
        if _file_of(self.fd) != self.file:
            return "was closed"
        return "was unmapped" if whole and self.places - _mappings(self.file, self.places) else ""


# -- memory that must stay ---------------------------------------------------------------------------------------------


def keep_binary(context: Object, values: tuple[int, ...]) -> None:
    """Remember the binary that a new context was made from, if it must stay until the context is freed."""
    if Feature.PERSISTENT in context.features:
        context.persistent["binary"] = ClientMemory("its persistent binary", values[3], values[4])


def keep_section(seen: Validation, values: tuple[int, ...]) -> None:
    """Remember a section that was applied to a context whose binary must stay, in place of an earlier one."""
    context = seen.objects.get(("context", values[0]))
    if context is None or Feature.PERSISTENT not in context.features:
        return
    buffer, place = read(values[3], _Buffer).v1, ("section", *values[1:3])
    context.persistent.pop(place, None)
    if buffer.memType == _RAW:
        content = buffer.binaryBuf
        context.persistent[place] = ClientMemory(
            "the binary section that was applied", content.data or 0, content.dataSize
        )


def keep_buffers(seen: Validation, values: tuple[int, ...]) -> None:
    """Remember the client's buffers among registered memory, which a context uses itself."""
    context = seen.objects.get(("context", values[0]))
    for index in range(min(values[2], exclusions.MAX_DESCRIPTORS)):
        descriptor = read(values[1], MemDescriptor, index)
        fd = _fd_of(seen, descriptor)
        file = _file_of(fd)
        if context is not None and file is not None and exclusions.of_memory(seen, descriptor):
            # Before its first registration only the client has mapped it; later, the library may have.
            alike = [each for other in seen.living("context") for each in other.buffers.values() if each.file == file]
            places = alike[0].places if alike else seen.current.mapped.get(file, set())
            context.buffers[read(values[3], ctypes.c_uint64, index).value] = LentBuffer(fd, file, places)


def note_mapped(seen: Validation, values: tuple[int, ...]) -> None:
    """Note where the client has mapped buffers that a call is about to register for a context's own use."""
    for index in range(min(values[2], exclusions.MAX_DESCRIPTORS)):
        descriptor = read(values[1], MemDescriptor, index)
        file = _file_of(_fd_of(seen, descriptor)) if exclusions.of_memory(seen, descriptor) else None
        if file is not None:
            seen.current.mapped[file] = _mappings(file, set())


def _check_kept(seen: Validation, values: tuple[int, ...]) -> None:
    """Check what the context of a call must find as it was: a part of it, or all of it when the context is freed."""
    name, owner = seen.current.name, values[0]
    if name.startswith("graph"):
        graph = seen.objects.get(("graph", owner))
        owner = graph.owner if graph is not None else 0
    context = seen.objects.get(("context", owner))
    if context is None or context.freed_by:
        return
    whole = name in ("contextFree", "contextFinalize")
    for memory in context.persistent.values():
        fault = memory.fault(whole)
        if fault:
            seen.mistake(f"{context.what}: {memory.what} {fault}; it must stay as it was until contextFree")
    for buffer in context.buffers.values():
        fault = buffer.fault(whole)
        if fault:
            seen.mistake(f"{context.what}: a buffer of the client's (descriptor {buffer.fd}) {fault}; it must stay "
                         "until contextFree")  # fmt: skip


def check_deregistered(seen: Validation, memory: Object) -> None:
    """Check that memory of the client's that a context uses stays registered."""
    if Feature.BUFFERS in memory.features and not _is_deferred(seen, memory):
        seen.mistake(f"{memory.what}: it is a buffer of the client's, which stays registered until contextFree")


def forget_buffer(seen: Validation, memory: Object) -> None:
    """Forget a buffer that is deregistered before its context uses it."""
    context = seen.objects.get(("context", memory.owner))
    if context is not None and _is_deferred(seen, memory):
        context.buffers.pop(memory.handle, None)
        others = [each.features for each in seen.living("memory handle", context.handle) if each is not memory]
        for name in memory.features:
            context.features.pop(name, None)
        context.features |= {name: value for each in others for name, value in each.items() if name in memory.features}


def _is_deferred(seen: Validation, memory: Object) -> bool:
    """Return whether the graphs of a memory handle's context are not loaded yet."""
    context = seen.objects.get(("context", memory.owner))
    return context is not None and Feature.DEFERRED in context.features


def check_limit(seen: Validation, handle: int) -> None:
    """Check that no more is registered with a context than its limit of I/O says."""
    context, name = seen.objects.get(("context", handle)), seen.facet().reused
    if context is None or name not in context.features:
        return
    total = sum(each.nbytes for each in seen.living("memory handle", handle) if Feature.BUFFERS not in each.features)
    if total > context.features[name]:
        seen.mistake(f"{context.what}: {total:,} bytes are registered with it, more than its limit of I/O, "
                     f"{context.features[name]:,}")  # fmt: skip


def _fd_of(seen: Validation, descriptor: Any) -> int:
    """Return the file descriptor in a description of memory; -1 without one."""
    if descriptor.memType == DescriptorType.CUSTOM:
        reader = seen.facet().memory
        return int(getattr(reader(descriptor.customInfo or 0) if reader else None, "fd", -1))
    return int(descriptor.dmaBufInfo.fd if descriptor.memType == DescriptorType.DMA_BUF else descriptor.ionInfo.fd)


def _file_of(fd: int) -> tuple[int, int] | None:
    """Return what tells the file of a descriptor from others; None if it is closed."""
    try:
        status = os.fstat(fd)
    except (OSError, OverflowError):
        return None
    return status.st_dev, status.st_ino


def _mappings(file: tuple[int, int], unknown: set[int]) -> set[int]:
    """Return where this process has mapped a file; `unknown` if the system does not say."""
    try:
        with open("/proc/self/maps") as lines:
            return {int(line.partition("-")[0], 16) for line in lines if _is_of(file, line.split())}
    except OSError:
        return unknown


def _is_of(file: tuple[int, int], parts: list[str]) -> bool:
    major, minor = (int(each, 16) for each in parts[3].split(":"))
    return (os.makedev(major, minor), int(parts[4])) == file


# -- calls that must wait ----------------------------------------------------------------------------------------------


def check(seen: Validation, values: tuple[int, ...]) -> None:
    """Check that a call may be made now, and that what its context needs is there."""
    if seen.current.name in _NEED_MEMORY:
        _check_kept(seen, values)
    # A signal is triggered to end the list.
    for begun in seen.all_under_way() if seen.current.name != "signalTrigger" else ():
        if begun is not seen.current and _LIST in (begun.name, seen.current.name):
            seen.mistake(f"{begun.label} has not returned, and a list of binaries is loaded without other calls")
