"""The structures of QNN's system library and of model libraries: the contents of binaries and graphs."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_uint32, c_uint64, c_void_p
from typing import Any

from isthmus.cabi.objects import EventData, ExtendedEventData, GraphConfig, PlatformInfo
from isthmus.cabi.types import Tensor, Version


class GraphInfoV3(ctypes.Structure):
    """QnnSystemContext_GraphInfoV3_t; version 1 ends after the outputs, version 2 after the updateable tensors."""

    _fields_ = [
        ("graphName", c_char_p),
        ("numGraphInputs", c_uint32),
        ("graphInputs", POINTER(Tensor)),
        ("numGraphOutputs", c_uint32),
        ("graphOutputs", POINTER(Tensor)),
        ("numUpdateableTensors", c_uint32),
        ("updateableTensors", POINTER(Tensor)),
        ("graphBlobInfoSize", c_uint32),
        ("graphBlobInfo", c_void_p),
        ("startOpIndex", c_uint32),
        ("endOpIndex", c_uint32),
    ]


class GraphInfo(ctypes.Structure):
    """QnnSystemContext_GraphInfo_t. The fields common to all versions can be read as version 3."""

    _fields_ = [("version", c_uint32), ("graphInfoV3", GraphInfoV3)]


# The fields of version 1, from which the later versions are made.
_BINARY_INFO_V1: list[Any] = [
    ("backendId", c_uint32),
    ("buildId", c_char_p),
    ("coreApiVersion", Version),
    ("backendApiVersion", Version),
    ("socVersion", c_char_p),
    ("hwInfoBlobVersion", Version),
    ("contextBlobVersion", Version),
    ("hwInfoBlobSize", c_uint32),
    ("hwInfoBlob", c_void_p),
    ("contextBlobSize", c_uint64),
    ("numContextTensors", c_uint32),
    ("contextTensors", POINTER(Tensor)),
    ("numGraphs", c_uint32),
    ("graphs", POINTER(GraphInfo)),
]


class BinaryInfoV1(ctypes.Structure):
    """QnnSystemContext_BinaryInfoV1_t."""

    _fields_ = _BINARY_INFO_V1


class BinaryInfoV2(ctypes.Structure):
    """QnnSystemContext_BinaryInfoV2_t."""

    _fields_ = [*_BINARY_INFO_V1, ("platformInfo", POINTER(PlatformInfo))]


class BinaryInfoV3(ctypes.Structure):
    """QnnSystemContext_BinaryInfoV3_t."""

    _fields_ = [
        *[field for field in _BINARY_INFO_V1 if not field[0].startswith("hwInfo")],
        ("platformInfo", POINTER(PlatformInfo)),
        ("contextMetadataSize", c_uint32),
        ("contextMetadata", c_void_p),
        ("socModel", c_uint32),
    ]


class BinaryInfoUnion(ctypes.Union):
    """The contents of a context binary, in one version."""

    _fields_ = [
        ("contextBinaryInfoV1", BinaryInfoV1),
        ("contextBinaryInfoV2", BinaryInfoV2),
        ("contextBinaryInfoV3", BinaryInfoV3),
    ]


class BinaryInfo(ctypes.Structure):
    """QnnSystemContext_BinaryInfo_t."""

    _anonymous_ = ("versions",)
    _fields_ = [("version", c_uint32), ("versions", BinaryInfoUnion)]


class SerializationTarget(ctypes.Structure):
    """QnnSystemProfile_SerializationTarget_t, with its only kind, a file (1)."""

    _fields_ = [("type", c_uint32), ("fileName", c_char_p), ("fileDirectory", c_char_p)]


class SerializationHeader(ctypes.Structure):
    """QnnSystemProfile_SerializationFileHeader_t."""

    _fields_ = [("appName", c_char_p), ("appVersion", c_char_p), ("backendVersion", c_char_p)]


class SerializationConfigUnion(ctypes.Union):
    """The maximum number of messages (0), or the header that names the writer (1)."""

    _fields_ = [("maxNumMessages", c_uint32), ("serializationHeader", SerializationHeader)]


class SerializationConfig(ctypes.Structure):
    """QnnSystemProfile_SerializationTargetConfig_t."""

    _anonymous_ = ("value",)
    _fields_ = [("type", c_uint32), ("value", SerializationConfigUnion)]


class ProfileEventUnion(ctypes.Union):
    """An event (0), or an extended event with its time (1)."""

    _fields_ = [("eventData", EventData), ("extendedEventData", ExtendedEventData)]


class ProfileEvent(ctypes.Structure):
    """QnnSystemProfile_ProfileEventV1_t."""

    _anonymous_ = ("data",)
    _fields_ = [
        ("type", c_uint32),
        ("data", ProfileEventUnion),
        ("profileSubEventData", c_void_p),
        ("numSubEvents", c_uint32),
    ]


class ProfileHeader(ctypes.Structure):
    """QnnSystemProfile_HeaderV1_t: which call the profile is of."""

    _fields_ = [
        ("startTime", c_uint64),
        ("stopTime", c_uint64),
        ("startMem", c_uint64),
        ("stopMem", c_uint64),
        ("methodType", c_uint32),
        ("visibility", c_uint32),
        ("graphName", c_char_p),
    ]


class ProfileDataV1(ctypes.Structure):
    """QnnSystemProfile_ProfileDataV1_t."""

    _fields_ = [("header", ProfileHeader), ("profilingEvents", c_void_p), ("numProfilingEvents", c_uint32)]


class ProfileData(ctypes.Structure):
    """QnnSystemProfile_ProfileData_t."""

    _fields_ = [("version", c_uint32), ("v1", ProfileDataV1)]


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


class ModelGraphConfigInfo(ctypes.Structure):
    """GraphConfigInfo_t, as QnnModel_composeGraphs takes it."""

    _fields_ = [("graphName", c_char_p), ("graphConfigs", POINTER(POINTER(GraphConfig)))]


GRAPH_CONFIGS = POINTER(POINTER(GraphConfig))
"""A null-terminated list of a graph's configs."""


class DlcGraphConfigInfo(ctypes.Structure):
    """QnnSystemDlc_GraphConfigInfo_t."""

    _fields_ = [
        ("version", c_uint32),
        ("graphName", c_char_p),
        ("graphConfigs", GRAPH_CONFIGS),
        ("numGraphConfigs", c_uint32),
    ]
