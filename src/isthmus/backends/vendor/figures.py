"""Figures of graphs that another process or a file has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from isthmus.graph.figures import GraphFigures
from isthmus.system.container import as_size


def figures_from_json(content: Mapping[str, Any]) -> GraphFigures:
    """Read figures from plain data; raise a LookupError, TypeError or ValueError if they are not numbers."""
    names = [field.name for field in fields(GraphFigures) if field.name in content]
    return GraphFigures(**{name: as_size(content[name]) for name in names})
