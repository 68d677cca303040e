"""Model files that need less memory in any runtime: the same format, the same results, computed strip by strip.

A file in strips is an ordinary ONNX or TFLite file. Stretches of it are written out as nodes on some rows at a time,
with slices and joins of rows between them, in an order in which little is alive at once. Whatever runs it and follows
the order of the file needs less memory.
"""

from isthmus.split.network import Network, Rule, SplitStep, SplitValue
from isthmus.split.search import Chosen, Split, split

__all__ = ["Chosen", "Network", "Rule", "Split", "SplitStep", "SplitValue", "split"]
