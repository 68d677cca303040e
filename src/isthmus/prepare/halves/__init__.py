"""Floats that are kept as halves: which of them may be, and what that makes of a graph."""

from isthmus.prepare.halves.choice import Choice, choose
from isthmus.prepare.halves.stored import Half, as_halves, is_exact, store_halves

__all__ = ["Choice", "Half", "as_halves", "choose", "is_exact", "store_halves"]
