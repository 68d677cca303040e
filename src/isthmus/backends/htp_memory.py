"""HTP's registered memory: the rules for ION, shared buffers and DMA buffers, whole.

ION and DMA_BUF memory belongs to one tensor: one descriptor, one handle. A shared buffer holds many tensors, each at an
offset with a handle of its own. A registration is all or nothing; a handle belongs to one context.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.accelerator import Lane
from isthmus.backends.driver import DescriptorType, MemDescriptor, Registration
from isthmus.backends.htp_options import Descriptor, MemType, Reregistration
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType
from isthmus.memory import Region, holds, rpcmem
from isthmus.memory.shareable import map_whole, shared_file

_MAX_OFFSET = (1 << 64) - 1
_WHOLE = -1
_ANY_PRIORITY = 100


@dataclass(frozen=True)
class Window:
    """A tensor's part of a buffer.

    Parameters
    ----------
    identity
        Which buffer, whatever descriptor it is known by.
    whole
        Whether the tensor has the buffer to itself.
    """

    fd: int
    identity: tuple[int, int]
    offset: int
    nbytes: int
    whole: bool

    @property
    def place(self) -> int:
        """What tells it from other windows of its buffer."""
        return _WHOLE if self.whole else self.offset


class HtpRegistration(Registration):
    """One window that the accelerator sees."""

    def __init__(
        self,
        number: int,
        descriptor: MemDescriptor,
        window: Window,
        region: Region,
        forget: Callable[[HtpRegistration], None],
    ) -> None:
        self.number = number
        self.descriptor = descriptor
        self.window = window
        self.slot = -1
        self._region = region
        self._forget = forget
        self._hold = holds.use(region, f"memory of {self.name}", lambda: True)
        self._open = True

    @property
    def name(self) -> str:
        """The handle as messages call it."""
        return f"handle {self.number} ({self.descriptor.dtype.name}{list(self.descriptor.dims)})"

    @property
    def region(self) -> Region:
        return self._region

    def close(self) -> None:
        if self._open:
            self._open = False
            self._forget(self)
            self._hold.release()


class HtpMemory:
    """The registered memory of one context.

    Parameters
    ----------
    lane
        The way to the accelerator that is to see it.
    policy
        What to do about a place that is registered already.
    """

    def __init__(self, lane: Lane, policy: Reregistration) -> None:
        self._lane = lane
        self.policy = policy
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._buffers: dict[tuple[int, int], dict[int, list[HtpRegistration]]] = {}

    def register(self, descriptors: Sequence[MemDescriptor]) -> list[HtpRegistration]:
        """Register all of these, or none."""
        made: list[HtpRegistration] = []
        with self._lock:
            try:
                for index, descriptor in enumerate(descriptors):
                    made.append(self._one(f"memory descriptor {index}", descriptor))
                windows = [(r.window.fd, r.window.offset, r.window.nbytes) for r in made]
                for registration, slot in zip(made, self._lane.accelerator.register(windows), strict=True):
                    registration.slot = slot
            except BaseException:
                for registration in made:
                    registration.close()
                raise
        return made

    def close(self) -> None:
        """Deregister all; safe to call again."""
        with self._lock:
            known = [r for places in self._buffers.values() for group in places.values() for r in group]
        for registration in known:
            registration.close()

    def _one(self, what: str, descriptor: MemDescriptor) -> HtpRegistration:
        window = _window(what, descriptor)
        self._check_new(what, descriptor, window)
        region = _seen_here(what, window)
        made = HtpRegistration(next(self._numbers), descriptor, window, region, self._forget)
        self._buffers.setdefault(window.identity, {}).setdefault(window.place, []).append(made)
        return made

    def _check_new(self, what: str, descriptor: MemDescriptor, window: Window) -> None:
        places = self._buffers.get(window.identity, {})
        rivals = places if window.whole else [place for place in (_WHOLE, window.offset) if place in places]
        for known in itertools.chain.from_iterable(places[place] for place in rivals):
            other_shape = (known.descriptor.dims, known.descriptor.dtype) != (descriptor.dims, descriptor.dtype)
            if other_shape and self.policy is Reregistration.OTHER_SHAPE:
                continue
            place = "this buffer" if known.window.whole else f"offset {known.window.offset} of this buffer"
            raise QnnError(
                Code.MEM_ALREADY_REGISTERED,
                what,
                f"{place} is registered as {known.descriptor.mem_type.name} {known.name}",
                "Deregister it first, or use that handle.",
            )

    def _forget(self, registration: HtpRegistration) -> None:
        """Take it away from the accelerator, after an execution that is under way."""
        if registration.slot >= 0 and self._lane.accelerator.alive:
            self._lane.enter(_ANY_PRIORITY)
            try:
                self._lane.accelerator.deregister([registration.slot])
            finally:
                self._lane.leave()
        with self._lock:
            window = registration.window
            places = self._buffers[window.identity]
            places[window.place].remove(registration)
            if not places[window.place]:
                del places[window.place]
            if not places:
                del self._buffers[window.identity]


def _window(what: str, descriptor: MemDescriptor) -> Window:
    """What a descriptor means, if it is well-formed."""
    if not isinstance(descriptor, MemDescriptor):
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"{descriptor!r} is not a MemDescriptor")
    if descriptor.mem_type in (DescriptorType.ION, DescriptorType.DMA_BUF):
        nbytes = _tensor_bytes(what, descriptor)
        if descriptor.mem_type is DescriptorType.DMA_BUF and not descriptor.address:
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, "DMA_BUF memory needs the address it is mapped at")
        file = shared_file(descriptor.fd, what)
        if file.nbytes < nbytes:
            raise QnnError(
                Code.MEM_INVALID_SHAPE, what, f"its buffer has {file.nbytes} bytes, the tensor needs {nbytes}"
            )
        return Window(descriptor.fd, file.identity, 0, nbytes, True)
    if descriptor.mem_type is DescriptorType.CUSTOM:
        return _shared_window(what, descriptor)
    raise QnnError(Code.MEM_UNSUPPORTED_MEMTYPE, what, f"memory type {descriptor.mem_type!r} is unknown to HTP")


def _shared_window(what: str, descriptor: MemDescriptor) -> Window:
    custom = descriptor.custom
    if not isinstance(custom, Descriptor):
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"its custom structure must be a Descriptor, is {custom!r}")
    if custom.type is not MemType.SHARED_BUFFER:
        raise QnnError(
            Code.MEM_UNSUPPORTED_MEMTYPE,
            what,
            f"custom memory of type {getattr(custom.type, 'name', custom.type)} cannot be registered from the host",
            "SHARED_BUFFER can.",
        )
    nbytes = _tensor_bytes(what, descriptor)
    for name, value in (("offset", custom.offset), ("size", custom.size)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_OFFSET:
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"{name} {value!r} must be a whole number of 64 bits")
    file = shared_file(custom.fd, what)
    if custom.size > file.nbytes:
        rule = f"its buffer is said to have {custom.size} bytes, it has {file.nbytes}"
        raise QnnError(Code.MEM_MAPPING, what, rule)
    if custom.offset + nbytes > custom.size:
        rule = f"bytes {custom.offset} to {custom.offset + nbytes} lie outside a buffer of {custom.size} bytes"
        raise QnnError(Code.MEM_INVALID_SHAPE, what, rule)
    if custom.offset % descriptor.dtype.itemsize:
        rule = f"offset {custom.offset} is not a multiple of {descriptor.dtype.itemsize}, the size of an element"
        raise QnnError(Code.MEM_INVALID_SHAPE, what, rule)
    return Window(custom.fd, file.identity, custom.offset, nbytes, False)


def _tensor_bytes(what: str, descriptor: MemDescriptor) -> int:
    dims = descriptor.dims
    whole = isinstance(dims, tuple) and all(isinstance(d, int) and not isinstance(d, bool) for d in dims)
    if not whole or any(d < 1 for d in dims):
        raise QnnError(Code.MEM_INVALID_SHAPE, what, f"dimensions {dims!r} must be positive whole numbers")
    if not isinstance(descriptor.dtype, DataType) or descriptor.dtype is DataType.UNDEFINED:
        raise QnnError(Code.MEM_INVALID_SHAPE, what, f"data type {descriptor.dtype!r} has no size")
    return descriptor.nbytes


def _seen_here(what: str, window: Window) -> Region:
    """The window in this process: in a buffer that is mapped already, or mapped now."""
    buffer = rpcmem.buffer_of(window.fd)
    if buffer is not None:
        return Region(buffer.region.address + window.offset, window.nbytes, buffer.array)
    pages = np.frombuffer(map_whole(window.fd, window.offset + window.nbytes, what), np.uint8)
    return Region(pages.ctypes.data + window.offset, window.nbytes, pages)
