"""Models of every kind: files that are read, and libraries that compose."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from isthmus import frontends
from isthmus.graph import Graph
from isthmus.qnn import model_library


def load_all(
    path: str | os.PathLike[str],
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    graph: str | None = None,
    clean_names: bool = False,
) -> list[Graph]:
    """All graphs of a model file or library, or the one that is named; parameters are those of `frontends.load_all`."""
    if model_library.is_library(path):
        return model_library.load_all(path, shapes, constants, graph)
    return frontends.load_all(path, shapes, constants, graph, clean_names)


def load(
    path: str | os.PathLike[str],
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    graph: str | None = None,
) -> Graph:
    """One graph of a model file or library; which one must be said where there are several."""
    return frontends.only(path, load_all(path, shapes, constants, graph))
