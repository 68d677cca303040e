"""LPAI's configuration: a file, a dictionary or several of them are merged into one checked `LpaiConfig`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

from isthmus.backends.lpai.options import (
    BufferAlignmentReq,
    CoreAffinity,
    LpaiMemType,
    PerfCfg,
    Prepare,
)
from isthmus.backends.seam import config as keys
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel
from isthmus.memory.tcm import POOL_BYTES
from isthmus.prepare.tiling import ScratchLimit

HARDWARE = {
    "v4": BufferAlignmentReq(64, 8),
    "v5": BufferAlignmentReq(64, 64),
    "v5.1": BufferAlignmentReq(64, 64),
    "v6": BufferAlignmentReq(128, 128),
    "v7": BufferAlignmentReq(128, 128),
}
"""Alignment by hardware version. The true values are not public: these are this project's, and can be configured."""

HARDWARE_WITH_TCM = ("v6", "v7")
"""The hardware versions that have TCM, the earliest first."""
DEFAULT_HARDWARE = "v6"
TARGET_ENVIRONMENTS = ("x86", "arm", "adsp")
MEM_TYPES = {"ddr": LpaiMemType.DDR, "tcm": LpaiMemType.TCM}
"""Memory types by their names in a configuration."""
_MAX_ALIGNMENT = 1 << 16


@dataclass(frozen=True)
class LpaiConfig:
    """A complete configuration.

    - `target_env`: Where the model runs: "x86" (simulation), "arm" or "adsp" (direct mode).
    - `hw_ver`: The hardware version, which determines the alignment.
    - `alignment`: The required alignment of pools and IO.
    - `prepare`, `performance`, `affinity`: The initial configs of each graph.
    - `tcm_size`: The size of TCM in bytes; None if the configuration does not state it (`tcm_bytes` is then the size in
      QNN's documents).
    - `mem_type`: The memory type of IO buffers and the model binary; UNDEFINED if the configuration named an unknown
      type.
    - `states_mem_type`: Whether the configuration names the memory type; if not, it is the default, and plans are
      judged for TCM too.
    - `is_persistent_binary`: Whether the client keeps the memory of a context binary until its context is freed: then
      it is not copied.
    - `source`: Where the configuration comes from, for messages.
    - `contexts`: What the tools' own file says of contexts.
    """

    target_env: str = "x86"
    hw_ver: str = DEFAULT_HARDWARE
    alignment: BufferAlignmentReq = HARDWARE[DEFAULT_HARDWARE]
    prepare: Prepare = field(default_factory=Prepare)
    performance: PerfCfg = field(default_factory=PerfCfg)
    affinity: CoreAffinity = field(default_factory=CoreAffinity)
    tcm_size: int | None = None
    mem_type: LpaiMemType = LpaiMemType.DDR
    states_mem_type: bool = False
    is_persistent_binary: bool = False
    source: str = "configuration"
    contexts: keys.ContextSettings = field(default_factory=keys.ContextSettings)

    @property
    def tcm_bytes(self) -> int:
        """The size of TCM in bytes, stated or not."""
        return POOL_BYTES if self.tcm_size is None else self.tcm_size

    @property
    def io_in_scratch(self) -> bool:
        """Whether inputs and outputs are planned into scratch: unless they are excluded, or in TCM."""
        return not self.prepare.exclude_io and self.mem_type is not LpaiMemType.TCM


def read(config: Any, log: Log) -> LpaiConfig:
    """Check and merge configurations; later ones override earlier ones.

    >>> read({"lpai_graph": {"execute": {"fps": 30}}}, Log()).performance.fps
    30
    """
    merged = keys.settings(config, config_keys(log))
    merged.log_unused(log)
    extensions = merged.values.get("shared_library_path")
    if extensions is not None and not os.path.exists(extensions):
        log(LogLevel.INFO, f"there are no backend extensions at '{extensions}': what they do is built in")
    hw_ver = merged.values.get("hw_ver", DEFAULT_HARDWARE)
    return LpaiConfig(
        hw_ver=hw_ver,
        alignment=replace(HARDWARE[hw_ver], **merged.of(BufferAlignmentReq)),
        prepare=replace(Prepare(**merged.of(Prepare)), scratch_limit=_limit(merged)),
        performance=PerfCfg(**merged.of(PerfCfg)),
        affinity=CoreAffinity(**merged.of(CoreAffinity)),
        states_mem_type="mem_type" in merged.values,
        source=merged.source,
        contexts=keys.ContextSettings.of(merged),
        **merged.only("target_env", "tcm_size", "mem_type", "is_persistent_binary"),
    )


def config_keys(log: Log) -> keys.Table:
    """Return the table of configuration keys; `log` gets a line for a value that is invalid but not refused here."""

    def mem_type(value: Any) -> LpaiMemType:
        """Map a name to a memory type. An unknown one is logged and becomes UNDEFINED, which the allocator refuses
        later.
        """
        kind = MEM_TYPES.get(value) if isinstance(value, str) else None
        if kind is None:
            log(LogLevel.ERROR, "Invalid memory type")
        return kind or LpaiMemType.UNDEFINED

    return {
        "lpai_backend": {
            "target_env": keys.Key("target_env", keys.word(*TARGET_ENVIRONMENTS)),
            "enable_hw_ver": keys.Key("hw_ver", keys.word(*HARDWARE)),
            "start_addr_alignment": keys.Key("start_addr_alignment", keys.power_of_two(_MAX_ALIGNMENT)),
            "size_alignment": keys.Key("size_alignment", keys.power_of_two(_MAX_ALIGNMENT)),
            "tcm_size": keys.Key("tcm_size", keys.byte_size(POOL_BYTES)),
        },
        "lpai_graph": {
            "prepare": {**keys.keys_of(Prepare), "slower": keys.Key("slower", _slower)},
            "execute": {
                **keys.keys_of(PerfCfg),
                **keys.keys_of(CoreAffinity),
                "mem_type": keys.Key("mem_type", mem_type, allowed=f"one of {', '.join(map(repr, MEM_TYPES))}"),
            },
        },
    }


def _limit(merged: keys.Settings) -> ScratchLimit | None:
    """Combine the two settings of the limit on scratch; refuse a slowdown without a limit."""
    try:
        return ScratchLimit.if_any(merged.values.get("scratch_limit"), merged.values.get("slower"))
    except QnnError as problem:
        what = "lpai_graph.prepare.slower"
        raise QnnError(Code.BACKEND_INVALID_CONFIG, what, problem.rule, problem.hint) from None


def _slower(value: Any) -> float:
    """Check the slowdown that a limit on scratch may cost; "least" stands in for the limit, which is another key."""
    cost: float | None = keys.check_by(lambda slower: ScratchLimit.of("least", slower).slower)(value)
    if cost is None:
        raise keys.ConfigError("must be a number")
    return cost
