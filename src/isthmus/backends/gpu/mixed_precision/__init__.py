"""Mixed precision: which FLOAT_32 tensors are stored as fp16, and a graph that stores them so.

Sums are always fp32. A fixed rule (fp16 storage, small constants, biases and logits in fp32) is not accurate enough. Of
31 models, the error relative to the largest value is 0.38 for pose_landmark_full (0.005 with a choice by trial), 0.055
for ppocr_det (0.008), 0.12 for selfie_segmentation (0.010) and 0.14 for selfie_segmentation_landscape (0.007); 0.02 is
accepted.
"""

from isthmus.backends.gpu.mixed_precision.choice import PrecisionChoice, choose
from isthmus.backends.gpu.mixed_precision.fp16 import Fp16Tensor, is_exact_in_fp16, store_as_fp16, to_fp16

__all__ = ["Fp16Tensor", "PrecisionChoice", "choose", "is_exact_in_fp16", "store_as_fp16", "to_fp16"]
