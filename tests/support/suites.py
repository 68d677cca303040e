"""Which tests `make test` runs, and which wait for `make test-long`.

`make test` proves each rule in minutes, with a sample of operations, models and interrupted places. The rest carries
the marker `long`. `pytest FILE` runs both kinds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

LONG = pytest.mark.long

deselected = 0
"""How many tests this run leaves out; the collection counts them."""

MODELS = ("okay_nabu", "dtln_1", "kws_qdq", "kws_fp32", "mixed_ops", "silero_vad_16k")
"""The models of `make test`: 8 bits and floats, both formats, with state and without it, few kernels to compile."""


def long(*values: Any, id: str | None = None) -> Any:
    """Mark a parameter set as one for `make test-long`."""
    return pytest.param(*values, marks=LONG, id=id)


def only(short: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Mark every value that is not in `short` as one for `make test-long`."""
    return [value if value in short else long(value) for value in values]


def sampled(values: Iterable[Any], every: int) -> list[Any]:
    """Leave the first of every `every` values to `make test`, and mark the others; one may be a `pytest.param`."""
    found = []
    for index, value in enumerate(values):
        if index % every:
            parameters = value if isinstance(value, type(pytest.param())) else pytest.param(value)
            value = pytest.param(*parameters.values, marks=[*parameters.marks, LONG], id=parameters.id)
        found.append(value)
    return found
