"""Pictures and tables of a plan in plain text."""

from isthmus.report.memory_map import draw
from isthmus.report.names import shorten
from isthmus.report.text import tabulate

__all__ = ["draw", "shorten", "tabulate"]
