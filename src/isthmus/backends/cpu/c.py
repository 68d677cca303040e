"""The structures of QNN's CPU backend in C: what it shows to op packages (QnnCpuOpPackage.h)."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from pathlib import Path

from isthmus.backends.cpu import BACKEND_ID, INTERFACE_VERSION
from isthmus.backends.seam.facets import CFacet
from isthmus.cabi import types  # noqa: F401 - it declares encodings for Python
from isthmus.cabi.notation import CStructure, declare_headers


class CpuParamType(IntEnum):
    """QNN_CPU_PARAMTYPE_*."""

    SCALAR = 0
    TENSOR = 1
    STRING = 2


HEADERS = declare_headers(Path(__file__).parent, {"CpuParamType": CpuParamType}, plain_pointers=False)


class CpuTensor(CStructure, declares="QnnCpuOpPackage_Tensor_t"):
    """QnnCpuOpPackage_Tensor_t."""


class CpuParam(CStructure, declares="QnnCpuOpPackage_Param_t"):
    """QnnCpuOpPackage_Param_t."""


class CpuNode(CStructure, declares="QnnCpuOpPackage_Node_t"):
    """QnnCpuOpPackage_Node_t."""


class CpuOpImpl(CStructure, declares="QnnCpuOpPackage_OpImpl_t"):
    """QnnCpuOpPackage_OpImpl_t."""


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


# Capabilities of op packages: registration, validation, implementations.
FACET = CFacet(BACKEND_ID, INTERFACE_VERSION, capabilities=frozenset((105, 402, 403)), headers=HEADERS)
