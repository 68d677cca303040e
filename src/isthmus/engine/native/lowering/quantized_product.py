"""The blocking of fixed-point products: convolutions and matrix products in one geometry, choice of tiles, packed
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from isthmus.engine.native.lowering.emitter import Effort
from isthmus.engine.native.lowering.fixed_point import middle_of, pair
from isthmus.engine.native.lowering.panels import split_panels
from isthmus.engine.native.target import Target
from isthmus.graph import DataType, Tensor
from isthmus.prepare.geometry.fixed_point import quantization_of
from isthmus.prepare.geometry.layout import operand, whole_dims
from isthmus.prepare.schedule import Step

SINGLE_ROW = (1, 4)
"""The tile for products with a single row."""
# Rows by vectors of results that a tile keeps in registers, by the target's number of lanes.
_TILES = {
    16: (SINGLE_ROW, (8, 3), (7, 3), (14, 2)),
    8: (SINGLE_ROW, (5, 2), (10, 1)),
    4: (SINGLE_ROW, (5, 2)),
}
# The same for targets that pack all matrices alike. A single row takes a whole tile, which large weights hide: reading
# them takes longer.
_UNIFORM_TILES = {16: ((8, 3), (7, 3)), 8: ((5, 2),), 4: ((5, 2),)}
# The same for panels of several groups.
_GROUP_TILES = {16: ((14, 2), (10, 1)), 8: ((10, 1), (5, 2)), 4: ((5, 2),)}
# The cycles until a dot product can be added to; a tile with fewer products waits for them.
_LATENCY = 5
# A tile of a fused region with fewer image rows keeps short segments, to save memory.
_FEW_ROWS = 3
# The share of the L1 cache for the input rows under a segment, in bytes.
_L1_SHARE = 16 << 10
# The share of the L1 cache for tiles of a fused region: smaller, because little memory should be alive there.
_L1_SHARE_OF_TILE = 8 << 10
ROW_FORMS = {"vnni": "u8", "avxvnni": "u8", "sdot": "s8", "none": "s16"}
"""The type of elements that each kind of dot product multiplies; of 16-bit ones the zero point is subtracted."""


@dataclass(frozen=True)
class QuantizedProduct:
    """A convolution, or a matrix product expressed as one: a row of the left matrix is a pixel.

    Parameters
    ----------
    rows
        The number of image rows of results, over all images.
    height, width, out_height, out_width
        The size of an image of inputs and of results, in pixels.
    pixel, out_pixel
        The number of elements between neighbouring pixels of inputs and of results, which are bytes unless `in_bytes`
        was applied.
    channels, columns
        The number of input channels and of filters in one group.
    kernel, stride, dilation
        Pairs for height and width.
    top, left
        The rows and columns of padding.
    groups
        The number of groups of channels.
    whole_width
        For a tile of a fused region, the output width of the whole step, which determines the kernel's tile; else 0.
    panel_channels, panel_columns
        The number of input channels and of filters in a panel of several groups (see `by_panels`); else 0.
    """

    rows: int
    height: int
    width: int
    pixel: int
    channels: int
    out_height: int
    out_width: int
    out_pixel: int
    columns: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    top: int = 0
    left: int = 0
    groups: int = 1
    whole_width: int = 0
    panel_channels: int = 0
    panel_columns: int = 0

    @property
    def panels(self) -> int:
        """The number of panels of several groups."""
        return -(-self.columns // self.panel_columns)

    @property
    def span(self) -> int:
        """The number of input columns under a result."""
        return (self.kernel[1] - 1) * self.dilation[1] + 1

    @property
    def stays_inside(self) -> bool:
        """Whether no window leaves the image."""
        down = (self.out_height - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilation[0] + 1
        across = (self.out_width - 1) * self.stride[1] + self.span
        return not self.top and not self.left and down <= self.height and across <= self.width

    @property
    def run_pixels(self) -> int:
        """The number of neighbouring pixels in one tap: a row of the kernel, unless others are between its channels."""
        return self.kernel[1] if self.dilation[1] == 1 and not self.panel_channels else 1

    @property
    def taps(self) -> int:
        """The number of runs of input that make a result."""
        return self.kernel[0] * self.kernel[1] // self.run_pixels


def product_of(step: Step) -> QuantizedProduct:
    """Return the product that a step computes. A depthwise convolution has a group for each input channel.

    If each window is one pixel, all pixels form one row.
    """
    x, weights, output = operand(step, 0), operand(step, 1), step.outputs[0]
    if step.op in ("FullyConnected", "MatMul"):
        width = output.dims[-1] if step.op == "MatMul" else weights.dims[0]
        depth = weights.elements // width
        count = x.elements // depth
        whole = prod(whole_dims(step)) // width if step.part is not None else 0
        return QuantizedProduct(1, 1, count, depth, depth, 1, count, width, width, whole_width=whole)
    batch, height, total_width, channels = x.dims
    _, out_height, out_width, filters = output.dims
    group = int(step.params["group"]) if step.op == "Conv2d" else channels
    (top, _), (left, _) = np.asarray(step.params["pad_amount"]).reshape(2, 2).tolist()
    stride, dilation = pair(step, "stride"), pair(step, "dilation")
    product = QuantizedProduct(
        batch * out_height, height, total_width, channels, channels // group, out_height, out_width, filters,
        filters // group, (weights.dims[0], weights.dims[1]), stride, dilation, top, left, group,
        whole_dims(step)[2] if step.part is not None else 0,
    )  # fmt: skip
    if product.kernel == stride == (1, 1) and product.stays_inside:
        pixels = batch * height * total_width
        whole = prod(whole_dims(step)[:3]) if step.part is not None else 0
        return QuantizedProduct(
            1, 1, pixels, channels, product.channels, 1, pixels, filters, product.columns, groups=group,
            whole_width=whole,
        )  # fmt: skip
    return product


def by_panels(product: QuantizedProduct, target: Target) -> QuantizedProduct:
    """Return the product of all groups at once if the filters of a group fit a panel, else the product itself.

    A panel has as many groups as fit a vector, which would have unused lanes otherwise; their weights for each other's
    channels are zero. All channels of input rows are copied together.
    """
    widest = max(vectors for _, vectors in _GROUP_TILES[target.lanes])
    if product.groups == 1 or product.columns > widest * target.lanes:
        return product
    together = min(max(target.lanes // product.columns, 1), product.groups)
    return replace(
        product, channels=product.channels * product.groups, columns=product.columns * product.groups, groups=1,
        panel_channels=product.channels * together, panel_columns=product.columns * together,
    )  # fmt: skip


def in_bytes(product: QuantizedProduct, size: int, out_size: int = 1) -> QuantizedProduct:
    """Return the product for elements and results of these sizes, with `pixel`, `channels` and `out_pixel` in bytes."""
    pixel, channels = product.pixel * size, product.channels * size
    return replace(product, pixel=pixel, channels=channels, out_pixel=product.out_pixel * out_size)


@dataclass(frozen=True)
class ProductBlocking:
    """The blocking of a product for a target.

    Parameters
    ----------
    rows, vectors
        The tile: results of a row (pixels) by vectors of columns.
    staged
        0 to read rows in place, else the number of the form into which they are copied.
    size
        The size in bytes of an element as it is multiplied.
    groups
        The number of groups of four bytes in a tap.
    segment
        The number of results of a row that are computed before the next ones; their input is copied at a time.
    pitch
        The number of bytes between copied rows.
    work_bytes
        The size of a thread's work space, which holds the copied rows.
    strip
        The number of image rows whose results are computed as one row (see `kernels.blocks`).
    depth
        The bytes of a tap that matrix registers multiply at a time; 0 if they are not used.
    is_narrow
        Whether weights are bytes that are widened to 16 bits in registers.
    """

    rows: int
    vectors: int
    staged: int
    size: int
    groups: int
    segment: int
    pitch: int
    work_bytes: int
    strip: int = 1
    depth: int = 0
    is_narrow: bool = False


def tile_effort(product: QuantizedProduct, vectors: int, step: Step, axis: int, target: Target) -> Effort | None:
    """Return the cost of tiles of a step: kernel tiles, of this many vectors, run along image rows, or along all pixels
    if windows are single pixels.
    """
    tiles = tiles_like(vectors, target)
    # The results of a kernel tile's row that one row of the divided axis has.
    if product.rows == 1:
        along = product.out_width // step.outputs[0].dims[axis]
    elif axis == step.outputs[0].rank - 2:
        along = 1
    else:
        return None
    return lambda rows: np.min([-(-rows * along // tile) * tile for tile in tiles], axis=0)


def row_form(x: Tensor, target: Target) -> int:
    """Return how the kernel converts elements of rows for the target: 0 not at all, 2 by flipping the sign bit, 3 and 4
    to 16 bits from signed and from unsigned bytes.
    """
    signed = x.dtype in (DataType.SFIXED_POINT_8, DataType.SFIXED_POINT_16)
    if x.dtype.itemsize == 2:
        return 0 if signed else 2
    if ROW_FORMS[target.dot] == "s16":
        return 3 if signed else 4
    return 0 if signed == (ROW_FORMS[target.dot] == "s8") else 2


def origin_of(x: Tensor, form: int) -> int:
    """Return the value of an element that means 0, in the form (see `row_form`) in which it is multiplied."""
    # Forms 3 and 4 subtract the zero point.
    if form >= 3:
        return 0
    half = 1 << (8 * x.dtype.itemsize - 1)
    shift = half if x.dtype in (DataType.SFIXED_POINT_8, DataType.SFIXED_POINT_16) else -half
    return quantization_of(x).zero_point + (shift if form == 2 else 0)


def multiplies_channels(step: Step) -> bool:
    """Return whether a depthwise step has several filters for a channel, which is then a group of a Conv2d."""
    return operand(step, 0).dims[3] != step.outputs[0].dims[3]


def constant_weights(step: Step, has_width: Callable[[Tensor | None], bool]) -> Tensor | None:
    """Return the weights of a step if `has_width` is true of its input and result and its bias is constant, else None.

    Steps without elements are left to the lowering through float, which knows whether there is nothing to do.
    """
    x, weights = step.inputs[0], step.inputs[1]
    bias = step.inputs[2] if len(step.inputs) > 2 else None
    if not all(t is not None and t.elements for t in (x, weights, *step.outputs)):
        return None
    return weights if has_width(x) and has_width(step.outputs[0]) and (bias is None or bias.is_static) else None


def covers_products(covers_weights: Callable[..., bool]) -> dict[str, Callable[[Step], bool]]:
    """Return, by operation, a function that tells whether a fixed-point kernel can execute a step.

    `covers_weights(step, axis)` makes the decision for one kind of kernel; `axis` is the one of the weights along which
    they may be quantized per channel (the output channels).
    """

    def covers_matmul(step: Step) -> bool:
        weights = operand(step, 1)
        # The left matrix is read row by row, and the weights must be one matrix for all batches.
        if step.params["transpose_in0"] or weights.rank < 2 or prod(weights.dims[:-2]) != 1:
            return False
        return covers_weights(step, weights.rank - (2 if step.params["transpose_in1"] else 1))

    return {
        "Conv2d": lambda step: covers_weights(step, 3),
        "FullyConnected": lambda step: covers_weights(step, 0),
        "MatMul": covers_matmul,
    }


def tiles_of(target: Target) -> tuple[tuple[int, int], ...]:
    """Return the tiles of a target, each as rows and vectors."""
    return _TILES[target.lanes]


def tiles_like(vectors: int, target: Target) -> list[int]:
    """Return the rows of all tiles with this many vectors; their weights are packed alike."""
    return [rows for rows, width in _choices(target) if width == vectors]


def _choices(target: Target) -> tuple[tuple[int, int], ...]:
    """Return the tiles for products with constant weights."""
    return (_UNIFORM_TILES if target.is_uniform else _TILES)[target.lanes]


def _tile(product: QuantizedProduct, groups: int, target: Target) -> tuple[int, int]:
    """Return rows and vectors of the fastest tile for a product; `groups` is the number of groups in a tap.

    Weights of a fused region's tile are packed as for the whole step, so only the number of rows may differ.
    """
    vectors = -(-product.columns // target.lanes)
    own_vectors = -(-product.panel_columns // target.lanes)

    def cost(tile: tuple[int, int]) -> float:
        """Return an estimate of the cycles: two dot products or loads per cycle, then storing the results."""
        rows, width = tile
        full_panels, last_vectors = divmod(vectors, width)
        if own_vectors:
            full_panels, width, last_vectors = product.panels, own_vectors, 0
        total = 0.0
        for panels, panel_vectors in ((full_panels, width), (1, last_vectors)):
            if panels and panel_vectors:
                group = max(rows * panel_vectors / 2, (rows + panel_vectors) / 2, _LATENCY)
                total += panels * (product.taps * groups * group + 4 * rows * panel_vectors + 20)
        return -(-(product.whole_width or product.out_width) // rows) * total

    if own_vectors:
        return min((tile for tile in _GROUP_TILES[target.lanes] if tile[1] >= own_vectors), key=cost)
    fastest = min(_choices(target), key=cost)
    if not product.whole_width:
        return fastest
    # The fewest computed rows, and among equals the fastest tile.
    rows = min(
        tiles_like(fastest[1], target),
        key=lambda rows: (-(-product.out_width // rows) * rows, rows != fastest[0]),
    )
    return rows, fastest[1]


def cut(
    product: QuantizedProduct, form: int, target: Target, threads: int, tile: tuple[int, int] | None = None,
    word_groups: int = 0,
) -> ProductBlocking:  # fmt: skip
    """Return the blocking of a product; `form` is the conversion of its rows, as `row_form` numbers it.

    Parameters
    ----------
    tile
        The tile (rows and vectors), the fastest if it is None.
    word_groups
        The number of groups for which a word has 4-bit weights; 0 if weights are not packed.
    """
    # Forms 3 and 4 widen bytes to 16 bits.
    size = 2 if form >= 3 else 1
    run = product.run_pixels * (product.panel_channels or product.channels) * size
    # The bytes of a row that are multiplied together.
    piece = 4 * max(word_groups, 1)
    groups = -(-run // piece) * piece // 4
    rows, vectors = tile or _tile(product, groups, target)
    contiguous = not product.panel_channels and (product.pixel == product.channels or product.run_pixels == 1)
    in_place = form == 0 and product.stays_inside and contiguous and run % piece == 0 and product.out_width >= rows
    # Bytes of input rows that a result adds to those of the result before it.
    under_result = product.kernel[0] * product.stride[1] * product.channels * size
    share = _L1_SHARE_OF_TILE if product.whole_width else _L1_SHARE
    # Input under both ends of a segment is copied twice. Tiles of a fused region would have short segments, so they are
    # divided less.
    parts = threads if product.whole_width and product.kernel[0] > 1 and product.rows >= _FEW_ROWS else 4 * threads
    results = min(share // under_result, -(-product.out_width * product.rows // parts))
    segment = min(max(results // rows, 1) * rows, product.out_width)
    if in_place:
        return ProductBlocking(rows, vectors, 0, size, groups, segment, 0, 0)

    def row_bytes(results: int) -> int:
        """Return the size of a copied row under this many results."""
        return ((results - 1) * product.stride[1] + product.span) * product.channels * size

    pitch = -(-row_bytes(segment) // 4) * 4
    # The last tile reads rows that do not exist, and the last group of a tap reads bytes beyond it.
    work = (product.kernel[0] - 1) * pitch + row_bytes(-(-segment // rows) * rows) + piece
    if product.panel_channels:
        # The last panel may have fewer groups than the others.
        work += (product.panels * product.panel_channels - product.channels) * size
    return ProductBlocking(rows, vectors, form or 1, size, groups, segment, pitch, -(-work // 64) * 64)


def narrow(
    plan: ProductBlocking, weights: Tensor, product: QuantizedProduct, form: int, target: Target, threads: int
) -> ProductBlocking:
    """Return the blocking with weights of 8 bits in memory if a single row reads them as 16-bit numbers.

    Such a product takes as long as reading its weights. `form` is the conversion of its rows; the others are the
    product's, as in `cut`.
    """
    if plan.size == 1 or plan.rows > 1 or any(o != -middle_of(weights) for o in quantization_of(weights).offsets):
        return plan
    return replace(cut(product, form, target, threads, (plan.rows, plan.vectors), 2), size=plan.size, is_narrow=True)


def panels(
    matrix: np.ndarray, heads: Sequence[np.ndarray], columns: int, lanes: int, per_group: int, dtype: type,
    least_groups: int = 0,
) -> np.ndarray:  # fmt: skip
    """Pack weights [taps, depth, columns] into panels (see `split_panels`).

    After its heads, a panel has, for each tap and each group of `per_group` weights of the depth, those of all columns;
    with fewer than `least_groups` groups, the others are zero.
    """
    taps, depth, width = matrix.shape
    groups = max(-(-depth // per_group), least_groups)

    def body(own: slice, padded_width: int) -> np.ndarray:
        part = np.zeros((taps, groups * per_group, padded_width), dtype)
        part[:, :depth, : own.stop - own.start] = matrix[:, :, own]
        return part.reshape(taps, groups, per_group, padded_width).transpose(0, 1, 3, 2)

    return split_panels(width, columns, lanes, heads, body)


def matrix_of(step: Step, product: QuantizedProduct, centred: np.ndarray) -> np.ndarray:
    """Return the weights of a step (`centred`: without zero points) as [taps, depth, columns of all groups]."""
    if step.op == "FullyConnected":
        return centred.T[None]
    if step.op == "MatMul":
        square = centred.reshape(centred.shape[-2:])
        return (square.T if step.params["transpose_in1"] else square)[None]
    return centred.reshape(product.taps, -1, centred.shape[-1])


def offsets(product: QuantizedProduct, plan: ProductBlocking) -> np.ndarray:
    """Return the offset of each tap, in bytes from the first."""
    down = plan.strip * plan.pitch if plan.staged else product.dilation[0] * product.width * product.pixel
    pixel = product.channels * plan.size if plan.staged else product.pixel
    across = range(0, product.kernel[1] * product.dilation[1], product.dilation[1])
    return np.array(
        [i * down + j * pixel for i in range(product.kernel[0]) for j in (across if product.run_pixels == 1 else (0,))],
        np.int64,
    )


def geometry_words(product: QuantizedProduct, plan: ProductBlocking, taps: int, panel_bytes: int) -> dict[str, int]:
    """Return the words of the instruction from `rows` to `distance` (see the signature), for this many taps."""
    same = "rows height pixel channels out_height out_width out_pixel columns span top left"
    return {
        **{name: getattr(product, name) for name in same.split()},
        **{name: getattr(plan, name) for name in ("groups", "segment", "staged", "pitch")},
        "width_in": product.width, "kernel_h": product.kernel[0], "stride_h": product.stride[0],
        "stride_w": product.stride[1], "dilation_h": product.dilation[0], "taps": taps, "panel_bytes": panel_bytes,
        "distance": product.stride[1] * (product.channels * plan.size if plan.staged else product.pixel),
    }  # fmt: skip
