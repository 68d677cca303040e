"""Products of rows with a packed matrix: the kernel behind matrix products, dense layers and all convolutions.

Row m of the left operand is contiguous memory, or a window of an image whose taps are runs of channels. The right
matrix is packed [depth][width], its columns padded to whole vectors. Batches are a third dimension of the launch, with
a table of where each begins. The groups of a convolution are batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.backends.gpu.compile.kernel_source import KernelSource, by_axis
from isthmus.backends.gpu.compile.lowering.chains import Epilogue
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, Link
from isthmus.backends.gpu.compile.lowering.product_kernels import cpu_body, gpu_body, thin_body
from isthmus.backends.gpu.compile.lowering.tiles import product_tile
from isthmus.backends.gpu.compile.program import BufferRef
from isthmus.backends.gpu.compile.storage import OperandStorage
from isthmus.backends.gpu.compile.traits import DeviceTraits
from isthmus.graph import Tensor
from isthmus.prepare.geometry.windows import ConvWindow


@dataclass(frozen=True)
class Left:
    """The left operand.

    - `place`, `storage`: Its memory, and how elements are stored.
    - `rows`, `depth`: The number of rows, and of elements of a row, which is the length of a sum.
    - `zero`: The value that is subtracted from stored elements of a quantized operand; their scale is applied later.
    - `row_step`: Elements between rows, if rows are contiguous memory.
    - `window`: The window, if a row is a window of an image instead.
    """

    place: BufferRef
    storage: OperandStorage
    rows: int
    depth: int
    row_step: int = 0
    window: ConvWindow | None = None
    zero: int = 0


@dataclass(frozen=True)
class Right:
    """The packed right operand: `columns` columns without padding, in panels of `width`.

    - `bias`: A bias for each column, padded like the columns; it is added to the sums.
    """

    place: BufferRef
    storage: OperandStorage
    columns: int
    width: int
    bias: BufferRef | None = None


@dataclass(frozen=True)
class ResultTarget:
    """The destination of results: element ``start + m * row_step + n``, or every few pixels of an image.

    Here m is the row and n the column of a result.

    - `pixels`: Elements from one result to the next along batch, depth, height and width, if rows are spread over an
      image.
    """

    output: Tensor
    row_step: int
    start: int = 0
    pixels: tuple[int, int, int, int] | None = None


def panel_width(traits: DeviceTraits, rows: int, columns: int) -> int:
    """Return the number of columns of a panel for a product of this many rows and columns, with padding."""
    return product_tile(traits, rows, columns, 1).panel


def pack(matrices: np.ndarray, width: int) -> np.ndarray:
    """Pack matrices [count, depth, columns] into panels [count, panel, depth, width], padded with zeros."""
    count, depth, columns = matrices.shape
    panels = -(-columns // width)
    padded = np.zeros((count, depth, panels * width), np.float32)
    padded[:, :, :columns] = matrices
    return np.ascontiguousarray(padded.reshape(count, depth, panels, width).swapaxes(1, 2))


def pad_bias(bias: np.ndarray, columns: int, width: int) -> np.ndarray:
    """Pad a bias [count * columns] to [count, whole panels]."""
    rows = np.asarray(bias, np.float32).reshape(-1, columns)
    return np.pad(rows, ((0, 0), (0, -columns % width)))


def emit_product(
    e: KernelEmitter,
    left: Left,
    right: Right,
    target: ResultTarget,
    before: Sequence[Link] = (),
    batches: np.ndarray | None = None,
    in_steps: bool = False,
) -> None:
    """Emit a product.

    - `batches`: Where each batch begins, in elements of the left operand, the right operand and the result, and its
      first channel; None for a single batch.
    - `in_steps`: Whether `before` gives a quantized result in units of its scale.
    """
    count = 1 if batches is None else len(batches)
    tile = product_tile(e.traits, left.rows, right.columns, count, left.depth)
    assert tile.panel == right.width
    kernel = e.kernel()
    kernel.memory("x", left.place, left.storage.c_type)
    kernel.memory("w", right.place, right.storage.c_type)
    if right.bias is not None:
        kernel.memory("bias", right.bias, "float")
    if left.storage.quantized:
        kernel.floats(x_zero=float(left.zero))
    kernel.ints(M=left.rows, N=right.columns, K=left.depth, y_step=target.row_step, y_start=target.start)
    if batches is not None:
        kernel.memory("table", e.constant(np.asarray(batches, np.int32)), "int")
    if left.window is None:
        kernel.ints(x_step=left.row_step)
    else:
        declare_window(kernel, left.window)
        kernel.memory("taps", e.constant(_taps(left.window)), "int4")
    if target.pixels is not None:
        kernel.ints(**dict(zip(("y_batch", "y_plane", "y_row", "y_pixel"), target.pixels, strict=True)))
    tail = Epilogue(e, kernel, target.output, before, in_steps)
    aligned = _is_aligned(left, right, target, tail, batches)
    aligned = aligned and e.at(tail.output).offset % (4 * tail.storage.size) == 0
    if tile.cpu:
        body = cpu_body(tile, left, right, target, tail, batches is not None)
    else:
        body = (thin_body if tile.thin else gpu_body)(tile, left, right, target, tail, batches is not None, aligned)
    kernel.launch("product", [body], tile.items(left.rows, right.columns, count), tile.group)


def _is_aligned(left: Left, right: Right, target: ResultTarget, tail: Epilogue, batches: np.ndarray | None) -> bool:
    """Return whether vectors of four elements of every operand are aligned, given that pools are."""
    window = left.window
    # All distances in elements between the vectors of an operand.
    steps = [left.row_step] if window is None else [window.channels, window.channels // window.groups]
    steps += [right.columns, target.row_step, target.start, *(target.pixels or ())]
    steps += [] if batches is None else np.asarray(batches).reshape(-1).tolist()
    if any(step % 4 for step in steps) or (left.storage.kind, tail.storage.kind) not in _WIDE:
        return False
    return left.place.offset % (4 * left.storage.size) == 0 and left.depth % 4 == 0


# The kinds of left operand and result that are read and written as vectors.
_WIDE = {(a, b) for a in ("f32", "f16") for b in ("f32", "f16")}


def declare_window(kernel: KernelSource, w: ConvWindow) -> None:
    """Declare the parameters of a window.

    C is the number of channels of a group. D, H and W follow what they measure: the image, O the output, K the kernel,
    and in lower case s the stride, d the dilation, p the padding.
    """
    kernel.ints(
        C=w.channels // w.groups, channels=w.channels, **by_axis("", w.size), **by_axis("O", w.out),
        **by_axis("K", w.kernel), **by_axis("s", w.stride), **by_axis("d", w.dilation), **by_axis("p", w.pad),
    )  # fmt: skip


def _taps(w: ConvWindow) -> np.ndarray:
    """Return for each element of a window its position (depth, height, width) relative to the first, and its offset."""
    channels = w.channels // w.groups
    z, y, x, c = (axis.reshape(-1) for axis in np.meshgrid(*map(np.arange, (*w.kernel, channels)), indexing="ij"))
    z, y, x = z * w.dilation[0], y * w.dilation[1], x * w.dilation[2]
    offset = ((z * w.size[1] + y) * w.size[2] + x) * w.channels + c
    return np.stack([z, y, x, offset], axis=1).astype(np.int32)
