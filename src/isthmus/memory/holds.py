"""Who holds which memory: spans of addresses with the name of their holder, for the whole process.

A pool that a graph works in must not be closed, nor serve as another pool, before its holder lets it go. The record
is by address, so it covers a buffer, a view of it and a bare pointer alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from isthmus.errors import Code, QnnError
from isthmus.memory.region import Region


@dataclass(frozen=True, eq=False)
class Hold:
    """One span in use.

    Parameters
    ----------
    region
        The memory; the hold keeps its owner alive.
    holder
        Who uses it and until when, for messages.
    group
        Holds of one group may overlap: their holder takes care that they are used in turn.
    active
        The span counts as held only while this says so; always, without it.
    """

    region: Region
    holder: str
    group: object | None = None
    active: Callable[[], bool] | None = None

    def release(self) -> None:
        """Let go; safe to call again."""
        with _lock:
            _holds.pop(id(self), None)

    @property
    def counts(self) -> bool:
        """Whether the span is held at this moment."""
        return self.active is None or self.active()


# A hold may be released by the garbage collector at any allocation, also by the thread that is in here: the lock can be
# taken again, and what is walked through is a copy.
_lock = threading.RLock()
_holds: dict[int, Hold] = {}


def overlap(one: Region, other: Region) -> bool:
    """Whether two regions share a byte."""
    return (
        one.address < other.address + other.nbytes
        and other.address < one.address + one.nbytes
        and min(one.nbytes, other.nbytes) > 0
    )


def holders(region: Region) -> list[Hold]:
    """The holds that share a byte with a region."""
    with _lock:
        return [hold for hold in list(_holds.values()) if hold.counts and overlap(hold.region, region)]


def claim(
    region: Region,
    what: str,
    holder: str,
    *,
    group: object | None = None,
    replacing: Hold | None = None,
    code: Code = Code.COMMON_OPERATION_NOT_PERMITTED,
) -> Hold:
    """Hold a region that nobody else holds; `replacing` is let go in the same moment.

    Raises
    ------
    QnnError
        With `code`, naming `what` and the present holder, if a byte is taken. Then nothing has changed.
    """
    hold = Hold(region, holder, group)
    with _lock:
        for other in list(_holds.values()):
            shared = group is not None and other.group is group
            if other is not replacing and not shared and other.counts and overlap(other.region, region):
                raise QnnError(
                    code,
                    what,
                    f"overlaps the {other.holder} ({other.region.nbytes} bytes at {other.region.address:#x})",
                    "Give each pool memory of its own.",
                )
        _holds.pop(id(replacing), None)
        _holds[id(hold)] = hold
    return hold


def use(region: Region, holder: str, active: Callable[[], bool]) -> Hold:
    """Record a region as held whenever `active` says so, whatever else holds it."""
    hold = Hold(region, holder, active=active)
    with _lock:
        _holds[id(hold)] = hold
    return hold
