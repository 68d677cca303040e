"""Short forms of tensor names: converters join several paths into one name, and most of each path is the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TAIL = re.compile(r"(@[^;/\s]+)?( \(work\))?$")
"""What tells apart copies of one name: the turn of an unrolled loop, and work space from its result."""


def shorten(names: Sequence[str], width: int, ellipsis: str = "…") -> list[str]:
    """Names cut to a width so that what differs between them stays.

    Of names that a converter joined with ``;`` the first counts. Folders that all of the names share are left out, and
    of what is still too long the end is kept. Characters that a terminal would act on are replaced.

    Parameters
    ----------
    names
        Names that are shown together.
    width
        The most characters of each.
    ellipsis
        What stands for the part that is left out.

    Examples
    --------
    >>> shorten(["net/block_1/Relu;net/block_1/conv", "net/block_2/Relu (work)"], 20)
    ['block_1/Relu', 'block_2/Relu (work)']
    >>> shorten(["encoder/layer.0/attention/self/query"], 16)
    ['…/self/query']
    """
    parts = [_split("".join(char if char.isprintable() else "?" for char in name)) for name in names]
    shared = _shared_folders([path for path, _ in parts])
    short = ["/".join(path[shared:]) + tail for path, tail in parts]
    return [s if len(s) <= width else _end(s, width, ellipsis) for s in short]


def _end(name: str, width: int, ellipsis: str) -> str:
    """The end of a name, from the beginning of a folder where that costs little."""
    end = name[len(name) - width + len(ellipsis) :]
    folder = end.find("/")
    return (ellipsis + (end[folder:] if 0 <= folder <= width // 3 else end))[:width]


def _split(name: str) -> tuple[list[str], str]:
    """The folders of a name's first path with its last part, and the tail that sets it apart."""
    found = _TAIL.search(name)
    tail = found.group() if found else ""
    whole = name[: len(name) - len(tail)]
    first = whole.partition(";")[0].strip("/") or whole
    return [part for part in first.split("/") if part] or [first], tail


def _shared_folders(paths: Sequence[Sequence[str]]) -> int:
    """How many folders all paths begin with; the last part of a path is no folder."""
    if len(paths) < 2:
        return 0
    most = min(len(path) for path in paths) - 1
    for depth in range(most):
        if len({path[depth] for path in paths}) > 1:
            return depth
    return most
