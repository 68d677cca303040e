"""HTP's configs of graphs and devices for C, each declared once. HTP's other headers are written by hand."""

from __future__ import annotations

from enum import IntEnum

from isthmus.backends.htp.options import HtpContextOption, HtpContextProperty, HtpGraphOption, HtpOptimization
from isthmus.cabi.layout import Enumeration, Header, Macros, Numbers, Structure

# Declared in QnnTypes.h.
Numbers(("Qnn_Precision_t",))
Structure("Qnn_Scalar_t", "uint32_t dataType; union { uint64_t uint64Value; };")
_GRAPH_OPTIONS = Enumeration("QnnHtpGraph_ConfigOption_t", "QNN_HTP_GRAPH_CONFIG_OPTION", HtpGraphOption, "UNKNOWN")
_OPTIMIZATIONS = Enumeration(
    "QnnHtpGraph_OptimizationType_t", "QNN_HTP_GRAPH_OPTIMIZATION_TYPE", HtpOptimization, "UNKNOWN"
)
_VTCM = Structure("QnnHtpGraph_VtcmConfig_t", "uint32_t sizeInBytes, offsetInBytes, sizeTotalInBytes, reserved[3];")
_VALUES = [Structure(option.declaration.split()[0], option.structure) for option in HtpGraphOption if option.structure]
GRAPH_CONFIG = Structure(
    "QnnHtpGraph_CustomConfig_t",
    f"QnnHtpGraph_ConfigOption_t option; union {{ {'; '.join(each.declaration for each in HtpGraphOption)};"
    " void *reserved; };",
    "{QNN_HTP_GRAPH_CONFIG_OPTION_UNKNOWN, {QNN_HTP_GRAPH_OPTIMIZATION_OPTION_INIT}}",
)


class HtpDeviceOption(IntEnum):
    """QNN_HTP_DEVICE_CONFIG_OPTION_*."""

    SOC = 0
    ARCH = 1
    SIGNEDPD = 2
    SECUREPD = 3
    ASYNC_EXECUTE = 4
    DYNAMIC_PARTITIONING = 5
    APP_UID = 6
    HTP_EXTENSION = 0x7FFF0000


_ARCHITECTURES = Enumeration(
    "QnnHtpDevice_Arch_t",
    "QNN_HTP_DEVICE_ARCH",
    {"NONE": 0, **{f"V{number}": number for number in (68, 69, 73, 75, 79, 81, 85, 89)}},
    "UNKNOWN",
)


def _of_device(name: str, value: str) -> Structure:
    """Return the structure of a setting of one device."""
    return Structure(f"QnnHtpDevice_{name}_t", f"uint32_t deviceId; {value};")


_OPTIONS = Enumeration("QnnHtpDevice_ConfigOption_t", "QNN_HTP_DEVICE_CONFIG_OPTION", HtpDeviceOption, "UNKNOWN")
_SETTINGS = (
    _of_device("Minimum_Arch", "QnnHtpDevice_Arch_t arch"),
    _of_device("UseSignedProcessDomain", "bool useSignedProcessDomain"),
    _of_device("UseSecureProcessDomain", "bool useSecureProcessDomain"),
    _of_device("AsyncExecute", "bool enableAsyncExecute"),
)
DEVICE_CONFIG = Structure(
    "QnnHtpDevice_CustomConfig_t",
    "QnnHtpDevice_ConfigOption_t option; union { uint32_t socModel; QnnHtpDevice_Minimum_Arch_t arch;"
    " QnnHtpDevice_UseSignedProcessDomain_t useSignedProcessDomain;"
    " QnnHtpDevice_UseSecureProcessDomain_t useSecureProcessDomain; QnnHtpDevice_AsyncExecute_t asyncExecute;"
    " void *htpExtension; };",
)
"""The pointer puts the union at offset 8."""
EARLIER_DEVICE_CONFIG = Structure(
    "QnnHtpDevice_EarlierCustomConfig_t",
    "QnnHtpDevice_ConfigOption_t option; union { uint32_t socModel; QnnHtpDevice_Minimum_Arch_t arch;"
    " QnnHtpDevice_UseSignedProcessDomain_t useSignedProcessDomain; };",
)
"""QnnHtpDevice_CustomConfig_t of earlier headers, with which ExecuTorch is compiled: the union is at offset 4."""

_CONTEXT_OPTIONS = Enumeration(
    "QnnHtpContext_ConfigOption_t", "QNN_HTP_CONTEXT_CONFIG_OPTION", HtpContextOption, "UNKNOWN"
)
_CONTEXT_PROPERTIES = Enumeration(
    "QnnHtpContext_PropertyOption_t", "QNN_HTP_CONTEXT_PROPERTY_OPTION", HtpContextProperty, "UNKNOWN"
)
_SHARING = Enumeration(
    "QnnHtpContext_ShareResourcesOptimizationType_t",
    "",
    {"SEQUENTIAL_WITH_VA_OPTIMIZATION": 0, "SEQUENTIAL_WITHOUT_VA_OPTIMIZATION": 1, "CONCURRENT_OPTIMIZATION": 2},
    "",
)
_CONTEXT_VALUES = [
    Structure(option.declaration.split()[0], option.structure) for option in HtpContextOption if option.structure
]
CONTEXT_CONFIG = Structure(
    "QnnHtpContext_CustomConfig_t",
    f"QnnHtpContext_ConfigOption_t option; union {{ {'; '.join(each.declaration for each in HtpContextOption)}; }};",
    "{QNN_HTP_CONTEXT_CONFIG_OPTION_UNKNOWN, {false}}",
)
CONTEXT_PROPERTY = Structure(
    "QnnHtpContext_CustomProperty_t",
    "QnnHtpContext_PropertyOption_t option; uint64_t value;",
    "{QNN_HTP_CONTEXT_PROPERTY_OPTION_UNKNOWN, 0}",
)
"""A property of a context, and where its value is written."""
_HARDWARE_VERSION = Enumeration(
    "QnnHtpSystemContext_HwInfoBlobVersion_t", "QNN_SYSTEM_CONTEXT_HTP_HW_INFO_BLOB", {"VERSION_V1": 1}
)
_GRAPH_VERSION = Enumeration(
    "QnnHtpSystemContext_GraphInfoBlobVersion_t",
    "QNN_SYSTEM_CONTEXT_HTP_GRAPH_INFO_BLOB",
    {"VERSION_V1": 1, "VERSION_V2": 2},
)
_METADATA_VERSION = Enumeration(
    "QnnHtpSystemContext_ContextMetadataVersion_t", "QNN_SYSTEM_CONTEXT_HTP_CONTEXT_METADATA", {"VERSION_V1": 1}
)
_HARDWARE = Structure("QnnHtpSystemContext_HwBlobInfoV1_t", "uint32_t graphListIndex; uint64_t spillFillBufferSize;")
HARDWARE_BLOB = Structure(
    "QnnHtpSystemContext_HwBlobInfo_t",
    "QnnHtpSystemContext_HwInfoBlobVersion_t version; union {"
    " QnnHtpSystemContext_HwBlobInfoV1_t contextBinaryHwInfoBlobV1_t; };",
)
"""What a description of a binary in version 1 or 2 has of each graph."""
_GRAPH_V1 = Structure(
    "QnnHtpSystemContext_GraphBlobInfoV1_t",
    "uint64_t spillFillBufferSize; uint32_t vtcmSize, optimizationLevel; uint8_t htpDlbc; uint64_t numHvxThreads;",
)
_GRAPH_V2 = Structure(
    "QnnHtpSystemContext_GraphBlobInfoV2_t",
    "uint64_t nativeKChannelSize, nativeVChannelSize; uint32_t isSafeShareIO; uint64_t ioTensorSize, opDataSize,"
    " constSize, ddrTensorSize, sharedWeightsSize;",
)
GRAPH_BLOB = Structure(
    "QnnHtpSystemContext_GraphBlobInfo_t",
    "QnnHtpSystemContext_GraphInfoBlobVersion_t version; union {"
    " QnnHtpSystemContext_GraphBlobInfoV1_t contextBinaryGraphBlobInfoV1; };",
)
"""The first part of what a description of a graph in version 3 has."""
GRAPH_BLOB_V2 = Structure(
    "QnnHtpSystemContext_GraphBlobInfo2_t",
    "QnnHtpSystemContext_GraphInfoBlobVersion_t version; union {"
    " QnnHtpSystemContext_GraphBlobInfoV2_t contextBinaryGraphBlobInfoV2; };",
)
"""The second part, which follows the first."""
CONTEXT_METADATA = Structure(
    "QnnHtpSystemContext_ContextMetadata_t",
    "QnnHtpSystemContext_ContextMetadataVersion_t version; uint32_t dspArch;",
)
"""What a description of a binary in version 3 has of the device."""

HEADERS = (
    Header(
        "HTP/QnnHtpGraph.h",
        "HTP's graph configs, behind QnnGraph_CustomConfig_t.",
        ("<stdbool.h>", "../QnnGraph.h"),
        (
            _GRAPH_OPTIONS,
            Macros(
                {
                    "QNN_HTP_GRAPH_CONFIG_OPTION_VTCM_SIZE": "QNN_HTP_GRAPH_CONFIG_OPTION_VTCM_SIZE_IN_MB",
                    "QNN_HTP_GRAPH_CONFIG_OPTION_MAX": 0,
                }
            ),
            _OPTIMIZATIONS,
            _VTCM,
            *_VALUES,
            Macros({"QNN_HTP_GRAPH_OPTIMIZATION_OPTION_INIT": "{QNN_HTP_GRAPH_OPTIMIZATION_TYPE_UNKNOWN, 0}"}),
            GRAPH_CONFIG,
        ),
    ),
    Header(
        "HTP/QnnHtpContext.h",
        "HTP's context configs and properties, behind QnnContext_CustomConfig_t and QnnContext_CustomProperty_t.",
        ("<stdbool.h>", "../QnnContext.h"),
        (_CONTEXT_OPTIONS, _CONTEXT_PROPERTIES, _SHARING, *_CONTEXT_VALUES, CONTEXT_CONFIG, CONTEXT_PROPERTY),
    ),
    Header(
        "HTP/QnnHtpDeviceConfigShared.h",
        "HTP's device configs, behind QnnDevice_CustomConfig_t.",
        ("<stdbool.h>", "../QnnCommon.h"),
        (_ARCHITECTURES, *_SETTINGS, _OPTIONS, DEVICE_CONFIG),
    ),
    Header(
        "HTP/QnnHtpSystemContext.h",
        "What HTP adds to the description of a binary: graphBlobInfo is a GraphBlobInfo, then a GraphBlobInfo2.",
        ("../System/QnnSystemContext.h",),
        (
            _HARDWARE_VERSION,
            _GRAPH_VERSION,
            _METADATA_VERSION,
            _HARDWARE,
            HARDWARE_BLOB,
            _GRAPH_V1,
            _GRAPH_V2,
            GRAPH_BLOB,
            GRAPH_BLOB_V2,
            CONTEXT_METADATA,
        ),
    ),
)
