"""Groups of contexts that use one spill-fill buffer (REGISTER_MULTI_CONTEXTS, REGISTER_CONCURRENT_RESOURCE_SHARING).

The first context of a group reserves the buffer, in memory that the accelerator shares. The scratch of all graphs of
the group's contexts is in there, so no two of them run at once: an execution takes the lock of its group first, then
that of its queue. The buffer stays until the last member is freed. Once the first context is freed, none can join by
its handle.

All graphs of a concurrent group have one priority, and keep it. Qualcomm's chips also save VTCM to a common buffer for
them; no graph yields VTCM here.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.seam.facets import NamesContext
from isthmus.domains.sizes import SpillGroup, check_member
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel
from isthmus.memory import rpcmem
from isthmus.system.lock import Lock

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_PRIORITY = 0x7FFFFFFF
_numbers = itertools.count(1)
_attempts = itertools.count(1)


@dataclass(frozen=True)
class GroupRegistration(NamesContext):
    """The group of a context (QnnHtpContext_GroupRegistration_t).

    - `first`: The first context of the group, or its handle in C; None for the first context itself.
    - `nbytes`: The size of the spill-fill buffer. It counts only for the first context.
    """

    first: Any = None
    nbytes: int = 0

    def resolved(self, find: Callable[[int], Any]) -> GroupRegistration:
        """Return the same with the context in the place of its handle."""
        return replace(self, first=find(self.first) or self.first) if isinstance(self.first, int) else self


class MemberNeeds(NamedTuple):
    """What a context needs in its group.

    - `nbytes`: Its spill-fill memory.
    - `priority`: The priority of its graphs, if the group is concurrent; otherwise None.
    """

    nbytes: int
    priority: int | None = None


class SpillFillGroup:
    """A group of contexts on one accelerator.

    - `number`: Its number in messages.
    - `nbytes`: The size of its buffer.
    - `slot`: The buffer's slot in the accelerator.
    - `priority`: The priority of all its graphs, if the group is concurrent; otherwise None.
    """

    def __init__(self, accelerator: Accelerator, nbytes: int, priority: int | None = None) -> None:
        self.number, self.nbytes, self.priority = next(_numbers), nbytes, priority
        self.accelerator = accelerator
        self._lock = Lock()
        self._members: weakref.WeakSet[object] = weakref.WeakSet()
        self._buffer = rpcmem.share(nbytes)
        assert self._buffer.fd is not None
        try:
            self._slots = accelerator.register([(self._buffer.fd, 0, nbytes)])
        except Exception:
            self._buffer.close()
            raise
        self.slot = self._slots[0]

    @property
    def charge(self) -> SpillGroup | None:
        """What is charged for it in each process domain that has a member; nothing for a buffer of no bytes."""
        return SpillGroup(f"group {self.number}", self.nbytes) if self.nbytes else None

    @property
    def is_open(self) -> bool:
        """Whether it has a member, and its accelerator is alive."""
        return len(self._members) > 0 and self.accelerator.alive

    def join(self, context: object) -> None:
        """Add a member."""
        with self._lock:
            self._members.add(context)

    def leave(self, context: object) -> None:
        """Remove a member that runs nothing any more, and release the buffer with the last one; safe to call again."""
        with self._lock:
            self._members.discard(context)
            if not self._members:
                self.accelerator.deregister(self._slots)
                self._buffer.close()


def group_for(
    registration: GroupRegistration,
    founders: SpillFillGroup | None,
    accelerator: Accelerator,
    member: MemberNeeds,
    log: Log,
) -> SpillFillGroup:
    """Found the group of a context or return the one that it joins.

    - `founders`: The group of the first context; None if that has none, or there is no such context.
    - `member`: What the context needs.

    Errors: CONTEXT_CREATE_FROM_BINARY if there is no such group, if its buffer is too small, if it would have none, or
    if the group has another priority.
    """
    number, (need, priority) = next(_attempts), member
    if registration.first is None:
        check_member(registration.nbytes, need)
        return SpillFillGroup(accelerator, registration.nbytes, priority)
    is_there = founders is not None and founders.is_open and founders.accelerator is accelerator
    if founders is None or not is_there or (founders.priority is None) != (priority is None):
        name = founders.number if founders is not None else registration.first
        name = name if isinstance(name, int) else 0
        log(
            LogLevel.ERROR,
            f"Failed to register spill-fill buffer for groupId {name}, contextId {number}, buffer size "
            f"{registration.nbytes}, priority {_NO_PRIORITY if priority is None else priority}",
        )
        raise QnnError(
            Code.CONTEXT_CREATE_FROM_BINARY, "spill-fill group", f"Context group {name} does not exist!",
            "Its first context was refused or freed, founded none or one of another kind, or is on another device.",
        )  # fmt: skip
    if priority != founders.priority:
        rule = f"the graphs of concurrent group {founders.number} have priority {founders.priority}, not {priority}"
        raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, "concurrent group", rule)
    check_member(founders.nbytes, need)
    return founders
