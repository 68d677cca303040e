"""The process domains of HTP's chips at run time: what contexts and registered buffers are charged to them.

All contexts of a process that are on one kind of chip share its domains, whatever backend or device they have, as on a
device. A context on no chip is charged nothing. The model of `isthmus.domains` decides; nothing is really mapped there.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from isthmus.backends.htp.group_membership import GroupMembership
from isthmus.domains.model import DomainMapping, Domains, Placement, Refusal
from isthmus.domains.profile import ChipProfile
from isthmus.domains.sizes import Choice, ContextSizes, GraphNeeds
from isthmus.graph import GraphInfo
from isthmus.log import Log, LogLevel
from isthmus.memory.identity import Identity
from isthmus.system.interrupts import Finalizer
from isthmus.system.lock import Lock

DomainState = tuple[int, int, int]
"""A process domain: its number, the bytes that are mapped, and its capacity."""
_SHARED: dict[object, SharedDomains] = {}
# How many graphs of a context its name in messages has.
_NAMED = 3


class SharedDomains:
    """The process domains of this process on one kind of chip. Any thread may use them."""

    def __init__(self, profile: ChipProfile) -> None:
        self._domains = Domains(profile)
        self._lock = Lock()
        # The numbers of contexts that were collected, to be freed the next time the lock is taken.
        self.collected: deque[int] = deque()

    @classmethod
    def of(cls, profile: ChipProfile) -> SharedDomains:
        """Return those of a chip. A forked child, which has no context yet, has its own."""
        key = os.getpid(), profile.name, profile.domains, profile.power_of_two, profile.alignment
        return _SHARED.setdefault(key, cls(profile))

    @contextmanager
    def open(self) -> Iterator[Domains]:
        """Take the lock, and give the model without contexts that were collected."""
        with self._lock:
            gone = {self.collected.popleft() for _ in range(len(self.collected))}
            for placement in self._domains.placements():
                if placement.number in gone:
                    self._domains.free(placement)
            yield self._domains

    def states(self) -> tuple[DomainState, ...]:
        """Return what is mapped in each domain."""
        with self.open() as domains:
            return tuple((each.number, each.used, each.capacity) for each in domains.domains)


@dataclass
class _IoBuffer:
    """A buffer that the client has registered, by one handle or several."""

    nbytes: int
    fd: int
    handles: int = 0
    mapping: DomainMapping | None = None


class DomainUse:
    """What one context has in the process domains of its chip.

    - `profile`: The chip's profile; None for no chip, which has room for everything.
    """

    def __init__(self, profile: ChipProfile | None, log: Log) -> None:
        self._domains = None if profile is None else SharedDomains.of(profile)
        self._log = log
        self._placement: Placement | None = None
        self._buffers: dict[Identity, _IoBuffer] = {}
        self._ending: Finalizer | None = None

    @property
    def domain(self) -> int | None:
        """The number of its process domain; None if it is in none yet."""
        return None if self._placement is None else self._placement.domain

    def charge(
        self,
        sizes: Callable[[], ContextSizes],
        io_estimation: bool = False,
        beside: Mapping[int, int] | None = None,
    ) -> None:
        """Charge what the context needs from now on, instead of what it needed before.

        The first time the context gets its domain, and memory that was registered earlier is charged too. A refusal
        changes nothing.

        - `sizes`: Returns the needs; it is not called if nothing is charged.
        - `io_estimation`, `beside`: As for `Domains.load`.
        """
        self.charge_first([sizes], io_estimation, beside)

    def charge_first(
        self,
        choices: Sequence[Callable[[], ContextSizes]],
        io_estimation: bool = False,
        beside: Mapping[int, int] | None = None,
    ) -> int:
        """Charge the first of some needs that has room, as `charge` does, and return its index.

        If none has room, the last one is refused.
        """
        if self._domains is None:
            return 0
        with self._domains.open() as domains:
            is_new = self._placement is None
            tried = [self._charge_now(domains, choices[0](), io_estimation, beside or {})]
            while isinstance(tried[-1], Refusal) and len(tried) < len(choices):
                tried.append(self._charge_now(domains, choices[len(tried)](), io_estimation, beside or {}))
        found = tried[-1]
        if isinstance(found, Refusal):
            self._refuse(found)
            raise found.error()
        if is_new:
            self._log(LogLevel.INFO, f"HTP context {found.number} is in process domain {found.domain}")
        return len(tried) - 1

    def _charge_now(
        self, domains: Domains, needs: ContextSizes, io_estimation: bool, beside: Mapping[int, int]
    ) -> Placement | Refusal:
        """Charge needs if they have room."""
        if self._placement is not None:
            found = domains.resize(self._placement, needs)
        else:
            found = self._place(domains, needs, io_estimation, beside)
        if isinstance(found, Placement) and self._domains is not None:
            self._placement = found
            self._ending = self._ending or Finalizer(self, self._domains.collected.append, found.number)
        return found

    def _place(
        self, domains: Domains, needs: ContextSizes, io_estimation: bool, beside: Mapping[int, int]
    ) -> Placement | Refusal:
        """Give the context its domain, with the buffers that it has."""
        found = domains.load(needs, io_estimation, beside)
        if isinstance(found, Refusal):
            return found
        mappings = []
        for buffer in self._buffers.values():
            mapping = domains.register(found, buffer.nbytes, buffer.fd)
            if isinstance(mapping, Refusal):
                domains.free(found)
                return mapping
            mappings.append(mapping)
        for buffer, each in zip(self._buffers.values(), mappings, strict=True):
            buffer.mapping = each
        return found

    def _refuse(self, refusal: Refusal) -> None:
        """Log what the vendor's library does."""
        for line in refusal.lines:
            self._log(LogLevel.ERROR, line)

    def add_buffer(self, identity: Identity, nbytes: int, fd: int) -> None:
        """Charge registered memory: a buffer once, however many handles it has. A refusal changes nothing."""
        if self._domains is None:
            return
        found: DomainMapping | Refusal | None = None
        with self._domains.open() as domains:
            buffer = self._buffers.get(identity) or _IoBuffer(nbytes, fd)
            if not buffer.handles and self._placement is not None:
                found = domains.register(self._placement, nbytes, fd)
            if isinstance(found, DomainMapping):
                buffer.mapping = found
            if not isinstance(found, Refusal):
                self._buffers[identity] = buffer
                buffer.handles += 1
        if isinstance(found, Refusal):
            self._refuse(found)
            raise found.error()

    def remove_buffer(self, identity: Identity) -> None:
        """Take one handle of a buffer away; with the last one its room is free again."""
        if self._domains is None:
            return
        with self._domains.open() as domains:
            buffer = self._buffers[identity]
            buffer.handles -= 1
            if buffer.handles:
                return
            del self._buffers[identity]
            if buffer.mapping is not None and self._placement is not None and self._is_charged:
                domains.deregister(self._placement, buffer.mapping)

    def close(self) -> None:
        """Free all that is charged; safe to call again."""
        if self._domains is None:
            return
        with self._domains.open() as domains:
            if self._placement is not None and self._is_charged:
                domains.free(self._placement)
            if self._ending is not None:
                self._ending.forget()
            self._placement = self._ending = None

    @property
    def _is_charged(self) -> bool:
        """Whether its finalizer, which may run before it is closed, has freed nothing yet."""
        return self._ending is not None and self._ending.waits


class ContextCharge:
    """What a context takes in the process domains of its chip.

    - `use`: Its place there.
    - `membership`: Its group, whose buffer is charged once, and its list, which may keep room for inputs and outputs.
    """

    def __init__(self, use: DomainUse, membership: GroupMembership) -> None:
        self.use, self._membership = use, membership
        # The process domain and the bytes of the inputs and outputs for which its list has kept room there.
        self._awaited_io: tuple[int, int] | None = None

    def charge_binary(self, graphs: Sequence[GraphInfo], io_estimation: bool, reused_mb: int) -> None:
        """Charge the graphs of a binary, with room for inputs and outputs if that is asked for.

        - `reused_mb`: The MB that count then; 0 for the inputs and outputs of all graphs.
        """
        shared = self._membership.reserving
        beside = {} if shared is None or reused_mb else shared.io
        self.use.charge(lambda: self.sizes(graphs, reused_mb), io_estimation or shared is not None, beside)
        if shared is not None and self.use.domain is not None:
            self._awaited_io = self.use.domain, sum(self.sizes(graphs, reused_mb).io)
            shared.io[self.use.domain] = shared.io.get(self.use.domain, 0) + self._awaited_io[1]

    def charge_first(
        self, graphs: Sequence[GraphInfo], choices: Sequence[Choice], io_estimation: bool, reused_mb: int
    ) -> int:
        """Charge the graphs of a binary, with the first choice of loaded ones that has room; return its index."""
        sizes = [partial(self.sizes, graphs, reused_mb, each) for each in choices]
        return self.use.charge_first(sizes, io_estimation)

    def discharge(self) -> None:
        """Charge nothing any more; safe to call again."""
        self.use.close()
        if self._membership.shared is not None and self._awaited_io is not None:
            domain, nbytes = self._awaited_io
            self._membership.shared.io[domain] -= nbytes
        self._awaited_io = None

    def sizes(self, graphs: Sequence[GraphInfo], reused_mb: int, loaded: Choice | None = None) -> ContextSizes:
        """Return what these graphs need in a process domain; with switching if some are `loaded`."""
        names = ", ".join(each.name for each in graphs[:_NAMED]) + ", …" * (len(graphs) > _NAMED)
        limit = (reused_mb << 20,) if reused_mb else None
        group = None if self._membership.group is None else self._membership.group.charge
        return ContextSizes(names, tuple(map(GraphNeeds.of, graphs)), buffers=limit, group=group, loaded=loaded)
