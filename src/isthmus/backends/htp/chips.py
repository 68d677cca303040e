"""The chips: their numbers, names, architectures and VTCM. They are data in ``chips.json``.

The table has the build of the vendor's library that it comes from; ``python -m isthmus.backends.vendor.chips`` writes
it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from isthmus.domains.profile import DEFAULT, ChipProfile, profile, profile_names
from isthmus.errors import Code, QnnError, did_you_mean

FILE = Path(__file__).with_name("chips.json")
# The numbers of the chips for which the vendor's library (2.51) prepares graphs for several cores.
_SEVERAL_CORES = frozenset({52, 63, 72, 77, 114})


@dataclass(frozen=True)
class Chip:
    """A chip.

    - `soc`: Its number in the library.
    - `name`: Its name; empty if the library logs none.
    - `arch`: The version of its Hexagon processor; 0 for one without a known version.
    - `vtcm_mb`: Its on-chip memory in MB; 0 for a chip without HTP.
    - `hvx_threads`: The vector threads that a graph can have there; 0 for a chip without HTP.
    """

    soc: int
    name: str
    arch: int
    vtcm_mb: int
    hvx_threads: int

    @property
    def has_several_cores(self) -> bool:
        """Whether a graph can be prepared for several cores."""
        return self.soc in _SEVERAL_CORES

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


def chip_of(soc: int) -> Chip | None:
    """Return the chip with a number, or None."""
    return next((each for each in chips() if each.soc == soc), None)


def chip(name: str | int) -> Chip:
    """Return a chip by its name or number.

    >>> chip("SM8750")
    Chip(soc=69, name='SM8750', arch=79, vtcm_mb=8, hvx_threads=6)
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


def profile_of(name: str) -> ChipProfile:
    """Return the profile of a chip's process domains, by the chip's name or number, a profile's name, or a file.

    >>> profile_of("SA8255P").vtcm_mb, profile_of("default").name
    (8, 'default')
    """
    if name.lower().endswith(".json") or name.lower() == DEFAULT:
        return profile(name)
    is_known = any(name.upper() in (each.name.upper(), str(each.soc)) for each in chips())
    if not is_known and name.upper() in profile_names():
        # The table of chips may have it by its number alone.
        found = chip_of(profile(name).soc)
        return profile(name) if found is None else profile(name, arch=found.arch, vtcm_mb=found.vtcm_mb)
    found = chip(name)
    return profile(found.title, soc=found.soc, arch=found.arch, vtcm_mb=found.vtcm_mb)
