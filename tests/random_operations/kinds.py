"""All kinds of random cases, by name."""

from __future__ import annotations

from random_operations import litert_cases, onnxruntime_cases
from random_operations.comparison import Make

MAKERS: dict[str, Make] = {**onnxruntime_cases.MAKERS, **litert_cases.MAKERS}


def seed_of(kind: str, seed: int, number: int) -> str:
    """The seed of one case; it begins with the kind, so that it says all that is needed to make the case again."""
    return f"{kind}/{seed}/{number}"
