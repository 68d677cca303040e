"""Variants of kernels that round halves in another way than to even."""

from __future__ import annotations

from collections.abc import Mapping

UP, AWAY, TOWARDS = "up", "away", "towards"
"""Halves go up, away from zero, or towards zero."""


def with_ties(variants: Mapping[str, Mapping[str, int]], *ties: str) -> dict[str, Mapping[str, int]]:
    """Return variants, and after them those that end in the name of another rounding of halves."""
    others = {"_".join(filter(None, (name, rule))): parts for rule in ties for name, parts in variants.items()}
    return {**variants, **others}


def without_ties(variant: str) -> tuple[str, str]:
    """Return a variant without its rounding of halves, and that rounding; "" for halves to even.

    >>> without_ties("u8_up"), without_ties("2_1"), without_ties("up")
    (('u8', 'up'), ('2_1', ''), ('', 'up'))
    """
    name, _, rule = variant.rpartition("_")
    return (name, rule) if rule in (UP, AWAY, TOWARDS) else (variant, "")
