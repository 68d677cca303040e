"""Less scratch than whole tensors need: fused regions of a schedule computed tile by tile, with the same bits.

A fused region is a run of neighbouring steps. What it reads and what is read after it are whole tensors; tensors in
between exist for a tile of rows at a time, and its halo, the rows that the next tile reads again, is kept. No product
is formed twice.
"""

from isthmus.prepare.tiling.limit import SLOWER, ScratchLimit

__all__ = ["SLOWER", "ScratchLimit"]
