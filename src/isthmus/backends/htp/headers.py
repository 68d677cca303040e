"""HTP's device configs for C, each declared once. HTP's other headers are written by hand."""

from __future__ import annotations

from enum import IntEnum

from isthmus.cabi.layout import Enumeration, Header, Structure


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
        "HTP/QnnHtpDeviceConfigShared.h",
        "HTP's device configs, behind QnnDevice_CustomConfig_t.",
        ("<stdbool.h>", "../QnnCommon.h"),
        (_ARCHITECTURES, *_SETTINGS, _OPTIONS, DEVICE_CONFIG),
    ),
)
