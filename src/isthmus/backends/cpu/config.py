"""The CPU backend's configuration: a file, a dictionary or several of them are merged into one checked `CpuConfig`.

A program in C names a file by ``ISTHMUS_CPU_CONFIG``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isthmus.backends.seam import config as keys
from isthmus.log import Log


@dataclass(frozen=True)
class CpuConfig:
    """The CPU backend's configuration.

    - `winograd`: Whether float convolutions of its graphs may use Winograd's algorithm, unless the config of a graph
      says otherwise.
    - `weight_sharing`: Whether constant matrices are packed alike for any number of rows, so that the graphs of a
      context share them. Some products are slower then, mostly those of few rows.
    """

    winograd: bool = keys.setting(True, keys.truth)
    weight_sharing: bool = keys.setting(False, keys.truth)


KEYS: keys.Table = {"cpu": keys.keys_of(CpuConfig)}


def read_config(config: Any, log: Log) -> CpuConfig:
    """Check and merge configurations; later ones take precedence.

    >>> read_config({"cpu": {"winograd": False}}, Log()).winograd
    False
    """
    merged = keys.settings(config, KEYS)
    merged.log_unused(log)
    return CpuConfig(**merged.of(CpuConfig))
