"""HTP's options, each declared once: for C as QNN's headers name them, for configuration files and for Python.

The keys under ``htp`` are this project's own. Those of QNN's tools for its HTP backend (``graphs``, ``devices``,
``context``, ``groupContext``, ``memory``) are checked and logged: they set what this implementation does not have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any

from isthmus.backends.seam.config import (
    PERF_PROFILES,
    Key,
    Objects,
    Table,
    choice,
    flag,
    keys_of,
    list_of,
    must_be,
    number,
    setting,
    settings,
    text,
    unused,
    word,
)
from isthmus.backends.seam.deadlines import Deadlines
from isthmus.backends.seam.facets import UnionOption
from isthmus.backends.seam.native import MAX_THREADS
from isthmus.log import Log

_MAX_SECONDS = 7 * 24 * 3600


class HtpMemType(IntEnum):
    """QNN_HTP_MEM_*: the kind of memory of a custom descriptor. The numbers 2 to 4 are this project's, not public."""

    QURT = 0
    SHARED_BUFFER = 1
    WEIGHTS_BUFFER = 2
    SHARED_SPILLFILL_BUFFER = 3
    SHARED_VTCMBACKUP_BUFFER = 4
    UNDEFINED = 0x7FFFFFFF


@dataclass(frozen=True)
class HtpDescriptor:
    """The location of a tensor in a buffer that it shares with others (QnnMemHtp_Descriptor_t).

    Parameters
    ----------
    size
        Size of the whole buffer in bytes.
    fd
        Its file descriptor.
    offset
        The offset of the tensor in it.
    type
        The kind of memory; only SHARED_BUFFER can be registered from the host.
    """

    size: int
    fd: int
    offset: int = 0
    type: HtpMemType = HtpMemType.SHARED_BUFFER


class Reregistration(Enum):
    """Whether a registered location may be registered again. QNN's documentation does not specify it."""

    REFUSE = "refuse"
    """Never: MEM_ALREADY_REGISTERED."""
    OTHER_SHAPE = "other_shape"
    """With another shape or data type, as a further handle; an identical registration is refused."""


class HtpContextConfigOption(IntEnum):
    """Custom configs of a context; numbers from 20001 on are this project's own."""

    REREGISTRATION = 20001
    """A `Reregistration`: whether a location may be registered again."""


class HtpFloatPrecision(IntEnum):
    """QNN_PRECISION_*: how the floats of a FLOAT_32 graph are stored between its inputs and outputs."""

    FLOAT32 = 0
    FLOAT16 = 1


class HtpNumerics(Enum):
    """How results are rounded. QNN has no such setting: its chips round in one way."""

    EXACT = "exact"
    """To the nearest, halves to even; graphs of TFLite and ONNX files as their runtimes do."""
    HTP = "htp"
    """As HTP's chips do. FLOAT_32 graphs are computed in fp16, as on chips from v69 on."""


class HtpGraphOption(UnionOption):
    """QNN_HTP_GRAPH_CONFIG_OPTION_*: the graph configs of QNN's HTP headers. C's structure is made from them.

    Those that have an effect are in `HtpGraphConfigOption` too. The others are logged.
    """

    OPTIMIZATION = (
        1,
        "QnnHtpGraph_OptimizationOption_t optimizationOption",
        "QnnHtpGraph_OptimizationType_t type; float floatValue;",
    )
    PRECISION = 2, "Qnn_Precision_t precision"
    VTCM_SIZE_IN_MB = 3, "uint32_t vtcmSizeInMB"
    FOLD_RELU_ACTIVATION_INTO_CONV_OFF = 4, "bool foldReluActivationIntoConvOff"
    SHORT_DEPTH_CONV_ON_HMX_OFF = 5, "bool shortDepthConvOnHmxOff"
    NUM_HVX_THREADS = 6, "uint64_t numHvxThreads"
    FINALIZE_CONFIG = 7, "QnnHtpGraph_FinalizeConfig_t finalizeConfig", "const char *key; Qnn_Scalar_t value;"
    NUM_CORES = 8, "uint32_t numCores"
    PARALLEL_GRAPH_EXECUTION_CONFIG = (
        9,
        "QnnHtpGraph_ParallelGraphExecutionConfig_t parallelGraphExecutionConfig",
        "uint32_t concurrency; QnnHtpGraph_VtcmConfig_t vtcmConfig; uint32_t reserved[4];",
    )
    VTCM_SIZE_IN_BYTES = 10, "uint32_t vtcmSizeInBytes"
    HMX_BOUNDING = 11, "QnnHtp_HmxBoundingInfo_t hmxBoundingInfo", "float targetHmxFreqHz, targetDspCoreFreq;"
    WEIGHTS_PACKING = 12, "bool weightsPacking"
    ASSUME_SAME_QUANT = 13, "bool assumeSameQuant"
    SHARE_IO_BUFFER = 14, "bool shareIOBuffer"
    ADVANCED_ACTIVATION_FUSION = 15, "bool advancedActivationFusion"
    MONOLITHIC_LSTM = 17, "bool monolithicLstm"
    PRECISION_COMPENSATION = 18, "bool precisionCompensation"
    FP16_CLAMP_OVERFLOW = 20, "bool fp16ClampOverflow"


class HtpGraphConfigOption(IntEnum):
    """The custom configs of a graph that have an effect here, with the numbers of `HtpGraphOption`."""

    PRECISION = 2
    """An `HtpFloatPrecision`; set it before the graph is finalized."""


class HtpBackendProperty(IntEnum):
    """Custom properties of the backend; numbers from 20001 on are this project's own."""

    ACCELERATOR_PID = 20001
    """The process id of the accelerator; None before the first context."""


@dataclass(frozen=True)
class HtpConfig:
    """HTP's configuration, under the key ``htp`` of a file or a dictionary; keys are those of its fields.

    Options of graphs begin with the setting of the same name.

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

    reregistration: Reregistration = setting(
        Reregistration.REFUSE, choice({each.value: each for each in Reregistration})
    )
    units: int = setting(0, number(0, MAX_THREADS))
    threads: int = setting(1, number(1, MAX_THREADS))
    timeout: int | None = setting(None, number(1, _MAX_SECONDS))
    precision: HtpFloatPrecision = setting(
        HtpFloatPrecision.FLOAT32, choice({each.name.lower(): each for each in HtpFloatPrecision})
    )
    numerics: HtpNumerics = setting(HtpNumerics.EXACT, choice({each.value: each for each in HtpNumerics}))

    @property
    def deadlines(self) -> Deadlines:
        """The time limits for the accelerator."""
        usual = Deadlines.from_environment()
        return usual if self.timeout is None else replace(usual, execution=self.timeout)


_UINT32 = number(0, (1 << 32) - 1)
_MAX_MB = 1 << 20


# QNN's documents write a level of optimization as 3 or as 3.0.
_LEVEL = must_be("1, 2 or 3", lambda value: not isinstance(value, bool) and value in (1, 2, 3), int)
_ARCHITECTURE = must_be(
    "'v' and a number, such as 'v75'",
    lambda value: isinstance(value, str) and value[:1] == "v" and value[1:].isdecimal(),
)


_GRAPH_KEYS: Table = {
    "graph_names": Key("graph_names", list_of(text, "names")),
    "vtcm_mb": unused(number(0, _MAX_MB)),
    "vtcm_size_in_mb": unused(number(0, _MAX_MB)),
    "hvx_threads": unused(_UINT32),
    "O": unused(_LEVEL),
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
    "dsp_arch": unused(_ARCHITECTURE),
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
    "htp": keys_of(HtpConfig),
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
    return HtpConfig(**merged.of(HtpConfig))
