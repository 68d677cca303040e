"""Memory resources, which allocate buffers, and the current resource of each kind.

Backends and clients allocate through `current`. So an adaptor around a resource sees, counts or refuses the allocations
of both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from isthmus.errors import Code, QnnError
from isthmus.memory.buffer import Buffer
from isthmus.system.lock import Lock

DEFAULT_ALIGNMENT = 64


@dataclass(frozen=True)
class AllocationRequest:
    """A request for memory. A kind of memory that takes further arguments has a subclass with those fields."""

    nbytes: int
    alignment: int = DEFAULT_ALIGNMENT


class MemoryResource(ABC):
    """A source of memory of one kind."""

    kind: str
    """Its name: "host", "rpcmem", "tcm", or a device's name for its memory."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: memory of kind '{self.kind}'>"

    def allocate(self, nbytes: int, alignment: int = DEFAULT_ALIGNMENT) -> Buffer:
        """Allocate memory by size and alignment alone; raises the errors of `fulfil`."""
        return self.fulfil(AllocationRequest(nbytes, alignment))

    @abstractmethod
    def fulfil(self, request: AllocationRequest) -> Buffer:
        """Allocate the memory of a request, or raise a `QnnError` and allocate nothing."""


_lock = Lock()
# The outermost adaptor or the resource of each kind.
_current: dict[str, MemoryResource] = {}
# The sets of adaptors that are placed, in the order in which they were.
_sets: list[AdaptorSet] = []


def provide(resource: MemoryResource) -> MemoryResource:
    """Make a resource known under its kind; adaptors of that kind that are in force apply to it too."""
    if not isinstance(resource, MemoryResource):
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"memory resource {resource!r}", "it is none")
    with _lock:
        outermost = resource
        for each in _sets:
            if not each.only or resource.kind in each.only:
                outermost = each.adapt(outermost)
                each.placed.append(outermost)
        _current[resource.kind] = outermost
    return resource


def kinds() -> tuple[str, ...]:
    """Return the kinds of memory that can be allocated."""
    with _lock:
        return tuple(_current)


def current(kind: str) -> MemoryResource:
    """Return the resource that memory of a kind comes from now, with its adaptors.

    Examples
    --------
    >>> from isthmus import memory
    >>> with memory.current("host").allocate(256, 64) as buffer:
    ...     buffer.kind, buffer.nbytes
    ('host', 256)
    """
    with _lock:
        resource = _current.get(kind) if isinstance(kind, str) else None
    if resource is None:
        raise QnnError(
            Code.COMMON_INVALID_ARGUMENT,
            f"memory of kind '{kind}'",
            f"must be one of {', '.join(kinds())}",
            "A device's own kind is known once its backend has been used.",
        )
    return resource


class Adaptor(MemoryResource):
    """A resource around another. Adaptors stack: each sees what the ones inside it let through.

    A subclass overrides `fulfil`. To change a request, use `dataclasses.replace`, which keeps the other fields.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from isthmus import memory
    >>> class Rounded(Adaptor):
    ...     def fulfil(self, request):
    ...         return self.upstream.fulfil(replace(request, nbytes=-(-request.nbytes // 4096) * 4096))
    >>> with Rounded(memory.current("host")).allocate(100) as buffer:
    ...     buffer.nbytes
    4096
    """

    def __init__(self, upstream: MemoryResource) -> None:
        self.upstream = upstream
        self.kind = upstream.kind

    def fulfil(self, request: AllocationRequest) -> Buffer:
        return self.upstream.fulfil(request)


@dataclass(eq=False)
class AdaptorSet:
    """Adaptors around the resources of the kinds `only`, or of all if that is empty; for the whole process.

    Both methods are safe to repeat: what an interrupt has ended early, the next call of `remove` undoes.
    """

    adapt: Callable[[MemoryResource], Adaptor]
    only: tuple[str, ...] = ()
    placed: list[Adaptor] = field(default_factory=list)

    def place(self) -> None:
        """Put the adaptors around their resources; resources that `provide` adds later get one too."""
        with _lock:
            if self not in _sets:
                self.placed = [self.adapt(current(kind)) for kind in self.only or kinds()]
                _sets.append(self)
                # All of them or none, even after an interrupt.
                _current.update({adaptor.kind: adaptor for adaptor in self.placed})

    def remove(self) -> None:
        """Remove the adaptors from all resources."""
        with _lock:
            if self in _sets:
                _sets.remove(self)
            for adaptor in self.placed:
                _current[adaptor.kind] = _without(_current[adaptor.kind], adaptor)


@contextmanager
def around(adapt: Callable[[MemoryResource], Adaptor], *only: str) -> Iterator[list[Adaptor]]:
    """Put an adaptor around the resources of all kinds, or of some, inside the block; for the whole process.

    It yields the adaptors. Resources that `provide` adds later get one too.
    """
    adaptors = AdaptorSet(adapt, only)
    try:
        adaptors.place()
        yield adaptors.placed
    finally:
        try:
            adaptors.remove()
        finally:
            # Again, because an interrupt may have ended the first attempt early.
            adaptors.remove()


def _without(outermost: MemoryResource, removed: Adaptor) -> MemoryResource:
    """Return a stack of adaptors without one of them; others may have been put around it since."""
    if outermost is removed:
        return removed.upstream
    inner = outermost
    while isinstance(inner, Adaptor):
        if inner.upstream is removed:
            inner.upstream = removed.upstream
            break
        inner = inner.upstream
    return outermost
