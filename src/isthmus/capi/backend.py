"""QnnProperty_*, QnnBackend_*: backends, their capabilities and their operations."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus import qnn
from isthmus.cabi.client import pointer, text, write, write_number
from isthmus.cabi.objects import PROPERTY_GROUPS, BackendConfig, BackendOption, OperationName, PropertyAnswer
from isthmus.cabi.tables import CORE_VERSION
from isthmus.cabi.types import Version
from isthmus.capi import options
from isthmus.capi.functions import handle_type, serves
from isthmus.capi.values import ClientNode, ClientTensorInfo, node_at
from isthmus.errors import Code, QnnError
from isthmus.graph import Tensor, TensorType
from isthmus.graph.operation import QTI
from isthmus.graph.package import qualify
from isthmus.log import Log, LogLevel
from isthmus.version import build_id

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

handle_type("Qnn_BackendHandle_t", "backend", Code.BACKEND_INVALID_HANDLE)(qnn.Backend)

# The capability keys that every backend supports. Other keys of a known group are not supported.
_EVERYWHERE = {
    *(106, 107),  # platform options, composition
    *(202, 205, 206, 208, 210, 211, 212),  # binaries, configuration, graphs by name, several kinds of binaries
    221,  # the order of retention
    *(302, 304, 306, 308, 311, 313, 322),  # configuration, asynchronous, priorities, signals, execution, profiles
    *(509, 510, 511, 512, 513, 514),  # quantization: for a tensor, along an axis, both with fewer bits, in blocks
    *(1201, 1202, 1203),  # signals: abort, timeout
    *(1301, 1302),  # logs
    *(1401, 1404, 1405),  # profiles: number of events, extended events
    1501,  # devices
}
# The numbers among those of contexts that are no capabilities.
_UNKNOWN = {201, 203, 204, *range(223, 261)}
# How many keys a group of capabilities may have, from its first on (`PROPERTY_GROUPS`).
_GROUP_SIZE = 60


@serves("propertyHasCapability", expected=True)
def property_has_capability(server: LibraryServer, key: int) -> int:
    """Return whether the backend has a capability, or that there is no such capability."""
    if key in _EVERYWHERE or key in server.facet.capabilities:
        return PropertyAnswer.SUPPORTED
    is_defined = any(first <= key < first + _GROUP_SIZE for first in PROPERTY_GROUPS.values()) and key not in _UNKNOWN
    return PropertyAnswer.NOT_SUPPORTED if is_defined else PropertyAnswer.UNKNOWN_KEY


@serves("backendCreate", Code.BACKEND_INVALID_ARGUMENT, is_shielded=True)
def backend_create(server: LibraryServer, log: Log | None, configs: list[BackendConfig]) -> qnn.Backend:
    """Create a backend. Its config file is the platform option ``config_file_path:`` or an environment variable; custom
    configs take precedence over it.
    """
    server.log_again()
    config = os.environ.get(f"ISTHMUS_{server.backend_name.upper()}_CONFIG")
    custom: list[dict[Any, Any]] = []
    for backend_config in configs:
        if backend_config.option == BackendOption.PLATFORM:
            platform_option = text(pointer(backend_config, "platformOption"))
            if platform_option is None:
                raise QnnError(Code.BACKEND_INVALID_CONFIG, "backend", "its platform option is null")
            key, _, value = platform_option.partition(":")
            if key == "config_file_path":
                config = value
            else:
                server.log(LogLevel.INFO, f"platform option '{key}' has no effect here")
        elif backend_config.option == BackendOption.CUSTOM:
            custom.append(options.settings(server, "backend", backend_config.customConfig))
        elif backend_config.option != BackendOption.ERROR_REPORTING:
            raise QnnError(Code.BACKEND_INVALID_CONFIG, "backend", f"it has no config {backend_config.option}")
    try:
        settings = [each for each in (server.facet.config, config, *custom) if each]
        return qnn.Backend(server.backend_name, settings, log or server.own_log)
    except QnnError as problem:
        # What the backend refuses is the config file, not an argument of the client.
        if problem.code is Code.BACKEND_INVALID_ARGUMENT:
            raise QnnError(Code.BACKEND_CANNOT_INITIALIZE, problem.what, problem.rule, problem.hint) from None
        raise


@serves("backendSetConfig", Code.BACKEND_INVALID_ARGUMENT)
def backend_set_config(server: LibraryServer, backend: qnn.Backend, configs: list[BackendConfig]) -> None:
    """Check the configs. Only the error reporting level can be changed later, and it has no effect."""
    for config in configs:
        if config.option not in list(BackendOption):
            raise QnnError(Code.BACKEND_INVALID_CONFIG, "backend", f"it has no config {config.option}")
        if config.option != BackendOption.ERROR_REPORTING:
            rule = f"config {BackendOption(config.option).name} cannot be changed later"
            raise QnnError(Code.BACKEND_NOT_SUPPORTED, "backend", rule)


@serves("backendGetApiVersion", Code.BACKEND_INVALID_ARGUMENT)
def backend_get_api_version(server: LibraryServer, out: int) -> None:
    """Write the versions of the core API and of the backend's own interface."""
    write(out, (Version * 2)(Version(*CORE_VERSION), Version(*server.facet.version)))


@serves("backendGetBuildId", Code.BACKEND_INVALID_ARGUMENT)
def backend_get_build_id(server: LibraryServer, out: int) -> None:
    """Write the versions of the SDK and of this software, and the platform."""
    write_number(out, server.keep_text(build_id()))


@serves("backendRegisterOpPackage", Code.BACKEND_INVALID_ARGUMENT)
def backend_register_op_package(
    server: LibraryServer, backend: qnn.Backend, path: str, provider: str, target: str | None
) -> None:
    """Register an op package. A path without a folder is searched for like any library."""
    if "/" in path and not os.path.isfile(path):
        raise QnnError(Code.BACKEND_OP_PACKAGE_NOT_FOUND, f"op package '{path}'", "there is no such file")
    backend.register_op_package(path, provider, target)


@serves("backendGetSupportedOperations", Code.BACKEND_INVALID_ARGUMENT)
def backend_get_supported_operations(server: LibraryServer, backend: qnn.Backend, count: int, out: int) -> None:
    """Write the supported operations by package and name: those of QNN's own package first, as by its libraries."""
    definitions = backend.driver.definitions
    names = sorted(backend.get_supported_operations(), key=lambda name: definitions[name].package != QTI)
    packages = [definitions[name].package for name in names]

    def operations() -> ctypes.Array[OperationName]:
        return (OperationName * len(names))(
            *[
                OperationName(package.encode(), name.removeprefix(qualify(package, "")).encode(), None)
                for package, name in zip(packages, names, strict=True)
            ]
        )

    write_number(count, len(names), ctypes.c_uint32)
    write_number(out, server.keep_once(("operations", *names), operations))


@serves("backendValidateOpConfig", Code.BACKEND_INVALID_ARGUMENT, expected=True)
def backend_validate_op_config(server: LibraryServer, backend: qnn.Backend, config: int) -> None:
    """Refuse a node that a graph cannot take or the backend cannot execute."""
    try:
        node = node_at(config)
    except QnnError as problem:
        # The codes of tensors and graphs are for creating them; validation has a code of its own.
        code = Code.OP_PACKAGE_VALIDATION_FAILURE
        raise QnnError(code, problem.what, problem.rule, problem.hint) from None
    not_found = Code.BACKEND_OP_PACKAGE_NOT_FOUND
    node.check_package(backend.driver.definitions, not_found, not_found)
    node.check_param_types(Code.OP_PACKAGE_VALIDATION_FAILURE)
    node.check_floats(Code.OP_PACKAGE_VALIDATION_FAILURE)
    inputs, output_infos = list(node.inputs), list(node.outputs)
    if node.batch_first:
        inputs[0] = _with_time_first(inputs[0])
        output_infos[:1] = [_with_time_first(info) for info in output_infos[:1]]
    outputs = [_stand_in(info) for info in output_infos]
    try:
        _validate(backend, node, inputs, outputs)
    except QnnError as problem:
        # Further operands may be constants computed from constants by earlier nodes, which is not known here.
        computed = [_as_static(info) if index else info for index, info in enumerate(inputs)]
        if problem.code is not Code.OP_PACKAGE_VALIDATION_FAILURE or computed == inputs:
            raise
        _validate(backend, node, computed, outputs)


def _with_time_first(info: ClientTensorInfo) -> ClientTensorInfo:
    """Swap batch and time of a sequence, as two transposes will do around the node in the graph."""
    return replace(info, dims=(info.dims[1], info.dims[0], *info.dims[2:])) if len(info.dims) == 3 else info


def _validate(backend: qnn.Backend, node: ClientNode, inputs: list[ClientTensorInfo], outputs: list[Tensor]) -> None:
    """Refuse a node on these operands; an optional input that is left out is None."""
    tensors = [None if info.type is TensorType.NULL else _stand_in(info) for info in inputs]
    backend.validate_op_config(node.name, node.key, tensors, outputs, node.graph_params())


def _as_static(info: ClientTensorInfo) -> ClientTensorInfo:
    """Return the description with an intermediate tensor declared as a constant."""
    return replace(info, type=TensorType.STATIC) if info.type is TensorType.NATIVE else info


def _stand_in(info: ClientTensorInfo) -> Tensor:
    """Return a tensor that is in no graph, only to validate a node. A constant without contents gets zeros."""
    data = None
    if info.type is TensorType.STATIC:
        data = info.contents()
        if data is None:
            data = np.broadcast_to(np.zeros((), info.dtype.numpy), info.dims)
    return Tensor(info.name or "unnamed", info.type, info.dtype, info.dims, info.quantization, data)


@serves("backendFree", Code.BACKEND_INVALID_HANDLE)
def backend_free(server: LibraryServer, backend: qnn.Backend) -> None:
    """Free a backend and its contexts."""
    # The library's cached executions hold graphs and memory; these can be freed only without them.
    server.forget_executions()
    backend.free()
