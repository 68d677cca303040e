"""HTP's configuration: a file, a dictionary or several of them are merged into one checked `HtpConfig`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from isthmus.backends.htp.options import HtpFloatPrecision, Reregistration
from isthmus.backends.seam.config import Key, Table, choice, number, settings
from isthmus.backends.seam.deadlines import Deadlines
from isthmus.backends.seam.native import MAX_THREADS
from isthmus.log import Log


@dataclass(frozen=True)
class HtpConfig:
    """HTP's configuration, under the key ``htp`` of a file or a dictionary.

    Parameters
    ----------
    reregistration
        Whether a location may be registered again with another shape.
    units
        Number of executions that the accelerator runs at a time; 0 for one per processor.
    threads
        Number of threads of an execution.
    timeout
        Time limit of an execution in seconds. By default that of ``ISTHMUS_TIMEOUT`` or of the accelerator.
    precision
        How the floats of FLOAT_32 graphs are stored inside. With FLOAT16, memory and weights take half the bytes.
    """

    reregistration: Reregistration = Reregistration.REFUSE
    units: int = 0
    threads: int = 1
    timeout: int | None = None
    precision: HtpFloatPrecision = HtpFloatPrecision.FLOAT32

    @property
    def deadlines(self) -> Deadlines:
        """The time limits for the accelerator."""
        usual = Deadlines.from_environment()
        return usual if self.timeout is None else replace(usual, execution=self.timeout)


_MAX_SECONDS = 7 * 24 * 3600
_KEYS: Table = {
    "htp": {
        "reregistration": Key("reregistration", choice({policy.value: policy for policy in Reregistration})),
        "units": Key("units", number(0, MAX_THREADS)),
        "threads": Key("threads", number(1, MAX_THREADS)),
        "timeout": Key("timeout", number(1, _MAX_SECONDS)),
        "precision": Key("precision", choice({mode.name.lower(): mode for mode in HtpFloatPrecision})),
    }
}


def read_config(config: Any, log: Log) -> HtpConfig:
    """Check and merge configurations; later ones override earlier ones.

    Examples
    --------
    >>> read_config({"htp": {"threads": 2, "precision": "float16"}}, Log()).precision
    <HtpFloatPrecision.FLOAT16: 1>
    """
    return HtpConfig(**settings(config, _KEYS).only("reregistration", "units", "threads", "timeout", "precision"))
