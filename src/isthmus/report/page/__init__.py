"""Pages of HTML that need no network: facts as JSON, and a style and a script that draw them."""

from isthmus.report.page.builder import page
from isthmus.report.page.sections import (
    Bar,
    Bars,
    Column,
    ErrorPoint,
    ErrorProfile,
    Figure,
    Figures,
    Heading,
    MemoryMap,
    Note,
    Notes,
    SideBySide,
    SortableTable,
    Viewer,
)

__all__ = [
    "Bar", "Bars", "Column", "ErrorPoint", "ErrorProfile", "Figure", "Figures", "Heading", "MemoryMap", "Note", "Notes",
    "SideBySide", "SortableTable", "Viewer", "page",
]  # fmt: skip
