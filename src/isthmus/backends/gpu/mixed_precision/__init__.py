"""Mixed precision: which FLOAT_32 tensors are stored as fp16, and a graph that stores them so.

Sums are always fp32. A fixed rule (fp16 storage, small constants, biases and logits in fp32) is not accurate enough: of
31 models it has pose_landmark_full off by 0.38 of the largest value (0.005 with a choice by trial), ppocr_det by 0.055
(0.008), selfie_segmentation by 0.12 (0.010) and selfie_segmentation_landscape by 0.14 (0.007); 0.02 is accepted.
"""

from isthmus.backends.gpu.mixed_precision.choice import PrecisionChoice, choose
from isthmus.backends.gpu.mixed_precision.fp16 import Fp16Tensor, is_exact_in_fp16, store_as_fp16, to_fp16

__all__ = ["Fp16Tensor", "PrecisionChoice", "choose", "is_exact_in_fp16", "store_as_fp16", "to_fp16"]
