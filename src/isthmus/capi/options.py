"""Custom configs and properties: read from C clients, and written for them, as the backend declares.

A config for which the backend declares no reader is logged and has no effect.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from isthmus import qnn
from isthmus.backends.seam.facets import NamesContext
from isthmus.cabi.client import checked
from isthmus.cabi.objects import Property
from isthmus.capi.functions import serves
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

# The numbers of properties above this are this project's own.
_OWN = 20000
# The option of every property: QNN defines no property but the backend's own.
_CUSTOM = 0


def settings(server: LibraryServer, noun: str, custom: int | None) -> dict[Any, Any]:
    """Read a custom config, and return options with their values."""
    reader = server.facet.configs.get(noun)
    if reader is None:
        server.log_once(LogLevel.INFO, f"a custom config of a {noun}: it has no effect here")
        return {}
    values = reader(checked(custom), server.log_once)

    def find(number: int) -> qnn.Context | None:
        return next((each.handle for handle, each in server.handles.of_kind(_contexts()) if handle == number), None)

    return {option: each.resolved(find) if isinstance(each, NamesContext) else each for option, each in values.items()}


def _contexts() -> type[Any]:
    """Return the class of a client's contexts, whose module needs this one."""
    from isthmus.capi.context import ClientContext

    return ClientContext


def log_unused(server: LibraryServer, noun: str, kind: type[IntEnum], option: int, code: Code) -> None:
    """Log an option that has no effect here; refuse one that no object of this kind has."""
    if option not in list(kind):
        raise QnnError(code, noun, f"it has no config {option}")
    server.log_once(LogLevel.INFO, f"{noun} option {kind(option).name}: accepted, but without effect here")


@serves("backendGetProperty", Code.BACKEND_INVALID_ARGUMENT)
@serves("contextGetProperty", Code.CONTEXT_INVALID_ARGUMENT)
@serves("graphGetProperty", Code.GRAPH_INVALID_ARGUMENT)
def get_properties(server: LibraryServer, client_object: Any, properties: list[Property]) -> None:
    """Write custom properties of a backend, a context or a graph where the client wants them."""
    owner = client_object if isinstance(client_object, qnn.Backend) else client_object.handle
    for request in properties:
        _write_property(server, owner, request)


def _write_property(server: LibraryServer, owner: Any, request: Property) -> None:
    """Write what a client's request asks of a backend, a context or a graph."""
    # QNN's codes: for a property that is refused, for an unknown option, for an owner without custom properties.
    invalid, unknown, missing = {
        qnn.Backend: (Code.BACKEND_NOT_SUPPORTED,) * 3,
        qnn.Context: (Code.CONTEXT_INVALID_ARGUMENT, Code.COMMON_NOT_SUPPORTED, Code.COMMON_NOT_SUPPORTED),
    }.get(type(owner), (Code.GRAPH_INVALID_ARGUMENT, Code.GRAPH_INVALID_ARGUMENT, Code.COMMON_NOT_SUPPORTED))

    def refusal(rule: str) -> QnnError:
        return QnnError(invalid, owner.what, rule)

    if request.option != _CUSTOM:
        raise QnnError(unknown, owner.what, f"it has no property {request.option}")
    # Properties of this project's own are for Python.
    if server.facet.write_property is None or all(int(each) > _OWN for each in owner.driver.properties or ()):
        raise QnnError(missing, owner.what, "it has no custom properties")
    server.facet.write_property(owner.get_property, checked(request.customProperty), refusal)
