"""A fused region with an overlay: the cost of fetching the operand by rows, and the bytes saved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from isthmus.graph import Tensor
from isthmus.graph.rows import Rate, RowMap, same_rows
from isthmus.prepare.storage import Block
from isthmus.prepare.tiling.fused_region import BYTES_A_RUN, FusedRegion, Inner, Overlay
from isthmus.prepare.tiling.step_table import StepTable, aligned


@dataclass(slots=True)
class WantedRows:
    """The rows of a tensor that its readers in a region need, along one axis.

    If a tile ends at row ``e`` of the reference tensor, its readers need rows up to ``rate * e + end``, and those of
    the next tile need rows from ``rate * e + begin`` on.
    """

    axis: int
    rate: Rate
    end: int
    begin: int

    def copy(self) -> WantedRows:
        """Return a copy of the current values."""
        return WantedRows(self.axis, self.rate, self.end, self.begin)


@dataclass(frozen=True)
class RowCopy:
    """A copy of a tensor's rows for the reader at a position.

    Parameters
    ----------
    position, line
        The position of the reader, and what the copy adds to `FusedRegion.lines` there.
    copied, copied_a_row
        The bytes that a tile copies: fixed and per row.
    """

    position: int
    line: np.ndarray
    copied: float
    copied_a_row: float


@dataclass(frozen=True)
class OverlayOption:
    """A result that can be written over an operand.

    Parameters
    ----------
    source, result
        The block of the operand, and the step that computes the result.
    wanted, copies
        The rows of the operand that the region reads, and the copies that are not needed if its rows are fetched.
    saved
        The bytes saved.
    """

    source: Block
    result: int
    wanted: WantedRows
    copies: tuple[RowCopy, ...]
    saved: int


def with_overlay(base: StepTable, plain: FusedRegion, option: OverlayOption) -> FusedRegion:
    """Return a variant of a region with an overlay: a step before the others fetches the operand by rows.

    The fetched rows are counted like the rows of any other result in the region, see `RegionGrower`.
    """
    source, wanted, writer = option.source, option.wanted, base.writer[option.source]
    tensor = base.made(source)
    bytes_, run = base.shape(tensor, wanted.axis)
    kept = max(0, wanted.end - wanted.begin)
    a_row, keeps = float(wanted.rate) * bytes_, kept * bytes_
    line = np.array([keeps + base.alignment, a_row, wanted.end * bytes_ + base.alignment])
    lines = np.concatenate([plain.lines, line[:, None]], axis=1)
    lines[:, plain.last - base.end[source] : -1] += line[:, None]
    copied, copied_a_row, instructions = plain.copied[0], plain.copied[1] + a_row, plain.instructions + 1
    for copy in option.copies:
        lines[:, copy.position] -= copy.line
        instructions -= 1
        copied -= copy.copied
        copied_a_row -= copy.copied_a_row
    if kept:
        instructions += 2 if run else 4
        copied += (2.0 if run else 3.0) * keeps
        if not run:
            copied += 3 * BYTES_A_RUN * prod(tensor.dims[: wanted.axis])
            lines[:2, -1] += base.alignment, a_row
            copied_a_row += a_row
    carried = plain.carried + aligned(keeps, base.alignment)
    return replace(
        plain,
        maps=(_copying(tensor, wanted.axis), *plain.maps),
        inner=(Inner(wanted.axis, wanted.rate, wanted.end, kept, False), *plain.inner),
        floor=plain.floor - option.saved + aligned(keeps, base.alignment),
        carried=carried,
        lines=lines,
        instructions=instructions,
        copied=(copied, copied_a_row),
        ahead=max(plain.ahead, wanted.end / float(wanted.rate)),
        overlay=Overlay(writer, base.steps[writer].outputs.index(tensor), option.result),
    )


def _copying(tensor: Tensor, axis: int) -> RowMap:
    """Return the row map of a step that copies a tensor."""
    return RowMap(**vars(same_rows(tensor.dims[axis])), sliced=((0, axis),))
