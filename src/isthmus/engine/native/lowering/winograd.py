"""Winograd's convolutions: 3 x 3 pixels with stride 1 as transforms around products of matrices.

F(m x m, 3 x 3) takes (m + 2)^2 products for m^2 pixels instead of 9 m^2. The choice depends on the shapes and the
target only, so results are equal for all numbers of threads; how squares are grouped depends on threads too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter
from isthmus.engine.native.lowering.matmul import stored_bias
from isthmus.engine.native.lowering.panels import PanelTile, choose_tile, limits, pack_matrices
from isthmus.engine.native.program import ABSENT, Operand
from isthmus.engine.native.signatures.elementwise import KINDS
from isthmus.engine.native.signatures.matmul import PRODUCT_KINDS
from isthmus.engine.native.signatures.winograd import POINTS
from isthmus.engine.native.target import Target
from isthmus.graph import DataType
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.windows import ConvWindow, window_of
from isthmus.prepare.schedule import Step

# The bytes of a thread's transformed squares that stay in the L2 cache from one instruction to the next.
_L2_BYTES = 768 << 10
# The largest size of transformed squares that do not stay there.
_MAX_BYTES = 8 << 20
_MEMORY_BYTES_PER_CYCLE = 4.0
# The bytes that arrive in a cycle from memory, as weights do once, and from caches behind the L2 cache.
_CACHE_BYTES_PER_CYCLE = 16.0
# The cycles of both transforms for a vector at one position: it is computed, stored, loaded and used.
_TRANSFORM_CYCLES = 8.0
# The weights of a pixel that are transformed at a time.
_PIECE = 8192
# The part of a convolution's time to which squares must reduce it.
_WORTHWHILE = 0.9


@dataclass(frozen=True)
class WinogradBlocking:
    """The blocking of a convolution by squares.

    Parameters
    ----------
    m
        The side of a square of the result.
    window
        The convolution.
    rows
        The squares of a group, whose transforms are the rows of one product for each position.
    groups
        The groups that are in work space at a time: one for each thread, or one for all threads.
    tile
        The kernel's tile of the products.
    """

    m: int
    window: ConvWindow
    rows: int
    groups: int
    tile: PanelTile

    @staticmethod
    def of(window: ConvWindow, m: int, target: Target, threads: int) -> WinogradBlocking:
        """Return the blocking for a number of threads."""
        squares, each = _squares(window, m), _square_bytes(window, m)
        # Groups for each thread stay in its L2 cache. A group for all threads is larger: weights are read less often,
        # but transformed squares pass through the caches that threads share.
        own, common = max(1, _L2_BYTES // each), min(squares, max(1, _MAX_BYTES // each))
        groups, rows = 1, common
        if common > own and _traffic_cycles(window, m, own) < _traffic_cycles(window, m, common):
            count = -(-squares // own)
            groups, rows = threads, -(-squares // (-(-count // threads) * threads))
        tile = choose_tile(rows, window.filters, target)
        if tile.rows < rows < squares:
            rows -= rows % tile.rows
        return WinogradBlocking(m, window, rows, groups, tile)

    @property
    def positions(self) -> int:
        """The positions of a transformed square."""
        return (self.m + 2) ** 2

    def plane(self, columns: int) -> int:
        """Return the bytes from one position's matrix to the next; planes do not compete for the same cache lines."""
        return (-(-self.rows * columns * 4 // 64) | 1) * 64

    @property
    def sums(self) -> int:
        """The offset of the products in the work space, behind the transformed input."""
        return self.groups * self.positions * self.plane(self.window.channels)

    @property
    def lists(self) -> int:
        """The offset of the threads' lists of addresses in the work space."""
        return self.sums + self.groups * self.positions * self.plane(self.window.filters)

    @property
    def list_bytes(self) -> int:
        """The bytes of a thread's lists: addresses, and a place for pixels outside the result."""
        return -(-max(self.positions * 8, self.m**2 * 8 + self.window.filters * 4) // 64) * 64


def _squares(window: ConvWindow, m: int) -> int:
    """Return how many squares the result has."""
    return window.batches * prod(-(-size // m) for size in window.out[1:])


def _square_bytes(window: ConvWindow, m: int) -> int:
    """Return the bytes of a transformed square before and after the products."""
    return (m + 2) ** 2 * 4 * (window.channels + window.filters)


def _traffic_cycles(window: ConvWindow, m: int, rows: int) -> float:
    """Estimate the cycles in which a thread waits for weights and squares if groups have so many squares."""
    squares, each = _squares(window, m), _square_bytes(window, m)
    weights = (m + 2) ** 2 * 4 * window.channels * window.filters
    again = (-(-squares // rows) - 1) * weights
    spilled = 2 * squares * each if min(rows, squares) * each > _L2_BYTES else 0
    return weights / _MEMORY_BYTES_PER_CYCLE + (again + spilled) / _CACHE_BYTES_PER_CYCLE


def is_possible(step: Step, target: Target) -> bool:
    """Return whether a step is a convolution that the kernels compute."""
    tensors = (*step.inputs, *step.outputs)
    dtype = step.outputs[0].dtype
    if KINDS.get(dtype) not in PRODUCT_KINDS or any(t is not None and t.dtype != dtype for t in tensors):
        return False
    if step.op != "Conv2d":
        return False
    window, weights = window_of(step), operand(step, 1)
    return (
        weights.is_static
        and weights.source is None
        and window.kernel == (1, 3, 3)
        and window.stride == window.dilation == (1, 1, 1)
        and window.groups == 1
        and min(window.pad) >= 0
        and window.pixels > 0
        and min(window.channels, window.filters) >= target.lanes
    )


def side_of(step: Step, target: Target) -> int:
    """Return the side of the squares with which a step is estimated to take least time; 0 if they save too little."""
    if not is_possible(step, target):
        return 0
    window, size = window_of(step), step.outputs[0].dtype.itemsize
    times = {m: _cycles(window, m, target) for m in POINTS}
    m = min(times, key=lambda m: times[m])
    return m if times[m] < _WORTHWHILE * _cycles(window, 0, target, size) else 0


def _cycles(window: ConvWindow, m: int, target: Target, size: int = 4) -> float:
    """Estimate a convolution's cycles on one thread, by squares of side `m` or, with 0, by address lists.

    `size` is that of the weights, which are float32 once they are transformed.
    """
    channels, filters = window.channels, window.filters
    vectors = -(-filters // target.lanes)
    if m == 0:
        tile, rows, positions = choose_tile(window.pixels, filters, target), [window.pixels], 9
        others = 9 * channels * filters * size / _MEMORY_BYTES_PER_CYCLE
    else:
        cut, squares, positions = WinogradBlocking.of(window, m, target, 1), _squares(window, m), (m + 2) ** 2
        tile, rows = cut.tile, [cut.rows] * (squares // cut.rows) + [squares % cut.rows]
        transforms = squares * positions * (channels + filters) / target.lanes * _TRANSFORM_CYCLES
        others = transforms + _traffic_cycles(window, m, cut.rows)
    products = float(tile.effort(np.array(rows)).sum()) * channels * vectors / 2
    return products * positions + others


def work_bytes(step: Step, target: Target, threads: int) -> int:
    """Return the work space of a step that `side_of` has chosen."""
    cut = WinogradBlocking.of(window_of(step), step.winograd, target, threads)
    return cut.lists + threads * cut.list_bytes


def emit(step: Step, e: Emitter) -> None:
    """Emit, for each block of groups, the transform of the input, products of all positions and the transform back."""
    window, weights = window_of(step), operand(step, 1).data
    assert weights is not None
    cut = WinogradBlocking.of(window, step.winograd, e.target, e.threads)
    dtype = step.outputs[0].dtype
    panels = e.packed(_transform, dtype.decode(weights), cut.m, cut.tile.width(e.target))
    bias = stored_bias(step.inputs[2] if len(step.inputs) > 2 else None)
    front = e.constant(np.zeros(window.filters, np.float32) if bias is None else bias.astype(np.float32))
    zeros, variant = e.constant(np.zeros(window.channels, dtype.numpy)), f"{cut.m}{'_halves' if dtype.is_half else ''}"
    down, across = (-(-size // cut.m) for size in window.out[1:])
    squares = _squares(window, cut.m)
    least, most = limits(step.clamp)
    for first in range(0, squares, cut.groups * cut.rows):
        count = min(squares - first, cut.groups * cut.rows)
        common = {
            "batches": window.batches, "down": down, "across": across, "first": first, "squares": count,
            "rows": cut.rows, "work": e.work(cut.lists), "work_bytes": cut.list_bytes,
            "brain": int(dtype == DataType.BFLOAT_16),
        }  # fmt: skip
        e.emit(
            f"winograd:scatter.{variant}", x=e.at(step.inputs[0]), goal=e.work(), zeros=zeros, **common,
            plane=cut.plane(window.channels), height=window.size[1], width=window.size[2], channels=window.channels,
            top=window.pad[1], left=window.pad[2],
        )  # fmt: skip
        whole, rest = divmod(count, cut.rows)
        if whole:
            _emit_products(e, cut, panels, (0, whole, cut.rows))
        if rest:
            _emit_products(e, cut, panels, (whole, 1, rest))
        e.emit(
            f"winograd:gather.{variant}", sums=e.work(cut.sums), bias=front, result=e.at(step.outputs[0]), **common,
            plane=cut.plane(window.filters), height=window.out[1], width=window.out[2], columns=window.filters,
            least=least, most=most,
        )  # fmt: skip


def _emit_products(e: Emitter, cut: WinogradBlocking, panels: Operand, part: tuple[int, int, int]) -> None:
    """Emit the products of some groups: the first, how many, and the rows of each."""
    first, groups, rows = part
    window, tile = cut.window, cut.tile
    channels, filters = window.channels, window.filters
    numbers = np.arange(first * cut.positions, (first + groups) * cut.positions, dtype=np.int64)
    panel_bytes = tile.matrix_bytes(channels, filters, e.target)
    offsets = [numbers * cut.plane(channels), numbers % cut.positions * panel_bytes, numbers * cut.plane(filters)]
    depth_block = tile.depth_block(channels, 1, e.target)
    e.emit(
        f"matmul:packed.{tile.variant}", a=e.work(), panels=panels, c=e.work(cut.sums),
        table=e.offset_table(np.stack(offsets, axis=1)), batches=numbers.size,
        rows=rows, columns=filters, depth=channels,
        a_row=4 * channels, a_column=4, c_row=4 * filters, depth_block=depth_block,
        tile_block=tile.block(channels, filters, 4 * depth_block, e.target), work=ABSENT, work_bytes=0, block=8,
        least=-np.inf, most=np.inf,
    )  # fmt: skip


def _transform(weights: np.ndarray, m: int, width: int) -> np.ndarray:
    """Return the panels of the transformed weights of all positions."""
    matrix = np.kron(weight_transform(m), weight_transform(m))
    pixels = weights.reshape(9, -1)
    every = np.empty((len(matrix), pixels.shape[1]), np.float32)
    # By pieces that stay in the caches as 64-bit floats.
    for first in range(0, pixels.shape[1], _PIECE):
        piece = slice(first, first + _PIECE)
        every[:, piece] = matrix @ pixels[:, piece].astype(np.float64)
    return pack_matrices(every.reshape(-1, *weights.shape[2:]), None, width)


def weight_transform(m: int) -> np.ndarray:
    """Return the matrix [m + 2, 3] that evaluates a row of weights at the points of F(m x m, 3 x 3)."""
    points = [0.0, *(sign * point for point in POINTS[m] for sign in (1, -1))]
    rows = []
    for number, point in enumerate(points):
        others = points[:number] + points[number + 1 :]
        rows.append(np.array([1, point, point * point]) / prod(point - other for other in others))
    return np.stack([*rows, np.array([0.0, 0.0, 1.0])])
