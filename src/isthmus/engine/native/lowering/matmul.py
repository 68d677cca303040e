"""MatMul and FullyConnected: constant right matrices are packed here, others at run time into work space."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isthmus.engine.native.lowering import float_nibbles
from isthmus.engine.native.lowering.emitter import CONSTANT_ALIGNMENT, Effort, Emitter, Lowering
from isthmus.engine.native.lowering.panels import (
    PanelTile,
    choose_tile,
    form_ending,
    limits,
    pack_matrices,
    row_vectors,
)
from isthmus.engine.native.program import ABSENT, Operand
from isthmus.engine.native.signatures.elementwise import KINDS, SIZES
from isthmus.engine.native.signatures.matmul import PRODUCT_KINDS
from isthmus.engine.native.target import Target
from isthmus.graph import Tensor
from isthmus.prepare.geometry.layout import operand, whole_dims
from isthmus.prepare.geometry.matrices import Matrices
from isthmus.prepare.schedule import Step


@dataclass(frozen=True)
class MatrixProduct:
    """A batch of products.

    Parameters
    ----------
    left, right
        The operands as matrices, with the matrix that each batch uses.
    rights
        The number of different right matrices.
    tile
        The kernel's tile, for which right matrices are packed into panels.
    kind
        How operands and results are stored: f32, f16 or bf16.
    """

    left: Matrices
    right: Matrices
    rights: int
    tile: PanelTile
    kind: str = "f32"

    @staticmethod
    def of(
        left: Matrices, right: Matrices, target: Target, whole: tuple[int, int] | None = None, kind: str = "f32"
    ) -> MatrixProduct:
        """Return the product; batches with the same right matrix become one tall product if the memory layout allows.

        For a tile of a fused region, `whole` are the batches and rows of the whole product, which determine the
        kernel's tile.
        """
        rights = int(right.batch.max(initial=0)) + 1
        count = left.batch.size
        # A single row is dense whatever its step; a transposed column is such a row.
        row_major = left.column_step == 1 and (left.rows == 1 or left.row_step == left.columns)
        dense = row_major and np.array_equal(left.batch, np.arange(count))
        if rights == 1 and dense and count > 1:
            one = np.zeros(1, np.int64)
            left = Matrices(one, left.rows * count, left.columns, left.columns, 1)
            right = Matrices(one, right.rows, right.columns, right.row_step, right.column_step)
        rows = left.rows
        if whole is not None:
            rows = whole[1] * (whole[0] if rights == 1 and dense else 1)
        if rows == 1:
            tile = PanelTile(1, row_vectors(right.columns, target))
        else:
            tile = choose_tile(rows, right.columns, target)
        return MatrixProduct(left, right, rights, tile, kind)

    @property
    def size(self) -> int:
        """The bytes of an element."""
        return SIZES[self.kind]

    def panel_bytes(self, target: Target) -> int:
        """Return the size of one packed right matrix in bytes."""
        return self.tile.matrix_bytes(self.right.rows, self.right.columns, target, self.size)

    def staged_tiles(self, target: Target) -> int:
        """Return for how many tiles the left rows are converted from 16 bits at a time."""
        return self.tile.staged_block(self.left.rows, self.right.rows, self.right.columns, target)

    def staged_bytes(self, target: Target) -> int:
        """Return the bytes of a thread's work space for left rows that are converted from 16 bits."""
        if self.kind == "f32":
            return 0
        rows = self.staged_tiles(target) * self.tile.rows
        return _whole_lines(rows * self.right.rows * 4)


def _whole_lines(nbytes: int) -> int:
    """Return a size in whole lines of the cache, after which the next part of the work space begins."""
    return -(-nbytes // CONSTANT_ALIGNMENT) * CONSTANT_ALIGNMENT


def _product(step: Step, target: Target) -> MatrixProduct:
    """Return the product that a step computes."""
    left, right = operand(step, 0), operand(step, 1)
    kind = KINDS[left.dtype]
    if step.op == "FullyConnected":
        units, features = right.dims
        rows = Matrices(np.zeros(1, np.int64), left.elements // max(1, features), features, features, 1)
        all_rows = None if step.part is None else (1, math.prod(whole_dims(step)[:-1]))
        return MatrixProduct.of(rows, Matrices.of((units, features), True, (1,)), target, all_rows, kind)
    dims = whole_dims(step)
    batch_dims = np.broadcast_shapes(left.dims[:-2], right.dims[:-2])
    return MatrixProduct.of(
        Matrices.of(left.dims, bool(step.params.get("transpose_in0")), batch_dims),
        Matrices.of(right.dims, bool(step.params.get("transpose_in1")), batch_dims),
        target,
        None if step.part is None else (math.prod(dims[:-2]), dims[-2]),
        kind,
    )


def _bias(step: Step) -> Tensor | None:
    return step.inputs[2] if len(step.inputs) > 2 else None


def stored_bias(tensor: Tensor | None) -> np.ndarray | None:
    """Return the numbers of a constant bias; None if there is no bias."""
    return None if tensor is None or tensor.data is None else tensor.dtype.decode(tensor.data)


def _is_packed_now(step: Step) -> bool:
    """Return whether the right matrix can be packed when the program is made: it and the bias are constants."""
    bias = _bias(step)
    return operand(step, 1).is_static and (bias is None or bias.is_static)


def _is_transposed(step: Step) -> bool:
    """Return whether the right matrix has the columns of the product in its rows."""
    return step.op == "FullyConnected" or bool(step.params.get("transpose_in1"))


def _has_nibbles(step: Step) -> bool:
    """Return whether the right matrix is stored as 4-bit weights."""
    right = operand(step, 1)
    if not _is_packed_now(step) or math.prod(right.dims[:-2]) != 1 or not step.outputs[0].elements:
        return False
    axes = (right.rank - 2, right.rank - 1)
    return float_nibbles.stays_packed(right, *(axes[::-1] if _is_transposed(step) else axes))


def _nibbles(step: Step) -> float_nibbles.FloatNibbles | None:
    """Return the right matrix as 4-bit weights [depth, columns], if it is stored so."""
    if not _has_nibbles(step):
        return None
    dims, transposed = operand(step, 1).dims[-2:], _is_transposed(step)
    return float_nibbles.float_nibbles(operand(step, 1)).rearrange(
        lambda a: a.reshape(dims).T if transposed else a.reshape(dims)
    )


def product_work(product: MatrixProduct, target: Target, nibbles: bool) -> int:
    """Return the bytes of a thread's work space, for left rows or for parts of 4-bit right matrices as floats.

    A single row needs nothing for the latter, which are dequantized in registers.
    """
    if not nibbles:
        return product.staged_bytes(target)
    if product.tile.rows == 1:
        return 0
    depth = product.tile.depth_block(product.right.rows, 1, target)
    return float_nibbles.work_bytes(depth, product.tile.width(target))


def emit_product(
    e: Emitter, product: MatrixProduct, left: Operand, panels: Operand, result: Operand,
    clamp: tuple[float, float] | None, work: Operand = ABSENT, nibbles: float_nibbles.FloatNibbles | None = None,
) -> None:  # fmt: skip
    """Emit the multiplication of a left operand by panels; each panel begins with the bias.

    `nibbles` are the 4-bit weights that the panels have. Products with them, and those of elements of 16 bits, need
    `work`, with `product_work` for each thread.
    """
    a, b, tile, size = product.left, product.right, product.tile, product.size
    batches = a.batch.size
    table = ABSENT
    least, most = limits(clamp)
    # For each batch, the byte offsets of its left matrix, its panels and its result.
    if batches > 1:
        results = np.arange(batches, dtype=np.int64) * (a.rows * b.columns * size)
        starts = [a.batch * (a.elements * size), b.batch * product.panel_bytes(e.target), results]
        table = e.offset_table(np.stack(starts, axis=1))
    depth_block = tile.depth_block(b.rows, 1, e.target)
    tile_block = tile.block(b.rows, b.columns, 4 * depth_block, e.target)
    if product.kind != "f32":
        depth_block, tile_block = b.rows, product.staged_tiles(e.target)
    share = product_work(product, e.target, nibbles is not None)
    kernel = f"matmul:vector.{tile.vectors}" if tile.rows == 1 else f"matmul:packed.{tile.variant}"
    kernel += form_ending(product.kind, nibbles is not None)
    e.emit(
        kernel, a=left, panels=panels, c=result, table=table, batches=batches,
        rows=a.rows, columns=b.columns, depth=b.rows, a_row=size * a.row_step, a_column=size * a.column_step,
        c_row=size * b.columns, tile_block=tile_block, depth_block=depth_block, work=work if share else ABSENT,
        work_bytes=share, block=float_nibbles.scale_block(nibbles, b.rows), least=least, most=most,
    )  # fmt: skip


def _emit_packing(step: Step, e: Emitter, product: MatrixProduct, table: np.ndarray, offset: int = 0) -> None:
    """Emit the packing of right matrices into panels in work space; each panel begins with the bias."""
    # `table` has a row for each matrix: the byte offset of the matrix, counted from `offset` in the operand, and that
    # of its panels in work space.
    b, size = product.right, product.size
    e.emit(
        f"matmul:pack.{product.tile.vectors}{form_ending(product.kind)}", b=e.at(operand(step, 1), offset),
        bias=e.at(_bias(step)), panels=e.work(), table=e.offset_table(table), batches=len(table), columns=b.columns,
        depth=b.rows, row=size * b.row_step, column=size * b.column_step,
    )  # fmt: skip


def _emit(step: Step, e: Emitter) -> None:
    """Emit a product, and before it the packing of right matrices that are not constants."""
    left, right, bias, out = operand(step, 0), operand(step, 1), _bias(step), step.outputs[0]
    if out.elements == 0:
        return
    product = _product(step, e.target)
    b = product.right
    width = product.tile.width(e.target)
    nibbles, work = _nibbles(step), e.work()
    if nibbles is not None:
        panels = e.constant(nibbles.panels(stored_bias(bias), width))
    elif _is_packed_now(step):
        assert right.data is not None
        matrices = right.data.reshape(-1, *right.dims[-2:])
        # `transpose_in1`, or FullyConnected, whose weights are [columns, depth].
        if b.row_step == 1 and b.column_step != 1:
            matrices = matrices.swapaxes(1, 2)
        matrices = matrices.reshape(-1, b.rows, b.columns)
        panels = e.packed(pack_matrices, matrices, stored_bias(bias), width)
    elif _packs_one_by_one(step, product):
        _emit_one_by_one(step, e, product)
        return
    else:
        # The byte offsets of each right matrix and of its panels.
        numbers = np.arange(product.rights, dtype=np.int64)
        table = np.stack([numbers * (b.elements * product.size), numbers * product.panel_bytes(e.target)], axis=1)
        panels = e.work()
        _emit_packing(step, e, product, table)
        work = e.work(_whole_lines(product.rights * product.panel_bytes(e.target)))
    emit_product(e, product, e.at(left), panels, e.at(out), step.clamp, work, nibbles)


def _packs_one_by_one(step: Step, product: MatrixProduct) -> bool:
    """Return whether right matrices are packed one at a time, so that a tile does not need memory for all of them."""
    return step.part is not None and product.rights > 1


def _emit_one_by_one(step: Step, e: Emitter, product: MatrixProduct) -> None:
    """Emit, for each right matrix, its packing and then the products of all batches that use it."""
    left, out = operand(step, 0), step.outputs[0]
    a, b, size = product.left, product.right, product.size
    one = np.zeros(1, np.int64)
    single = MatrixProduct(
        Matrices(one, a.rows, a.columns, a.row_step, a.column_step),
        Matrices(one, b.rows, b.columns, b.row_step, b.column_step), 1, product.tile, product.kind,
    )  # fmt: skip
    work = e.work(_whole_lines(single.panel_bytes(e.target)))
    for number in range(product.rights):
        _emit_packing(step, e, product, np.zeros((1, 2), np.int64), number * b.elements * size)
        for batch in np.flatnonzero(b.batch == number).tolist():
            source, goal = int(a.batch[batch]) * a.elements * size, batch * a.rows * b.columns * size
            emit_product(e, single, e.at(left, source), e.work(), e.at(out, goal), step.clamp, work)


def without_common_floats(*tensors: Tensor | None) -> str | None:
    """Return why a product cannot use these operands and result, or None: they must have one type of floats."""
    dtypes = {t.dtype for t in tensors if t is not None}
    if len(dtypes) > 1 or any(KINDS.get(dtype) not in PRODUCT_KINDS for dtype in dtypes):
        return "only fixed-point operands, and floats of one type up to 32 bits are supported"
    return None


def _refuses(step: Step) -> str | None:
    left, right, out = operand(step, 0), operand(step, 1), step.outputs[0]
    reason = without_common_floats(left, right, _bias(step), out)
    if reason is not None:
        return reason
    if out.elements and not right.elements:
        return "a product over no elements is not supported"
    return None


def _work(step: Step, target: Target, threads: int) -> int:
    """Return the bytes for right matrices that are packed at run time, and for left rows or 4-bit ones as floats."""
    if not step.outputs[0].elements:
        return 0
    product = _product(step, target)
    each = product_work(product, target, _has_nibbles(step)) * threads
    if _is_packed_now(step):
        return each
    panels = (1 if _packs_one_by_one(step, product) else product.rights) * product.panel_bytes(target)
    return _whole_lines(panels) + each if each else panels


def _effort(step: Step, axis: int, target: Target) -> Effort | None:
    product, result = _product(step, target), step.outputs[0]
    if product.left.batch.size > 1 or not result.elements:
        return None
    # The rows of the product for each row of the result along the axis.
    product_rows = product.left.rows // result.dims[axis]
    return lambda rows: product.tile.effort(rows * product_rows)


LOWERINGS: dict[str, Lowering] = dict.fromkeys(("MatMul", "FullyConnected"), Lowering(_emit, _work, _refuses, _effort))
