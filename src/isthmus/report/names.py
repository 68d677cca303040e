"""Short forms of tensor names. Converters join several paths into one name, and most of each path is the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Distinguishes copies of one name: the iteration of an unrolled loop, and work space from its result.
_TAIL = re.compile(r"(@[^;/\s]+)?( \(work\))?$")


def shorten(names: Sequence[str], width: int, ellipsis: str = "…") -> list[str]:
    """Shorten names to a width and keep what differs between them.

    Of paths that a converter joined with ``;`` the first is used. Folders that all of the names share are omitted, and
    of a name that is still too long the end is kept. Characters that would control a terminal are replaced.

    - `names`: names that are shown together.
    - `width`: the maximum length of each.
    - `ellipsis`: what replaces the omitted part.

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
    """Return the end of a name, starting at a folder if that loses little."""
    end = name[len(name) - width + len(ellipsis) :]
    folder = end.find("/")
    return (ellipsis + (end[folder:] if 0 <= folder <= width // 3 else end))[:width]


def _split(name: str) -> tuple[list[str], str]:
    """Split a name into the parts of its first path and the tail that distinguishes copies."""
    match = _TAIL.search(name)
    tail = match.group() if match else ""
    joined_paths = name[: len(name) - len(tail)]
    first = joined_paths.partition(";")[0].strip("/") or joined_paths
    return [part for part in first.split("/") if part] or [first], tail


def _shared_folders(paths: Sequence[Sequence[str]]) -> int:
    """Return the number of leading folders that all paths share; the last part of a path is not a folder."""
    if len(paths) < 2:
        return 0
    most = min(len(path) for path in paths) - 1
    for depth in range(most):
        if len({path[depth] for path in paths}) > 1:
            return depth
    return most
