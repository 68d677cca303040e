"""The roles of QNN's function arguments: handles, configs, what a call creates or frees, what must not be null."""

from __future__ import annotations

from typing import Any

from isthmus.cabi.declarations import BACKEND, CREATED, FREED, OPTIONAL, Parameter
from isthmus.cabi.tables import TYPES

_OBJECTS = ("backend", "context", "device", "graph", "log", "profile", "signal")
# The kinds of handles by C type. A text or device information counts as a handle if it must be freed.
_KINDS = {
    **{f"Qnn_{kind.title()}Handle_t": kind for kind in _OBJECTS},
    "Qnn_MemHandle_t": "memory handle",
    "const char *": "message",
    "const QnnDevice_PlatformInfo_t *": "platform information",
}


def _is_handle(parameter: Parameter) -> bool:
    """Return whether an argument is a handle that the client passes; a pointer to one is not, unless it is freed."""
    return parameter.type in _KINDS and (not parameter.stars or parameter.mark == FREED)


HANDLES: dict[str, list[tuple[int, str, bool]]] = {}
"""By function: the index of a handle argument, the handle's kind, and whether it may be null."""
CREATES: dict[str, list[tuple[int, str, int | None]]] = {}
"""By function: the index of the argument that a new handle is written to, its kind, and its owner's index."""
FREES: dict[str, list[tuple[int, str]]] = {}
"""By function: the index of an argument that is freed, and the kind of its handle."""
NEEDED: dict[str, list[int]] = {}
"""By function: the indices of arguments that must not be null."""
CONFIGS: dict[str, tuple[int, Any]] = {}
"""By function: the index of a null-terminated list of configs, and the type of its elements."""

# Fill the five tables from the declarations, which mark the arguments that are optional, created or freed.
for _name, _parameters in BACKEND.items():
    for _index, _each in enumerate(_parameters or ()):
        if _is_handle(_each):
            HANDLES.setdefault(_name, []).append((_index, _KINDS[_each.type], _each.mark == OPTIONAL))
            if _each.mark == FREED:
                FREES.setdefault(_name, []).append((_index, _KINDS[_each.type]))
        elif _each.stars and _each.mark != OPTIONAL:
            NEEDED.setdefault(_name, []).append(_index)
        if _each.mark == CREATED:
            # A log owns nothing: objects created with it may outlive it.
            _owner = next((index for index, kind, _ in HANDLES.get(_name, ()) if kind != "log"), None)
            CREATES.setdefault(_name, []).append((_index, _KINDS[_each.type.removesuffix("*").rstrip()], _owner))
        if _each.base.endswith("_Config_t"):
            CONFIGS[_name] = (_index, TYPES[_each.base])
