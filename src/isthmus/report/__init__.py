"""Pictures and tables for people, in plain text: what a plan looks like, without opening anything else."""

from isthmus.report.memory_map import draw
from isthmus.report.names import shorten
from isthmus.report.table import tabulate

__all__ = ["draw", "shorten", "tabulate"]
