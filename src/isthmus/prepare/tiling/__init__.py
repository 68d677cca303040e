"""Tiling: fused regions of a schedule are computed tile by tile, which needs less scratch and gives the same bits.

A fused region is a run of consecutive steps. The tensors that it reads, and those that later steps read, are whole. The
tensors in between exist only for one tile of rows at a time. The halo, which are the rows that the next tile reads
again, is kept. No product is computed twice.
"""

from isthmus.prepare.tiling.limit import SLOWER, ScratchLimit, parse_size

__all__ = ["SLOWER", "ScratchLimit", "parse_size"]
