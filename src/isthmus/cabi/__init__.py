"""Declarations of QNN's C interface: functions, structures, numbers, for code that implements or calls QNN.

`declarations` has the functions, ``headers.txt`` the structures and numbers of QNN's headers, in the notation that
`notation` reads and prints as C. Of their structures, `types` has tensors and operations, `objects` configurations and
descriptors, `system` those of the system library and of model libraries; `tables` has the tables of functions.
`client` reads and writes the client's memory, `tensors` its tensors; `writer` writes composed graphs for a library. The
structures of single backends are in their packages, declared by `layout` for C and Python at once; `other_backends` has
those of backends that execute nothing here.
"""

from isthmus.cabi import objects, system, tables, types
from isthmus.cabi.tables import (
    ARGUMENTS,
    BACKEND_FUNCTIONS,
    CORE_VERSION,
    LOG_CALLBACK,
    SYSTEM_FUNCTIONS,
    SYSTEM_VERSION,
    ComposingTable,
    FunctionTable,
    Interface,
    SystemFunctionTable,
    SystemInterface,
    function,
    providers,
    system_providers,
)
from isthmus.cabi.types import OpConfig, Param, QuantizeParams, Scalar, Tensor, Version

__all__ = [
    "ARGUMENTS",
    "BACKEND_FUNCTIONS",
    "CORE_VERSION",
    "LOG_CALLBACK",
    "SYSTEM_FUNCTIONS",
    "SYSTEM_VERSION",
    "ComposingTable",
    "FunctionTable",
    "Interface",
    "OpConfig",
    "Param",
    "QuantizeParams",
    "Scalar",
    "SystemFunctionTable",
    "SystemInterface",
    "Tensor",
    "Version",
    "function",
    "objects",
    "providers",
    "system",
    "system_providers",
    "tables",
    "types",
]
