"""How the graphs of a context binary are loaded: graph switching and the order of retention."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypedDict

from isthmus.errors import Code, QnnError


class LoadingOptions(TypedDict, total=False):
    """What a client may say of it; without an option, or with None, it is as the backend's configuration says.

    - `persistent`, `memory_limit`, `retained`: As `is_persistent`, `memory_limit` and `retained` of `Loading`.
    """

    persistent: bool | None
    memory_limit: int | None
    retained: Sequence[str] | None


@dataclass(frozen=True)
class Loading:
    """How the graphs of a context binary are loaded.

    - `is_persistent`: Whether the client keeps the binary as it is until the context is freed.
    - `memory_limit`: The client's memory limit hint in MB; 0 for none. Its size has no meaning.
    - `retained`: The order of retention: the graphs to keep loaded, the most important one first.
    """

    is_persistent: bool = False
    memory_limit: int = 0
    retained: tuple[str, ...] = ()

    @property
    def switches(self) -> bool:
        """Whether not all graphs are loaded at a time."""
        return self.is_persistent and self.memory_limit > 0

    def check(self, graphs: Collection[str]) -> None:
        """Refuse an order of retention that names a graph twice, or one that is not among these.

        >>> Loading(retained=("a", "a")).check(["a", "b"])
        Traceback (most recent call last):
        isthmus.errors.QnnError: [5010 CONTEXT_INVALID_CONFIG] context: Duplicate graph name a provided ...
        """
        for index, name in enumerate(self.retained):
            if name in self.retained[:index]:
                rule = f"Duplicate graph name {name} provided in the retention list"
            elif name not in graphs:
                rule = f"Graph name {name} provided does not exist in the context"
            else:
                continue
            hint = "Failed to validate graph switching configs. Please provide valid configs."
            raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context", rule, hint)
