"""The collection of a model's unsupported features, so that the user gets one error that lists all of them."""

from __future__ import annotations

from isthmus.errors import Code, QnnError

IN_STAGES = "Session, isthmus run and isthmus plan compute such a model in stages; it cannot be one graph."
"""The hint for models whose shapes are known only at run time."""
NAMES_SHOWN = 3
"""How many node names are listed for an operation before "and N more"."""


class NeedsStages(QnnError):
    """The refusal of a model as one graph because of values that are known only at run time."""


class Unsupported:
    """The unsupported operations found so far in the conversion of a model.

    >>> unsupported = Unsupported("net")
    >>> unsupported.add("STFT", "a/stft")
    >>> unsupported.check()
    Traceback (most recent call last):
    isthmus.errors.QnnError: [1000 COMMON_NOT_SUPPORTED] model 'net': 1 operation is not supported: STFT x1 ('a/stft')
    """

    def __init__(self, model: str) -> None:
        self.model = model
        # The reason by node name, by operation; the reason may be "".
        self._reasons: dict[str, dict[str, str]] = {}
        # Whether some are unsupported only because the model becomes one graph.
        self._in_one_graph = False

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def add(self, operation: str, node: str, reason: str = "", in_one_graph: bool = False) -> None:
        """Record that `node` uses `operation`, which cannot be converted, and why. Each node counts once.

        `in_one_graph` says that it can be converted in a stage of the model.
        """
        self._reasons.setdefault(operation, {}).setdefault(node, reason)
        self._in_one_graph |= in_one_graph

    @property
    def counts(self) -> dict[str, int]:
        """The number of nodes that use each unsupported operation."""
        return {operation: len(nodes) for operation, nodes in self._reasons.items()}

    def check(self) -> None:
        """Raise one error for all unsupported operations, if there are any."""
        if not self._reasons:
            return
        total = sum(self.counts.values())
        are = "operation is" if total == 1 else "operations are"
        kind = NeedsStages if self._in_one_graph else QnnError
        raise kind(
            Code.COMMON_NOT_SUPPORTED,
            f"model '{self.model}'",
            f"{total} {are} not supported: " + "; ".join(_line(*item) for item in self._reasons.items()),
            IN_STAGES if self._in_one_graph else "",
        )


def unsupported(what: str, rule: str, hint: str = "") -> QnnError:
    """Return the error that a converter raises for one node; the walk over the model catches and collects it."""
    return QnnError(Code.COMMON_NOT_SUPPORTED, what, rule, hint)


def _line(operation: str, nodes: dict[str, str]) -> str:
    """Return the part of the message about one operation, with its nodes (name and reason) grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for node, reason in nodes.items():
        by_reason.setdefault(reason, []).append(node)
    parts: list[str] = []
    for reason, names in by_reason.items():
        shown = ", ".join(f"'{name}'" for name in names[:NAMES_SHOWN])
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        parts.append(f"{reason}: {shown}{more}" if reason else f"{shown}{more}")
    return f"{operation} x{len(nodes)} ({'; '.join(parts)})"
