"""The rewrite passes, in the order in which they run.

Operations that are composed of others are replaced first. Idioms are recognized next, while the operations are still
those of the model. Activations are fused before quantization is resolved, so that nothing separates a convolution from
its Dequantize and Quantize. Only then are constants that no quantized operation uses turned into floats and folded into
weights.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.prepare.compositions import compose
from isthmus.prepare.passes.affine import fold_affine
from isthmus.prepare.passes.algebra import simplify_arithmetic
from isthmus.prepare.passes.canonical import canonicalize, flatten_products
from isthmus.prepare.passes.constants import expand_blocks, fold_all_constants, fold_constants
from isthmus.prepare.passes.fusion import fuse_activations, fuse_padding
from isthmus.prepare.passes.idioms import recognize_gates, recognize_normalizations
from isthmus.prepare.passes.quantized import resolve_quantization
from isthmus.prepare.passes.redundant import merge_duplicates, remove_dead, remove_identities
from isthmus.prepare.passes.stages import cut_biases, divide_stages
from isthmus.prepare.work import Work

Pass = Callable[[Work], None]

PASSES: tuple[Pass, ...] = (
    remove_dead,
    compose,
    expand_blocks,
    cut_biases,
    canonicalize,
    fold_constants,
    remove_identities,
    simplify_arithmetic,
    merge_duplicates,
    recognize_gates,
    recognize_normalizations,
    remove_dead,
    fuse_activations,
    resolve_quantization,
    fold_all_constants,
    remove_identities,
    simplify_arithmetic,
    recognize_normalizations,
    remove_dead,
    fold_affine,
    fuse_padding,
    fuse_activations,
    divide_stages,
    flatten_products,
    remove_identities,
    merge_duplicates,
    remove_dead,
)


def run(work: Work) -> None:
    """Run all passes."""
    for one in PASSES:
        one(work)
