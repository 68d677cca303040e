"""Less scratch than whole tensors need: stretches of a schedule computed strip by strip, with the same bits.

A stretch is a run of neighbouring steps. What it reads and what is read after it are whole tensors; what lies between
exists for a strip of rows at a time, and the last rows of a strip are kept for the next. No product is formed twice.
"""

from isthmus.prepare.tiling.candidate import Replanner
from isthmus.prepare.tiling.fit import Strips, fitted
from isthmus.prepare.tiling.limit import SLOWER, ScratchLimit
from isthmus.prepare.tiling.orders import LONGEST, SEARCHED, WHOLE_FIRST, depth_first, whole_operands

__all__ = [
    "LONGEST",
    "SEARCHED",
    "SLOWER",
    "WHOLE_FIRST",
    "Replanner",
    "ScratchLimit",
    "Strips",
    "depth_first",
    "fitted",
    "whole_operands",
]  # fmt: skip
