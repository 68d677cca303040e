"""HTP's registered memory: all rules for ION, shared buffers and DMA buffers.

ION and DMA_BUF memory belongs to one tensor: one descriptor, one handle. A shared buffer holds many tensors, each at an
offset with its own handle. A registration is all or nothing; a handle belongs to one context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakMethod

from isthmus.backends.accelerator.process import Slots
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.htp import client_buffers
from isthmus.backends.htp.options import HtpDescriptor, HtpMemType, Reregistration
from isthmus.backends.htp.process_domains import DomainUse
from isthmus.backends.seam.driver import DescriptorType, MemDescriptor
from isthmus.backends.seam.registration import RegistrationTable, TableEntry
from isthmus.errors import Code, QnnError
from isthmus.memory import SharedFd, Window, window
from isthmus.memory.holds import Hold
from isthmus.memory.identity import Identity
from isthmus.memory.integers import is_int
from isthmus.memory.shareable import mapped_window, shared_file

_MAX_OFFSET = (1 << 64) - 1
# The place of a tensor that has a buffer to itself; the place of a tensor in a buffer of several is its offset.
_WHOLE = -1


@dataclass(frozen=True)
class SharedPart:
    """A tensor's part of a shared buffer.

    - `window`: The memory.
    - `whole`: Whether the tensor has the buffer to itself.
    """

    window: Window
    whole: bool

    @property
    def identity(self) -> Identity:
        """The buffer's identity, independent of its descriptor."""
        return self.window.buffer.identity

    @property
    def place(self) -> int:
        """The key that distinguishes it from other parts of its buffer."""
        return _WHOLE if self.whole else self.window.offset

    @property
    def shared(self) -> tuple[int, int, int]:
        """The memory as it is described to the accelerator: descriptor, offset, bytes."""
        assert self.window.buffer.fd is not None
        return self.window.buffer.fd, self.window.offset, self.window.nbytes


class HtpRegistration(TableEntry):
    """One part of a shared buffer that the accelerator sees.

    The table finds it by its buffer, and by the buffer together with its place in it.
    """

    def __init__(
        self, number: int, descriptor: MemDescriptor, part: SharedPart, forget: Callable[[HtpRegistration], None]
    ) -> None:
        super().__init__(number, descriptor, part.window, forget, (part.identity, (part.identity, part.place)))
        self.part = part
        self.slot = -1
        """The memory's slot in the accelerator; -1 if it is not registered there."""
        self.slots: Slots | None = None
        """The slots that were registered together with it; those still registered are deregistered when they are
        collected.
        """
        self.is_charged = False
        """Whether its buffer is charged to a process domain because of it."""

    @property
    def client_fd(self) -> int:
        """The descriptor that the client has named."""
        custom = self.descriptor.custom
        return custom.fd if isinstance(custom, HtpDescriptor) else self.descriptor.fd


class ContextBuffer(HtpRegistration):
    """A buffer of the client's for the context itself. The table finds it by its type.

    - `claim`: What keeps other contexts and tensors out of it.
    """

    def __init__(
        self, number: int, descriptor: MemDescriptor, window: Window, forget: Callable[[Any], None], claim: Hold
    ) -> None:
        super().__init__(number, descriptor, SharedPart(window, True), forget)
        self.kind: HtpMemType = descriptor.custom.type
        self.keys = (self.kind,)
        self.claim = claim


class HtpMemory(RegistrationTable[HtpRegistration]):
    """The registered memory of one context.

    - `queue`: The queue of the accelerator that needs to see it.
    - `policy`: What to do about a location that is already registered.
    - `use`: What the context has in the process domains of its chip.
    - `least_bytes`: Returns how large a buffer of a type must be that the context itself uses, or says why it takes
      none; its first argument names the descriptor.
    """

    def __init__(
        self, queue: Queue, policy: Reregistration, use: DomainUse, least_bytes: WeakMethod[Callable[..., int]]
    ) -> None:
        super().__init__()
        self._queue, self._use, self._least_bytes = queue, use, least_bytes
        self.policy = policy
        # The buffers that its graphs work in, whatever the client deregisters; None before the graphs are loaded.
        self._in_use: dict[HtpMemType, ContextBuffer] | None = None

    def take_buffers(self) -> Mapping[HtpMemType, ContextBuffer]:
        """Return the buffers that the client has registered for the context, by type; it registers no more of them."""
        with self._lock:
            entries = [each for each in self._entries if isinstance(each, ContextBuffer) and each.is_open]
            self._in_use = {each.kind: each for each in entries}
            return self._in_use

    def return_buffers(self) -> None:
        """Take back `take_buffers`: no graph works in the buffers."""
        with self._lock:
            buffers, self._in_use = self._in_use or {}, None
        self._end_buffers([each for each in buffers.values() if not each.is_open])

    def has_buffers(self) -> bool:
        """Return whether the client has registered buffers for the context."""
        with self._lock:
            return any(isinstance(each, ContextBuffer) and each.is_open for each in self._entries)

    def _context_buffer(self, what: str, descriptor: MemDescriptor) -> ContextBuffer:
        """Check the descriptor of a buffer for the context and make an entry for it, which claims the memory."""
        kind = descriptor.custom.type
        if self._in_use is not None:
            rule = f"a {kind.name} must be registered before the context is finalized"
            raise QnnError(Code.MEM_UNSUPPORTED_MEMTYPE, what, rule)
        least_bytes = self._least_bytes()
        assert least_bytes is not None, "the context is gone"
        least = least_bytes(what, kind)
        for other in self._find(kind):
            rule, hint = f"the context has a {kind.name}: {other.name}", "Deregister it first."
            raise QnnError(Code.MEM_ALREADY_REGISTERED, what, rule, hint)
        window = client_buffers.window_of(what, descriptor.custom, least)
        claim = client_buffers.claim_buffer(what, kind, window, self._queue.accelerator)
        return ContextBuffer(next(self._numbers), descriptor, window, self._forget, claim)

    def _entry(self, what: str, descriptor: MemDescriptor) -> HtpRegistration:
        """Check a descriptor and make an entry for it, which holds the memory but has no slot yet."""
        if not descriptor.is_tensor:
            return self._context_buffer(what, descriptor)
        part = part_of_buffer(what, descriptor)
        self._check_new(what, descriptor, part)
        entry = HtpRegistration(next(self._numbers), descriptor, part, self._forget)
        entry.hold()
        return entry

    def _share(self, entries: Sequence[HtpRegistration]) -> None:
        """Register new entries in the accelerator, all or none, and store their slots."""
        # What is in a buffer of the context is charged anyway, wherever it is.
        for entry in (each for each in entries if not isinstance(each, ContextBuffer)):
            self._use.add_buffer(entry.part.identity, entry.part.window.buffer.nbytes, entry.client_fd)
            entry.is_charged = True
        slots = self._queue.accelerator.register([entry.part.shared for entry in entries])
        for entry, slot in zip(entries, slots, strict=True):
            entry.slot, entry.slots = slot, slots

    def _check_new(self, what: str, descriptor: MemDescriptor, part: SharedPart) -> None:
        """Refuse memory that is registered already, unless the policy allows it with another shape.

        A tensor that has its buffer to itself conflicts with every tensor in the buffer. Tensors that share a buffer
        conflict if they are at the same offset.
        """
        identity = part.identity
        rivals = (identity,) if part.whole else ((identity, _WHOLE), (identity, part.place))
        for other in self._find(*rivals):
            other_shape = (other.descriptor.dims, other.descriptor.dtype) != (descriptor.dims, descriptor.dtype)
            if other_shape and self.policy is Reregistration.OTHER_SHAPE:
                continue
            place = "this buffer" if other.part.whole else f"offset {other.window.offset} of this buffer"
            raise QnnError(
                Code.MEM_ALREADY_REGISTERED,
                what,
                f"{place} is registered as {other.descriptor.mem_type.name} {other.name}",
                "Deregister it first, or use that handle.",
            )

    def close(self) -> None:
        """Deregister all memory, from the accelerator in one call; safe to call again."""
        with self._lock:
            entries = list(self._entries)
            buffers, self._in_use = list((self._in_use or {}).values()), None
        self._withdraw([*entries, *buffers])
        super().close()
        self._end_buffers(buffers)

    def _forget(self, registration: HtpRegistration) -> None:
        """Deregister memory, after a running execution; the accelerator keeps what the context's graphs work in."""
        if isinstance(registration, ContextBuffer):
            super()._forget(registration)
            with self._lock:
                is_free = registration not in (self._in_use or {}).values()
            self._end_buffers([registration] * is_free)
            return
        self._withdraw([registration])
        super()._forget(registration)
        with self._lock:
            if registration.is_charged:
                registration.is_charged = False
                self._use.remove_buffer(registration.part.identity)

    def _end_buffers(self, buffers: Sequence[ContextBuffer]) -> None:
        """Give buffers that the context does not use back to the client; safe to call again."""
        self._withdraw(buffers)
        for each in buffers:
            each.claim.release()

    def _withdraw(self, registrations: Sequence[HtpRegistration]) -> None:
        """Deregister memory from the accelerator that is registered there; a process that has died has none."""
        slots = [registration.slot for registration in registrations if registration.slot >= 0]
        if slots and self._queue.accelerator.alive:
            self._queue.under_lock(lambda: self._queue.accelerator.deregister(slots))
            for registration in registrations:
                registration.slot = -1


def part_of_buffer(what: str, descriptor: MemDescriptor) -> SharedPart:
    """Return the part of a buffer that a descriptor means; refuse it if HTP cannot use it."""
    if descriptor.mem_type is DescriptorType.CUSTOM:
        return _shared_part(what, descriptor)
    if descriptor.mem_type is DescriptorType.DMA_BUF:
        if not descriptor.address:
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, "DMA_BUF memory needs the address it is mapped at")
        window(descriptor.address, f"{what}: address", nbytes=descriptor.nbytes, code=Code.MEM_INVALID_ARGUMENT)
    file = shared_file(descriptor.fd, what)
    if file.nbytes < descriptor.nbytes:
        rule = f"its buffer has {file.nbytes} bytes, the tensor needs {descriptor.nbytes}"
        raise QnnError(Code.MEM_INVALID_SHAPE, what, rule)
    # Only the accelerator works in it, so a truncation can crash only the accelerator.
    place = SharedFd(descriptor.fd, 0, descriptor.nbytes)
    return SharedPart(mapped_window(place, what, untouched=True, file=file), True)


def _shared_part(what: str, descriptor: MemDescriptor) -> SharedPart:
    """Return the part of a shared buffer that a custom descriptor means; refuse it if HTP cannot use it."""
    custom = descriptor.custom
    if not isinstance(custom, HtpDescriptor):
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"its custom structure must be a Descriptor, is {custom!r}")
    if custom.type is not HtpMemType.SHARED_BUFFER:
        raise QnnError(
            Code.MEM_UNSUPPORTED_MEMTYPE,
            what,
            f"custom memory of type {getattr(custom.type, 'name', custom.type)} is for no tensor from the host",
            "SHARED_BUFFER is.",
        )
    for name, value in (("offset", custom.offset), ("size", custom.size)):
        if not is_int(value) or not 0 <= value <= _MAX_OFFSET:
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"{name} {value!r} must be an integer of 64 bits")
    offset, size, nbytes = int(custom.offset), int(custom.size), descriptor.nbytes
    file = shared_file(custom.fd, what)
    if size > file.nbytes:
        raise QnnError(Code.MEM_MAPPING, what, f"its buffer is said to have {size} bytes, it has {file.nbytes}")
    if offset + nbytes > size:
        rule = f"bytes {offset} to {offset + nbytes} are outside a buffer of {size} bytes"
        raise QnnError(Code.MEM_INVALID_SHAPE, what, rule)
    if offset % descriptor.dtype.itemsize:
        rule = f"offset {offset} is not a multiple of {descriptor.dtype.itemsize}, the size of an element"
        hint = "Place the tensor at a multiple of that."
        raise QnnError(Code.MEM_INVALID_SHAPE, what, rule, hint, mistake="misaligned")
    return SharedPart(mapped_window(SharedFd(custom.fd, offset, nbytes), what, untouched=True, file=file), False)
