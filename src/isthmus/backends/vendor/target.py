"""Targets that graphs are compiled for: a chip, its VTCM, an optimization level. Impossible ones are refused here.

The vendor's library accepts more than a chip has: chips without HTP, and VTCM sizes above the chip's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from isthmus.backends.htp.chips import Chip, chip, chips, library_build, profile_of
from isthmus.errors import Code, QnnError

__all__ = ["LEVELS", "MAX_HVX", "PRECISIONS", "Chip", "ChipTarget", "chip", "chips", "library_build", "profile_of"]
LEVELS = (1, 2, 3)
"""The optimization levels of graphFinalize."""
PRECISIONS = {"float32": 0, "float16": 1}
"""How floats are computed, by QNN_PRECISION_*; from v69 on it is float16 whatever is asked for."""
MAX_HVX = 64


@dataclass(frozen=True)
class ChipTarget:
    """A target of the compiler. None leaves a choice to the library.

    - `soc`: The chip's number. Without one, the library takes the chip that it runs on; on a host it takes a v68.
    - `vtcm_mb`: The on-chip memory for a graph, in MB. The library's own choice is 4 on every chip.
    - `level`: The optimization level, 1 to 3.
    - `precision`: "float16" or "float32".
    - `hvx_threads`: The number of vector threads.
    - `dlbc`: Whether activations are compressed in DDR memory.
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
        named_chip = self.chip
        if named_chip is not None and not named_chip.vtcm_mb:
            raise _refusal(f"chip {named_chip.title}", "it has no HTP")
        limits = f"VTCM of {self.vtcm_mb} MB"
        if self.vtcm_mb is not None and self.vtcm_mb < 1:
            raise _refusal(limits, "must be at least 1 MB")
        if named_chip is not None and self.vtcm_mb is not None and self.vtcm_mb > named_chip.vtcm_mb:
            raise _refusal(limits, f"chip {named_chip.title} has {named_chip.vtcm_mb} MB")
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

        >>> ChipTarget(69, 8, 3).title
        'SM8750, 8 MB, O3'
        """
        named_chip = self.chip
        parts = ["the library's chip" if named_chip is None else named_chip.title]
        parts += [f"{self.vtcm_mb} MB"] * (self.vtcm_mb is not None)
        parts += [f"O{self.level}"] * (self.level is not None)
        return ", ".join(parts)


def _refusal(what: str, rule: str) -> QnnError:
    hint = "`isthmus device --chips` lists the chips."
    return QnnError(Code.BACKEND_INVALID_CONFIG, what, rule, hint if "chip" in what + rule else "")
