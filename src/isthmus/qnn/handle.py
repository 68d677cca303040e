"""The base of all handles: an owner, an end, and an error on use after the end.

A handle belongs to its process. A forked child has copies of the underlying objects in whatever state the parent's
other threads left them. There, calls on handles fail with an error that they belong to the parent, and freeing them
does nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import ClassVar, TypeVar

from isthmus import audit_log
from isthmus.errors import Code, QnnError
from isthmus.log import deferred
from isthmus.system.shield import shielded, unless_exiting

_Self = TypeVar("_Self", bound="Handle")
# All handles of this process; a forked child marks them as its parent's.
_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class Handle:
    """An object of the API that is freed explicitly; a context manager.

    Freeing twice is harmless, and the order does not matter: what a handle owns ends with it.
    """

    invalid: ClassVar[Code]
    """The error code for use after free."""
    usable = False
    """Whether it may be used: it belongs to this process and has not been freed."""
    # The values until `__init__` sets them: an object under construction has nothing to end.
    _ended, _inherited = True, False
    audit_key: audit_log.AuditKey | None = None
    """Its key in audits; None if it is in none."""

    def __init__(self, what: str, owner: Handle | None = None) -> None:
        self._what = what
        self._owner = owner
        # Oldest first.
        self._owned: list[Handle] = []
        # Whether freeing has begun: nothing may be added to `_owned`.
        self._closing = False
        self._inherited = False
        # Guards `_owned` and `_closing`.
        self._owning = threading.Lock()
        # Held while the handle is freed.
        self._ending = threading.RLock()
        self.usable, self._ended = True, False
        _handles.add(self)
        if owner is None and audit_log.active:
            self.audit_key = audit_log.new_key()
            audit_log.begin(self.audit_key, audit_log.Action.CREATE, what)
        if owner is not None:
            try:
                owner._adopt(self)
            except QnnError:
                self.usable, self._ended = False, True
                raise

    def __repr__(self) -> str:
        freed = "" if self.usable else ", freed"
        return f"<{type(self).__name__}: {self.__dict__.get('_what', 'not opened')}{freed}>"

    @property
    def what(self) -> str:
        """Its kind and name, for messages."""
        return self._what

    @property
    def alive(self) -> bool:
        """Whether it has not been freed. If freeing was interrupted, the next call of `free` continues it."""
        return not self._ended and not self._inherited

    @property
    def is_inherited(self) -> bool:
        """Whether it belongs to the process that this one was forked from."""
        return self._inherited

    @unless_exiting
    @shielded
    def free(self) -> None:
        """Free the handle and everything it owns; safe to call again."""
        if self._inherited:
            return
        self._end()
        if self._owner is not None:
            self._owner._disown(self)

    def _end(self) -> None:
        """Free what it owns and itself, without removing it from its owner. Continues where an interrupt stopped it."""
        with deferred(), self._ending:
            if self._ended:
                return
            if self.usable:
                self._may_end()
            # From now on, creating objects in it is refused; existing ones are ended here, youngest first.
            with self._owning:
                self._closing = True
        # Not under the lock: what we wait for here may itself free this handle.
        self._quiet()
        with deferred(), self._ending:
            if self._ended:
                return
            while self._owned:
                youngest = self._owned[-1]
                if youngest.audit_key is not None:
                    audit_log.end(youngest.audit_key, f"its {self._what} is freed before it")
                youngest._end()
                self._disown(youngest)
            self.usable = False
            self._release()
            self._ended = True
        if self.audit_key is not None:
            audit_log.end(self.audit_key)

    def _adopt(self, handle: Handle) -> None:
        """Take ownership of a new handle, unless this one has ended meanwhile."""
        with self._owning:
            if self._closing or not self.usable:
                raise self._refusal()
            self._owned.append(handle)

    def _disown(self, handle: Handle) -> None:
        with self._owning:
            if handle in self._owned:
                self._owned.remove(handle)

    def _quiet(self) -> None:
        """Wait until all pending work of this handle and of those it owns is done."""
        for handle in reversed(list(self._owned)):
            handle._quiet()

    def _may_end(self) -> None:
        """Raise an error if it cannot be freed now."""

    def _release(self) -> None:
        """Release the underlying objects; called again after an interrupt."""

    def _check(self) -> None:
        """Raise an error if it may not be used."""
        if not self.usable:
            raise self._refusal()

    def _refusal(self) -> QnnError:
        """Return the error that says why it may not be used."""
        if self._inherited:
            rule = "it belongs to the process that this one was forked from"
            hint = "Create a backend of its own in the forked process."
            return QnnError(Code.COMMON_SYSTEM_COMMUNICATION, self._what, rule, hint)
        return QnnError(self.invalid, self._what, "it has been freed")

    def _inherit(self) -> None:
        """Mark it as the parent's in a forked child. Locks that other threads held will never be released here."""
        self.usable, self._inherited = False, True
        self._owning, self._ending = threading.Lock(), threading.RLock()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.free()


def end_forgotten(handle: Handle, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Free a handle that is no longer reachable, and warn as Python does for files.

    While the interpreter exits, names of this module may be gone, `sys` too; so a parameter keeps the function.
    """
    # During interpreter shutdown the serving threads are gone; the system releases the rest.
    if not is_finalizing() and handle.alive:
        if handle.audit_key is not None:
            audit_log.end(handle.audit_key, "it is no longer reachable")
        # Free first: the warning may be turned into an error.
        handle.free()
        warnings.warn(f"{handle._what} was never freed", ResourceWarning, stacklevel=2, source=handle)


def _after_fork() -> None:
    for handle in list(_handles):
        handle._inherit()
    _handles.clear()


os.register_at_fork(after_in_child=_after_fork)
