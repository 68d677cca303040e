"""Less scratch than whole tensors need: fused regions of a schedule computed tile by tile, with the same bits.

A fused region is a run of neighbouring steps. What it reads and what is read after it are whole tensors; tensors in
between exist for a tile of rows at a time, and its halo, the rows that the next tile reads again, is kept. No product
is formed twice.
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
