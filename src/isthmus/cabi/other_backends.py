"""QNN's backends that execute nothing here: DSP, IR, which writes DLC files, and Saver, which records calls.

Sources of clients name their structures and numbers beside those of the backends that they use.
"""

from __future__ import annotations

from enum import IntEnum

from isthmus.cabi.notation import CStructure, api_header

IR, SAVER, DSP = (9, (0, 1, 0)), (2, (1, 1, 0)), (5, (5, 0, 1))
"""The numbers of these backends, and the versions of their interfaces."""
HEADERS = (
    api_header("IR", *IR),
    api_header("DSP", *DSP),
    api_header("SAVER", *SAVER, "Saver/QnnSaverCommon.h"),
)
"""The headers that name these backends, each as its file and its text; ``headers.txt`` has the others."""


class SaverOption(IntEnum):
    """QNN_SAVER_CONFIG_OPTION_*."""

    OUTPUT_DIRECTORY = 0
    APPEND_TIMESTAMP = 1
    BACKEND_ID = 2
    FILE_CONFIG = 3


class IrSerialization(CStructure, declares="QnnIrGraph_SerializationOption_t"):
    """QnnIrGraph_SerializationOption_t."""


class IrGraphConfig(CStructure, declares="QnnIrGraph_CustomConfig_t"):
    """QnnIrGraph_CustomConfig_t."""


class SaverFiles(CStructure, declares="QnnSaver_FileConfig_t"):
    """QnnSaver_FileConfig_t."""


class SaverConfig(CStructure, declares="QnnSaver_Config_t"):
    """QnnSaver_Config_t."""
