"""Floats that are kept as halves: which of them may be, and what that makes of a graph."""

from isthmus.backends.gpu.mixed_precision.choice import PrecisionChoice, choose
from isthmus.backends.gpu.mixed_precision.fp16 import Fp16Tensor, is_exact_in_fp16, store_as_fp16, to_fp16

__all__ = ["Fp16Tensor", "PrecisionChoice", "choose", "is_exact_in_fp16", "store_as_fp16", "to_fp16"]
