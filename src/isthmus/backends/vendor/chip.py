"""The chips that the vendor's library knows: numbers, names, architectures, VTCM.

The table is data in ``chips.json``, with the build of the library that it comes from; `chips` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from isthmus.errors import Code, QnnError, did_you_mean

FILE = Path(__file__).with_name("chips.json")


@dataclass(frozen=True)
class Chip:
    """A chip.

    Parameters
    ----------
    soc
        Its number in the library.
    name
        Its name; empty if the library logs none.
    arch
        The version of its Hexagon processor; 0 for one without a known version.
    vtcm_mb
        Its on-chip memory in MB; 0 for a chip without HTP.
    """

    soc: int
    name: str
    arch: int
    vtcm_mb: int

    @property
    def title(self) -> str:
        """Its name, or its number."""
        return self.name or str(self.soc)


@lru_cache(maxsize=1)
def _content() -> Mapping[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text())
    return content


def library_build() -> str:
    """Return the build of the library that the table comes from."""
    return str(_content()["library"])


@lru_cache(maxsize=1)
def chips() -> tuple[Chip, ...]:
    """Return all chips that the library accepts, also those without HTP, by number."""
    return tuple(Chip(*each) for each in _content()["chips"])


def chip(name: str | int) -> Chip:
    """Return a chip by its name or number.

    Examples
    --------
    >>> chip("SM8750")
    Chip(soc=69, name='SM8750', arch=79, vtcm_mb=8)
    >>> chip(57).title
    'SM8650'
    """
    text = str(name).strip().upper()
    # Several chips without HTP have one name; a name means the chip that can be compiled for.
    found = [each for each in chips() if text in (each.name.upper(), str(each.soc)) and text]
    if not found:
        near = did_you_mean(text, [each.name for each in chips() if each.vtcm_mb and each.name])
        hint = f"{near} `isthmus device --chips` lists the chips.".lstrip()
        raise QnnError(Code.BACKEND_INVALID_CONFIG, f"chip {name!r}", "the library knows no such chip", hint)
    return max(found, key=lambda each: each.vtcm_mb)
