"""Handles for C: numbers that each refer to one object and are never reused."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

from isthmus.errors import Code, QnnError

# The first handle, and the distance between handles: they look like aligned pointers and are never small numbers.
_FIRST, _STEP = 0x10000, 16
_Kind = TypeVar("_Kind")


class Handles:
    """The objects of one library by handle.

    A handle that was freed, never issued, or issued for another kind of object is refused with QNN's code for it.
    Freeing a handle frees the handles it owns. The GIL makes each step atomic.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(_FIRST, _STEP)
        self._objects: dict[int, Any] = {}
        # The handle of each object, by the object's id.
        self._by_object: dict[int, int] = {}
        # The handles that each handle owns, and the owner of each handle that has one.
        self._owned: dict[int, set[int]] = {}
        self._owner: dict[int, int] = {}

    def add(self, thing: Any, owner: int = 0) -> int:
        """Return a new handle for an object; it ends with its owner at the latest."""
        number = next(self._numbers)
        if owner:
            # First, so that an interrupt never leaves an object unknown to its owner.
            self._owned.setdefault(owner, set()).add(number)
            self._owner[number] = owner
        self._objects[number] = thing
        self._by_object[id(thing)] = number
        return number

    def get(self, number: int, kind: type[_Kind], code: Code, noun: str) -> _Kind:
        """Return the object with this handle, if it is of this kind."""
        thing = self._objects.get(number)
        if not isinstance(thing, kind):
            rule, hint = ("unknown handle", "It may have been freed.") if number else ("it is null", "")
            raise QnnError(code, f"{noun} handle {number:#x}", rule, hint)
        return thing

    def number_of(self, thing: Any) -> int:
        """Return the handle of an object, or 0 if it has none."""
        return self._by_object.get(id(thing), 0)

    def remove(self, number: int) -> list[Any]:
        """Remove a handle and all handles it owns, and return their objects."""
        removed = [self._objects.pop(number, None)]
        self._by_object.pop(id(removed[0]), None)
        siblings = self._owned.get(self._owner.pop(number, 0))
        if siblings is not None:
            siblings.discard(number)
        for owned in self._owned.pop(number, ()):
            removed += self.remove(owned)
        return removed

    def of_kind(self, kind: type[_Kind]) -> list[tuple[int, _Kind]]:
        """Return all objects of a kind with their handles."""
        return [(number, thing) for number, thing in list(self._objects.items()) if isinstance(thing, kind)]
