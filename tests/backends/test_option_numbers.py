"""The numbers of options are part of the interface: clients have them compiled in, so they stay what they are."""

import pytest

from isthmus.backends.gpu import options as gpu_options
from isthmus.backends.htp import options as htp_options
from isthmus.backends.lpai import options as lpai_options

NUMBERS = {
    gpu_options.GpuMemType: {"OPENCL": 0, "UNDEFINED": 0x7FFFFFF},
    gpu_options.PrecisionMode: {"FP32": 0, "FP16": 1, "HYBRID": 2, "USER_PROVIDED": 3},
    gpu_options.GpuGraphOption: {
        "PRECISION": 20001, "DISABLE_MEMORY_OPTIMIZATIONS": 20002, "DISABLE_NODE_OPTIMIZATIONS": 20003,
        "DISABLE_QUEUE_RECORDING": 20004,
    },
    gpu_options.GpuBackendOption: {
        "ENABLE_TUNING_MODE": 0, "PERFORMANCE_CACHE_DIR": 1, "INVALIDATE_PERFORMANCE_CACHE": 2,
        "WEIGHT_SHARING_ENABLED": 3,
    },
    gpu_options.GpuContextOption: {
        "PERF_HINT": 0, "USE_GL_BUFFERS": 1, "KERNEL_REPO_DIR": 2, "INVALIDATE_KERNEL_REPO": 3,
    },
    gpu_options.PerfHint: {"HIGH": 0, "NORMAL": 1, "LOW": 2},
    gpu_options.GpuBackendProperty: {"CL_CONTEXT": 20001, "CL_QUEUE": 20002, "CL_DEVICE": 20003},
    htp_options.HtpMemType: {
        "QURT": 0, "SHARED_BUFFER": 1, "WEIGHTS_BUFFER": 2, "SHARED_SPILLFILL_BUFFER": 3,
        "SHARED_VTCMBACKUP_BUFFER": 4, "UNDEFINED": 0x7FFFFFFF,
    },
    htp_options.HtpContextConfigOption: {
        "WEIGHT_SHARING_ENABLED": 1, "REGISTER_MULTI_CONTEXTS": 2, "DSP_MEMORY_PROFILING_ENABLED": 4,
        "SHARE_RESOURCES": 5, "IO_MEM_ESTIMATION": 6, "PREPARE_ONLY": 7, "SHARE_RESOURCES_OPTIMIZATION_TYPE": 10,
        "USE_EXTENDED_UDMA": 11, "REGISTER_CONCURRENT_RESOURCE_SHARING": 12, "REUSED_IO_LIMIT": 17,
        "REFERENCE_WEIGHT_SHARING_ENABLED": 18, "REREGISTRATION": 20001,
    },
    htp_options.HtpBackendProperty: {
        "ACCELERATOR_PID": 20001, "PROCESS_DOMAINS": 20002, "LOADED_GRAPHS": 20003,
    },
    htp_options.HtpGraphConfigOption: {
        "PRECISION": 2, "NUM_HVX_THREADS": 6, "NUM_CORES": 8, "VTCM_SIZE_IN_BYTES": 10, "SHARE_IO_BUFFER": 14,
        "OPTIMIZATION_LEVEL": 20001, "DLBC": 20002, "DLBC_WEIGHTS": 20003, "VTCM_SIZE_IN_MB": 20010,
    },
    htp_options.HtpFloatPrecision: {"FLOAT32": 0, "FLOAT16": 1},
    lpai_options.LpaiBackendProperty: {"ALIGNMENT_REQ": 0, "REQUIRE_PERSISTENT_BINARY": 1, "SHARED_POOLS": 20001},
    lpai_options.LpaiBackendOption: {"HW_INFO": 0},
    lpai_options.LpaiTarget: {"X86": 0, "ARM": 1, "ADSP": 2, "TENSILICA": 3},
    lpai_options.LpaiHwVersion: {
        "NA": 0, "V1": 1, "V2": 2, "V3": 3, "V4": 4, "V5": 5, "V5_1": 0x10005, "V6": 6, "V7": 7, "DEFAULT": 5,
    },
    lpai_options.LpaiContextOption: {"MODEL_BUFFER_MEM_TYPE": 1, "ENABLE_ISLAND": 11},
    lpai_options.GraphProperty: {"SCRATCH_MEM_SIZE": 1, "PERSISTENT_MEM_SIZE": 101, "IO_OFFSETS": 20001},
    lpai_options.LpaiGraphOption: {
        "SCRATCH_MEM": 1, "PERSISTENT_MEM": 101, "PERF_CFG": 201, "CORE_AFFINITY": 301, "PREPARE": 10001,
        "RESET_STATE": 20001,
    },
    lpai_options.LpaiMemType: {"DDR": 1, "LLC": 2, "TCM": 3, "UNDEFINED": 0x7FFFFFFF},
    lpai_options.ClientType: {"REAL_TIME": 1, "NON_REAL_TIME": 2},
    lpai_options.Affinity: {"SOFT": 1, "HARD": 2},
}  # fmt: skip


@pytest.mark.parametrize("options", NUMBERS, ids=lambda options: f"{options.__module__}.{options.__name__}")
def test_options_keep_their_numbers(options) -> None:
    assert {name: int(number) for name, number in options.__members__.items()} == NUMBERS[options]
