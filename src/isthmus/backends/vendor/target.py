"""Targets that graphs are compiled for: a chip, its VTCM, an optimization level. Impossible ones are refused here.

The vendor's library accepts more than a chip has: chips without HTP, and VTCM sizes above the chip's. The chips are
data in ``chips.json``, with the build of the library that they come from; `chips` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from isthmus.errors import Code, QnnError, did_you_mean

FILE = Path(__file__).with_name("chips.json")

LEVELS = (1, 2, 3)
"""The optimization levels of graphFinalize."""
PRECISIONS = {"float32": 0, "float16": 1}
"""How floats are computed, by QNN_PRECISION_*; from v69 on it is float16 whatever is asked for."""
MAX_HVX = 64


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


@dataclass(frozen=True)
class ChipTarget:
    """A target of the compiler. None leaves a choice to the library.

    Parameters
    ----------
    soc
        The chip's number. Without one, the library takes the chip that it runs on; on a host it takes a v68.
    vtcm_mb
        The on-chip memory for a graph, in MB. The library's own choice is 4 on every chip.
    level
        The optimization level, 1 to 3.
    precision
        "float16" or "float32".
    hvx_threads
        The number of vector threads.
    dlbc
        Whether activations are compressed in DDR memory.
    """

    soc: int | None = None
    vtcm_mb: int | None = None
    level: int | None = None
    precision: str | None = None
    hvx_threads: int | None = None
    dlbc: bool = False

    @property
    def chip(self) -> Chip | None:
        """The chip, if one is named."""
        return None if self.soc is None else chip(self.soc)

    def check(self) -> None:
        """Refuse a target that does not exist, whether the library would accept it or not."""
        known = self.chip
        if known is not None and not known.vtcm_mb:
            raise _refusal(f"chip {known.title}", "it has no HTP")
        limits = f"VTCM of {self.vtcm_mb} MB"
        if self.vtcm_mb is not None and self.vtcm_mb < 1:
            raise _refusal(limits, "must be at least 1 MB")
        if known is not None and self.vtcm_mb is not None and self.vtcm_mb > known.vtcm_mb:
            raise _refusal(limits, f"chip {known.title} has {known.vtcm_mb} MB")
        if self.level is not None and self.level not in LEVELS:
            raise _refusal(f"optimization level {self.level}", f"must be one of {', '.join(map(str, LEVELS))}")
        if self.precision is not None and self.precision not in PRECISIONS:
            raise _refusal(f"precision {self.precision!r}", f"must be one of {', '.join(PRECISIONS)}")
        if self.hvx_threads is not None and not 1 <= self.hvx_threads <= MAX_HVX:
            raise _refusal(f"{self.hvx_threads} HVX threads", f"must be 1 to {MAX_HVX}")

    def to_json(self) -> dict[str, Any]:
        """Return the target as plain data, for messages to the child process and for cache keys."""
        return asdict(self)

    @property
    def title(self) -> str:
        """The target in a few words.

        Examples
        --------
        >>> ChipTarget(69, 8, 3).title
        'SM8750, 8 MB, O3'
        """
        known = self.chip
        parts = ["the library's chip" if known is None else known.title]
        parts += [f"{self.vtcm_mb} MB"] * (self.vtcm_mb is not None)
        parts += [f"O{self.level}"] * (self.level is not None)
        return ", ".join(parts)


def _refusal(what: str, rule: str) -> QnnError:
    hint = "`isthmus device --chips` lists the chips."
    return QnnError(Code.BACKEND_INVALID_CONFIG, what, rule, hint if "chip" in what + rule else "")
