"""Configurations of backends: files, dictionaries or lists of them become checked settings, by a table of keys.

Every error names the file, the key and the allowed values. The tools' own file, which refers to the backend's
(`backend_extensions`, `context_configs`, `graph_configs`), is accepted for every backend.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from isthmus.backends.seam.loading import Loading
from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.log import Log, LogLevel
from isthmus.memory.integers import is_int
from isthmus.prepare.tiling import parse_size
from isthmus.system import reading

Source = str | os.PathLike[str] | Mapping[str, Any]
PERF_PROFILES = (
    "extreme_power_saver", "low_power_saver", "power_saver", "high_power_saver", "low_balanced", "balanced", "default",
    "high_performance", "sustained_high_performance", "burst", "system_settings",
)  # fmt: skip
"""The performance profiles of QNN's tools and of HTP's file."""
MAX_BYTES = 1 << 20
"""The largest file that is accepted as a configuration."""
# The longest text that a message quotes.
_MAX_QUOTED = 240

Check = Callable[[Any], Any]
"""Turns a value of a configuration into a setting, or raises `ConfigError`."""


class ConfigError(Exception):
    """An error in a value. Its text is the part of a sentence that follows the name of the key."""


@dataclass(frozen=True)
class Key:
    """A key that holds a value.

    - `setting`: The name of the value in `Settings.values`.
    - `check`: Checks and converts the value.
    - `effective`: Whether the value has an effect here. If not, it is checked, and its key is added to
      `Settings.unused`.
    - `allowed`: The allowed values in words, for a check that accepts others too. Any other check states them in its
      refusal.
    - `reason`: Why the value has no effect, or on which backend it has one.
    """

    setting: str
    check: Check
    effective: bool = True
    allowed: str = ""
    reason: str = ""


def unused(check: Check, reason: str = "") -> Key:
    """Make a key whose value is checked but has no effect here, for this reason."""
    return Key("", check, effective=False, reason=reason)


def without_effect(option: str, reason: str) -> str:
    """Return the message about an option that has no effect here; the reason may be empty."""
    return f"{option}: accepted, but without effect here" + f": {reason}" * bool(reason)


def setting(default: Any, check: Check, key: str = "", group: str = "") -> Any:
    """Make a field of a dataclass that is a setting of configurations too.

    - `key`: The key in configurations; by default the name of the field.
    - `group`: Distinguishes the fields of one dataclass whose keys are in different objects of a configuration.
    """
    return field(default=default, metadata={"key": key, "check": check, "group": group})


def keys_of(kind: type, group: str = "") -> dict[str, Key]:
    """Return the keys of a dataclass's settings, or of a group of them."""
    own = [each for each in fields(kind) if each.metadata.get("group") == group]
    return {each.metadata["key"] or each.name: Key(each.name, each.metadata["check"]) for each in own}


@dataclass(frozen=True)
class Objects:
    """A key that holds a list of objects, each with the keys of a table. One object may stand for a list of one.

    - `setting`: The name, in `Settings.values`, of a tuple with the settings of each object.
    """

    setting: str
    table: Table


Table = Mapping[str, Any]
"""The keys of an object: a `Key` for each value, `Objects` for each list of objects, a table for each object."""


@dataclass(frozen=True)
class Settings:
    """The settings of configurations.

    - `values`: The settings that are given, by name.
    - `source`: Where they come from, for messages.
    - `unused`: A sentence for each key that is given and has no effect here: the keys that lead to it, where it is
      given, its value and the reason.
    """

    values: Mapping[str, Any]
    source: str
    unused: tuple[str, ...] = ()

    def log_unused(self, log: Log, level: LogLevel = LogLevel.INFO) -> None:
        """Log each key without effect, once."""
        for key in self.unused:
            log(level, key)

    def only(self, *names: str) -> dict[str, Any]:
        """Return those of the named settings that are given."""
        return {name: self.values[name] for name in names if name in self.values}

    def of(self, kind: type) -> dict[str, Any]:
        """Return the settings that are given for the fields of a dataclass."""
        return self.only(*(each.name for each in fields(kind)))


@dataclass(frozen=True)
class _Location:
    """A location in a configuration, for messages and for resolving relative paths.

    - `folder`: The folder of the file, which relative paths in it start from.
    - `keys`: The keys from the top of the file down to this location.
    """

    source: str
    folder: Path = Path()
    keys: tuple[str, ...] = ()
    files: frozenset[tuple[int, int]] = frozenset()
    """This file and those that led to it, by device and inode: a path has many spellings."""

    def key(self, name: str) -> _Location:
        """Return the location of a key in the object at this location."""
        return replace(self, keys=(*self.keys, name))

    def refuse(self, rule: str, hint: str = "") -> QnnError:
        """Return the error for this location."""
        where = f", key '{_shorten('.'.join(self.keys))}'" if self.keys else ""
        return QnnError(Code.BACKEND_INVALID_CONFIG, f"{self.source}{where}", rule, hint)


def settings(config: Source | Sequence[Source] | None, table: Table, what: str = "configuration") -> Settings:
    """Check and merge configurations by a table of keys; later ones override earlier ones.

    - `config`: A path or a dictionary, or several of them.
    - `table`: The allowed keys, without those of the tools' own file, which are always allowed.

    >>> table = {"htp": {"units": Key("units", number(0, 64))}}
    >>> settings([{"htp": {"units": 2}}, {"htp": {"units": 4}}], table).values
    {'units': 4}
    """
    sources: Sequence[Any]
    if config is None:
        sources = ()
    elif isinstance(config, Sequence) and not isinstance(config, (str, bytes, bytearray, memoryview)):
        sources = config
    else:
        sources = (config,)
    values: dict[str, Any] = {}
    complete = {**table, **TOOL_KEYS}
    names = []
    # A dictionary for its order and because a key may occur in several objects of a list.
    without_effect: dict[str, None] = {}
    for source in sources:
        if isinstance(source, Mapping):
            location, content = _Location(what), source
        elif isinstance(source, (str, os.PathLike)):
            location, content = _file(Path(source), _Location(what))
        else:
            raise _Location(what).refuse(f"a {type(source).__name__} is neither a path nor a dictionary")
        _Reader(complete, without_effect).read(location, content, complete, values)
        names.append(location.source)
    return Settings(values, " and ".join(names) or what, tuple(without_effect))


# -- files -------------------------------------------------------------------------------------------------------------


def _file(path: Path, referrer: _Location) -> tuple[_Location, Mapping[str, Any]]:
    """Read a file and return its location and content; `referrer` is the location that names its path."""
    name = f"configuration file '{_shorten(str(path))}'"

    def refuse(rule: str, hint: str = "") -> QnnError:
        if referrer.keys:
            return referrer.refuse(f"leads to {name}: {rule}", hint)
        return _Location(name).refuse(rule, hint)

    try:
        with reading.open_file(path) as stream:
            status = os.fstat(stream.fileno())
            identity = status.st_dev, status.st_ino
            if identity in referrer.files:
                raise refuse("it leads back to itself")
            content = stream.read(MAX_BYTES + 1)
    except OSError as problem:
        raise refuse(f"it cannot be read: {problem.strerror}", reading.nearest_file(path)) from None
    if len(content) > MAX_BYTES:
        raise refuse(f"it is larger than {MAX_BYTES} bytes, as no configuration is")
    location = _Location(name, path.parent, files=referrer.files | {identity})
    return location, _parse(location, content)


def _parse(location: _Location, content: bytes) -> Mapping[str, Any]:
    """Parse the bytes of a file as one JSON object, without repeated keys."""
    try:
        text = content.decode("utf-8")
    except ValueError as problem:
        raise location.refuse(f"it cannot be read: {problem}") from None
    if text.startswith("\ufeff"):
        raise location.refuse("it is not valid JSON: it begins with a byte order mark")
    try:
        parsed = json.loads(text, object_pairs_hook=lambda pairs: _without_repeats(location, pairs))
    except json.JSONDecodeError as problem:
        rule = f"it is not valid JSON: {problem.msg} at line {problem.lineno}, column {problem.colno}"
        raise location.refuse(rule) from None
    except ValueError:
        raise location.refuse("it is not valid JSON: a number has too many digits") from None
    except RecursionError:
        raise location.refuse("it is not valid JSON: it is nested too deeply") from None
    if not isinstance(parsed, Mapping):
        raise location.refuse(f"it must hold an object, holds {_kind(parsed)}")
    return parsed


def _without_repeats(location: _Location, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of a JSON file; refuse a repeated key, of which Python would keep only the last value."""
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        raise location.key(next(n for n in names if names.count(n) > 1)).refuse("it is given twice in one object")
    return content


# -- keys --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reader:
    """Reads the objects of configurations.

    - `top`: The keys that are allowed at the top of a file, for files that a key refers to.
    - `unused`: Collects the keys without effect.
    """

    top: Table
    unused: dict[str, None]

    def read(self, location: _Location, content: Any, table: Table, values: dict[str, Any]) -> None:
        """Check the object at a location and all objects inside it, and add their settings to `values`.

        `table` are the keys that are allowed in it.
        """
        if not isinstance(content, Mapping):
            raise location.refuse(f"must be an object with any of {', '.join(table)}, is {shown(content)}")
        for name, value in content.items():
            inner = location.key(str(name))
            entry = table.get(name)
            if entry is None:
                hint = did_you_mean(name, table)
                raise inner.refuse(f"there is no such key; known are {', '.join(table)}", hint)
            if isinstance(entry, Key):
                self._value(inner, value, entry, values)
            elif isinstance(entry, Objects):
                values[entry.setting] = self._objects(inner, value, entry.table)
            else:
                self.read(inner, value, entry, values)

    def _objects(self, location: _Location, content: Any, table: Table) -> tuple[dict[str, Any], ...]:
        """Check the objects of a list, or a single object, and return the settings of each."""
        found: list[dict[str, Any]] = []
        for each in content if isinstance(content, (list, tuple)) else (content,):
            found.append({})
            self.read(location, each, table, found[-1])
        return tuple(found)

    def _value(self, location: _Location, value: Any, key: Key, values: dict[str, Any]) -> None:
        """Check a value and add its setting, or follow it to the file that it names."""
        try:
            checked = key.check(value)
        except ConfigError as refusal:
            raise location.refuse(str(refusal)) from None
        if key is _FOLLOW:
            self._follow(location, checked, values)
        elif key.effective:
            values[key.setting] = checked
        else:
            given = f"{location.source}, key '{'.'.join(location.keys)}' = {shown(value)}"
            self.unused[without_effect(given, key.reason)] = None

    def _follow(self, location: _Location, name: str, values: dict[str, Any]) -> None:
        """Read the backend's own file; its path may be relative to the file that names it, or to the working folder."""
        beside = location.folder / name
        self.read(*_file(beside if os.path.lexists(beside) else Path(name), location), self.top, values)


# -- values ------------------------------------------------------------------------------------------------------------


def must_be(allowed: str, accepts: Callable[[Any], Any], convert: Callable[[Any], Any] = lambda value: value) -> Check:
    """Make a check that takes and converts the values that `accepts` is true of; `allowed` describes them in words."""

    def check(value: Any) -> Any:
        if not accepts(value):
            raise ConfigError(f"must be {allowed}, is {shown(value)}")
        return convert(value)

    return check


def check_by(make: Callable[[Any], Any]) -> Check:
    """Make a check of a function that refuses values by a `QnnError`."""

    def check(value: Any) -> Any:
        try:
            return make(value)
        except QnnError as problem:
            raise ConfigError(f"{problem.rule}, is {shown(value)}") from None

    return check


def choice(values: Mapping[str, Any]) -> Check:
    """Make a check for one of some words, and map it to its value."""
    words = ", ".join(map(repr, values))
    return must_be(f"one of {words}", lambda value: isinstance(value, str) and value in values, values.__getitem__)


def word(*words: str) -> Check:
    """Make a check for one of some words."""
    return choice({each: each for each in words})


def number(least: int, most: int) -> Check:
    """Make a check for an integer within limits."""
    return must_be(f"an integer from {least} to {most}", lambda value: is_int(value) and least <= value <= most, int)


def byte_size(most: int) -> Check:
    """Make a check for a size in memory from 1 byte up: a number of bytes, or a text with a unit such as "64KiB"."""

    def size(value: Any) -> Any:
        return parse_size(value) if isinstance(value, str) else value

    allowed = f"a size such as 65536 or '64KiB', 1 to {most} bytes"
    return must_be(allowed, lambda value: is_int(size(value)) and 1 <= size(value) <= most, lambda v: int(size(v)))


def power_of_two(most: int) -> Check:
    """Make a check for a power of two up to a limit."""
    allowed = f"a power of two from 1 to {most}"
    return must_be(allowed, lambda value: is_int(value) and 1 <= value <= most and not value & (value - 1), int)


truth = must_be("true or false", lambda value: isinstance(value, bool))
flag = must_be("true or false, or 1 or 0", lambda value: isinstance(value, int) and value in (0, 1), bool)
"""Like `truth`, but 1 and 0 are accepted too: QNN's documents write them for some keys."""
text = must_be("a text", lambda value: isinstance(value, str))
file_name = must_be("a path", lambda value: isinstance(value, str) and value)


def list_of(check: Check, what: str) -> Check:
    """Make a check for a list whose items pass a check; `what` names the items in the error."""

    def check_all(value: Any) -> tuple[Any, ...]:
        try:
            if not isinstance(value, (list, tuple)):
                raise ConfigError("not a list")
            return tuple(check(item) for item in value)
        except ConfigError:
            raise ConfigError(f"must be a list of {what}, is {shown(value)}") from None

    return check_all


# The key whose value is not a setting but the path of another file, which is read when it occurs.
_FOLLOW = Key("config_file_path", file_name)
_MAX_WORD = (1 << 64) - 1
DEFAULT_PRIORITY = 100
MAX_QUEUE_DEPTH = 300
"""How many asynchronous executions of a context may wait at most."""
_PRIORITY = choice({"low": 0, "normal": DEFAULT_PRIORITY, "normal_high": 150, "high": 200})
TOOL_KEYS: Table = {
    "backend_extensions": {"shared_library_path": Key("shared_library_path", file_name), "config_file_path": _FOLLOW},
    "context_configs": {
        "is_persistent_binary": Key("is_persistent_binary", truth),
        "context_priority": Key("context_priority", _PRIORITY),
        "async_execute_queue_depth": Key("async_execute_queue_depth", number(0, MAX_QUEUE_DEPTH)),
        "enable_graphs": Key("enable_graphs", list_of(text, "names")),
        "graph_retention_order": Key("graph_retention_order", list_of(text, "names")),
        "memory_limit_hint": Key("memory_limit_hint", number(0, _MAX_WORD)),
        "cache_compatibility_mode": Key(
            "strict", choice({"permissive": False, "strict": True}), reason="binaries of `htp` may be refused"
        ),
        "spill_fill_buffer": unused(number(0, _MAX_WORD), "tools leave the buffer to the backend"),
        "weights_buffer": unused(number(0, _MAX_WORD), "tools leave the buffer to the backend"),
    },
    "graph_configs": Objects(
        "graph_configs",
        {"graph_name": Key("graph_name", text), "graph_priority": Key("graph_priority", _PRIORITY)},
    ),
}
"""The keys of the tools' own file."""


@dataclass(frozen=True)
class ContextSettings:
    """What the tools' own file says of contexts, for every backend that has a configuration.

    - `priority`: The priority of graphs (QNN_PRIORITY_*).
    - `graph_priorities`: Those of graphs that have another one, by name.
    - `enabled`: The graphs of a context binary that are loaded; None for all.
    - `queue_depth`: How many asynchronous executions of a context may wait or run; 0 for the default.
    - `loading`: How the graphs of a context binary are loaded.
    - `strict`: Whether a context binary that does not make full use of the device is refused.
    """

    priority: int = DEFAULT_PRIORITY
    graph_priorities: Mapping[str, int] = field(default_factory=dict)
    enabled: tuple[str, ...] | None = None
    queue_depth: int = 0
    loading: Loading = field(default_factory=Loading)
    strict: bool = False

    @classmethod
    def of(cls, given: Settings) -> ContextSettings:
        """Return those of a configuration."""
        graphs = given.values.get("graph_configs", ())
        priorities = {each["graph_name"]: each["graph_priority"] for each in graphs if {*_NAMED} <= each.keys()}
        return cls(
            given.values.get("context_priority", DEFAULT_PRIORITY), priorities, given.values.get("enable_graphs"),
            given.values.get("async_execute_queue_depth", 0),
            Loading(
                given.values.get("is_persistent_binary", False), given.values.get("memory_limit_hint", 0),
                given.values.get("graph_retention_order", ()),
            ),
            given.values.get("strict", False),
        )  # fmt: skip

    def priority_of(self, graph: str) -> int:
        """Return the priority of a graph."""
        return self.graph_priorities.get(graph, self.priority)


_NAMED = ("graph_name", "graph_priority")


def shown(value: Any) -> str:
    """Format a value for messages, shortened."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"a number of {value.bit_length()} bits"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return _shorten(text)


def _shorten(text: str) -> str:
    """Cut a text for a message, so that no input makes a message arbitrarily long."""
    return text if len(text) <= _MAX_QUOTED else f"{text[: _MAX_QUOTED - 3]}..."


def _kind(value: Any) -> str:
    """Name the type of a parsed JSON value that is not an object."""
    return {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}.get(type(value), "a number")
