"""QNN's backends that execute nothing here: DSP, IR, which writes DLC files, and Saver, which records calls.

Sources of clients name their structures and numbers beside those of the backends that they use.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from enum import IntEnum

from isthmus.cabi.layout import api_header
from isthmus.cabi.notation import declared

IR, SAVER, DSP = (9, (0, 1, 0)), (2, (1, 1, 0)), (5, (5, 0, 1))
"""The numbers of these backends, and the versions of their interfaces."""
HEADERS = (
    api_header("IR", *IR),
    api_header("DSP", *DSP),
    replace(api_header("SAVER", *SAVER), file="Saver/QnnSaverCommon.h"),
)
"""The headers that name these backends; ``headers.txt`` has the others."""


class SaverOption(IntEnum):
    """QNN_SAVER_CONFIG_OPTION_*."""

    OUTPUT_DIRECTORY = 0
    APPEND_TIMESTAMP = 1
    BACKEND_ID = 2
    FILE_CONFIG = 3


@declared("QnnIrGraph_SerializationOption_t")
class IrSerialization(ctypes.Structure):
    """QnnIrGraph_SerializationOption_t."""


@declared("QnnIrGraph_CustomConfig_t")
class IrGraphConfig(ctypes.Structure):
    """QnnIrGraph_CustomConfig_t."""


@declared("QnnSaver_FileConfig_t")
class SaverFiles(ctypes.Structure):
    """QnnSaver_FileConfig_t."""


@declared("QnnSaver_Config_t")
class SaverConfig(ctypes.Structure):
    """QnnSaver_Config_t."""
