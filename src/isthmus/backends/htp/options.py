"""HTP's options, each declared once: for C as QNN's headers name them, for configuration files and for Python.

The keys under ``htp`` are this project's own. Of those of QNN's tools for its HTP backend (``graphs``, ``devices``,
``context``, ``groupContext``, ``memory``) some set what this implementation does not have: they are checked and logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any

from isthmus.backends.htp import without_effect
from isthmus.backends.htp.chips import chip_of, profile_of
from isthmus.backends.seam.config import (
    PERF_PROFILES,
    ContextSettings,
    Key,
    Objects,
    Table,
    check_by,
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
from isthmus.domains import ChipProfile
from isthmus.errors import Code, QnnError
from isthmus.log import Log
from isthmus.memory.integers import is_int

_MAX_SECONDS = 7 * 24 * 3600
_MAX_UINT32 = (1 << 32) - 1
MAX_MB = 1 << 20
"""The largest size of memory that is given in MB."""
MAX_VTCM_MB = 4095
"""The largest on-chip memory whose bytes fit 32 bits, as binaries state it."""
DEFAULT_VTCM_MB = 4
"""The on-chip memory of a graph that asks for none, as with the vendor's library."""
MIN_ARCHITECTURE, MAX_ARCHITECTURE = 60, 255
"""The limits of numbers that may be a version of the processor."""
DEFAULT_ARCHITECTURE = 73
"""The version of a device for which none is named. It is our choice."""


def is_soc(number: int) -> bool:
    """Return whether there is a chip of this number; 0 stands for none."""
    return number == 0 or chip_of(number) is not None


def is_architecture(number: int) -> bool:
    """Return whether a number may be a version of the processor."""
    return MIN_ARCHITECTURE <= number <= MAX_ARCHITECTURE


def arch_of(soc: int, named: int) -> int:
    """Return the version of a device's processor: its chip's, or the one that is named without a chip; 0 for none."""
    chip = chip_of(soc)
    return (chip.arch if chip is not None else 0) or named or DEFAULT_ARCHITECTURE


class HtpMemType(IntEnum):
    """QNN_HTP_MEM_*: the kind of memory of a custom descriptor.

    The number of SHARED_VTCMBACKUP_BUFFER is this project's; QNN's is not public.
    """

    QURT = 0
    SHARED_BUFFER = 1
    WEIGHTS_BUFFER = 2
    SHARED_SPILLFILL_BUFFER = 3
    SHARED_VTCMBACKUP_BUFFER = 4
    UNDEFINED = 0x7FFFFFFF


@dataclass(frozen=True)
class HtpDescriptor:
    """The location of a tensor in a buffer that it shares with others, or a buffer of a context
    (QnnMemHtp_Descriptor_t).

    - `size`: Size of the whole buffer in bytes.
    - `fd`: Its file descriptor.
    - `offset`: The offset in it of the tensor, or of the part that the context may use.
    - `type`: The kind of memory. SHARED_BUFFER is for tensors. Weights, spill-fill and VTCM backup buffers are for
      contexts with deferred graphs; dimensions and data type of their descriptors mean nothing.
    """

    size: int
    fd: int
    offset: int = 0
    type: HtpMemType = HtpMemType.SHARED_BUFFER

    @property
    def is_tensor(self) -> bool:
        """Whether it is for a tensor."""
        return self.type not in _OF_CONTEXTS

    @property
    def title(self) -> str:
        """What it is for, if not for a tensor."""
        return self.type.name


_OF_CONTEXTS = (HtpMemType.WEIGHTS_BUFFER, HtpMemType.SHARED_SPILLFILL_BUFFER, HtpMemType.SHARED_VTCMBACKUP_BUFFER)


class Reregistration(Enum):
    """Whether a registered location may be registered again. QNN's documentation does not specify it."""

    REFUSE = "refuse"
    """Never: MEM_ALREADY_REGISTERED."""
    OTHER_SHAPE = "other_shape"
    """With another shape or data type, as a further handle; an identical registration is refused."""


class HtpContextOption(UnionOption):
    """QNN_HTP_CONTEXT_CONFIG_OPTION_*: the context configs of QNN's HTP headers. C's structure is made from them.

    Those that have an effect are in `HtpContextConfigOption` too. The others are checked and logged.
    """

    WEIGHT_SHARING_ENABLED = 1, "bool weightSharingEnabled"
    REGISTER_MULTI_CONTEXTS = (
        2,
        "QnnHtpContext_GroupRegistration_t groupRegistration",
        "Qnn_ContextHandle_t firstGroupHandle; uint64_t maxSpillFillBuffer;",
    )
    FILE_READ_MEMORY_BUDGET = 3, "uint64_t fileReadMemoryBudgetInMb"
    DSP_MEMORY_PROFILING_ENABLED = 4, "bool dspMemoryProfilingEnabled"
    SHARE_RESOURCES = 5, "bool shareResources"
    IO_MEM_ESTIMATION = 6, "bool ioMemEstimation"
    PREPARE_ONLY = 7, "bool isPrepareOnly"
    INIT_ACCELERATION = 8, "bool initAcceleration"
    SKIP_VALIDATION_ON_BINARY_SECTION = 9, "bool skipValidationOnBinarySection"
    SHARE_RESOURCES_OPTIMIZATION_TYPE = 10, "QnnHtpContext_ShareResourcesOptimizationType_t shareResOptType"
    USE_EXTENDED_UDMA = 11, "bool useExtendedUdma"
    REGISTER_CONCURRENT_RESOURCE_SHARING = 12, "QnnHtpContext_GroupRegistration_t concurrentGroupRegistration"
    LORA_WEIGHT_SHARING_ENABLED = 13, "bool loraWeightSharingEnabled"
    LORA_WEIGHT_SHARING_RAM_PRELOAD_ENABLED = 16, "bool loraWeightSharingRamPreloadEnabled"
    REUSED_IO_LIMIT = 17, "uint64_t reusedIoLimitInMb"
    REFERENCE_WEIGHT_SHARING_ENABLED = 18, "bool referenceWeightSharingEnabled"
    CONCURRENT_DESERIALIZATION_EXTRA_SIZE = 19, "uint32_t concurrentDeserializationExtraSizeInKb"
    GRAPH_SPLITTING_ENABLED = 20, "bool graphSplittingEnabled"
    CONCURRENT_DESERIALIZATION_PATCH = 21, "int concurrentDeserializationPatchFd"
    GRAPH_SPLITTING_CONFIGS = 22, "QnnHtpContext_GraphSplittingConfigs_t graphSplittingConfigs", "bool isEnabled;"
    LORA_PRELOAD_BUFFER_GROUPS = (
        23,
        "QnnHtpContext_LoraPreloadBufferGroups_t loraPreloadBufferGroups",
        "void *groups; uint32_t numGroups;",
    )
    PARALLEL_WEIGHT_LOADING = (
        25,
        "QnnHtpContext_ParallelWeightLoading_t parallelWeightLoading",
        "uint32_t mode; uint64_t thresholdInMbOverride;",
    )


class HtpContextConfigOption(IntEnum):
    """The custom configs of a context that have an effect here; numbers from 20001 on are this project's own.

    A member is its number, and the attribute of a context that it sets, if it does nothing else.
    """

    attribute: str

    def __new__(cls, number: int, attribute: str = "") -> HtpContextConfigOption:
        option = int.__new__(cls, number)
        option._value_, option.attribute = number, attribute
        return option

    WEIGHT_SHARING_ENABLED = 1, "weight_sharing"
    """Whether graphs share equal constants, in a binary and in the accelerator; set it before the first graph."""
    REGISTER_MULTI_CONTEXTS = 2
    """A `GroupRegistration`: the group of contexts from binaries that use one spill-fill buffer. Set it at creation."""
    DSP_MEMORY_PROFILING_ENABLED = 4, "dsp_memory_profiling"
    """Whether profiles get what the accelerator has mapped: before the first context is created from a binary, and
    after the last one is freed. Only that can be changed later.
    """
    SHARE_RESOURCES = 5
    """Whether the contexts of a list of binaries share spill-fill memory and execute in turns; for lists only."""
    IO_MEM_ESTIMATION = 6, "io_mem_estimation"
    """Whether a context from a binary needs a process domain with room for its inputs and outputs too."""
    PREPARE_ONLY = 7, "prepare_only"
    """Whether graphs are prepared for a binary and not loaded into the accelerator; they cannot be executed."""
    SHARE_RESOURCES_OPTIMIZATION_TYPE = 10
    """An `HtpResourceOptimization`: how they do; for lists only, and ignored without SHARE_RESOURCES."""
    USE_EXTENDED_UDMA = 11, "extended_udma"
    """Whether weights may be above 4 GB of the accelerator's memory; refused on chips before v81. No more effect."""
    REGISTER_CONCURRENT_RESOURCE_SHARING = 12
    """A `GroupRegistration`: the group of contexts from binaries that share spill-fill and VTCM backup, and have one
    priority. From v81 on; set it at creation.
    """
    REUSED_IO_LIMIT = 17, "reused_io_limit"
    """The MB of inputs and outputs that count with IO_MEM_ESTIMATION, instead of those of all graphs; 0 for none."""
    REFERENCE_WEIGHT_SHARING_ENABLED = 18, "reference_weight_sharing"
    """Whether the context is for a DLC with binaries of several chips; it has no binary of its own then."""
    REREGISTRATION = 20001
    """A `Reregistration`: whether a location may be registered again."""


class HtpResourceOptimization(IntEnum):
    """How contexts of a list share resources (QnnHtpContext_ShareResourcesOptimizationType_t)."""

    SEQUENTIAL_WITH_VA_OPTIMIZATION = 0
    """They execute in turns, and their process domains have room for their inputs and outputs. The default."""
    SEQUENTIAL_WITHOUT_VA_OPTIMIZATION = 1
    """They execute in turns."""
    CONCURRENT_OPTIMIZATION = 2
    """Those of equal priority share; for processors from v81 on."""


class HtpContextProperty(IntEnum):
    """The properties of a context that is created with deferred graphs and not finalized yet; others have none.

    They are what a client allocates for those of its graphs that are enabled, in bytes.
    """

    BUFFER_START_ALIGNMENT = 1
    """The alignment of the buffers."""
    MAX_SPILLFILL_BUFFER_SIZE = 2
    """The spill-fill memory of the graph that needs most, in whole units of 2 MiB."""
    WEIGHTS_BUFFER_SIZE = 3
    """The constants of each graph and those that graphs share, each in whole units of 2 MiB; more where they take more
    bytes as this machine computes with them.
    """
    MAX_VTCMBACKUP_BUFFER_SIZE = 6
    """The memory to which VTCM is saved: 0, since no graph yields VTCM here."""


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


class HtpOptimization(IntEnum):
    """QNN_HTP_GRAPH_OPTIMIZATION_TYPE_*: the kinds of the graph config OPTIMIZATION.

    The vendor's library refuses FINALIZE_RETRIES.
    """

    SCHEDULE_THRESHOLD = 1
    FINALIZE_RETRIES = 2
    FINALIZE_OPTIMIZATION_FLAG = 3
    ENABLE_DLBC = 4
    ENABLE_DLBC_WEIGHTS = 5
    ENABLE_SPARSE_WEIGHTS_COMPRESSION = 6
    ENABLE_SLC_ALLOCATOR = 7
    ENABLE_VTCM_RETENTION = 8
    ENABLE_CACHED_WEIGHTS = 9


class HtpGraphOption(UnionOption):
    """QNN_HTP_GRAPH_CONFIG_OPTION_*: the graph configs of QNN's HTP headers. C's structure is made from them.

    Those that have an effect are in `HtpGraphConfigOption` too; OPTIMIZATION sets two that have numbers of their own
    there. The others are logged.
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
        "QNN 2.51 and later no longer support it",
    )
    VTCM_SIZE_IN_BYTES = 10, "uint32_t vtcmSizeInBytes"
    HMX_BOUNDING = (
        11,
        "QnnHtp_HmxBoundingInfo_t hmxBoundingInfo",
        "float targetHmxFreqHz, targetDspCoreFreq;",
        "it needs deferred preemption, which is not offered",
    )
    WEIGHTS_PACKING = 12, "bool weightsPacking"
    ASSUME_SAME_QUANT = 13, "bool assumeSameQuant"
    SHARE_IO_BUFFER = 14, "bool shareIOBuffer"
    ADVANCED_ACTIVATION_FUSION = 15, "bool advancedActivationFusion"
    HIGH_PRECISION_SIGMOID = 16, "bool highPrecisionSigmoid"
    MONOLITHIC_LSTM = 17, "bool monolithicLstm"
    PRECISION_COMPENSATION = 18, "bool precisionCompensation"
    ENABLE_PREDICATION = 19, "bool enablePredication"
    FP16_CLAMP_OVERFLOW = 20, "bool fp16ClampOverflow"


class HtpGraphConfigOption(IntEnum):
    """The custom configs of a graph that have an effect here, with the names and numbers of `HtpGraphOption`.

    Numbers from 20001 on are this project's own: QNN sets most of these by one config, OPTIMIZATION, in several kinds.
    All are set before the graph is finalized. A member is its number, the value in graphs that set none, and the
    largest value if it is a number.
    """

    default: Any
    largest: int | None

    def __new__(cls, number: int, default: Any, largest: int | None = None) -> HtpGraphConfigOption:
        option = int.__new__(cls, number)
        option._value_, option.default, option.largest = number, default, largest
        return option

    PRECISION = 2, HtpFloatPrecision.FLOAT32
    """An `HtpFloatPrecision`."""
    VTCM_SIZE_IN_MB = 20010, DEFAULT_VTCM_MB, MAX_VTCM_MB
    """On-chip memory in MB; 0 for all that the chip has, or for 4 if no chip is named. Binaries state it. QNN's number,
    3, is that of a priority here.
    """
    NUM_HVX_THREADS = 6, 0, _MAX_UINT32
    """The number of vector threads. Binaries state it."""
    NUM_CORES = 8, 1, _MAX_UINT32
    """The number of cores. More than one is refused where the chip has one; on other chips it has no effect here."""
    VTCM_SIZE_IN_BYTES = 10, 0, _MAX_UINT32
    """On-chip memory in bytes, instead of VTCM_SIZE_IN_MB on chips from v81 on; 0 for none. Binaries state it."""
    SHARE_IO_BUFFER = 14, False
    """Whether binaries state that outputs may be in the memory of inputs, for graphs of which that is true."""
    OPTIMIZATION_LEVEL = 20001, 0, 3
    """The optimization level, 1 to 3; 0 where none is asked for. Binaries state it."""
    DLBC = 20002, False
    """Whether activations are compressed in DDR memory. Binaries state it."""
    DLBC_WEIGHTS = 20003, False
    """Whether weights are compressed, which excludes weight sharing and has no effect besides."""


class HtpDeviceConfigOption(IntEnum):
    """The configs of a device that have an effect here, with the numbers of QNN's headers."""

    SOC = 0
    """The number of the chip, which binaries state; 0 for none."""
    ARCH = 1
    """The version of the chip's processor, unless the chip is named too. Binaries state it."""


class HtpBackendProperty(IntEnum):
    """Custom properties of the backend; numbers from 20001 on are this project's own."""

    ACCELERATOR_PID = 20001
    """The process id of the accelerator; None before the first context."""
    PROCESS_DOMAINS = 20002
    """The process domains of the chip in the order in which they are tried: the number of each, the bytes that contexts
    of this process have there, and its capacity. Empty if no chip is named.
    """
    LOADED_GRAPHS = 20003
    """The names of the graphs that the accelerator of its own device has loaded, as that process says."""


_CHIP = must_be(
    "the name of a chip, 'default', or a file with a profile", lambda value: isinstance(value, str) and value,
    check_by(profile_of),
)  # fmt: skip


@dataclass(frozen=True)
class HtpConfig:
    """HTP's configuration, under the key ``htp`` of a file or a dictionary; keys are those of its fields.

    An option of a graph starts with the value of the setting that has its name.

    - `reregistration`: Whether a location may be registered again with another shape.
    - `units`: Number of executions that the accelerator runs at a time; 0 for one per processor.
    - `threads`: Number of threads of an execution.
    - `timeout`: Time limit of an execution in seconds. By default that of ``ISTHMUS_TIMEOUT`` or of the accelerator.
    - `precision`: How the floats of FLOAT_32 graphs are stored inside. With FLOAT16, memory and weights take half the
      bytes.
    - `numerics`: How results are rounded. With HTP, floats of FLOAT_32 graphs are stored in 16 bits whatever the
      precision is.
    - `vtcm_mb`: On-chip memory of graphs in MB; 0 for all that the chip has, or for 4 if no chip is named.
    - `graphs`: Options of graphs, each for the graphs that its ``graph_names`` has.
    - `devices`: Options of devices; the first one has those of every device.
    - `contexts`: What the tools' own file says of contexts.
    - `chip`: The chip whose process domains contexts are charged to: a name, "default", or a file with a profile. By
      default that of the device; without either, nothing is charged.
    - `dsp_memory_profiling`: Whether profiles get what the accelerator has mapped (DSP_MEMORY_PROFILING_ENABLED).
    - `weight_sharing`, `extended_udma`, `io_mem_estimation`, `reused_io_limit`: Options of contexts
      (``context.weight_sharing_enabled``, ``context.extended_udma``, ``context.io_memory_estimation``,
      ``context.reused_io_limit_mb``).
    - `share_resources`, `list_reused_io_limit`: Options of lists of binaries (``groupContext.share_resources``,
      ``groupContext.reused_io_limit_mb``), unless the list sets them.
    - `group_id`, `group_bytes`: The group of contexts from binaries, and the size of its spill-fill buffer
      (``context.group_id``, ``context.max_spill_fill_buffer_for_group``); no group if the size is 0.
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
    vtcm_mb: int = setting(DEFAULT_VTCM_MB, number(0, MAX_VTCM_MB))
    chip: ChipProfile | None = setting(None, _CHIP)
    dsp_memory_profiling: bool = setting(False, flag)
    weight_sharing: bool = False
    extended_udma: bool = False
    io_mem_estimation: bool = False
    reused_io_limit: int = 0
    share_resources: bool = False
    list_reused_io_limit: int = 0
    group_id: int = 0
    group_bytes: int = 0

    graphs: tuple[Mapping[str, Any], ...] = ()
    devices: tuple[Mapping[str, Any], ...] = ()
    contexts: ContextSettings = field(default_factory=ContextSettings)

    def graph_options(self, name: str) -> dict[IntEnum, Any]:
        """Return the options of a graph, before it sets any itself."""
        options: dict[IntEnum, Any] = {option: option.default for option in HtpGraphConfigOption}
        options[HtpGraphConfigOption.PRECISION] = self.precision
        options[HtpGraphConfigOption.VTCM_SIZE_IN_MB] = self.vtcm_mb
        for settings_of_graphs in self.graphs:
            if name in settings_of_graphs.get("graph_names", ()):
                named = {option: settings_of_graphs.get(option.name.lower()) for option in HtpGraphConfigOption}
                options.update({option: value for option, value in named.items() if value is not None})
        return options

    @property
    def deadlines(self) -> Deadlines:
        """The time limits for the accelerator."""
        usual = Deadlines.from_environment()
        return usual if self.timeout is None else replace(usual, execution=self.timeout)


_UINT32 = number(0, _MAX_UINT32)


# QNN's documents write a level of optimization as 3 or as 3.0.
_LEVEL = must_be("1, 2 or 3", lambda value: not isinstance(value, bool) and value in (1, 2, 3), int)
_ARCHITECTURE = must_be(
    f"'v' and a number from {MIN_ARCHITECTURE} to {MAX_ARCHITECTURE}, such as 'v75'",
    lambda value: (
        isinstance(value, str) and value[:1] == "v" and value[1:].isdecimal() and is_architecture(int(value[1:]))
    ),
    lambda value: int(value[1:]),
)
_SOC = must_be("the number of a chip, or 0", lambda value: is_int(value) and is_soc(value), int)


_GRAPH_KEYS: Table = {
    "graph_names": Key("graph_names", list_of(text, "names")),
    "vtcm_mb": Key("vtcm_size_in_mb", number(0, MAX_VTCM_MB)),
    "vtcm_size_in_mb": Key("vtcm_size_in_mb", number(0, MAX_VTCM_MB)),
    "hvx_threads": Key("num_hvx_threads", _UINT32),
    "O": Key("optimization_level", _LEVEL),
    "dlbc": Key("dlbc", flag),
    "num_cores": Key("num_cores", _UINT32),
    "finalize_config": {"P": unused(_UINT32, without_effect.GRAPH["FINALIZE_CONFIG"])},
    "dlbc_weights": Key("dlbc_weights", flag),
    **{
        name: unused(flag, without_effect.GRAPH[name.upper()])
        for name in (
            "weights_packing", "short_depth_conv_on_hmx_off", "fold_relu_activation_into_conv_off",
            "advanced_activation_fusion", "monolithic_lstm",
        )
    },
    "sparse_weights_compression": unused(flag, without_effect.OPTIMIZATION["ENABLE_SPARSE_WEIGHTS_COMPRESSION"]),
    "use_high_precision_fp16_sigmoid": unused(flag, without_effect.GRAPH["HIGH_PRECISION_SIGMOID"]),
    "slc_alloc_enable": unused(flag, without_effect.OPTIMIZATION["ENABLE_SLC_ALLOCATOR"]),
    "fp16_relaxed_precision": unused(flag, "`htp.precision` chooses the precision"),
}  # fmt: skip
_CORE_KEYS: Table = {
    "perf_profile": unused(word(*PERF_PROFILES), without_effect.NO_CLOCKS),
    "core_id": unused(_UINT32, without_effect.ONE_CORE),
    **{
        name: unused(_UINT32, without_effect.NO_CLOCKS)
        for name in ("rpc_control_latency", "rpc_polling_time", "hmx_timeout_us", "adaptive_polling_time")
    },
}
_DEVICE_KEYS: Table = {
    "device_id": unused(_UINT32, without_effect.ONE_CORE),
    "core_id": unused(list_of(_UINT32, "numbers"), without_effect.ONE_CORE),
    "core_type": unused(number(0, 1), without_effect.ONE_CORE),
    "soc_id": Key("soc", _SOC),
    "soc_model": Key("soc", _SOC),
    "dsp_arch": Key("arch", _ARCHITECTURE),
    "pd_session": unused(word("unsigned", "signed", "adaptive"), "the accelerator is a confined process in any case"),
    "profiling_level": unused(
        word("linting", "basic", "detailed", "off"), "tools and profiles have a level of their own"
    ),
    "cores": Objects("cores", _CORE_KEYS),
}
_CONTEXT_KEYS: Table = {
    "weight_sharing_enabled": Key("weight_sharing", flag),
    "extended_udma": Key("extended_udma", flag),
    "io_memory_estimation": Key("io_mem_estimation", flag),
    "lora_weight_sharing": unused(flag, without_effect.CONTEXT["LORA_WEIGHT_SHARING_ENABLED"]),
    "lora_weight_sharing_ram_preload": unused(flag, without_effect.CONTEXT["LORA_WEIGHT_SHARING_RAM_PRELOAD_ENABLED"]),
    "init_acceleration": unused(flag, without_effect.CONTEXT["INIT_ACCELERATION"]),
    "max_spill_fill_buffer_for_group": Key("group_bytes", number(0, MAX_MB << 20)),
    "group_id": Key("group_id", _UINT32),
    "file_read_memory_budget_in_mb": unused(number(0, MAX_MB), without_effect.CONTEXT["FILE_READ_MEMORY_BUDGET"]),
    "reused_io_limit_mb": Key("reused_io_limit", number(0, MAX_MB)),
    "concurrent_deserialization_patch": unused(text, without_effect.CONTEXT["CONCURRENT_DESERIALIZATION_PATCH"]),
}  # fmt: skip
KEYS: Table = {
    "graphs": Objects("graphs", _GRAPH_KEYS),
    "devices": Objects("devices", _DEVICE_KEYS),
    "context": Objects("context", _CONTEXT_KEYS),
    "groupContext": {
        "share_resources": Key("share_resources", flag),
        "reused_io_limit_mb": Key("list_reused_io_limit", number(0, MAX_MB)),
    },
    "memory": {"mem_type": unused(word("shared_buffer"), "`--shared_buffer` of net-run asks for it")},
    "htp": keys_of(HtpConfig),
}


def read_config(config: Any, log: Log) -> HtpConfig:
    """Check and merge configurations; later ones override earlier ones.

    >>> read_config({"htp": {"threads": 2, "precision": "float16"}}, Log()).precision
    <HtpFloatPrecision.FLOAT16: 1>
    """
    merged = settings(config, KEYS)
    merged.log_unused(log)
    contexts: dict[str, Any] = {}
    for each in merged.values.get("context", ()):
        contexts.update(each)
    if contexts.get("group_id") and contexts.get("group_bytes"):
        rule = "group_id must be set to 0 when max_spill_fill_buffer_for_group is set"
        raise QnnError(Code.BACKEND_INVALID_CONFIG, "configuration", rule)
    return HtpConfig(**merged.of(HtpConfig), **contexts, contexts=ContextSettings.of(merged))
