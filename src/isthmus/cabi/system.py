"""The structures of QNN's system library and of model libraries: the contents of binaries and graphs."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_uint32, c_void_p

from isthmus.cabi.notation import declared
from isthmus.cabi.objects import GraphConfig
from isthmus.cabi.types import Tensor


@declared("QnnSystemContext_GraphInfo_t")
class GraphInfo(ctypes.Structure):
    """QnnSystemContext_GraphInfo_t. The fields common to all versions can be read as version 3."""


@declared("QnnSystemContext_BinaryInfo_t")
class BinaryInfo(ctypes.Structure):
    """QnnSystemContext_BinaryInfo_t."""


@declared("QnnSystemProfile_SerializationTarget_t")
class SerializationTarget(ctypes.Structure):
    """QnnSystemProfile_SerializationTarget_t, with its only kind, a file (1)."""


@declared("QnnSystemProfile_SerializationTargetConfig_t")
class SerializationConfig(ctypes.Structure):
    """QnnSystemProfile_SerializationTargetConfig_t."""


@declared("QnnSystemProfile_ProfileEventV1_t")
class ProfileEvent(ctypes.Structure):
    """QnnSystemProfile_ProfileEventV1_t."""


@declared("QnnSystemProfile_ProfileData_t")
class ProfileData(ctypes.Structure):
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


@declared("QnnSystemDlc_GraphConfigInfo_t")
class DlcGraphConfigInfo(ctypes.Structure):
    """QnnSystemDlc_GraphConfigInfo_t."""
