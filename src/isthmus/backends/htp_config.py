"""HTP's configuration: a file or a dictionary becomes a checked `HtpConfig`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.backends.htp_options import Reregistration
from isthmus.backends.native import MAX_THREADS
from isthmus.errors import Code, QnnError
from isthmus.log import Log


@dataclass(frozen=True)
class HtpConfig:
    """HTP's configuration, under the key ``htp`` of a file or a dictionary.

    Parameters
    ----------
    reregistration
        Whether a place may be registered again with another shape.
    units
        How many executions the accelerator runs at a time; 0 for one a processor.
    threads
        How many threads an execution uses.
    """

    reregistration: Reregistration = Reregistration.REFUSE
    units: int = 0
    threads: int = 1


def read_config(source: Any, log: Log) -> HtpConfig:
    """Check a configuration: a path, a dictionary, or nothing."""
    what = "HTP configuration" if not isinstance(source, (str, os.PathLike)) else f"configuration file '{source}'"

    def refuse(rule: str) -> QnnError:
        return QnnError(Code.BACKEND_INVALID_CONFIG, what, rule)

    if source is None:
        return HtpConfig()
    if isinstance(source, (str, os.PathLike)):
        try:
            source = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as problem:
            raise refuse(f"it cannot be read: {problem}") from None
    settings = source.get("htp", {}) if isinstance(source, Mapping) and not set(source) - {"htp"} else None
    if not isinstance(settings, Mapping):
        raise refuse("it must be an object with the one key 'htp', which holds an object")
    checked: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "reregistration":
            known = {policy.value: policy for policy in Reregistration}
            if value not in list(known):
                raise refuse(f"'{name}' must be one of {', '.join(map(repr, known))}, is {value!r}")
            checked[name] = known[value]
        elif name in ("units", "threads"):
            least = 1 if name == "threads" else 0
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_THREADS:
                raise refuse(f"'{name}' must be a whole number from {least} to {MAX_THREADS}, is {value!r}")
            checked[name] = value
        else:
            raise refuse(f"there is no key '{name}'; known are reregistration, threads, units")
    return HtpConfig(**checked)
