"""What all handles have in common: an owner, an end, and a refusal of use after it."""

from __future__ import annotations

import threading
from typing import ClassVar, TypeVar

from isthmus.errors import Code, QnnError

_Self = TypeVar("_Self", bound="Handle")


class Handle:
    """An object of the API that is freed explicitly; a context manager.

    Freeing twice is harmless, and so is any order: what a handle owns ends with it.
    """

    invalid: ClassVar[Code]
    """The code that answers use after free."""

    def __init__(self, what: str, owner: Handle | None = None) -> None:
        self._what = what
        self._owner = owner
        self._owned: list[Handle] = []
        self._alive = True
        self._ending = threading.Lock()
        if owner is not None:
            owner._check()
            owner._owned.append(self)

    @property
    def alive(self) -> bool:
        """Whether it has not been freed."""
        return self._alive

    def free(self) -> None:
        """Free it and all that it owns; safe to call again."""
        self._end()
        if self._owner is not None and self in self._owner._owned:
            self._owner._owned.remove(self)

    def _end(self) -> None:
        with self._ending:
            if not self._alive:
                return
            self._may_end()
            for handle in reversed(self._owned):
                handle._end()
            self._owned.clear()
            self._alive = False
            self._release()

    def _may_end(self) -> None:
        """Refuse to be freed now."""

    def _release(self) -> None:
        """Let go of what lies below."""

    def _check(self) -> None:
        if not self._alive:
            raise QnnError(self.invalid, self._what, "it has been freed")

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.free()
