"""The structures of HTP, LPAI and GPU behind custom configs, properties and memory descriptors."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from enum import IntEnum

from isthmus.cabi.types import Scalar


class HtpGraphOption(IntEnum):
    """QNN_HTP_GRAPH_CONFIG_OPTION_*."""

    OPTIMIZATION = 1
    PRECISION = 2
    VTCM_SIZE_IN_MB = 3
    FOLD_RELU_ACTIVATION_INTO_CONV_OFF = 4
    SHORT_DEPTH_CONV_ON_HMX_OFF = 5
    NUM_HVX_THREADS = 6
    FINALIZE_CONFIG = 7
    NUM_CORES = 8
    PARALLEL_GRAPH_EXECUTION_CONFIG = 9
    VTCM_SIZE_IN_BYTES = 10
    HMX_BOUNDING = 11
    WEIGHTS_PACKING = 12
    ASSUME_SAME_QUANT = 13
    SHARE_IO_BUFFER = 14
    ADVANCED_ACTIVATION_FUSION = 15
    MONOLITHIC_LSTM = 17
    PRECISION_COMPENSATION = 18
    FP16_CLAMP_OVERFLOW = 20


class HtpContextOption(IntEnum):
    """QNN_HTP_CONTEXT_CONFIG_OPTION_*."""

    WEIGHT_SHARING_ENABLED = 1
    REGISTER_MULTI_CONTEXTS = 2
    FILE_READ_MEMORY_BUDGET = 3
    DSP_MEMORY_PROFILING_ENABLED = 4
    SHARE_RESOURCES = 5
    IO_MEM_ESTIMATION = 6
    PREPARE_ONLY = 7
    INIT_ACCELERATION = 8
    SKIP_VALIDATION_ON_BINARY_SECTION = 9
    SHARE_RESOURCES_OPTIMIZATION_TYPE = 10
    USE_EXTENDED_UDMA = 11
    REGISTER_CONCURRENT_RESOURCE_SHARING = 12
    REUSED_IO_LIMIT = 17
    GRAPH_SPLITTING_CONFIGS = 22


class HtpDeviceOption(IntEnum):
    """QNN_HTP_DEVICE_CONFIG_OPTION_*."""

    SOC = 0
    ARCH = 1
    SIGNEDPD = 2


class HtpPowerOption(IntEnum):
    """QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_*."""

    DCVS_V3 = 1
    RPC_CONTROL_LATENCY = 2
    RPC_POLLING_TIME = 3
    HMX_TIMEOUT_INTERVAL_US = 4


class HtpOptimization(ctypes.Structure):
    """QnnHtpGraph_OptimizationOption_t."""

    _fields_ = [("type", c_uint32), ("floatValue", c_float)]


class HtpFinalizeConfig(ctypes.Structure):
    """QnnHtpGraph_FinalizeConfig_t."""

    _fields_ = [("key", c_char_p), ("value", Scalar)]


class HtpVtcmConfig(ctypes.Structure):
    """QnnHtpGraph_VtcmConfig_t."""

    _fields_ = [
        ("sizeInBytes", c_uint32),
        ("offsetInBytes", c_uint32),
        ("sizeTotalInBytes", c_uint32),
        ("reserved", c_uint32 * 3),
    ]


class HtpParallelConfig(ctypes.Structure):
    """QnnHtpGraph_ParallelGraphExecutionConfig_t."""

    _fields_ = [("concurrency", c_uint32), ("vtcmConfig", HtpVtcmConfig), ("reserved", c_uint32 * 4)]


class HtpBoundingInfo(ctypes.Structure):
    """QnnHtp_HmxBoundingInfo_t."""

    _fields_ = [("targetHmxFreqHz", c_float), ("targetDspCoreFreq", c_float)]


class HtpGraphConfigUnion(ctypes.Union):
    """The value of an HTP graph's config."""

    _fields_ = [
        ("optimizationOption", HtpOptimization),
        ("precision", c_uint32),
        ("vtcmSizeInMB", c_uint32),
        ("foldReluActivationIntoConvOff", c_bool),
        ("shortDepthConvOnHmxOff", c_bool),
        ("numHvxThreads", c_uint64),
        ("reserved", c_void_p),
        ("finalizeConfig", HtpFinalizeConfig),
        ("numCores", c_uint32),
        ("parallelGraphExecutionConfig", HtpParallelConfig),
        ("vtcmSizeInBytes", c_uint32),
        ("hmxBoundingInfo", HtpBoundingInfo),
        ("weightsPacking", c_bool),
        ("assumeSameQuant", c_bool),
        ("shareIOBuffer", c_bool),
        ("advancedActivationFusion", c_bool),
        ("monolithicLstm", c_bool),
        ("precisionCompensation", c_bool),
        ("fp16ClampOverflow", c_bool),
    ]


class HtpGraphConfig(ctypes.Structure):
    """QnnHtpGraph_CustomConfig_t."""

    _anonymous_ = ("value",)
    _fields_ = [("option", c_uint32), ("value", HtpGraphConfigUnion)]


class HtpGroupRegistration(ctypes.Structure):
    """QnnHtpContext_GroupRegistration_t."""

    _fields_ = [("firstGroupHandle", c_void_p), ("maxSpillFillBuffer", c_uint64)]


class HtpContextConfigUnion(ctypes.Union):
    """The value of an HTP context's config."""

    _fields_ = [
        ("flag", c_bool),
        ("groupRegistration", HtpGroupRegistration),
        ("fileReadMemoryBudgetInMb", c_uint64),
        ("shareResOptType", c_uint32),
    ]


class HtpContextConfig(ctypes.Structure):
    """QnnHtpContext_CustomConfig_t; the options that are a truth value share `flag`."""

    _anonymous_ = ("value",)
    _fields_ = [("option", c_uint32), ("value", HtpContextConfigUnion)]


class HtpMinimumArch(ctypes.Structure):
    """QnnHtpDevice_Minimum_Arch_t."""

    _fields_ = [("deviceId", c_uint32), ("arch", c_uint32)]


class HtpSignedDomain(ctypes.Structure):
    """QnnHtpDevice_UseSignedProcessDomain_t."""

    _fields_ = [("deviceId", c_uint32), ("useSignedProcessDomain", c_bool)]


class HtpDeviceConfigUnion(ctypes.Union):
    """The value of an HTP device's config; a pointer among its members puts it at offset 8."""

    _fields_ = [
        ("socModel", c_uint32),
        ("arch", HtpMinimumArch),
        ("useSignedProcessDomain", HtpSignedDomain),
        ("reserved", c_void_p),
    ]


class HtpDeviceConfig(ctypes.Structure):
    """QnnHtpDevice_CustomConfig_t."""

    _anonymous_ = ("value",)
    _fields_ = [("option", c_uint32), ("value", HtpDeviceConfigUnion)]


class HtpOnChipDevice(ctypes.Structure):
    """QnnHtpDevice_OnChipDeviceInfoExtension_t."""

    _fields_ = [
        ("vtcmSize", c_size_t),
        ("socModel", c_uint32),
        ("signedPdSupport", c_bool),
        ("dlbcSupport", c_bool),
        ("arch", c_uint32),
    ]


class HtpDeviceInfoExtension(ctypes.Structure):
    """QnnHtpDevice_DeviceInfoExtension_t."""

    _fields_ = [("devType", c_uint32), ("onChipDevice", HtpOnChipDevice)]


class HtpDcvsV3(ctypes.Structure):
    """QnnHtpPerfInfrastructure_DcvsV3_t."""

    _fields_ = [
        (name, c_uint32)
        for name in (
            "contextId", "setDcvsEnable", "dcvsEnable", "powerMode", "setSleepLatency", "sleepLatency",
            "setSleepDisable", "sleepDisable", "setBusParams", "busVoltageCornerMin", "busVoltageCornerTarget",
            "busVoltageCornerMax", "setCoreParams", "coreVoltageCornerMin", "coreVoltageCornerTarget",
            "coreVoltageCornerMax",
        )
    ]  # fmt: skip


class HtpPowerConfigUnion(ctypes.Union):
    """The value of a power config."""

    _fields_ = [
        ("dcvsV3Config", HtpDcvsV3),
        ("rpcControlLatencyConfig", c_uint32),
        ("rpcPollingTimeConfig", c_uint32),
        ("hmxTimeoutIntervalUsConfig", c_uint32),
    ]


class HtpPowerConfig(ctypes.Structure):
    """QnnHtpPerfInfrastructure_PowerConfig_t."""

    _anonymous_ = ("value",)
    _fields_ = [("option", c_uint32), ("value", HtpPowerConfigUnion)]


class HtpPerfInfrastructure(ctypes.Structure):
    """QnnHtpDevice_PerfInfrastructure_t: four functions about clocks, voltages and memory."""

    _fields_ = [
        ("createPowerConfigId", c_void_p),
        ("destroyPowerConfigId", c_void_p),
        ("setPowerConfig", c_void_p),
        ("setMemoryConfig", c_void_p),
    ]


class HtpInfrastructure(ctypes.Structure):
    """QnnHtpDevice_Infrastructure_t, with its only kind, 0."""

    _fields_ = [("infraType", c_uint32), ("perfInfra", HtpPerfInfrastructure)]


class HtpSharedBuffer(ctypes.Structure):
    """QnnHtpMem_SharedBufferConfig_t."""

    _fields_ = [("fd", c_int32), ("offset", c_uint64)]


class HtpMemUnion(ctypes.Union):
    """Where HTP's memory is."""

    _fields_ = [("qurtAddress", c_uint32), ("sharedBufferConfig", HtpSharedBuffer)]


class HtpMemDescriptor(ctypes.Structure):
    """QnnMemHtp_Descriptor_t."""

    _anonymous_ = ("place",)
    _fields_ = [("type", c_uint32), ("size", c_uint64), ("place", HtpMemUnion)]


class LpaiCustom(ctypes.Structure):
    """QnnLpai*_CustomConfig_t and QnnLpai*_CustomProperty_t: an option, and where its value is."""

    _fields_ = [("option", c_uint32), ("value", c_void_p)]


class LpaiAlignment(ctypes.Structure):
    """QnnLpaiBackend_BufferAlignmentReq_t."""

    _fields_ = [("startAddrAlignment", c_uint32), ("sizeAlignment", c_uint32)]


class LpaiMem(ctypes.Structure):
    """QnnLpaiGraph_Mem_t."""

    _fields_ = [("memType", c_uint32), ("size", c_uint32), ("addr", c_void_p)]


class LpaiPerfCfg(ctypes.Structure):
    """QnnLpaiGraph_PerfCfg_t."""

    _fields_ = [("fps", c_uint32), ("ftrtRatio", c_uint32), ("clientType", c_uint32)]


class LpaiCoreAffinity(ctypes.Structure):
    """QnnLpaiGraph_CoreAffinity_t."""

    _fields_ = [("affinity", c_uint32), ("coreSelection", c_uint32)]


class LpaiPrepare(ctypes.Structure):
    """QnnLpaiGraph_CustomConfigPrepare_t, as it began; later versions have more behind it."""

    _fields_ = [
        ("enableLayerFusion", c_uint32),
        ("enableBatchnormFold", c_uint32),
        ("enableChannelAlign", c_uint32),
        ("enablePadSplit", c_uint32),
        ("excludeIo", c_uint32),
        ("enablePerLayer", c_uint32),
    ]


class LpaiMemInfo(ctypes.Structure):
    """QnnLpaiMem_MemInfoCustom_t."""

    _fields_ = [("fd", c_int32), ("offset", c_uint32)]


class GpuMemInfo(ctypes.Structure):
    """QnnGpu_MemInfoCustom_t: OpenCL (0) is the only kind."""

    _fields_ = [("memType", c_uint32), ("buffer", c_void_p)]


class GpuGraphConfig(ctypes.Structure):
    """QnnGpuGraph_CustomConfig_t."""

    _fields_ = [
        ("precision", c_uint32),
        ("disableMemoryOptimizations", c_uint8),
        ("disableNodeOptimizations", c_uint8),
        ("disableQueueRecording", c_uint8),
    ]
