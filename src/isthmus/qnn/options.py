"""Options of properties and configs: identifying an option, and setting several at once, all or none.

An option is a number or a member of an enumeration. A number is looked up in the enumeration of the object being
queried; a member of another object's enumeration is refused, whatever its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from typing import Any

from isthmus.backends.seam.driver import Change, Configurable
from isthmus.errors import Code, QnnError
from isthmus.memory.integers import is_int

Settings = Iterable[tuple[Any, Any]]
"""Options with their values, as a client gives them."""


def option(value: Any, kind: type[IntEnum] | None, noun: str, what: str, code: Code) -> IntEnum:
    """Return the option of an object that a client means.

    - `value`: A member of `kind`, or its number.
    - `kind`: The object's properties or configs; None if it has none.
    """
    if isinstance(value, Enum) and (kind is None or not isinstance(value, kind)):
        name = f"{type(value).__module__.rpartition('.')[2]}.{type(value).__name__}.{value.name}"
        raise QnnError(code, what, f"{name} is no {noun} of it", _list_options(kind, noun))
    if not is_int(value):
        raise QnnError(code, what, f"option {value!r} is not a number")
    if kind is None or int(value) not in {int(each) for each in kind}:
        raise QnnError(code, what, f"it has no {noun} {int(value)}", _list_options(kind, noun))
    return kind(int(value))


def _list_options(kind: type[IntEnum] | None, noun: str) -> str:
    """Return a sentence that lists the known options, for messages."""
    if kind is None:
        return ""
    return f"As a {noun} it has {', '.join(f'{each.name} {int(each)}' for each in kind)}."


def ask(target: Configurable, value: Any, what: str, code: Code) -> Any:
    """Return the value of a property or config of `target`, which messages call `what`.

    A plain number means a property. A config is read by its member, since the two enumerations share numbers.
    """
    if target.configs is not None and isinstance(value, target.configs):
        return target.get_config(value)
    return target.get_property(option(value, target.properties, "property", what, code))


def pairs(settings: Any, value: Any, what: str, code: Code) -> list[tuple[Any, Any]]:
    """Return the settings of one call: an option and its value, or a mapping of several."""
    if isinstance(settings, Mapping):
        return list(settings.items())
    if settings is None:
        raise QnnError(code, what, "no option is given")
    return [(settings, value)]


def set_all(target: Configurable, settings: Settings, what: str, code: Code) -> Change:
    """Set custom configs: all or none."""
    return together(
        lambda key=key, value=value: target.set_config(option(key, target.configs, "config", what, code), value)
        for key, value in settings
    )


def together(setters: Iterable[Any]) -> Change:
    """Make several changes; if one is refused, undo those before it.

    - `setters`: Functions without arguments; each sets a config and returns its `Change`.
    """
    done: list[Change] = []
    try:
        for setter in setters:
            done.append(setter())
    except Exception:
        for change in reversed(done):
            change.undo()
        raise

    def keep() -> None:
        for change in done:
            change.keep()

    return Change(keep)
