"""Collects what a model uses and we cannot convert, so that the user gets one error that lists all of it."""

from __future__ import annotations

from isthmus.errors import Code, QnnError

NAMES_SHOWN = 3
"""How many node names an operation shows before "and N more"."""


class Unsupported:
    """The unsupported operations met so far while converting a model.

    Parameters
    ----------
    model
        The name of the model, for the message.

    Examples
    --------
    >>> unsupported = Unsupported("net")
    >>> unsupported.add("STFT", "a/stft")
    >>> unsupported.check()
    Traceback (most recent call last):
    isthmus.errors.QnnError: [1000 COMMON_NOT_SUPPORTED] model 'net': 1 operation is not supported: STFT x1 ('a/stft')
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self._found: dict[str, dict[str, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, operation: str, node: str, reason: str = "") -> None:
        """Note that `node` uses `operation`, which cannot be converted, and why. Each node counts once."""
        self._found.setdefault(operation, {}).setdefault(node, reason)

    @property
    def counts(self) -> dict[str, int]:
        """How many nodes use each unsupported operation."""
        return {operation: len(nodes) for operation, nodes in self._found.items()}

    def check(self) -> None:
        """Raise the one error if anything unsupported was met."""
        if not self._found:
            return
        total = sum(self.counts.values())
        are = "operation is" if total == 1 else "operations are"
        raise QnnError(
            Code.COMMON_NOT_SUPPORTED,
            f"model '{self.model}'",
            f"{total} {are} not supported: " + "; ".join(_line(*item) for item in self._found.items()),
        )


def unsupported(what: str, rule: str, hint: str = "") -> QnnError:
    """The error a converter raises for one node; the walk over the model catches it and collects it."""
    return QnnError(Code.COMMON_NOT_SUPPORTED, what, rule, hint)


def _line(operation: str, nodes: dict[str, str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for node, reason in nodes.items():
        by_reason.setdefault(reason, []).append(node)
    parts: list[str] = []
    for reason, names in by_reason.items():
        shown = ", ".join(f"'{name}'" for name in names[:NAMES_SHOWN])
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        parts.append(f"{reason}: {shown}{more}" if reason else f"{shown}{more}")
    return f"{operation} x{len(nodes)} ({'; '.join(parts)})"
