"""Who holds which memory: windows with the name of their holder, for the whole process.

A pool that a graph works in must not be closed, nor serve as another pool, before its holder lets it go. The record is
by identity, so it covers a buffer, a view of it, a bare pointer and another mapping of the same file alike.

Whatever changes about memory (a claim, a release, the end of a buffer or of a registration) moves `epoch` on. Who has
checked memory at one epoch need not check it again at the same.
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
    """One window in use, until it is released or forgotten.

    Parameters
    ----------
    window
        The memory; the hold keeps its buffer alive.
    holder
        Who uses it and until when, for messages.
    group
        Holds of one group may overlap: their holder takes care that they are used in turn.
    active
        The window counts as held only while this says so; always, without it.
    """

    window: Window
    holder: str
    group: object | None = None
    active: Callable[[], bool] | None = None
    number: int = field(default_factory=itertools.count().__next__, init=False)

    def release(self) -> None:
        """Let go; safe to call again."""
        with lock:
            mine = weakref.ref(self)
            if mine in _holds:
                _holds.discard(mine)
                if self.active is None:
                    changed()

    @property
    def counts(self) -> bool:
        """Whether the window is held at this moment."""
        return self.active is None or self.active()

    @property
    def is_claim(self) -> bool:
        """Whether it holds all the time, and not only while something runs."""
        return self.active is None


# A hold may be released by the garbage collector at any allocation, also by the thread that is in here: this can be
# taken again, and what is walked through is a copy.
lock = Lock()
"""Held while a record is read or changed, and while a buffer ends."""
# Not the record but the holder keeps a hold: one that an interrupt took from him before he had it holds nothing.
_holds: set[weakref.ref[Hold]] = set()
epoch = 0
"""How often memory has changed hands or ended in this process."""


def changed() -> None:
    """Say that memory which may be bound somewhere is no longer what it was."""
    global epoch
    with lock:
        epoch += 1


def present() -> list[Hold]:
    """All holds there are, in the order in which they were made."""
    found = [hold for reference in list(_holds) if (hold := reference()) is not None]
    return sorted(found, key=lambda hold: hold.number)


def _record(hold: Hold) -> None:
    # The reference may outlive its place in the record, in a copy that somebody walks through, and be told then.
    _holds.add(weakref.ref(hold, _holds.discard))


def overlap(one: Window, other: Window) -> bool:
    """Whether two windows share a byte, wherever they are mapped."""
    return any(mine.overlaps(theirs) for mine in one.spans for theirs in other.spans)


def holders(window: Window) -> list[Hold]:
    """The holds that share a byte with a window."""
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
    """Hold a window that nobody else holds; a hold that it is to replace may stand `besides` it for a while.

    Raises
    ------
    QnnError
        With `code`, naming `what` and the present holder, if a byte is taken. Then nothing has changed.
    """
    hold = Hold(window, holder, group)
    with lock:
        # Before the look at who runs: an execution that starts after it sees the new epoch and checks its memory again.
        changed()
        window.buffer.check_open()
        for other in present():
            shared = group is not None and other.group is group
            if other is not besides and not shared and other.counts and overlap(other.window, window):
                raise QnnError(
                    code,
                    what,
                    f"overlaps the {other.holder} ({other.window.describe()})",
                    "Give each pool memory of its own.",
                )
        _record(hold)
    return hold


def refuse_claimed(window: Window, what: str, besides: Hold | None = None) -> None:
    """Refuse memory for a tensor that is, all or part of it, somebody's pool; one hold may be excepted."""
    for hold in holders(window):
        if hold.is_claim and hold is not besides:
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, f"its buffer overlaps the {hold.holder}")


def use(window: Window, holder: str, active: Callable[[], bool]) -> Hold:
    """Record a window as held whenever `active` says so, whatever else holds it."""
    hold = Hold(window, holder, active=active)
    with lock:
        _record(hold)
    return hold


def keep(window: Window, holder: str) -> Hold:
    """Record that a window's memory must neither end nor become somebody's pool, though others may use it."""
    with lock:
        window.buffer.check_open()
        return use(window, holder, lambda: True)


def refuse_if_held(window: Window, what: str, hint: str = "") -> None:
    """Refuse that a window's memory ends while somebody holds it."""
    held = holders(window)
    if held:
        names = ", the ".join(hold.holder for hold in held)
        raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, what, f"it is the {names}", hint)
