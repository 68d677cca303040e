"""QNN's interface of op packages: libraries of a client with operations of its own (QnnOpPackage.h)."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_size_t, c_uint32, c_uint64, c_void_p

from isthmus.cabi.types import OpConfig, Version

# QNN_OP_PACKAGE_RESERVED_INFO_SIZE.
_RESERVED = 12


class OpPackageInfo(ctypes.Structure):
    """QnnOpPackage_Info_t: the package's name and its operations."""

    _fields_ = [
        ("packageName", c_char_p),
        ("operationNames", POINTER(c_char_p)),
        ("operationInfo", c_void_p),
        ("numOperations", c_uint32),
        ("optimizations", c_void_p),
        ("numOptimizations", c_uint32),
        ("sdkBuildId", c_char_p),
        ("sdkApiVersion", c_void_p),
        ("packageInfo", c_void_p),
        ("opsetVersion", c_void_p),
        ("reserved", c_size_t * _RESERVED),
    ]


class OpPackageInterface(ctypes.Structure):
    """QnnOpPackage_Interface_t: the version, and as many functions as the longest version has."""

    _fields_ = [("interfaceVersion", Version), ("functions", c_void_p * 9)]


_HANDLE = (c_uint64,)
_VALIDATE = (OpConfig,)
_CREATE_IMPL = (c_void_p, c_void_p, POINTER(c_void_p))
_FREE_IMPL = (c_void_p,)
VERSIONS: dict[tuple[int, int], dict[str, tuple[type, ...]]] = {
    (1, 4): {
        "init": (c_void_p,),
        "terminate": (),
        "getInfo": (POINTER(c_void_p),),
        "validateOpConfig": _VALIDATE,
        "createOpImpl": _CREATE_IMPL,
        "freeOpImpl": _FREE_IMPL,
        "logInitialize": (c_void_p, c_uint32),
        "logSetLevel": (c_uint32,),
        "logTerminate": (),
    },
    (2, 0): {
        "create": (c_void_p, c_void_p, c_uint32, POINTER(c_uint64)),
        "getInfo": (POINTER(c_void_p),),
        "validateOpConfig": _HANDLE + _VALIDATE,
        "createOpImpl": _HANDLE + _CREATE_IMPL,
        "freeOpImpl": _HANDLE + _FREE_IMPL,
        "logSetLevel": (*_HANDLE, c_uint32),
        "free": _HANDLE,
    },
}
"""The functions of each version (major, minor) in their order, with the types of their arguments."""
