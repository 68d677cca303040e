"""Registered memory: the table of one context, common to all backends with memory handles.

A registration is all or nothing; a handle belongs to one context.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from isthmus.backends.seam.driver import MemDescriptor, Registration
from isthmus.memory import Window, holds


class TableEntry(Registration):
    """Registered memory in a table.

    - `number`: Its number in messages.
    - `descriptor`, `window`: What the client registered, and the memory that this is.
    - `forget`: Removes it from the table.
    - `keys`: The keys by which the table finds it, such as the identity of its buffer.
    """

    def __init__(
        self,
        number: int,
        descriptor: MemDescriptor,
        window: Window,
        forget: Callable[[Any], None],
        keys: Sequence[Hashable] = (),
    ) -> None:
        self.number, self.descriptor, self.window, self.keys = number, descriptor, window, keys
        self._forget = forget
        self._hold: holds.Hold | None = None

    @property
    def name(self) -> str:
        """The handle's description in messages."""
        return f"handle {self.number} ({self.descriptor.title})"

    def hold(self) -> None:
        """Prevent the memory from ending before the registration."""
        self._hold = holds.keep(self.window, f"memory of {self.name}")

    def _release(self) -> None:
        """Remove the entry from the table and release the memory; safe to call again."""
        self._forget(self)
        if self._hold is not None:
            self._hold.release()


_Entry = TypeVar("_Entry", bound=TableEntry)


class RegistrationTable(ABC, Generic[_Entry]):
    """The registered memory of one context.

    A backend implements `_entry`, and `_share` if its device must be informed.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        # Reentrant, because an entry that is closed during a registration removes itself.
        self._lock = threading.RLock()
        # Weak references: an entry that an interrupt took from its owner ends by itself.
        self._entries: weakref.WeakSet[_Entry] = weakref.WeakSet()
        self._by_key: dict[Hashable, weakref.WeakSet[_Entry]] = {}

    @abstractmethod
    def _entry(self, what: str, descriptor: MemDescriptor) -> _Entry:
        """Check a descriptor and make an entry for it, which is not in the table yet."""

    def _share(self, entries: Sequence[_Entry]) -> None:
        """Make new entries visible to the device: all or none."""

    def register(self, descriptors: Sequence[MemDescriptor]) -> list[_Entry]:
        """Register memory for all of these descriptors, or for none."""
        entries: list[_Entry] = []
        with self._lock:
            try:
                for index, descriptor in enumerate(descriptors):
                    entry = self._entry(f"memory descriptor {index}", descriptor)
                    entries.append(entry)
                    self._entries.add(entry)
                    for key in entry.keys:
                        self._by_key.setdefault(key, weakref.WeakSet()).add(entry)
                self._share(entries)
            except Exception:
                for entry in entries:
                    entry.close()
                raise
        return entries

    def _find(self, *keys: Hashable) -> list[_Entry]:
        """Return the entries that have one of these keys, the oldest first."""
        matches = {entry for key in keys for entry in self._by_key.get(key, ())}
        return sorted(matches, key=lambda entry: entry.number)

    def close(self) -> None:
        """Deregister all memory; safe to call again."""
        with self._lock:
            entries = list(self._entries)
        for entry in entries:
            entry.close()

    def _forget(self, entry: _Entry) -> None:
        """Remove an entry from the table; safe to call again."""
        with self._lock:
            self._entries.discard(entry)
            for key in entry.keys:
                entries = self._by_key.get(key, weakref.WeakSet())
                entries.discard(entry)
                if not entries:
                    self._by_key.pop(key, None)
