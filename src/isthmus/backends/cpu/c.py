"""The structures of QNN's CPU backend in C: what it shows to op packages (QnnCpuOpPackage.h)."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_uint32, c_uint64, c_void_p
from enum import IntEnum

from isthmus.cabi.types import QuantizeParams


class CpuParamType(IntEnum):
    """QNN_CPU_PARAMTYPE_*."""

    SCALAR = 0
    TENSOR = 1
    STRING = 2


class CpuTensor(ctypes.Structure):
    """QnnCpuOpPackage_Tensor_t."""

    _fields_ = [
        ("dataFormat", c_uint32),
        ("dataType", c_uint32),
        ("rank", c_uint32),
        ("maxDimensions", POINTER(c_uint32)),
        ("currentDimensions", POINTER(c_uint32)),
        ("data", c_void_p),
        ("quantizeParams", QuantizeParams),
    ]


class CpuParamValue(ctypes.Union):
    """A number, a text or a tensor."""

    _fields_ = [("scalarParam", c_double), ("string", c_char_p), ("tensorParam", POINTER(CpuTensor))]


class CpuParam(ctypes.Structure):
    """QnnCpuOpPackage_Param_t."""

    _anonymous_ = ("value",)
    _fields_ = [("type", c_uint32), ("name", c_char_p), ("value", CpuParamValue)]


class CpuNode(ctypes.Structure):
    """QnnCpuOpPackage_Node_t."""

    _fields_ = [
        ("name", c_char_p),
        ("packageName", c_char_p),
        ("typeName", c_char_p),
        ("numOfParams", c_uint32),
        ("params", POINTER(POINTER(CpuParam))),
        ("numOfInputs", c_uint32),
        ("inputs", POINTER(POINTER(CpuTensor))),
        ("numOfOutputs", c_uint32),
        ("outputs", POINTER(POINTER(CpuTensor))),
    ]


class CpuOpImpl(ctypes.Structure):
    """QnnCpuOpPackage_OpImpl_t."""

    _fields_ = [("opImplFn", c_void_p), ("userData", c_void_p)]


OP_IMPL_FUNCTION = ctypes.CFUNCTYPE(c_uint64, c_void_p)
"""QnnCpuOpPackage_OpImplFn_t."""
REPORT_INTEGERS, REPORT_DOUBLES = 4, 8
"""How many arguments of each kind `REPORT_FUNCTION` sees: those that x86-64 and arm64 pass in registers."""
REPORT_FUNCTION = ctypes.CFUNCTYPE(
    None, c_uint32, c_char_p, *[c_uint64] * REPORT_INTEGERS, *[c_double] * REPORT_DOUBLES
)
"""The function that a package reports messages by: a type, a format, and any arguments.

C passes variable arguments (``...``) in the registers in which a function with named arguments finds them. Registers of
arguments that are not given have any value.
"""
PROFILE_FUNCTION = ctypes.CFUNCTYPE(None, c_uint32, c_double)


class CpuGlobalInfrastructure(ctypes.Structure):
    """QnnCpuOpPackage_GlobalInfra_t."""

    _fields_ = [("reportMessage", REPORT_FUNCTION), ("profile", PROFILE_FUNCTION)]
