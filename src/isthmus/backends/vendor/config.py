"""The configuration of the backend: the library, the chip and the compiler's options."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.backends.seam import config as keys
from isthmus.backends.vendor import NAME
from isthmus.backends.vendor.target import LEVELS, MAX_HVX, PRECISIONS, ChipTarget, chip
from isthmus.errors import QnnError
from isthmus.log import Log

_MAX_SECONDS = 7 * 24 * 3600
_MAX_VTCM_MB = 1 << 12


@dataclass(frozen=True)
class VendorConfig:
    """The backend's configuration, under the key ``qnn-htp`` of a file or a dictionary.

    - `library`: The HTP library, or its folder; by default that of an installed SDK or package.
    - `target`: What graphs are compiled for (keys ``soc``, ``vtcm_mb``, ``optimization``, ``precision``,
      ``hvx_threads``, ``dlbc``).
    - `timeout`: Time limit of every call of the library, in seconds.
    - `contexts`: What the tools' own file says of contexts.
    """

    library: Path | None = None
    target: ChipTarget = field(default_factory=ChipTarget)
    timeout: float | None = None
    contexts: keys.ContextSettings = field(default_factory=keys.ContextSettings)


def _soc(value: Any) -> int:
    """Return the number of a chip that is given by name or number."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise keys.ConfigError(f"must be the name or the number of a chip, is {value!r}")
    try:
        return chip(value).soc
    except QnnError as problem:
        raise keys.ConfigError(f"{problem.what}: {problem.rule}") from None


_TARGET = {
    "soc": keys.Key("soc", _soc),
    "vtcm_mb": keys.Key("vtcm_mb", keys.number(1, _MAX_VTCM_MB)),
    "optimization": keys.Key("level", keys.number(LEVELS[0], LEVELS[-1])),
    "precision": keys.Key("precision", keys.choice({name: name for name in PRECISIONS})),
    "hvx_threads": keys.Key("hvx_threads", keys.number(1, MAX_HVX)),
    "dlbc": keys.Key("dlbc", keys.truth),
}
_TIMEOUT = keys.Key("timeout", keys.number(1, _MAX_SECONDS))
KEYS: keys.Table = {NAME: {**_TARGET, "library": keys.Key("library", keys.file_name), "timeout": _TIMEOUT}}


def read_config(config: Any, log: Log) -> VendorConfig:
    """Check and merge configurations; later ones override earlier ones.

    >>> read_config({"qnn-htp": {"soc": "SM8650", "vtcm_mb": 4}}, Log()).target
    ChipTarget(soc=57, vtcm_mb=4, level=None, precision=None, hvx_threads=None, dlbc=False)
    """
    given = keys.settings(config, KEYS)
    given.log_unused(log)
    target = ChipTarget(**given.only(*(key.setting for key in _TARGET.values())))
    target.check()
    library = given.values.get("library")
    path, contexts = None if library is None else Path(library), keys.ContextSettings.of(given)
    return VendorConfig(path, target, given.values.get("timeout"), contexts)
