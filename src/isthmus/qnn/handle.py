"""What all handles have in common: an owner, an end, and a refusal of use after it.

A handle is its process's own. A forked child has copies of what lies below, as other threads of its parent left them in
the midst of something: there the handles answer that they are the parent's, and freeing them does nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from typing import ClassVar, TypeVar

from isthmus.errors import Code, QnnError
from isthmus.log import deferred
from isthmus.system.shield import shielded

_Self = TypeVar("_Self", bound="Handle")
_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class Handle:
    """An object of the API that is freed explicitly; a context manager.

    Freeing twice is harmless, and so is any order: what a handle owns ends with it.
    """

    invalid: ClassVar[Code]
    """The code that answers use after free."""
    usable = False
    """Whether it may be used: it is this process's, and has not been freed."""
    _ended, _inherited = True, False

    def __init__(self, what: str, owner: Handle | None = None) -> None:
        self._what = what
        self._owner = owner
        self._owned: list[Handle] = []
        self._closing = False
        self._inherited = False
        self._owning = threading.Lock()
        self._ending = threading.RLock()
        self.usable, self._ended = True, False
        _handles.add(self)
        if owner is not None:
            try:
                owner._adopt(self)
            except QnnError:
                self.usable, self._ended = False, True
                raise

    @property
    def what(self) -> str:
        """Its kind and name, for messages."""
        return self._what

    @property
    def alive(self) -> bool:
        """Whether it has not been freed: where that was interrupted, whoever frees it again goes on."""
        return not self._ended and not self._inherited

    @property
    def inherited(self) -> bool:
        """Whether it belongs to the process that this one was forked from."""
        return self._inherited

    @shielded
    def free(self) -> None:
        """Free it and all that it owns; safe to call again."""
        if self._inherited:
            return
        self._end()
        if self._owner is not None:
            self._owner._disown(self)

    def _end(self) -> None:
        with deferred(), self._ending:
            if self._ended:
                return
            if self.usable:
                self._may_end()
            # What is created from now on is refused; what was created before is ended here, the youngest first.
            with self._owning:
                self._closing = True
        # Not in the lock: what is waited for here may itself free this handle.
        self._quiet()
        with deferred(), self._ending:
            if self._ended:
                return
            while self._owned:
                youngest = self._owned[-1]
                youngest._end()
                self._disown(youngest)
            self.usable = False
            self._release()
            self._ended = True

    def _adopt(self, handle: Handle) -> None:
        """Own a new handle, unless this one has ended meanwhile."""
        with self._owning:
            if self._closing or not self.usable:
                raise self._refusal()
            self._owned.append(handle)

    def _disown(self, handle: Handle) -> None:
        with self._owning:
            if handle in self._owned:
                self._owned.remove(handle)

    def _quiet(self) -> None:
        """Wait until nothing that was asked of it, or of what it owns, is still to be done."""
        for handle in reversed(list(self._owned)):
            handle._quiet()

    def _may_end(self) -> None:
        """Refuse to be freed now."""

    def _release(self) -> None:
        """Let go of what lies below; called again after an interrupt."""

    def _check(self) -> None:
        if not self.usable:
            raise self._refusal()

    def _refusal(self) -> QnnError:
        if self._inherited:
            return QnnError(
                Code.COMMON_SYSTEM_COMMUNICATION,
                self._what,
                "it belongs to the process that this one was forked from",
                "Create a backend of its own in the forked process.",
            )
        return QnnError(self.invalid, self._what, "it has been freed")

    def _inherit(self) -> None:
        """In a forked child: it is the parent's. Locks that other threads held there will never be released here."""
        self.usable, self._inherited = False, True
        self._owning, self._ending = threading.Lock(), threading.RLock()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.free()


def end_forgotten(handle: Handle) -> None:
    """Free a handle that nobody can reach any more, and say so as Python does of files."""
    # While the interpreter ends, the threads that answer are gone: the system ends what is left.
    if handle.alive and not sys.is_finalizing():
        # Before the warning, which may be an error.
        handle.free()
        warnings.warn(f"{handle._what} was never freed", ResourceWarning, stacklevel=2, source=handle)


def _after_fork() -> None:
    for handle in list(_handles):
        handle._inherit()
    _handles.clear()


os.register_at_fork(after_in_child=_after_fork)
