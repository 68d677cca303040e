"""The process domains of one process: which context lies in which, and what the vendor's library says without room.

The rules are Qualcomm's where it documents them: domains are tried in order, the first with room takes a context, a
context is never split, and its I/O is mapped in its own domain. Where mappings begin was measured by users. The order
of a context's pieces, and that each domain with a member of a group maps the group's buffer, are assumed.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isthmus.domains.profile import ChipProfile
from isthmus.domains.sizes import ContextSizes
from isthmus.errors import Code, DoesNotFit, QnnError, counted

ADVICE = "`isthmus fit --contexts` finds an order that fits, or what would help (docs/contexts.md)."
_IO = "I/O"
Intervals = tuple[tuple[int, int], ...]
"""The mapped parts of a domain by address: where each begins and ends."""


@dataclass(frozen=True)
class DomainMapping:
    """A part of a domain that is mapped: what it is, its address in the domain, and its bytes."""

    what: str
    address: int
    nbytes: int


@dataclass(frozen=True)
class Placement:
    """A context in its domain.

    - `number`: its number in messages (contextId).
    - `mappings`: its pieces; I/O buffers follow as they are registered.
    """

    context: str
    number: int
    domain: int
    mappings: tuple[DomainMapping, ...]


@dataclass(frozen=True)
class Refusal:
    """A context or a buffer for which there is no room.

    - `code`: COMMON_MEM_ALLOC (1002) for a context, MEM_MAPPING (8003) for a buffer.
    - `lines`: what the vendor's library logs then.
    - `sentence`: what was asked, and where there is how much.
    """

    code: Code
    what: str
    lines: tuple[str, ...]
    sentence: str

    def error(self) -> QnnError:
        """Return it as an exception."""
        return DoesNotFit(self.code, self.what, self.sentence, ADVICE)


def lowest_free(occupied: Intervals, capacity: int, nbytes: int, alignment: int) -> int | None:
    """Return the lowest free multiple of an alignment with room for some bytes; None if there is none.

    >>> lowest_free(((0, 10), (64, 70)), 100, 30, 16), lowest_free(((0, 10),), 100, 90, 16)
    (16, None)
    """
    address = 0
    for begin, end in occupied:
        if address + nbytes <= begin:
            return address
        if end > address:
            address = -(-end // alignment) * alignment
    return address if address + nbytes <= capacity else None


def alignment_of(profile: ChipProfile, nbytes: int) -> int:
    """Return the multiple at which a mapping of some bytes begins.

    >>> from isthmus.domains.profile import profile
    >>> alignment_of(profile("SA8255P"), 298 << 20) >> 20
    256
    """
    return 1 << (nbytes.bit_length() - 1) if profile.power_of_two and nbytes else profile.alignment


def with_interval(occupied: Intervals, begin: int, nbytes: int) -> Intervals:
    """Return the mapped parts with one more."""
    index = bisect(occupied, (begin, begin))
    return (*occupied[:index], (begin, begin + nbytes), *occupied[index:])


def fit_pieces(
    profile: ChipProfile, occupied: Intervals, capacity: int, sizes: Sequence[int]
) -> tuple[Intervals, tuple[int, ...]] | int:
    """Map pieces one after the other: return the mapped parts and the addresses, or the first size without room."""
    addresses = []
    for nbytes in sizes:
        begin = lowest_free(occupied, capacity, nbytes, alignment_of(profile, nbytes))
        if begin is None:
            return nbytes
        occupied = with_interval(occupied, begin, nbytes)
        addresses.append(begin)
    return occupied, tuple(addresses)


class ProcessDomain:
    """One process domain and what is mapped in it."""

    def __init__(self, profile: ChipProfile, index: int) -> None:
        self._profile = profile
        self.number, self.capacity = profile.domains[index].number, profile.domains[index].capacity
        self.occupied: Intervals = ()
        self.groups: dict[str, int] = {}
        """How many contexts of each group are here."""
        self.group_mappings: dict[str, DomainMapping] = {}

    @property
    def used(self) -> int:
        """The bytes that are mapped."""
        return sum(end - begin for begin, end in self.occupied)

    @property
    def free(self) -> int:
        """The bytes that are not mapped, wherever they are."""
        return self.capacity - self.used

    def has_place(self, nbytes: int) -> bool:
        """Return whether a mapping of some bytes has room."""
        return isinstance(fit_pieces(self._profile, self.occupied, self.capacity, (nbytes,)), tuple)

    def map(self, pieces: Sequence[tuple[str, int]], beside: int = 0) -> tuple[DomainMapping, ...] | tuple[str, int]:
        """Map all pieces or none; return the mappings, or the piece without room.

        - `beside`: bytes that need room too, in one mapping that is removed again.
        """
        mapped = [*pieces, *[(_IO, beside)] * bool(beside)]
        for count in range(1, len(mapped) + 1):
            if not isinstance(
                fit_pieces(self._profile, self.occupied, self.capacity, [s for _, s in mapped[:count]]), tuple
            ):
                return mapped[count - 1]
        found = fit_pieces(self._profile, self.occupied, self.capacity, [size for _, size in pieces])
        assert isinstance(found, tuple)
        self.occupied = found[0]
        return tuple(DomainMapping(what, at, size) for (what, size), at in zip(pieces, found[1], strict=True))

    def unmap(self, mappings: Sequence[DomainMapping]) -> None:
        """Remove mappings, whose room is free again."""
        gone = {(each.address, each.address + each.nbytes) for each in mappings}
        self.occupied = tuple(each for each in self.occupied if each not in gone)

    def describe(self, nbytes: int) -> str:
        """Say what is free here, and whether a mapping of so many bytes lacks only a place in one piece."""
        scattered = " but in no aligned place for that" if self.free >= nbytes and not self.has_place(nbytes) else ""
        return f"domain {self.number} has {self.free:,} of {self.capacity:,} bytes free{scattered}"


class Domains:
    """The process domains of one process.

    - `io_estimation`: whether contexts are created with IO_MEM_ESTIMATION: their domain must have room for their I/O.

    >>> from isthmus.domains.profile import profile
    >>> domains = Domains(profile("default"))
    >>> [domains.load(ContextSizes(name, file_bytes=size << 30)).domain for name, size in (("a", 3), ("b", 1))]
    [0, 1]
    """

    def __init__(self, profile: ChipProfile, *, io_estimation: bool = False) -> None:
        self.profile = profile
        self.io_estimation = io_estimation
        self.domains = [ProcessDomain(profile, index) for index in range(len(profile.domains))]
        self._placements: dict[int, tuple[ProcessDomain, Placement, ContextSizes]] = {}
        self._numbers = 0

    def _lacks_ram(self, nbytes: int) -> bool:
        """Return whether so many bytes more do not fit into the memory that is free, which domains have in common."""
        return bool(self.profile.free_ram) and self._taken_ram() + nbytes > self.profile.free_ram

    def _taken_ram(self) -> int:
        """Return the bytes of memory that contexts have; the buffer of a group is the same in every domain."""
        groups = {name: each.nbytes for domain in self.domains for name, each in domain.group_mappings.items()}
        mapped = sum(each.nbytes for domain in self.domains for each in domain.group_mappings.values())
        return sum(each.used for each in self.domains) - mapped + sum(groups.values())

    def load(
        self, context: ContextSizes, io_estimation: bool = False, beside: Mapping[int, int] | None = None
    ) -> Placement | Refusal:
        """Create a context from its binary: map its pieces in the first domain that has room for all of them.

        - `io_estimation`: whether this context has IO_MEM_ESTIMATION though others have not.
        - `beside`: by the number of a domain, bytes of I/O of other contexts that need room there too.
        """
        context.check()
        self._numbers += 1
        number, io = self._numbers, sum(context.io) if self.io_estimation or io_estimation else 0
        estimate = sum(size for _, size in context.pieces) + io
        estimate += context.group.nbytes if context.group else 0
        lines: list[str] = []
        asked = estimate
        for domain in self.domains:
            group = context.group
            is_first = group is not None and group.name not in domain.groups
            pieces = [*context.pieces]
            if group is not None and is_first:
                pieces.append(("spill-fill of the group", group.nbytes))
            awaited = io + (beside or {}).get(domain.number, 0)
            total = sum(size for _, size in pieces) + awaited
            if total > domain.free:
                continue
            is_known = group is not None and any(group.name in each.groups for each in self.domains)
            if self._lacks_ram(total - awaited - (group.nbytes if group and is_first and is_known else 0)):
                is_open = any(each.domain == domain.number for each in self.placements())
                asked = max((size for _, size in pieces), default=0)
                lines += _mapping_lines("", asked, domain.number, number) if is_open else _session_lines(domain.number)
                continue
            found = domain.map(pieces, awaited)
            if found and isinstance(found[0], str):
                asked = int(found[1])
                lines += _mapping_lines(found[0], asked, domain.number, number)
                continue
            mappings: tuple[DomainMapping, ...] = found
            if group is not None:
                domain.groups[group.name] = domain.groups.get(group.name, 0) + 1
                if is_first:
                    *own, last = mappings
                    domain.group_mappings[group.name], mappings = last, tuple(own)
            placement = Placement(context.name, number, domain.number, mappings)
            self._placements[number] = domain, placement, context
            return placement
        if len(self.domains) == 1 and self._placements:
            lines.append(_ONE_SESSION)
        lines += _estimate_lines(number, estimate)
        where = "; ".join([*(each.describe(asked) for each in self.domains), *self._ram()])
        needs = _needs(context, io)
        sentence = f"needs {counted(estimate, 'byte')} in one process domain ({needs}); {where}"
        return Refusal(Code.COMMON_MEM_ALLOC, f"context '{context.name}'", tuple(lines), sentence)

    def _ram(self) -> list[str]:
        """Say how much memory is free, if that is limited."""
        ram = self.profile.free_ram
        return [f"{ram - self._taken_ram():,} of {ram:,} bytes of memory are free"] if ram else []

    def resize(self, placement: Placement, context: ContextSizes) -> Placement | Refusal:
        """Map what a context needs from now on in the place of what it needed, in its domain; its I/O stays."""
        context.check()
        domain, current, _ = self._placements[placement.number]
        io = tuple(each for each in current.mappings if each.what == _IO)
        before = domain.occupied
        domain.unmap([each for each in current.mappings if each.what != _IO])
        is_short = self._lacks_ram(sum(size for _, size in context.pieces))
        found = ("", max(size for _, size in context.pieces)) if is_short else domain.map(context.pieces)
        if found and isinstance(found[0], str):
            asked = int(found[1])
            sentence = (
                f"needs {counted(sum(size for _, size in context.pieces), 'byte')} in its process domain "
                f"({_needs(context, 0)}); without it {'; '.join([domain.describe(asked), *self._ram()])}"
            )
            domain.occupied = before
            lines = _mapping_lines(found[0], asked, domain.number, placement.number)
            return Refusal(Code.COMMON_MEM_ALLOC, f"context '{context.name}'", tuple(lines), sentence)
        mappings: tuple[DomainMapping, ...] = found
        resized = Placement(context.name, placement.number, domain.number, (*mappings, *io))
        self._placements[placement.number] = domain, resized, context
        return resized

    def register(self, placement: Placement, nbytes: int, fd: int | None = None) -> DomainMapping | Refusal:
        """Map an I/O buffer in the domain of its context.

        - `fd`: its descriptor, for the message; None if there is none.
        """
        domain, current, context = self._placements[placement.number]
        found = ("", nbytes) if self._lacks_ram(nbytes) else domain.map([(_IO, nbytes)])
        if found and isinstance(found[0], DomainMapping):
            grown = Placement(current.context, current.number, current.domain, (*current.mappings, found[0]))
            self._placements[placement.number] = domain, grown, context
            return found[0]
        named = (
            [] if fd is None else [f"Mod 4 failed for fd: {fd}, size: {nbytes}, pd: {domain.number}, with error 8003"]
        )
        lines = (
            *named,
            f"Failed to register memHandles for conext {placement.number} on pdId {domain.number}, coreId 0, device 0. "
            f"Current PD has ~{domain.used / 2**20:.2f} MB in use",
            "Failed to register mem with error 0x1f43",
        )
        others = [each for each in self.domains if each is not domain and each.has_place(nbytes)]
        room = f", though {_list_numbers([each.number for each in others])} room" if others else ""
        sentence = (
            f"an I/O buffer of {counted(nbytes, 'byte')} must be in the domain of its context; "
            f"{'; '.join([domain.describe(nbytes), *self._ram()])}{room}"
        )
        return Refusal(Code.MEM_MAPPING, f"I/O of context '{context.name}'", lines, sentence)

    def deregister(self, placement: Placement, mapping: DomainMapping) -> None:
        """Remove an I/O buffer of a context."""
        domain, current, context = self._placements[placement.number]
        domain.unmap([mapping])
        kept = list(current.mappings)
        kept.remove(mapping)
        self._placements[placement.number] = (
            domain,
            Placement(current.context, current.number, current.domain, tuple(kept)),
            context,
        )

    def free(self, placement: Placement) -> None:
        """Free a context: its pieces, its I/O, and the buffer of its group if it is the last member in its domain."""
        domain, current, context = self._placements.pop(placement.number)
        domain.unmap(current.mappings)
        if context.group is not None:
            domain.groups[context.group.name] -= 1
            if not domain.groups[context.group.name]:
                del domain.groups[context.group.name]
                domain.unmap([domain.group_mappings.pop(context.group.name)])

    def placements(self) -> list[Placement]:
        """Return all contexts with what is mapped for them, as they were loaded."""
        return [placement for _, placement, _ in self._placements.values()]


# What the vendor's library logs when it cannot open a second session, because the chip has one.
_ONE_SESSION = "Cannot establish more than one connection to QNN skel: 1009"


def _session_lines(domain: int) -> list[str]:
    """Return what the vendor's library logs when a session cannot be opened."""
    return [
        "DspTransport.openSession qnn_open failed, 0x00000200, prio 100",
        f"Failed to create a new transport session for deviceId 0, coreId 0, pdId {domain}: err: 1002",
        f"Error in creating transport session for deviceId 0, coreId 0, pdId {domain}, err: 1002",
    ]


def _list_numbers(numbers: Sequence[int]) -> str:
    names = " and ".join(str(each) for each in numbers)
    return f"domain{'s' * (len(numbers) > 1)} {names} {'have' if len(numbers) > 1 else 'has'}"


def _needs(context: ContextSizes, io: int) -> str:
    """Say what a context needs, piece by piece."""
    parts = [f"{name} {size:,}" for name, size in context.pieces]
    parts += [f"spill-fill of the group {context.group.nbytes:,}"] if context.group else []
    return ", ".join([*parts, *[f"I/O {io:,}"] * bool(io)]) or "nothing"


def _estimate_lines(number: int, estimate: int) -> list[str]:
    """Return what the vendor's library logs when no domain has room for a context."""
    return [
        f"Failed to find available PD for contextId {number} on deviceId 0 coreId 0with context size estimate "
        f"{estimate}",
        f"context create from binary failed on contextId {number}",
        "Fail to create context from binary with err 1002",
        "Size Calculation encounter error! Doing Hard reset of reserved mem to 0.",
        "Failed to create context from binary with err 0x3ea",
    ]


def _mapping_lines(piece: str, nbytes: int, domain: int, number: int) -> list[str]:
    """Return what the vendor's library logs when a piece has no place in a domain, without lines on descriptors."""
    if piece == "shared weights":
        end = [f"Failed to map shared weights for contextId {number} on deviceId 0, coreId 0, pdId {domain}, err: 1002"]
    elif piece == "weights":
        end = ["Failed to map weights buffer to device!", "Could not allocate persistent weights buffer!"]
    else:
        end = []
    return [
        f"Failed to map buffer of size {nbytes}",
        *end,
        "Failed to initialize graph memory",
        f"Context create from binary failed for deviceId 0 coreId 0 pdId {domain} for context {number}, err 1002",
        f"Context {number} failed on pd {domain}",
    ]
