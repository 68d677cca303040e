"""Holds: which windows of memory are in use, and by whom, for the whole process.

A pool that a graph works in must not be closed, or used as another pool, before its holder releases it. The record goes
by identity. So it covers a buffer, a view of it, a bare pointer and another mapping of the same file alike.

Every change to memory (a claim, a release, the end of a buffer or of a registration) increments `epoch`. Memory that
was checked at one epoch need not be checked again at the same epoch.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isthmus.errors import Code, QnnError
from isthmus.system.lock import Lock

if TYPE_CHECKING:
    from isthmus.memory.window import Window


@dataclass(frozen=True, eq=False)
class Hold:
    """One window in use, until the hold is released or collected.

    - `window`: The memory; the hold keeps its buffer alive.
    - `holder`: Who uses it and until when, for messages.
    - `group`: Holds of one group may overlap: their holder makes sure that they are not used at the same time.
    - `active`: If given, the window counts as held only while this returns true. A hold without it is a claim.
    - `number`: Numbers holds in the order of their creation.
    """

    window: Window
    holder: str
    group: object | None = None
    active: Callable[[], bool] | None = None
    number: int = field(default_factory=itertools.count().__next__, init=False)

    def release(self) -> None:
        """Release the hold; safe to call again."""
        with lock:
            # Equal to the reference in the record: both refer to the same object.
            reference = weakref.ref(self)
            if reference in _holds:
                _holds.discard(reference)
                if self.is_claim:
                    record_change()

    @property
    def counts(self) -> bool:
        """Whether the window is held now."""
        return self.active is None or self.active()

    @property
    def is_claim(self) -> bool:
        """Whether it is a claim: it holds all the time, not only while something runs."""
        return self.active is None


# The garbage collector may release a hold at any allocation, also in the thread that holds this lock. So the lock is
# reentrant, and iterations go over a copy.
lock = Lock()
"""Held while the record is read or changed, and while a buffer is closed."""
# Weak references: the holder keeps a hold alive. A hold that an interrupt took from its caller holds nothing.
_holds: set[weakref.ref[Hold]] = set()
epoch = 0
"""Number of times that memory has changed hands or ended in this process."""


def record_change() -> None:
    """Increment the epoch: memory that may be bound somewhere has changed."""
    global epoch
    with lock:
        epoch += 1


def present() -> list[Hold]:
    """Return all holds in the order of their creation."""
    alive = [hold for reference in list(_holds) if (hold := reference()) is not None]
    return sorted(alive, key=lambda hold: hold.number)


def _record(hold: Hold) -> None:
    """Add a hold to the record, which it leaves when it is collected."""
    # The reference may outlive its entry, in a copy that is being iterated; its callback runs then and must not fail.
    _holds.add(weakref.ref(hold, _holds.discard))


def overlap(one: Window, other: Window) -> bool:
    """Return whether two windows share a byte, wherever they are mapped."""
    return any(mine.overlaps(theirs) for mine in one.spans for theirs in other.spans)


def holders(window: Window) -> list[Hold]:
    """Return the holds that share a byte with a window."""
    with lock:
        return [hold for hold in present() if hold.counts and overlap(hold.window, window)]


def claim(
    window: Window,
    what: str,
    holder: str,
    *,
    group: object | None = None,
    besides: Hold | None = None,
    code: Code = Code.COMMON_OPERATION_NOT_PERMITTED,
) -> Hold:
    """Hold a window that nothing else holds.

    - `holder`, `group`: As in `Hold`.
    - `besides`: A hold that this one will replace, so that they may overlap.

    Raises `QnnError` with `code`, naming `what` and the present holder, if a byte is already held. Then nothing has
    changed.
    """
    hold = Hold(window, holder, group)
    with lock:
        # Before the check for running executions: one that starts later sees the new epoch and checks its memory again.
        record_change()
        window.buffer.check_open()
        for other in present():
            same_group = group is not None and other.group == group
            if other is not besides and not same_group and other.counts and overlap(other.window, window):
                raise QnnError(
                    code,
                    what,
                    f"overlaps the {other.holder} ({other.window.describe()})",
                    "Give each pool memory of its own.",
                )
        _record(hold)
    return hold


def refuse_claimed(window: Window, what: str, besides: Hold | None = None) -> None:
    """Refuse memory for a tensor if any of it is part of a pool; `besides` is a hold to ignore."""
    # Claims are few, and registered memory is not: a decoder has a registration for each place of its cache.
    for hold in present():
        if hold.is_claim and hold is not besides and overlap(hold.window, window):
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, f"its buffer overlaps the {hold.holder}")


def use(window: Window, holder: str, active: Callable[[], bool]) -> Hold:
    """Record a window as held whenever `active` returns true, whatever else holds it."""
    hold = Hold(window, holder, active=active)
    with lock:
        _record(hold)
    return hold


def keep(window: Window, holder: str) -> Hold:
    """Record that a window's memory must not end or become a pool, though others may use it."""
    with lock:
        window.buffer.check_open()
        # With a condition, even one that is always true, it is not a claim: tensors may use the memory.
        return use(window, holder, lambda: True)


def refuse_if_held(window: Window, what: str, hint: str = "") -> None:
    """Refuse to end a window's memory while it is held."""
    held = holders(window)
    if held:
        names = ", the ".join(hold.holder for hold in held)
        raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, what, f"it is the {names}", hint)
