"""What is true of an operation wherever it stands, so that nobody who handles operations keeps a list of names.

Each operation declares its traits once, in its family's table in `isthmus.graph.ops`. Passes, the planner, engines and
frontends ask for them; `isthmus.graph.ops.having` gives the operations of which something is true.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Picks(Enum):
    """By what an operation chooses the elements that it gives."""

    PLACE = auto()
    """By where they lie, so that their values are never looked at."""
    ORDER = auto()
    """By which is largest or smallest. Quantization keeps order, so stored elements are compared like reals."""


@dataclass(frozen=True)
class Movement:
    """An operation whose results are elements of its operands, unchanged.

    Parameters
    ----------
    picks
        By what it chooses them.
    sources
        The operands that they come from; empty for all of them.
    fills
        Whether it puts elements of its own among them, as a Pad does. The operand's quantization may be unable to say
        them, so such an operation does not commute with a change of quantization as others do.
    """

    picks: Picks
    sources: tuple[int, ...] = (0,)
    fills: bool = False

    @property
    def of_one(self) -> bool:
        """Whether every result is an element of in[0]."""
        return self.sources == (0,) and not self.fills


class ProductKind(Enum):
    """How an operation multiplies in[0] by in[1], which says what the axes of in[1] are."""

    CONVOLUTION = auto()
    """Filters [spatial…, channel_in / group, channel_out]."""
    DEPTH_WISE = auto()
    """Filters [spatial…, 1, channel_out], each over a channel of its own."""
    TRANSPOSED = auto()
    """Filters [spatial…, channel_in, channel_out / group], each spread over the result."""
    ROWS = auto()
    """Weights [out, in]."""
    MATRIX = auto()
    """Matrices, either of which may be computed and transposed."""
    INTEGERS = auto()
    """Matrices of plain integers; in[2] and in[3] are their zero points, and there is no bias."""


@dataclass(frozen=True)
class Traits:
    """The traits of an operation.

    Parameters
    ----------
    element_wise
        Each element of the result is made of the elements at its place in the operands, where those of one element
        along an axis are at every place of it. So the result may be written over any operand of its dimensions and
        element size.
    coefficients
        in[1] and what follows are coefficients of a function of in[0], not data of the same kind; they may have a type
        and a quantization of their own.
    commutative
        in[0] and in[1] may change places.
    limits
        The range to which it limits in[0], where that is all it does.
    takes_clamp
        A limit to a range after it can become part of it.
    fixed_point
        Between Dequantize and Quantize it is better done on the fixed-point tensors themselves. Others stay in float,
        where passes still know cheaper forms of them.
    moves
        How it moves elements, if it does nothing else.
    orders
        Its result depends on the order of in[0]'s elements alone, though it is none of them.
    product
        What kind of product it is: linear in in[0], with in[1] as weights and, but for integers, in[2] as bias.
    window
        It computes each element from a window of in[0].
    gates
        How many gates a recurrent operation has, each a product with the input and one with the hidden state.
    """

    element_wise: bool = False
    coefficients: bool = False
    commutative: bool = False
    limits: tuple[float, float] | None = None
    takes_clamp: bool = False
    fixed_point: bool = False
    moves: Movement | None = None
    orders: bool = False
    product: ProductKind | None = None
    window: bool = False
    gates: int = 0


PLAIN = Traits()
"""An operation of which nothing of the kind is true."""
