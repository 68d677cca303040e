"""What Genie's configuration says of the memory of its contexts: binaries, one spill-fill buffer, graph switching."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.domains import ContextSizes, SpillGroup
from isthmus.errors import did_you_mean, invalid_argument
from isthmus.system import reading
from isthmus.tools.files import refuse_unreadable

BUNDLE = "genie_config.json"
MAX_CONFIG = 1 << 22
"""The largest configuration of Genie in bytes."""
_KEYS = ("ctx-bins", "spill-fill-bufsize", "enable-graph-switching", "graph-retention-order", "use-mmap")


@dataclass(frozen=True)
class GenieEngine:
    """One engine of a configuration; a dialog may have several.

    - `what`: the configuration, for messages.
    - `binaries`: its context binaries (``ctx-bins``).
    - `group`: the spill-fill buffer that they have in common (``spill-fill-bufsize``).
    - `switching`: whether one graph of each context is loaded at a time (``enable-graph-switching``).
    - `retained`: the graphs that stay loaded then (``graph-retention-order``).
    - `mapped`: whether the files are mapped and not read (``use-mmap``).
    """

    what: str
    binaries: tuple[str, ...]
    group: SpillGroup | None = None
    switching: bool = False
    retained: tuple[str, ...] = ()
    mapped: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What its options change, in words."""
        found = []
        if self.switching:
            kept = f"; {', '.join(self.retained)} stay loaded (graph-retention-order)" if self.retained else ""
            found.append(f"enable-graph-switching: one graph of a context is loaded at a time{kept}")
        elif self.retained:
            found.append("graph-retention-order has no effect: enable-graph-switching is not set")
        if self.mapped:
            found.append("use-mmap: Genie maps the files and does not read them; in the domains nothing changes")
        return tuple(found)

    def apply_to(self, sizes: ContextSizes) -> ContextSizes:
        """Return what one of its contexts needs, with its options."""
        return ContextSizes(
            sizes.name, sizes.graphs, sizes.file_bytes, group=self.group if sizes.spill_fill else None,
            loaded=self.retained if self.switching else None,
        )  # fmt: skip

    def check_retained(self, graphs: set[str]) -> None:
        """Refuse an order of retention with a graph that none of its binaries has."""
        for name in self.retained:
            if name not in graphs:
                hint = did_you_mean(name, graphs) or f"Graphs are {', '.join(sorted(graphs))}."
                raise invalid_argument(self.what, f"graph-retention-order names '{name}', which no binary has", hint)


def engines_of(config: Path) -> list[GenieEngine]:
    """Read the engines of a configuration.

    Errors: COMMON_INVALID_ARGUMENT for a file that cannot be read, that is not JSON, or that names no binaries.
    """
    what = f"Genie's configuration '{config}'"
    try:
        with refuse_unreadable(what, config):
            content = json.loads(reading.contents(config, MAX_CONFIG))
    except (ValueError, RecursionError):
        raise invalid_argument(what, "it is not JSON") from None
    stated = [each for each in _parts(content) if isinstance(each, Mapping) and {"backend", "model"} <= each.keys()]
    # Engines of other backends have no context binaries.
    with_binaries = [values for values in map(_values, stated) if values["ctx-bins"]]
    return [_engine(what, values, number) for number, values in enumerate(with_binaries or [_values(content)], 1)]


def _values(content: Any) -> dict[str, list[Any]]:
    """Return the values of the keys that matter, however deep they are."""
    values: dict[str, list[Any]] = {key: [] for key in _KEYS}
    for part in _parts(content):
        for key in _KEYS if isinstance(part, Mapping) else ():
            values[key] += [part[key]] if key in part else []
    return values


def _engine(what: str, values: Mapping[str, list[Any]], number: int) -> GenieEngine:
    """Read an engine, or a configuration that has no part of that form."""
    named = [each for listed in values["ctx-bins"] if isinstance(listed, list) for each in listed]
    if not named or not all(isinstance(each, str) for each in named):
        raise invalid_argument(what, "it names no context binaries (ctx-bins)")
    orders = values["graph-retention-order"]
    kept = [each for listed in orders if isinstance(listed, list) for each in listed]
    if not all(isinstance(each, list) for each in orders) or not all(isinstance(each, str) for each in kept):
        raise invalid_argument(what, "graph-retention-order must be a list of names of graphs")
    sizes = [each for each in values["spill-fill-bufsize"] if type(each) is int and each > 0]
    label = "spill-fill-bufsize" + f" of engine {number}" * (number > 1)
    return GenieEngine(
        what, tuple(dict.fromkeys(named)), SpillGroup(label, max(sizes)) if sizes else None,
        True in values["enable-graph-switching"], tuple(dict.fromkeys(kept)), True in values["use-mmap"],
    )  # fmt: skip


def _parts(content: Any) -> Iterator[Any]:
    """Find all parts of a configuration, however deep."""
    waiting = [content]
    # It grows while it is walked; to take from its front would take time that grows with the square of a file's size.
    for each in waiting:
        yield each
        if isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
