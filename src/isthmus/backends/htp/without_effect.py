"""Why options of HTP are accepted and change nothing here: for the log and for the document of options.

They ask for hardware that this machine does not have, for another way to the same result, or for parts of QNN that this
project does not offer. Each has the name that QNN's headers give it.
"""

from __future__ import annotations

from collections.abc import Mapping

_NO_ADAPTERS = "no weights can be replaced after a graph is finalized, so there are no adapters"
_ONE_THREAD = "one thread loads a binary"
_NO_SPLITTING = "the accelerator executes graphs as they are composed; `isthmus split` divides a model"
_NO_COMPILER = "it steers the vendor's compiler, and no result depends on it"
CONTEXT: Mapping[str, str] = {
    "FILE_READ_MEMORY_BUDGET": (
        "a binary is never read into a buffer: it is mapped, or copied straight into mapped memory"
    ),
    "INIT_ACCELERATION": _ONE_THREAD,
    "SKIP_VALIDATION_ON_BINARY_SECTION": _NO_ADAPTERS,
    "LORA_WEIGHT_SHARING_ENABLED": _NO_ADAPTERS,
    "LORA_WEIGHT_SHARING_RAM_PRELOAD_ENABLED": _NO_ADAPTERS,
    "CONCURRENT_DESERIALIZATION_EXTRA_SIZE": _ONE_THREAD,
    "GRAPH_SPLITTING_ENABLED": _NO_SPLITTING,
    "CONCURRENT_DESERIALIZATION_PATCH": f"{_ONE_THREAD}, and the file is neither read nor written",
    "GRAPH_SPLITTING_CONFIGS": _NO_SPLITTING,
    "LORA_PRELOAD_BUFFER_GROUPS": _NO_ADAPTERS,
    "PARALLEL_WEIGHT_LOADING": "shared weights are mapped and not copied",
}
"""The reasons for options of contexts."""
GRAPH: Mapping[str, str] = {
    "FOLD_RELU_ACTIVATION_INTO_CONV_OFF": _NO_COMPILER,
    "SHORT_DEPTH_CONV_ON_HMX_OFF": "there is no HMX here",
    "FINALIZE_CONFIG": _NO_COMPILER,
    "WEIGHTS_PACKING": "4-bit weights are always packed in binaries",
    "ASSUME_SAME_QUANT": "each tensor has the encoding that it is given",
    "ADVANCED_ACTIVATION_FUSION": _NO_COMPILER,
    "HIGH_PRECISION_SIGMOID": "no sigmoid is less exact than the type that stores its result",
    "MONOLITHIC_LSTM": _NO_COMPILER,
    "PRECISION_COMPENSATION": "no steps are added that compensate for rounding",
    "ENABLE_PREDICATION": _NO_COMPILER,
    "FP16_CLAMP_OVERFLOW": "floats that are too large for 16 bits become infinite",
}
"""The reasons for options of graphs."""
OPTIMIZATION: Mapping[str, str] = {
    "SCHEDULE_THRESHOLD": _NO_COMPILER,
    "ENABLE_SPARSE_WEIGHTS_COMPRESSION": "weights are stored as they are",
    "ENABLE_SLC_ALLOCATOR": "there is no system cache to allocate here",
    "ENABLE_VTCM_RETENTION": "nothing is in VTCM here",
    "ENABLE_CACHED_WEIGHTS": "nothing is in VTCM here",
}
"""The reasons for kinds of the graph option OPTIMIZATION."""
ONE_CORE = "there is one device with one core"
NO_CLOCKS = "there are no clocks to set here"
