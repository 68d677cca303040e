"""Models of every kind: files to read, and libraries that compose."""

from __future__ import annotations

from isthmus import frontends
from isthmus.frontends import ModelSource
from isthmus.graph import Graph
from isthmus.qnn import model_library


def load_all(source: ModelSource) -> list[Graph]:
    """Create all graphs of a model file or library, or only the requested one."""
    if model_library.is_library(source.path):
        return model_library.load_all(source)
    return frontends.load_all(source)


def load(source: ModelSource) -> Graph:
    """Create one graph of a model file or library; if there are several, the caller must name one."""
    return source.only(load_all(source))
