"""HTP's structures of C, as ``headers.txt`` declares them for C and Python at once."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any

from isthmus.backends.htp import options
from isthmus.backends.seam.facets import UnionOption
from isthmus.cabi.notation import declare_headers, type_named


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


def _declare_options(noun: str, kind: type[UnionOption]) -> dict[str, str]:
    """Return the declarations of an enumeration of options: the members of its union, and the structures of values."""
    values = (f"struct! {each.declaration.split()[0]}: {each.structure}" for each in kind if each.structure)
    members = " ".join(f"{each.declaration};" for each in kind)
    return {f"{noun}Values": "\n".join(values), f"{noun}Members": members}


HEADERS = declare_headers(
    Path(__file__).parent,
    {
        **vars(options),
        "HtpDeviceOption": HtpDeviceOption,
        **_declare_options("Graph", options.HtpGraphOption),
        **_declare_options("Context", options.HtpContextOption),
    },
)
GRAPH_CONFIG: Any = type_named("QnnHtpGraph_CustomConfig_t")
CONTEXT_CONFIG: Any = type_named("QnnHtpContext_CustomConfig_t")
CONTEXT_PROPERTY: Any = type_named("QnnHtpContext_CustomProperty_t")
"""A property of a context, and where its value is written."""
DEVICE_CONFIG: Any = type_named("QnnHtpDevice_CustomConfig_t")
"""The pointer puts the union at offset 8."""
EARLIER_DEVICE_CONFIG: Any = type_named("QnnHtpDevice_EarlierCustomConfig_t")
"""The same in earlier headers, with which ExecuTorch is compiled: the union is at offset 4."""
DEVICE_INFO: Any = type_named("QnnHtpDevice_DeviceInfoExtension_t")
MEM_DESCRIPTOR: Any = type_named("QnnMemHtp_Descriptor_t")
HARDWARE_BLOB: Any = type_named("QnnHtpSystemContext_HwBlobInfo_t")
"""What a description of a binary in version 1 or 2 has of each graph."""
GRAPH_BLOB: Any = type_named("QnnHtpSystemContext_GraphBlobInfo_t")
"""The first part of what a description of a graph in version 3 has."""
GRAPH_BLOB_V2: Any = type_named("QnnHtpSystemContext_GraphBlobInfo2_t")
"""The second part, which follows the first."""
CONTEXT_METADATA: Any = type_named("QnnHtpSystemContext_ContextMetadata_t")
"""What a description of a binary in version 3 has of the device."""
