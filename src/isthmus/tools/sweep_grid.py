"""The jobs of ``isthmus sweep``: every combination of models, backends and settings, checked before one is done."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path

from isthmus import frontends
from isthmus.backends.seam import registry
from isthmus.backends.seam.native import target_key
from isthmus.backends.vendor.library import find
from isthmus.backends.vendor.sweep import build_of
from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.system import reading
from isthmus.tools.model_options import apply_settings, split_setting
from isthmus.tools.sweep_table import DEVICE, RUN
from isthmus.version import build_id

DEVICE_SETTINGS = ("soc", "vtcm", "level", "precision", "hvx")
"""The options of ``isthmus device`` that can be set."""
_PACKAGE = Path(__file__).parents[1]
MAX_MODEL = 1 << 34
_PIECE = 1 << 20
"""Bytes of a file that are read at a time."""


@dataclass(frozen=True)
class SweepJob:
    """A row of a sweep, or the rows of a model on several chips.

    Parameters
    ----------
    backend
        The backend; None for the default.
    settings
        The values of ``--set`` by key.
    mode, arguments
        The command that computes it, and its options.
    config
        The backend's configuration file.
    digest
        A hash of the contents of the model and the configuration; for chips, with the build of Qualcomm's library.
    machine
        What its result depends on besides: this package, and the instruction set of this machine.
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
        return hashed(self.mode, self.digest, self.model.suffix, *self.arguments)

    @property
    def key(self) -> str:
        """The hash of all that its result depends on."""
        return hashed(*self.machine, self.task)


def hashed(*facts: str) -> str:
    """Return the hash of some texts."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def jobs_of(options: argparse.Namespace) -> Iterator[SweepJob]:
    """Yield a job for every combination of model, backend and settings; refuse what no job could be."""
    _check_options(options)
    backends: list[str | None] = [None]
    if options.backend is not None:
        backends = [registry.entry(name).name for name in options.backend.split(",")]
    choices = [_choices(text, options.mode) for text in options.set]
    keys = [key for key, _ in choices]
    for key in keys:
        if keys.count(key) > 1:
            hint = "Join its values by commas."
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--set {key}", "it is given twice", hint)
    common = _common(options)
    config = "" if options.config is None else _digest(options.config)
    library = build_of(find()) if options.mode == DEVICE else ""
    machine = build_id(), target_key(), _sources()
    number = 0
    for path in options.models:
        digest = _digest(path) + config + library
        for backend, values in product(backends, product(*(values for _, values in choices))):
            settings = dict(zip(keys, values, strict=True))
            arguments = [*common, *([] if backend is None else ["--backend", backend]), *_given(settings, options.mode)]
            if path is options.models[0]:
                _check(options.mode, [str(path), *arguments])
            yield SweepJob(
                number, path, backend, settings, options.mode, tuple(arguments), options.config, digest, machine
            )
            number += 1


def _check_options(options: argparse.Namespace) -> None:
    """Refuse options that have no meaning for a chip."""
    if options.mode == DEVICE:
        for name in ("backend", "config", "threads", "scratch_limit", "slower", "direct_mode"):
            if getattr(options, name) != (1 if name == "threads" else None):
                what = f"--{name.replace('scratch_limit', 'scratch-limit')} {getattr(options, name)}"
                rule, hint = "has no meaning for a chip", "--set soc=SM8750,SM8650 names chips."
                raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule, hint)


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
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--set {text}", rule, did_you_mean(key, DEVICE_SETTINGS))
    found = [value for value in values.split(",") if value]
    if not found:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--set {text}", "has no value")
    return key, found


def _common(options: argparse.Namespace) -> list[str]:
    """Return the options that all jobs have, as a command line."""
    arguments = [part for text in options.shape for part in ("--shape", text)]
    if options.graph is not None:
        arguments += ["--graph", options.graph]
    if options.mode == DEVICE:
        return arguments
    for name in ("scratch_limit", "slower", "direct_mode"):
        value = getattr(options, name)
        if value is not None:
            arguments += [f"--{name.replace('scratch_limit', 'scratch-limit')}", str(value)]
    if options.threads != 1:
        arguments += ["--threads", str(options.threads)]
    return [*arguments, "--repeat", str(options.repeat)] if options.mode == RUN else arguments


def _given(settings: Mapping[str, str], mode: str) -> list[str]:
    """Return settings as a command line."""
    if mode == DEVICE:
        return [part for key, value in settings.items() for part in (f"--{key}", value)]
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def _check(mode: str, arguments: Sequence[str]) -> None:
    """Refuse options that the command does not have, before any process starts."""
    parser = argparse.ArgumentParser(prog=f"isthmus sweep --mode {mode}")
    import_module(f"isthmus.tools.{mode}").add_arguments(parser)
    options = parser.parse_args(arguments)
    if mode != DEVICE:
        apply_settings(options)


def contents(path: Path) -> bytes:
    """Read a file that a job needs on another machine."""
    with _named(path):
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
    with _named(path), reading.opened(path) as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn errors of the system inside the block into one that names a file."""
    try:
        yield
    except OSError as problem:
        rule = f"cannot be read: {problem.strerror}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"'{path}'", rule) from None



def refuse_other_files(paths: Sequence[Path]) -> None:
    """Refuse models that workers would lack a part of: only the file of a model is sent to them."""
    for path in paths:
        if not frontends.is_self_contained(contents(path)):
            rule, hint = "weights in other files are not sent to workers", "Sweep it without --scheduler."
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"'{path}'", rule, hint)
