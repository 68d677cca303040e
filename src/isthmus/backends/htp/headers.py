"""HTP's configs of graphs and devices for C, each declared once. HTP's other headers are written by hand."""

from __future__ import annotations

from enum import IntEnum

from isthmus.backends.htp.options import HtpGraphOption
from isthmus.cabi.layout import Enumeration, Header, Macros, Numbers, Structure

# Declared in QnnTypes.h.
Numbers(("Qnn_Precision_t",))
Structure("Qnn_Scalar_t", "uint32_t dataType; union { uint64_t uint64Value; };")
_GRAPH_OPTIONS = Enumeration("QnnHtpGraph_ConfigOption_t", "QNN_HTP_GRAPH_CONFIG_OPTION", HtpGraphOption, "UNKNOWN")
_OPTIMIZATIONS = Enumeration(
    "QnnHtpGraph_OptimizationType_t",
    "QNN_HTP_GRAPH_OPTIMIZATION_TYPE",
    {
        "SCHEDULE_THRESHOLD": 1, "FINALIZE_RETRIES": 2, "FINALIZE_OPTIMIZATION_FLAG": 3, "ENABLE_DLBC": 4,
        "ENABLE_DLBC_WEIGHTS": 5, "ENABLE_SPARSE_WEIGHTS_COMPRESSION": 6, "ENABLE_SLC_ALLOCATOR": 7,
    },
    "UNKNOWN",
)  # fmt: skip
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
        "HTP/QnnHtpDeviceConfigShared.h",
        "HTP's device configs, behind QnnDevice_CustomConfig_t.",
        ("<stdbool.h>", "../QnnCommon.h"),
        (_ARCHITECTURES, *_SETTINGS, _OPTIONS, DEVICE_CONFIG),
    ),
)
