"""Rounding of results to stored integers, in the modes of `Graph.numerics`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from isthmus.graph.tensor import Tensor

HEXAGON = "hexagon"
"""The mode that rounds as Hexagon chips do."""


class Ties(Enum):
    """What an exact half between two integers becomes. Zero is the real number 0, not the stored one."""

    EVEN = "even"
    UP = "up"
    AWAY = "away"
    """Away from zero."""
    TOWARDS = "towards"
    """Towards zero."""


# The operations of Hexagon chips that do not round halves up.
_ON_HEXAGON = {"Quantize": Ties.AWAY, "ReduceMean": Ties.TOWARDS}


def ties_of(numerics: str, op: str, params: Mapping[str, Any] | None = None) -> Ties:
    """Return how an operation with fixed-point results rounds halves, in a mode.

    The modes of LiteRT and ONNX Runtime differ from "exact" in the arithmetic before the rounding. On a chip,
    averages in windows that overlap are rounded to even, but for about one in a thousand; `params` tells these windows.
    """
    if numerics != HEXAGON:
        return Ties.EVEN
    if op == "PoolAvg2d" and params is not None and not np.array_equal(params["filter_size"], params["stride"]):
        return Ties.EVEN
    return _ON_HEXAGON.get(op, Ties.UP)


def round_steps(steps: Any, ties: Ties) -> Any:
    """Round numbers of steps above the zero point to integers.

    >>> steps = np.array([-2.5, -1.5, 0.5, 1.5])
    >>> [round_steps(steps, ties).tolist() for ties in (Ties.UP, Ties.AWAY, Ties.TOWARDS)]
    [[-2.0, -1.0, 1.0, 2.0], [-3.0, -2.0, 1.0, 2.0], [-2.0, -1.0, 0.0, 1.0]]
    """
    whole = np.rint(steps)
    if ties is Ties.EVEN:
        return whole
    # Exact, since both are of one magnitude. Twice the rest leads from one neighbour of a half to the other.
    rest = steps - whole
    wrong = {
        Ties.UP: rest == 0.5,
        Ties.AWAY: (np.abs(rest) == 0.5) & ((rest > 0) == (steps > 0)),
        Ties.TOWARDS: (np.abs(rest) == 0.5) & ((rest > 0) != (steps > 0)),
    }[ties]
    return np.where(wrong, whole + 2 * rest, whole)


def is_staged(op: str, inputs: Sequence[Tensor | None], params: Mapping[str, Any]) -> bool:
    """Return whether Hexagon chips compute an operation in two steps that are both rounded.

    They do so for averages of bytes over windows side by side, without gaps, of even height and width above two: first
    each quarter of a window is averaged, perhaps in two steps itself, then the four results.
    """
    if op != "PoolAvg2d" or inputs[0] is None or not inputs[0].dtype.is_fixed_point or inputs[0].dtype.itemsize != 1:
        return False
    window, stride = (np.asarray(params[name]).reshape(-1).tolist() for name in ("filter_size", "stride"))
    whole = all(size % length == 0 for size, length in zip(inputs[0].dims[1:3], window, strict=True))
    return whole and window == stride and min(window) > 2 and not any(
        length % 2 for length in window
    ) and not np.any(params["pad_amount"])  # fmt: skip


def stages_of(x: Tensor, params: Mapping[str, Any]) -> tuple[tuple[int, ...], dict[str, Any], dict[str, Any]]:
    """Return the dimensions between the two steps of an operation that `is_staged`, and the parameters of each step."""
    half = np.asarray(params["filter_size"]).reshape(-1) // 2
    two = np.array([2, 2], np.uint32)
    (batch, height, width, channels), (down, across) = x.dims, half.tolist()
    first, second = ({**params, "filter_size": size, "stride": size} for size in (half, two))
    return (batch, height // down, width // across, channels), first, second
