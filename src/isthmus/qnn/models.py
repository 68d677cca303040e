"""Models of every kind: files that are read, and libraries that compose."""

from __future__ import annotations

from isthmus import frontends
from isthmus.frontends import ModelSource
from isthmus.graph import Graph
from isthmus.qnn import model_library


def load_all(source: ModelSource) -> list[Graph]:
    """Make all graphs of a model file or library, or the one that is asked for."""
    if model_library.is_library(source.path):
        return model_library.load_all(source)
    return frontends.load_all(source)


def load(source: ModelSource) -> Graph:
    """Make one graph of a model file or library; which one must be said where there are several."""
    return source.only(load_all(source))
