"""The structures of QNN's system library and of model libraries: the contents of binaries and graphs."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_uint32, c_void_p

from isthmus.cabi.notation import CStructure
from isthmus.cabi.objects import GraphConfig
from isthmus.cabi.types import Tensor


class GraphInfo(CStructure, declares="QnnSystemContext_GraphInfo_t"):
    """QnnSystemContext_GraphInfo_t. The fields common to all versions can be read as version 3."""


class BinaryInfo(CStructure, declares="QnnSystemContext_BinaryInfo_t"):
    """QnnSystemContext_BinaryInfo_t."""


class SerializationTarget(CStructure, declares="QnnSystemProfile_SerializationTarget_t"):
    """QnnSystemProfile_SerializationTarget_t, with its only kind, a file (1)."""


class SerializationConfig(CStructure, declares="QnnSystemProfile_SerializationTargetConfig_t"):
    """QnnSystemProfile_SerializationTargetConfig_t."""


class ProfileEvent(CStructure, declares="QnnSystemProfile_ProfileEventV1_t"):
    """QnnSystemProfile_ProfileEventV1_t."""


class ProfileData(CStructure, declares="QnnSystemProfile_ProfileData_t"):
    """QnnSystemProfile_ProfileData_t."""


class ModelGraphInfo(ctypes.Structure):
    """GraphInfo_t, as a model library's QnnModel_composeGraphs returns it."""

    _fields_ = [
        ("graph", c_void_p),
        ("graphName", c_char_p),
        ("inputTensors", POINTER(Tensor)),
        ("numInputTensors", c_uint32),
        ("outputTensors", POINTER(Tensor)),
        ("numOutputTensors", c_uint32),
    ]


GRAPH_CONFIGS = POINTER(POINTER(GraphConfig))
"""A null-terminated list of a graph's configs."""


class DlcGraphConfigInfo(CStructure, declares="QnnSystemDlc_GraphConfigInfo_t"):
    """QnnSystemDlc_GraphConfigInfo_t."""
