"""The bytes of context binaries of models are those that docs/context-binary.md states."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from support import zoo
from support.suites import sampled

from isthmus import qnn

PAGE = Path(__file__).parents[3] / "docs" / "context-binary.md"
ROW = re.compile(r"^\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|", re.MULTILINE)


@dataclass(frozen=True)
class Tables:
    """What the document states.

    - `floats`: By model the bytes of our binaries with floats of 32 bits and of 16, and of the vendor's.
    - `range`: The least and the largest part that our binaries are of the vendor's.
    """

    text: str
    floats: dict[str, tuple[int, ...]]
    range: tuple[float, float]


@cache
def tables() -> Tables:
    """Read the document."""
    text = PAGE.read_text()
    rows = {name: tuple(int(each.replace(",", "")) for each in figures) for name, *figures in ROW.findall(text)}
    low, high = re.findall(r"take\s+(\S+)\s+to\s+(\S+)\s+of\s+the\s+bytes", text)[0]
    return Tables(text, rows, (float(low), float(high)))


def size_of(model: Path, precision: str) -> int:
    """The bytes of our binary of one model."""
    with qnn.Backend("htp", {"htp": {"precision": precision}, "devices": [{"soc_model": 69}]}) as backend:
        context = backend.create_context()
        context.compose(model)
        return len(context.prepare_offline())


@pytest.mark.parametrize("name", sampled(list(tables().floats), 2))
def test_binaries_have_the_bytes_that_the_document_states(name: str) -> None:
    single, half, theirs = tables().floats[name]
    for documented, precision in ((single, "float32"), (half, "float16")):
        # A version's name is in the file.
        assert abs(size_of(zoo.path(name), precision) - documented) <= 0.01 * documented
    assert 1.4 < single / theirs < 2
    assert half < theirs


def test_the_document_has_models_whose_weights_are_floats_of_32_bits() -> None:
    assert len(tables().floats) >= 4
