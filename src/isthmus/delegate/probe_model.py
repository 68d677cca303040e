"""A fully known model of two operators, on which LiteRT's structures are tested.

A strided, dilated convolution with a fused activation, a reshape, and a constant that is quantized per channel. The
tests build it again from this description and compare.
"""

from __future__ import annotations

import base64
import zlib

TENSORS: tuple[tuple[str, int, tuple[int, ...]], ...] = (
    ("given", 1, (1, 7, 6, 2)),
    ("filter", 1, (3, 2, 2, 2)),
    ("bias", 1, (3,)),
    ("between", 1, (1, 5, 3, 3)),
    ("shape", 2, (2,)),
    ("made", 1, (5, 9)),
    ("scaled", 9, (3, 2)),
)
"""Name, TfLiteType and dimensions of each tensor."""
NODES: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("CONV_2D", (0, 1, 2), (3,)),
    ("RESHAPE", (3, 4), (5,)),
)
"""Operator, inputs and outputs of each node."""
CONVOLUTION = {
    "padding": 1, "stride_w": 2, "stride_h": 1, "activation": 3, "dilation_w": 1, "dilation_h": 2,
}  # fmt: skip
"""The options of the convolution, as numbers of the file."""
BIAS = (0.5, -1.5, 2.5)
SHAPE = (5, 9)
SCALES = (0.5, 0.25, 2.0)
"""The contents of tensors 2 and 4, and the scales of tensor 6."""
INPUT, OUTPUT, CONSTANTS = 0, 5, (1, 2, 4, 6)
"""Numbers of tensors."""

# The file, compressed and as text.
_PACKED = (
    "c-nQ7u}%U(5QgXOKp<Z5j06dxxWdB1!bEGh%F4omf|5f{B|#-XwB->fd;lN7!Y4oqAHdQW3knM>Lt!ocvpahnCSLfs-PxVlnSb_5"
    "L{vXIJ|N0dfjn|43rh+!!i?w@JUB%7Q5rmh6L1JBYA4a#&tk#vHDK9JDviOH*s|i61NK7OTvAVsX!=Ct2W7E0m3ahP69l{l2uvri"
    "1Da@8s$veNRUO9%0ce5|7=wH8$Y+2TFaz^iic%_P3lvnSJeA_gb=?K2Z3aHTr_|8vU$-KzgU1Q~viPrye?{lGxr@I&Ig8cd_-mq>"
    "ozTUSG20wj*ZrWCxW0~S?Th{%GT)XR?Bz)e4r49HmL+i=5znldb1kuFz#S%a;DfpJd;CYMt%O#bQzOoqat+mA-C^G2${pBAod4hB"
    "#P@=GO95*&I1Rf|d#Me-E4VLNxu1OQW!UDntZ3@0o@~T9c+2><C;J8$VJ}MPF-*i|En3m=Hj1v|`;t!R_>R4<_?bLfop50EbyN<X"
    ")UR`JWzCas<*d^kMt$vTYBRX<B~n5|llOV&23b*@S4QF)UtiX~kz-NUTy*7@n0TUv^9yTkSRw"
)


def content() -> bytes:
    """Return the bytes of the file."""
    return zlib.decompress(base64.b85decode(_PACKED))
