"""Floats that are kept as halves: which of them may be, and what that makes of a graph."""

from isthmus.backends.gpu.mixed_precision.choice import Choice, choose
from isthmus.backends.gpu.mixed_precision.stored import Half, as_halves, is_exact, store_halves

__all__ = ["Choice", "Half", "as_halves", "choose", "is_exact", "store_halves"]
