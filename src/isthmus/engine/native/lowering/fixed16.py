"""The lowerings of operations on 16-bit fixed-point tensors, by operation."""

from __future__ import annotations

from collections.abc import Callable

from isthmus.engine.native.lowering import fixed16_convolution, fixed16_elementwise, fixed16_reduction
from isthmus.engine.native.lowering.emitter import Lowering
from isthmus.prepare.schedule import Step

FIXED16: dict[str, tuple[Callable[[Step], bool], Lowering]] = {
    **fixed16_elementwise.FIXED16,
    **fixed16_convolution.FIXED16,
    **fixed16_reduction.FIXED16,
}
"""For each operation, a test of which steps its 16-bit lowering covers, and that lowering."""
