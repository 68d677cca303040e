"""LPAI's configuration: a file, a dictionary or several of them become one checked `LpaiConfig`.

Every refusal names the file, the key and the allowed values. The tool-level file that points to the backend's own
(`backend_extensions`, `context_configs`) is understood too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.backends.lpai_options import (
    UINT32_MAX,
    Affinity,
    BufferAlignmentReq,
    ClientType,
    CoreAffinity,
    MemType,
    PerfCfg,
    Prepare,
)
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel

Source = str | os.PathLike[str] | Mapping[str, Any]

HARDWARE = {
    "v4": BufferAlignmentReq(64, 8),
    "v5": BufferAlignmentReq(64, 64),
    "v6": BufferAlignmentReq(128, 128),
}
"""Alignment by hardware version. The true values are not public: these are this project's, and settings."""

DEFAULT_HARDWARE = "v6"
TARGET_ENVIRONMENTS = ("x86", "arm", "adsp")
MEM_TYPES = {"ddr": MemType.DDR, "tcm": MemType.TCM}
_MAX_ALIGNMENT = 1 << 16


@dataclass(frozen=True)
class LpaiConfig:
    """What a configuration says, complete.

    Parameters
    ----------
    target_env
        Where the model runs: "x86" (simulation), "arm" or "adsp" (direct mode).
    hw_ver
        The hardware version whose alignment holds.
    alignment
        What pools and IO must be aligned to.
    mem_type
        Where IO buffers and the model binary lie; UNDEFINED if the configuration named an unknown type.
    is_persistent_binary
        Whether the client promises to keep a context binary's buffer until its context is freed.
    source
        Where it comes from, for messages.
    """

    target_env: str = "x86"
    hw_ver: str = DEFAULT_HARDWARE
    alignment: BufferAlignmentReq = HARDWARE[DEFAULT_HARDWARE]
    prepare: Prepare = field(default_factory=Prepare)
    performance: PerfCfg = field(default_factory=PerfCfg)
    affinity: CoreAffinity = field(default_factory=CoreAffinity)
    mem_type: MemType = MemType.DDR
    is_persistent_binary: bool = False
    source: str = "configuration"


class _Refused(Exception):
    """What is wrong with a value, as a sentence part."""


@dataclass
class _Site:
    """A place in a configuration, for messages."""

    source: str
    folder: Path = Path()
    keys: tuple[str, ...] = ()

    def key(self, name: str) -> _Site:
        return _Site(self.source, self.folder, (*self.keys, name))

    def refuse(self, rule: str, hint: str = "") -> QnnError:
        where = f", key '{'.'.join(self.keys)}'" if self.keys else ""
        return QnnError(Code.BACKEND_INVALID_CONFIG, f"{self.source}{where}", rule, hint)


def read(config: Source | Sequence[Source] | None, log: Log) -> LpaiConfig:
    """Check and merge configurations; of several, a later one has the last word.

    Examples
    --------
    >>> read({"lpai_graph": {"execute": {"fps": 30}}}, Log()).performance.fps
    30
    """
    sources: Sequence[Any]
    if config is None:
        sources = ()
    elif isinstance(config, (str, os.PathLike, Mapping)):
        sources = (config,)
    elif isinstance(config, Sequence):
        sources = config
    else:
        rule = f"a {type(config).__name__} is neither a path nor a dictionary"
        raise QnnError(Code.BACKEND_INVALID_CONFIG, "configuration", rule)
    settings: dict[str, Any] = {}
    names = []
    for source in sources:
        site, content = _content(source)
        _walk(site, content, _TOP, settings, log)
        names.append(site.source)
    return _complete(settings, " and ".join(names) or "configuration")


def _content(source: Source) -> tuple[_Site, Mapping[str, Any]]:
    if isinstance(source, Mapping):
        return _Site("configuration"), source
    try:
        path = Path(source)
    except TypeError:
        rule = f"a {type(source).__name__} is neither a path nor a dictionary"
        raise QnnError(Code.BACKEND_INVALID_CONFIG, "configuration", rule) from None
    site = _Site(f"configuration file '{path}'", path.parent)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise site.refuse(f"it cannot be read: {getattr(problem, 'strerror', None) or problem}") from None
    try:
        content = json.loads(text, object_pairs_hook=lambda pairs: _without_repeats(site, pairs))
    except json.JSONDecodeError as problem:
        rule = f"it is not valid JSON: {problem.msg} at line {problem.lineno}, column {problem.colno}"
        raise site.refuse(rule) from None
    except RecursionError:
        raise site.refuse("it is not valid JSON: it is nested too deeply") from None
    if not isinstance(content, Mapping):
        raise site.refuse(f"it must hold an object, holds {_kind(content)}")
    return site, content


def _without_repeats(site: _Site, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        raise site.key(next(n for n in names if names.count(n) > 1)).refuse("it is given twice in one object")
    return content


# A check turns a JSON value into what `LpaiConfig` holds, or raises `_Refused`.
_Check = Callable[[Any], Any]


def _choice(values: Mapping[str, Any]) -> _Check:
    def check(value: Any) -> Any:
        if not isinstance(value, str) or value not in values:
            raise _Refused(f"must be one of {', '.join(map(repr, values))}, is {_shown(value)}")
        return values[value]

    return check


def _number(least: int) -> _Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= UINT32_MAX:
            raise _Refused(f"must be a whole number from {least} to {UINT32_MAX}, is {_shown(value)}")
        return value

    return check


def _power_of_two(value: Any) -> int:
    number = isinstance(value, int) and not isinstance(value, bool)
    if not number or not 1 <= value <= _MAX_ALIGNMENT or value & (value - 1):
        raise _Refused(f"must be a power of two from 1 to {_MAX_ALIGNMENT}, is {_shown(value)}")
    return int(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Refused(f"must be true or false, is {_shown(value)}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _Refused(f"must be a path, is {_shown(value)}")
    return value


def _core(value: Any) -> int:
    mask = _number(0)(value)
    if mask & (mask - 1):
        raise _Refused(f"must select one core (one bit set) or none, is {value:#x}")
    return int(mask)


@dataclass(frozen=True)
class _Key:
    """A key that holds a value: how it is checked, and which setting it is."""

    setting: str
    check: _Check


_BACKEND: Mapping[str, Any] = {
    "target_env": _Key("target_env", _choice({name: name for name in TARGET_ENVIRONMENTS})),
    "enable_hw_ver": _Key("hw_ver", _choice({name: name for name in HARDWARE})),
    "start_addr_alignment": _Key("start_addr_alignment", _power_of_two),
    "size_alignment": _Key("size_alignment", _power_of_two),
}
_PREPARE: Mapping[str, Any] = {
    "enable_batchnorm_fold": _Key("enable_batchnorm_fold", _truth),
    "exclude_io": _Key("exclude_io", _truth),
}
_EXECUTE: Mapping[str, Any] = {
    "fps": _Key("fps", _number(1)),
    "ftrt_ratio": _Key("ftrt_ratio", _number(0)),
    "client_type": _Key(
        "client_type", _choice({"real_time": ClientType.REAL_TIME, "non_real_time": ClientType.NON_REAL_TIME})
    ),
    "affinity": _Key("affinity", _choice({"soft": Affinity.SOFT, "hard": Affinity.HARD})),
    "core_selection": _Key("core_selection", _core),
    "mem_type": _Key("mem_type", lambda value: value),
}
_TOP: Mapping[str, Any] = {
    "lpai_backend": _BACKEND,
    "lpai_graph": {"prepare": _PREPARE, "execute": _EXECUTE},
    "backend_extensions": {
        "shared_library_path": _Key("shared_library_path", _text),
        "config_file_path": _Key("config_file_path", _text),
    },
    "context_configs": {"is_persistent_binary": _Key("is_persistent_binary", _truth)},
}


def _walk(site: _Site, content: Any, known: Mapping[str, Any], settings: dict[str, Any], log: Log) -> None:
    if not isinstance(content, Mapping):
        raise site.refuse(f"must be an object with any of {', '.join(known)}, is {_shown(content)}")
    for name, value in content.items():
        here = site.key(str(name))
        entry = known.get(name)
        if entry is None:
            raise here.refuse(f"there is no such key; known are {', '.join(known)}")
        if not isinstance(entry, _Key):
            _walk(here, value, entry, settings, log)
            continue
        try:
            checked = entry.check(value)
        except _Refused as refusal:
            raise here.refuse(str(refusal)) from None
        if entry.setting == "mem_type":
            checked = _mem_type(here, value, log)
        if entry.setting == "config_file_path":
            _follow(here, checked, settings, log)
        settings[entry.setting] = checked


def _mem_type(site: _Site, value: Any, log: Log) -> MemType:
    """An unknown type is no refusal here: it becomes UNDEFINED, which the allocator refuses later."""
    if not isinstance(value, str):
        raise site.refuse(f"must be one of {', '.join(map(repr, MEM_TYPES))}, is {_shown(value)}")
    if value not in MEM_TYPES:
        log(LogLevel.ERROR, "Invalid memory type")
    return MEM_TYPES.get(value, MemType.UNDEFINED)


def _follow(site: _Site, name: str, settings: dict[str, Any], log: Log) -> None:
    """Read the backend's own file; its path may be relative to the file that names it, or to the working folder."""
    path = site.folder / name
    if not path.exists():
        path = Path(name)
    if str(path) in settings.setdefault("followed", []):
        raise site.refuse(f"it leads back to '{path}'")
    settings["followed"].append(str(path))
    inner, content = _content(path)
    _walk(inner, content, _TOP, settings, log)


def _complete(settings: Mapping[str, Any], source: str) -> LpaiConfig:
    def part(kind: type, *names: str) -> Any:
        return kind(**{name: settings[name] for name in names if name in settings})

    hw_ver = settings.get("hw_ver", DEFAULT_HARDWARE)
    profile = HARDWARE[hw_ver]
    return LpaiConfig(
        target_env=settings.get("target_env", "x86"),
        hw_ver=hw_ver,
        alignment=BufferAlignmentReq(
            settings.get("start_addr_alignment", profile.start_addr_alignment),
            settings.get("size_alignment", profile.size_alignment),
        ),
        prepare=part(Prepare, "enable_batchnorm_fold", "exclude_io"),
        performance=part(PerfCfg, "fps", "ftrt_ratio", "client_type"),
        affinity=part(CoreAffinity, "affinity", "core_selection"),
        mem_type=settings.get("mem_type", MemType.DDR),
        is_persistent_binary=settings.get("is_persistent_binary", False),
        source=source,
    )


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}.get(type(value), "a number")


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
