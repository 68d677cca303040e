"""HTP's configuration: a file, a dictionary or several of them are merged into one checked `HtpConfig`.

The keys under ``htp`` are this project's own. Those of QNN's tools for its HTP backend (``graphs``, ``devices``,
``context``, ``groupContext``, ``memory``) are checked and logged: they set what this implementation does not have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from isthmus.backends.htp.options import HtpFloatPrecision, HtpNumerics, Reregistration
from isthmus.backends.seam.config import (
    PERF_PROFILES,
    ConfigError,
    Key,
    Objects,
    Table,
    choice,
    flag,
    list_of,
    number,
    settings,
    shown,
    text,
    unused,
    word,
)
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
    numerics
        How results are rounded. With HTP, floats of FLOAT_32 graphs are stored in 16 bits whatever the precision is.
    """

    reregistration: Reregistration = Reregistration.REFUSE
    units: int = 0
    threads: int = 1
    timeout: int | None = None
    precision: HtpFloatPrecision = HtpFloatPrecision.FLOAT32
    numerics: HtpNumerics = HtpNumerics.EXACT

    @property
    def deadlines(self) -> Deadlines:
        """The time limits for the accelerator."""
        usual = Deadlines.from_environment()
        return usual if self.timeout is None else replace(usual, execution=self.timeout)


_MAX_SECONDS = 7 * 24 * 3600
_UINT32 = number(0, (1 << 32) - 1)
_MAX_MB = 1 << 20


def _level(value: Any) -> int:
    """Check a level of optimization; QNN's documents write it as 3 or as 3.0."""
    if isinstance(value, bool) or value not in (1, 2, 3):
        raise ConfigError(f"must be 1, 2 or 3, is {shown(value)}")
    return int(value)


def _architecture(value: Any) -> str:
    """Check the name of an architecture, such as v75."""
    if not isinstance(value, str) or not value.startswith("v") or not value[1:].isdecimal():
        raise ConfigError(f"must be 'v' and a number, such as 'v75', is {shown(value)}")
    return value


_GRAPH_KEYS: Table = {
    "graph_names": Key("graph_names", list_of(text, "names")),
    "vtcm_mb": unused(number(0, _MAX_MB)),
    "vtcm_size_in_mb": unused(number(0, _MAX_MB)),
    "hvx_threads": unused(_UINT32),
    "O": unused(_level),
    "num_cores": unused(_UINT32),
    "finalize_config": {"P": unused(_UINT32)},
    **{
        name: unused(flag)
        for name in (
            "dlbc", "dlbc_weights", "sparse_weights_compression", "weights_packing", "short_depth_conv_on_hmx_off",
            "fold_relu_activation_into_conv_off", "advanced_activation_fusion", "use_high_precision_fp16_sigmoid",
            "monolithic_lstm", "slc_alloc_enable", "fp16_relaxed_precision",
        )
    },
}  # fmt: skip
_CORE_KEYS: Table = {
    "perf_profile": unused(word(*PERF_PROFILES)),
    "core_id": unused(_UINT32),
    **{
        name: unused(_UINT32)
        for name in ("rpc_control_latency", "rpc_polling_time", "hmx_timeout_us", "adaptive_polling_time")
    },
}
_DEVICE_KEYS: Table = {
    "device_id": unused(_UINT32),
    "core_id": unused(list_of(_UINT32, "numbers")),
    "core_type": unused(number(0, 1)),
    "soc_id": unused(_UINT32),
    "soc_model": unused(_UINT32),
    "dsp_arch": unused(_architecture),
    "pd_session": unused(word("unsigned", "signed", "adaptive")),
    "profiling_level": unused(word("linting", "basic", "detailed", "off")),
    "cores": Objects("cores", _CORE_KEYS),
}
_CONTEXT_KEYS: Table = {
    **{
        name: unused(flag)
        for name in (
            "weight_sharing_enabled", "lora_weight_sharing", "lora_weight_sharing_ram_preload", "extended_udma",
            "io_memory_estimation", "init_acceleration",
        )
    },
    "max_spill_fill_buffer_for_group": unused(number(0, (1 << 64) - 1)),
    "group_id": unused(_UINT32),
    "file_read_memory_budget_in_mb": unused(number(0, _MAX_MB)),
    "reused_io_limit_mb": unused(number(0, _MAX_MB)),
    "concurrent_deserialization_patch": unused(text),
}  # fmt: skip
KEYS: Table = {
    "graphs": Objects("graphs", _GRAPH_KEYS),
    "devices": Objects("devices", _DEVICE_KEYS),
    "context": Objects("context", _CONTEXT_KEYS),
    "groupContext": {"share_resources": unused(flag), "reused_io_limit_mb": unused(number(0, _MAX_MB))},
    "memory": {"mem_type": unused(word("shared_buffer"))},
    "htp": {
        "reregistration": Key("reregistration", choice({policy.value: policy for policy in Reregistration})),
        "units": Key("units", number(0, MAX_THREADS)),
        "threads": Key("threads", number(1, MAX_THREADS)),
        "timeout": Key("timeout", number(1, _MAX_SECONDS)),
        "precision": Key("precision", choice({mode.name.lower(): mode for mode in HtpFloatPrecision})),
        "numerics": Key("numerics", choice({mode.value: mode for mode in HtpNumerics})),
    },
}


def read_config(config: Any, log: Log) -> HtpConfig:
    """Check and merge configurations; later ones override earlier ones.

    Examples
    --------
    >>> read_config({"htp": {"threads": 2, "precision": "float16"}}, Log()).precision
    <HtpFloatPrecision.FLOAT16: 1>
    """
    merged = settings(config, KEYS)
    merged.log_unused(log)
    return HtpConfig(**merged.only("reregistration", "units", "threads", "timeout", "precision", "numerics"))
