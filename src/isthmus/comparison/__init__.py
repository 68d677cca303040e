"""Comparison of a model's operations with a reference, and reduction of a model to one that still differs."""

from isthmus.comparison.comparison import STAGES, compare
from isthmus.comparison.report import ComparisonReport, Deviation, TensorRow, Verdict

__all__ = ["STAGES", "ComparisonReport", "Deviation", "TensorRow", "Verdict", "compare"]
