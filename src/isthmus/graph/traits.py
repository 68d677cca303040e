"""Traits: properties of an operation that hold for every use of it, so that no module keeps lists of names.

Each operation declares its traits once, in its family's table in `isthmus.graph.ops`. Passes, the planner, engines and
frontends read them; `isthmus.graph.ops.having` returns the operations for which a predicate is true.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Picks(Enum):
    """How an operation selects the elements of its result."""

    PLACE = auto()
    """Selection by position; the values are never examined."""
    ORDER = auto()
    """Selection of the largest or smallest. Quantization preserves order, so stored elements can be compared instead of
    reals.
    """


@dataclass(frozen=True)
class Movement:
    """The movement of an operation whose results are unchanged elements of its operands.

    - `sources`: the operands that the elements come from; empty for all of them.
    - `fills`: whether it inserts elements of its own, as a Pad does. The operand's quantization may be unable to
      represent them, so such an operation does not commute with a change of quantization as others do.
    """

    picks: Picks
    sources: tuple[int, ...] = (0,)
    fills: bool = False

    @property
    def of_one(self) -> bool:
        """Whether every result is an element of in[0]."""
        return self.sources == (0,) and not self.fills


class ProductKind(Enum):
    """How an operation multiplies in[0] by in[1]. This determines the axes of in[1]."""

    CONVOLUTION = auto()
    """Filters [spatial…, channel_in / group, channel_out]."""
    DEPTH_WISE = auto()
    """Filters [spatial…, 1, channel_out], each for one channel."""
    TRANSPOSED = auto()
    """Filters [spatial…, channel_in, channel_out / group], each scattered over the result."""
    ROWS = auto()
    """Weights [out, in]."""
    MATRIX = auto()
    """Matrices; either may be computed at run time and transposed."""
    INTEGERS = auto()
    """Matrices of plain integers; in[2] and in[3] are their zero points, and there is no bias."""


@dataclass(frozen=True)
class Traits:
    """The traits of an operation.

    - `element_wise`: whether each element of the result depends only on the elements at the same position in the
      operands, after broadcasting. Then the result may overwrite any operand with its dimensions and element size.
    - `coefficients`: whether in[1] and later inputs are coefficients of a function of in[0] rather than data of the
      same kind. They may have their own type and quantization.
    - `commutative`: whether in[0] and in[1] may be exchanged.
    - `limits`: the range that it limits in[0] to, if it does nothing else.
    - `takes_clamp`: whether a following limit to a range can be fused into it.
    - `fixed_point`: whether, between Dequantize and Quantize, it is better computed on the fixed-point tensors
      themselves. Other operations stay in float, for which passes have cheaper forms.
    - `activation`: whether only networks use it. Engines do not compute it in double precision.
    - `moves`: how it moves elements, if it does nothing else.
    - `updates`: whether the result is in[0] with some of its elements replaced, or combined with others. Then the
      result may overwrite in[0].
    - `orders`: whether its result depends only on the order of in[0]'s elements, although it is not one of them.
    - `product`: the kind of product: linear in in[0], with in[1] as weights and in[2] as bias (except for integers).
    - `window`: whether it computes each element from a window of in[0].
    - `gates`: the number of gates of a recurrent operation, each with one product with the input and one with the
      hidden state.
    - `varies`: whether executions with the same operands may give different results: it keeps a state of its own.
    """

    element_wise: bool = False
    coefficients: bool = False
    commutative: bool = False
    limits: tuple[float, float] | None = None
    takes_clamp: bool = False
    fixed_point: bool = False
    activation: bool = False
    moves: Movement | None = None
    updates: bool = False
    orders: bool = False
    product: ProductKind | None = None
    window: bool = False
    gates: int = 0
    varies: bool = False


PLAIN = Traits()
"""The traits of an operation without any special property."""
