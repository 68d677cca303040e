"""Options of properties and configs: identifying an option, and setting several at once, all or none.

An option is a number or a member of an enumeration. A number is looked up in the enumeration of the object being
queried; a member of another object's enumeration is refused, whatever its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from typing import Any, TypeVar

from isthmus.backends.seam.driver import Change, Configurable
from isthmus.errors import Code, QnnError
from isthmus.memory.integers import is_int

_Member = TypeVar("_Member", bound=IntEnum)
Settings = Iterable[tuple[Any, Any]]


def member(value: Any, kind: type[_Member], what: str, code: Code = Code.COMMON_INVALID_ARGUMENT) -> _Member:
    """Return a member of an enumeration, given as itself or as its number."""
    if isinstance(value, kind):
        return value
    if is_int(value) and not isinstance(value, Enum) and value in {int(each) for each in kind}:
        return kind(int(value))
    known = ", ".join(f"{each.name} {int(each)}" for each in kind)
    raise QnnError(code, f"{what} {value!r}", f"must be one of {known}")


def option(value: Any, kind: type[IntEnum] | None, noun: str, what: str, code: Code) -> IntEnum:
    """Return the option of `what` that a client means; `noun` is "property" or "config"."""
    if isinstance(value, Enum) and (kind is None or not isinstance(value, kind)):
        name = f"{type(value).__module__.rpartition('.')[2]}.{type(value).__name__}.{value.name}"
        raise QnnError(code, what, f"{name} is no {noun} of it", _known(kind, noun))
    if not is_int(value):
        raise QnnError(code, what, f"option {value!r} is not a number")
    if kind is None or int(value) not in {int(each) for each in kind}:
        raise QnnError(code, what, f"it has no {noun} {int(value)}", _known(kind, noun))
    return kind(int(value))


def _known(kind: type[IntEnum] | None, noun: str) -> str:
    if kind is None:
        return ""
    return f"As a {noun} it has {', '.join(f'{each.name} {int(each)}' for each in kind)}."


def ask(target: Configurable, value: Any, what: str, code: Code) -> Any:
    """Return the value of a property; whatever can be set as a config can also be read."""
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
    """Make several changes; if one is refused, undo those before it."""
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
