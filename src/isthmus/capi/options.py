"""Custom configs and properties: read from C clients, and written for them, as the backend declares.

A config for which the backend declares no reader is logged and has no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isthmus import qnn
from isthmus.cabi.client import checked
from isthmus.cabi.objects import Property
from isthmus.capi.functions import serves
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

_CUSTOM = 0
"""The option of every property: QNN defines no property but the backend's own."""


def settings(server: LibraryServer, noun: str, custom: int) -> dict[Any, Any]:
    """Read a custom config, and return options with their values.

    Parameters
    ----------
    noun
        The kind of object that it is for: "backend", "graph", "context" or "device".
    custom
        The address of the backend's structure.
    """
    reader = server.facet.configs.get(noun)
    if reader is None:
        server.log(LogLevel.INFO, f"a custom config of a {noun}: it has no effect here")
        return {}
    return reader(checked(custom), server.log)


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
    code = {qnn.Backend: Code.BACKEND_NOT_SUPPORTED, qnn.Context: Code.CONTEXT_INVALID_ARGUMENT}.get(
        type(owner), Code.GRAPH_INVALID_ARGUMENT
    )
    # QNN's own library has no code of its own for properties that it lacks, except for backends.
    missing = Code.BACKEND_NOT_SUPPORTED if isinstance(owner, qnn.Backend) else Code.COMMON_NOT_SUPPORTED
    unknown = missing if isinstance(owner, qnn.Context) else code

    def refusal(rule: str) -> QnnError:
        return QnnError(code, owner.what, rule)

    if request.option != _CUSTOM:
        raise QnnError(unknown, owner.what, f"it has no property {request.option}")
    if server.facet.write_property is None:
        raise QnnError(missing, owner.what, "it has no custom properties")
    server.facet.write_property(owner.get_property, checked(request.customProperty or 0), refusal)
