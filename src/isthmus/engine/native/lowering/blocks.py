"""The blocking of 8-bit products for matrix registers (see `kernels.blocks`)."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from isthmus.engine.native.lowering.quantized_product import ProductBlocking, QuantizedProduct, cut, offsets
from isthmus.engine.native.signatures.quantized_convolution import BLOCK_ROWS, BLOCK_VECTORS
from isthmus.engine.native.target import Target
from isthmus.prepare.geometry.layout import whole_dims
from isthmus.prepare.schedule import Step

# The most bytes of a tap that are multiplied at a time.
_DEPTH = 64
# The bytes of a tap and of all taps, the columns, and the results in a column, below which four-way dot products are
# as fast: registers would be mostly empty, or storing results and reading weights take longer than multiplying.
_LEAST_RUN, _LEAST_DEPTH, _LEAST_COLUMNS, _LEAST_RESULTS = 12, 32, 16, 8
# The most bytes of copied rows in a strip, a share of the L2 cache.
_STRIP_BYTES = 96 << 10


def suits_blocks(step: Step, product: QuantizedProduct, target: Target) -> bool:
    """Return whether a step is computed by blocks; for a part of a step, whether the whole step is."""
    if not target.has_matrix_registers or target.is_uniform:
        return False
    run = product.run_pixels * product.channels
    if run < _LEAST_RUN or run * product.taps < _LEAST_DEPTH or product.columns < _LEAST_COLUMNS:
        return False
    return prod(whole_dims(step)[:-1]) >= _LEAST_RESULTS


def cut_blocks(product: QuantizedProduct, form: int, target: Target, threads: int) -> ProductBlocking:
    """Return the blocking of a product; `form` is the conversion of its rows, as `row_form` numbers it."""
    # Forms 3 and 4 widen bytes to 16 bits.
    pixel = product.channels * (2 if form >= 3 else 1)
    pieces = -(-product.run_pixels * pixel // _DEPTH)
    plan = cut(product, form, target, threads, (BLOCK_ROWS, BLOCK_VECTORS), pieces)
    plan = replace(plan, depth=4 * plan.groups // pieces)
    if not plan.staged or product.out_height == 1:
        return plan
    distance = product.stride[1] * pixel
    # The results after which the next image row begins.
    period = -(-((product.out_width - 1) * product.stride[1] + product.span) // product.stride[1])
    panels = -(-product.columns // (BLOCK_VECTORS * target.lanes))
    images = product.rows // product.out_height

    def results(strip: int) -> int:
        """Return the results of a strip up to the end of its last block."""
        return -(-((strip - 1) * period + product.out_width) // BLOCK_ROWS) * BLOCK_ROWS

    def in_strips(strip: int) -> ProductBlocking:
        """Return the blocking in strips of this many rows."""
        own = replace(plan, strip=strip, segment=product.out_width, pitch=period * distance)
        last = int(offsets(product, own).max()) + 4 * plan.groups
        work = max(product.kernel[0] * strip * own.pitch, (results(strip) - 1) * distance + last)
        return replace(own, work_bytes=-(-work // 64) * 64)

    def cost(own: ProductBlocking) -> tuple[int, int]:
        """Return how many results the busiest thread computes, and the strip."""
        units = images * -(-product.out_height // own.strip)
        blocks = min(-(-units // threads) * panels, units * -(-panels // threads))
        return blocks * results(own.strip), own.strip

    if product.out_width % BLOCK_ROWS == 0:
        return plan
    choices = [own for own in map(in_strips, range(2, product.out_height + 1)) if own.work_bytes <= _STRIP_BYTES]
    return min(choices, key=cost, default=plan)
