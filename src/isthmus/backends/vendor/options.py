"""Properties of the backend's graphs."""

from __future__ import annotations

from enum import IntEnum


class VendorGraphProperty(IntEnum):
    """Properties of a graph in the vendor's library. The numbers are ours."""

    FIGURES = 9001
    """The memory that the compiled graph needs on the chip, as `GraphFigures`."""
    FINALIZE_SECONDS = 9002
    """How long the compiler took."""
