"""The jobs of ``isthmus sweep``: every combination of models, backends and settings, checked before one is done.

Each mode of the command has figures, which are the columns of its rows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from isthmus import frontends
from isthmus.backends.seam import registry
from isthmus.backends.seam.native import target_key
from isthmus.backends.vendor.library import find
from isthmus.backends.vendor.measurement import build_of
from isthmus.errors import Code, QnnError, did_you_mean, invalid_argument
from isthmus.log import Log
from isthmus.report.rows import DEVICE_COLUMNS, Columns, is_device_row
from isthmus.session import checked_seconds
from isthmus.system import reading
from isthmus.tools.commands import CommandParser
from isthmus.tools.device import check_jobs
from isthmus.tools.files import refuse_unreadable
from isthmus.tools.model_options import default_backend, request_for, split_setting
from isthmus.tools.run import check_repeat
from isthmus.version import build_id

DEVICE_SETTINGS = ("soc", "vtcm", "level", "precision", "hvx", "dlbc", "library")
"""The options of ``isthmus device`` that can be set."""
_DLBC = {"on": ("--dlbc",), "off": ()}
_NO_CACHE = "--no-cache"
# The options of a sweep that every row gets.
_PASSED_ON = ("scratch_limit", "slower", "tcm", "direct_mode")
_PACKAGE = Path(__file__).parents[1]
MAX_MODEL = 1 << 34
# Bytes of a file that are read at a time.
_PIECE = 1 << 20
PLAN, RUN, DEVICE = "plan", "run", "device"
MEMORY: Columns = {"scratch_bytes": "scratch", "state_bytes": "state", "io_bytes": "io", "constant_bytes": "constants"}
FIGURES: Mapping[str, Columns] = {
    PLAN: {**MEMORY, "lower_bound": "lower bound", "greedy_bytes": "greedy", "status": "status", "fits": "fits"},
    RUN: {
        **MEMORY, "p50_ms": "p50 ms", "min_ms": "min ms", "load_seconds": "load s", "copied_bytes": "copied",
        "backend_copied_bytes": "copied by backend",
    },
    DEVICE: {
        **{key: title for key, title in DEVICE_COLUMNS.items() if key not in ("model", "problem")},
        "plan_problem": "", "build": "", "graphs": "",
    },
}  # fmt: skip
"""The figures of each mode: keys of a row, and the titles of their columns; those without a title are in JSON only."""


@dataclass(frozen=True)
class SweepJob:
    """A row of a sweep, or the rows of a model on several chips.

    - `backend`: the backend; None for the default.
    - `settings`: the values of ``--set`` by key.
    - `mode`, `arguments`: the command that computes it, and its options.
    - `config`: the backend's configuration file.
    - `digest`: a hash of the contents of the model and the configuration; for chips, with the build of Qualcomm's
      library.
    - `machine`: what its result depends on besides: this package, and the instruction set of this machine.
    """

    number: int
    model: Path
    backend: str | None
    settings: Mapping[str, str]
    mode: str
    arguments: tuple[str, ...]
    config: Path | None
    digest: str
    machine: tuple[str, ...]

    @property
    def title(self) -> str:
        """What a progress bar shows of it."""
        settings = (f"{key}={value}" for key, value in self.settings.items())
        return ", ".join(filter(None, (self.model.name, self.backend, *settings)))

    @property
    def task(self) -> str:
        """The hash of what it computes, the same on every machine."""
        return hash_of(self.mode, self.digest, self.model.suffix, *(a for a in self.arguments if a != _NO_CACHE))

    @property
    def key(self) -> str:
        """The hash of all that its result depends on."""
        return hash_of(*self.machine, self.task)


def hash_of(*facts: str) -> str:
    """Return the hash of some texts."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def jobs_of(options: argparse.Namespace) -> Iterator[SweepJob]:
    """Yield a job for every combination of model, backend and settings; refuse what no job could be."""
    _check_options(options)
    backends: list[str | None] = [None]
    if options.backend is not None:
        backends = [registry.entry(name).name for name in options.backend.split(",")]
        _refuse_repeated(f"--backend {options.backend}", backends)
    choices = [_choices(text, options.mode) for text in options.set]
    keys = [key for key, _ in choices]
    for key in keys:
        if keys.count(key) > 1:
            raise invalid_argument(f"--set {key}", "it is given twice", "Join its values by commas.")
    config = "" if options.config is None else _digest(options.config)
    digests = [_digest(path) for path in options.models]
    grid = [dict(zip(keys, values, strict=True)) for values in product(*(values for _, values in choices))]
    common = _common(options)
    _check_grid(options, backends, [[*common, *_settings_arguments(settings, options.mode)] for settings in grid])
    libraries = {settings.get("library") for settings in grid} if options.mode == DEVICE else ()
    builds = {path: build_of(find(path)) for path in libraries}
    machine = build_id(), target_key(), _sources()
    number = 0
    for path, digest in zip(options.models, digests, strict=True):
        for backend, settings in product(backends, grid):
            named = [] if backend is None else ["--backend", backend]
            arguments = [*common, *named, *_settings_arguments(settings, options.mode)]
            yield SweepJob(
                number, path, backend, settings, options.mode, tuple(arguments), options.config,
                digest + config + builds.get(settings.get("library"), ""), machine,
            )  # fmt: skip
            number += 1


def _check_options(options: argparse.Namespace) -> None:
    """Refuse options that are wrong in every mode, or have no meaning for a chip."""
    check_repeat(options.repeat)
    check_jobs(options.jobs)
    _refuse_same_file(options.models)
    if options.row_timeout is not None:
        checked_seconds(options.row_timeout, "--row-timeout")
    if options.mode == DEVICE:
        for name in ("backend", "config", "threads", *_PASSED_ON):
            if getattr(options, name) != (1 if name == "threads" else None):
                what = f"--{name.replace('_', '-')} {getattr(options, name)}"
                raise invalid_argument(what, "has no meaning for a chip", "--set soc=SM8750,SM8650 names chips.")


def _choices(text: str, mode: str) -> tuple[str, list[str]]:
    """Return the key and the values of one ``--set``.

    Examples
    --------
    >>> _choices("threads=1,2", "run")
    ('threads', ['1', '2'])
    """
    key, values = split_setting(text)
    if mode == DEVICE and key not in DEVICE_SETTINGS:
        rule = f"must be one of {', '.join(DEVICE_SETTINGS)}"
        raise invalid_argument(f"--set {text}", rule, did_you_mean(key, DEVICE_SETTINGS))
    found = [value for value in values.split(",") if value]
    if not found:
        raise invalid_argument(f"--set {text}", "has no value")
    if mode == DEVICE and key == "dlbc" and not _DLBC.keys() >= {*found}:
        raise invalid_argument(f"--set {text}", f"must be one of {', '.join(_DLBC)}")
    _refuse_repeated(f"--set {text}", found)
    return key, found


def _common(options: argparse.Namespace) -> list[str]:
    """Return the options that all jobs have, as a command line."""
    arguments = [part for text in options.shape for part in ("--shape", text)]
    if options.graph is not None:
        arguments += ["--graph", options.graph]
    if options.mode == DEVICE:
        # The sweep runs several jobs at a time, and its cache is not the only one.
        return [*arguments, "--jobs", "1", *[_NO_CACHE] * options.no_cache]
    for name in _PASSED_ON:
        value = getattr(options, name)
        if value is not None:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    if options.threads != 1:
        arguments += ["--threads", str(options.threads)]
    return [*arguments, "--repeat", str(options.repeat)] if options.mode == RUN else arguments


def _settings_arguments(settings: Mapping[str, str], mode: str) -> list[str]:
    """Return settings as a command line."""
    if mode == DEVICE:
        options = (_DLBC[value] if key == "dlbc" else (f"--{key}", value) for key, value in settings.items())
        return [part for option in options for part in option]
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


class _RowParser(CommandParser):
    """A parser of the command that computes a row, whose errors are refusals of one line."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise invalid_argument(self.prog, message)


def _check_grid(options: argparse.Namespace, backends: Sequence[str | None], grid: Sequence[Sequence[str]]) -> None:
    """Refuse values that every backend refuses, by the checks of the command that computes a row."""
    # A value that only some backends have is accepted: the others' rows say why they have no figures.
    command, model = import_module(f"isthmus.tools.{options.mode}"), options.models[0]
    parser = _RowParser(prog=f"isthmus sweep --mode {options.mode}")
    command.add_arguments(parser)
    config = [] if options.config is None else ["--config", str(options.config)]
    if options.mode == DEVICE:
        for arguments in grid:
            command.check(parser.parse_args([*arguments, "--", str(model)]))
        return
    names = dict.fromkeys(each for each in backends if each is not None)
    entries = [registry.entry(name) for name in names or dict.fromkeys(map(default_backend, options.models))]
    for arguments in grid:
        refusals: dict[str, QnnError] = {}
        for entry in entries:
            given = parser.parse_args([*config, *arguments, "--", str(model)])
            try:
                with _silent():
                    request = request_for(given, model, entry)
                    command.check(given, request)
                    entry.read_config(request.config, Log())
            except QnnError as refusal:
                refusals[entry.name] = refusal
        if len(refusals) == len(entries):
            raise _join_refusals(refusals)


def _join_refusals(refusals: Mapping[str, QnnError]) -> QnnError:
    """Return the refusals of backends as one; those that are equal once."""
    first = next(iter(refusals.values()))
    if len({str(each) for each in refusals.values()}) == 1:
        return first
    reasons = (f"on {name} {each.what}: {each.rule}" for name, each in refusals.items())
    hint = next((each.hint for each in refusals.values() if each.hint), "")
    return QnnError(first.code, "--set", f"every backend refuses a value: {'; '.join(reasons)}", hint)


@contextmanager
def _silent() -> Iterator[None]:
    """Emit no messages inside the block: a check is repeated for every combination of settings."""
    logger = logging.getLogger("isthmus")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _refuse_repeated(what: str, values: Sequence[str | None]) -> None:
    """Refuse values of which one is given twice: its rows would be the same."""
    for value in values:
        if values.count(value) > 1:
            raise invalid_argument(what, f"'{value}' is given twice")


def _refuse_same_file(models: Sequence[Path]) -> None:
    """Refuse a model that is named twice, by any path: its rows would be equal."""
    seen: dict[str, Path] = {}
    for path in models:
        real = os.path.realpath(path)
        if real in seen:
            also = "" if seen[real] == path else f", also as '{seen[real]}'"
            raise invalid_argument(f"'{path}'", f"it is named twice{also}")
        seen[real] = path


def contents(path: Path) -> bytes:
    """Read a file that a job needs on another machine."""
    with refuse_unreadable(f"'{path}'", path):
        return reading.contents(path, MAX_MODEL)


def _sources() -> str:
    """Return the hash of the package's sources, which change more often than its version."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(bytes.fromhex(_digest(path)))
    return digest.hexdigest()


def _digest(path: Path) -> str:
    """Return the hash of a file's contents."""
    digest = hashlib.sha256()
    with refuse_unreadable(f"'{path}'", path), reading.open_file(path) as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def refuse_other_files(paths: Sequence[Path]) -> None:
    """Refuse models that workers would lack a part of: only the file of a model is sent to them."""
    for path in paths:
        if not frontends.is_self_contained(contents(path)):
            rule, hint = "weights in other files are not sent to workers", "Sweep it without --scheduler."
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"'{path}'", rule, hint)


def is_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row may be one of a sweep: names, a mode, and values for all settings."""
    expected = {"model": str, "mode": str, "settings": dict, "problem": str, "backend": str | None}
    is_typed = all(isinstance(row.get(key), kind) for key, kind in expected.items())
    if not is_typed or row["mode"] not in FIGURES or not row["settings"].keys() <= row.keys():
        return False
    return row["mode"] != DEVICE or is_device_row(row)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return the columns of some rows: the model, the settings, the figures of their mode, and problems."""
    modes = dict.fromkeys(row["mode"] for row in rows)
    settings = dict.fromkeys(key for row in rows for key in row["settings"])
    titles = {key: title for mode in modes for key, title in FIGURES[mode].items() if title}
    # The option `io` is a kind of memory, the figure a number of bytes.
    figures = {key: f"{title} bytes" if title in settings and key != title else title for key, title in titles.items()}
    names = {"model": "model", "backend": "backend", **{key: key for key in settings}}
    return {**names, **figures, "problem": "problem"}
