"""Which arguments of QNN's functions are handles or configs, which calls make and free what, what must not be null."""

from __future__ import annotations

from typing import Any

from isthmus.cabi.declarations import BACKEND, CREATED, FREED, OPTIONAL, Parameter
from isthmus.cabi.tables import TYPES

_OBJECTS = ("backend", "context", "device", "graph", "log", "profile", "signal")
_KINDS = {
    **{f"Qnn_{kind.title()}Handle_t": kind for kind in _OBJECTS},
    "Qnn_MemHandle_t": "memory handle",
    "const char *": "message",
    "const QnnDevice_PlatformInfo_t *": "platform information",
}
"""What a client has handles of, by their types. A text or information on a device is one if it has to be freed."""


def _is_handle(parameter: Parameter) -> bool:
    return parameter.type in _KINDS and (not parameter.stars or parameter.mark == FREED)


HANDLES: dict[str, list[tuple[int, str, bool]]] = {}
"""By function: the place of an argument, what it is a handle of, and whether it may be null."""
CREATES: dict[str, list[tuple[int, str, int | None]]] = {}
"""By function: the place of the argument that says where a handle is put, what it is of, and what its owner's is."""
FREES: dict[str, list[tuple[int, str]]] = {}
"""By function: the place of an argument that is freed, and what it is a handle of."""
NEEDED: dict[str, list[int]] = {}
"""By function: the places of arguments that must not be null."""
CONFIGS: dict[str, tuple[int, Any]] = {}
"""By function: the place of a list of configs, which a null pointer must end, and what it lists."""

for _name, _parameters in BACKEND.items():
    for _index, _each in enumerate(_parameters or ()):
        if _is_handle(_each):
            HANDLES.setdefault(_name, []).append((_index, _KINDS[_each.type], _each.mark == OPTIONAL))
            if _each.mark == FREED:
                FREES.setdefault(_name, []).append((_index, _KINDS[_each.type]))
        elif _each.stars and _each.mark != OPTIONAL:
            NEEDED.setdefault(_name, []).append(_index)
        if _each.mark == CREATED:
            # A log owns nothing: what is created with it may outlive it.
            _owner = next((index for index, kind, _ in HANDLES.get(_name, ()) if kind != "log"), None)
            CREATES.setdefault(_name, []).append((_index, _KINDS[_each.type.removesuffix("*").rstrip()], _owner))
        if _each.base.endswith("_Config_t"):
            CONFIGS[_name] = (_index, TYPES[_each.base])
