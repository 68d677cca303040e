"""What a comparison found out about an operation, in words that its text and its page share.

Facts are plain data, as ``isthmus compare --json`` prints them: numbers that JSON lacks are texts, such as "inf".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from isthmus.errors import counted

WRONG, SATURATES = "wrong by itself", "saturates"
"""The verdicts that are explained by the operation alone or by its quantizer, not by the run of the whole model."""


def finite_or_text(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON can have them: numbers that are not finite as texts.

    Examples
    --------
    >>> finite_or_text({"excess": float("inf"), "low": 0.5, "steps": None})
    {'excess': 'inf', 'low': 0.5, 'steps': None}
    """
    return {name: value if value is None or math.isfinite(value) else str(value) for name, value in values.items()}


def apart(found: Mapping[str, Any]) -> str:
    """Describe a deviation: absolute, as a fraction, and in steps of the quantizer if there is one.

    Examples
    --------
    >>> apart({"max_abs": 0.5, "relative": 0.25, "steps": 2.0})
    'up to 0.5 apart (0.25 of the largest value), 2 steps of its quantizer'
    >>> apart({"max_abs": "inf", "relative": "inf", "steps": "inf"})
    'infinitely far apart'
    """
    most, relative, steps = float(found["max_abs"]), float(found["relative"]), found["steps"]
    if not math.isfinite(most):
        return "infinitely far apart"
    part = "the reference is 0" if math.isinf(relative) else f"{relative:.2g} of the largest value"
    return f"up to {most:.3g} apart ({part})" + (
        "" if steps is None else f", {counted(round(steps), 'step')} of its quantizer"
    )


def beyond(found: Mapping[str, Any]) -> str:
    """Describe how many values a quantizer cannot represent.

    Examples
    --------
    >>> beyond({"count": 3, "elements": 512, "low": 0.0, "high": 0.5, "excess": 0.25})
    '3 of 512 values exceed the range of its quantizer, 0 to 0.5, by up to 0.25'
    """
    values, excess = f"{found['count']:,} of {counted(found['elements'], 'value')}", float(found["excess"])
    how_far = f"by up to {excess:.3g}" if math.isfinite(excess) else "and some are infinite"
    return f"{values} exceed the range of its quantizer, {found['low']:.3g} to {found['high']:.3g}, {how_far}"


def reasons(row: Mapping[str, Any]) -> list[str]:
    """Say why the operation of a row is wrong: parts of sentences."""
    alone, there, saturation = row["alone"], row["in_model"], row["saturation"]
    if row["verdict"] == SATURATES and saturation is not None:
        return [f"{beyond(saturation)}; within it the operation is right"]
    if row["verdict"] == WRONG and alone is not None:
        return [f"alone, on the reference's inputs: {apart(alone)}{_allowance('tolerance', row)}"]
    if there is None:
        return []
    found = [f"in the model: {apart(there)}{_allowance('tolerance alone', row)}"]
    return found if saturation is None else [*found, f"besides, {beyond(saturation)}"]


def saturation_remark(count: int) -> str:
    """Say what it means that some operations saturate on random inputs."""
    does = f"{counted(count, 'operation')} {'saturates' if count == 1 else 'saturate'}"
    return f"{does}: no fault, since random inputs may exceed what was calibrated; give real ones to judge ranges"


def _allowance(title: str, row: Mapping[str, Any]) -> str:
    """Return the tolerance of a row as the end of a sentence; nothing if it is not finite."""
    return "" if row["tolerance"] is None else f"; {title} {row['tolerance']:.3g}"
