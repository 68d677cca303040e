"""The judgement on variants of a model by what the vendor's compiler says of them: which one needs less on the chip.

A plan of ours says nothing about a chip: tiles make its compiler need less memory for one model, and more for another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from isthmus.backends.vendor.measurement import Measurement

JUDGE = "htp"
"""The name of this judge on command lines."""


@dataclass(frozen=True)
class Variant:
    """A variant of a model on one target.

    - `title`: how the variant was made; empty for the model as it is.
    - `level`: the optimization level that it was compiled with.
    """

    title: str
    level: int | None
    measurement: Measurement

    @property
    def cost(self) -> tuple[int, int]:
        """What is to be small: spill-fill, which costs bandwidth at every execution, then total RAM."""
        return self.measurement.spill_fill, self.measurement.total_ram


def is_better(variant: Variant, other: Variant) -> bool:
    """Return whether a variant needs less spill-fill or total RAM than another, and not more of either."""
    pairs = list(zip(variant.cost, other.cost, strict=True))
    return all(mine <= theirs for mine, theirs in pairs) and any(mine < theirs for mine, theirs in pairs)


def unsplit_best(variants: Iterable[Variant]) -> Variant | None:
    """Return the best of the variants that are the model as it is; None if the compiler refuses all of them."""
    compiled = [each for each in variants if not each.title and not each.measurement.problem]
    return min(compiled, key=lambda each: each.cost, default=None)


def best(variants: Iterable[Variant]) -> Variant | None:
    """Return the variant to use: the model as it is, unless another `is_better`; None if none compiles."""
    listed = [each for each in variants if not each.measurement.problem]
    plain = unsplit_best(listed)
    if plain is None:
        return min(listed, key=lambda each: each.cost, default=None)
    better = [each for each in listed if is_better(each, plain)]
    return min(better, key=lambda each: each.cost, default=plain)
