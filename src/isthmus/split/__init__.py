"""Model files that need less memory in any runtime: the same format, the same results, computed tile by tile.

A split file is an ordinary ONNX or TFLite file. Its fused regions are written out as nodes on some rows at a time, with
slices and concatenations of rows between them, in an order that keeps few bytes alive. A runtime that follows the order
of the file needs less memory.
"""

from isthmus.split.network import Network, SplitStep, SplitValue, TileRule
from isthmus.split.search import Split, SplitChoice, split

__all__ = ["Network", "Split", "SplitChoice", "SplitStep", "SplitValue", "TileRule", "split"]
