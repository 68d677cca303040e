"""The registry of backends by name. Each has one entry in its own module, imported on demand.

Guests of this package and other packages add theirs under the entry point group ``isthmus.backends``, or by `register`.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any

from isthmus.backends import BUILT_IN as BUILT_IN
from isthmus.backends import DEFAULT as DEFAULT
from isthmus.backends.seam.entry import BackendEntry
from isthmus.backends.seam.facets import CFacet
from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.log import log_message
from isthmus.system.interrupts import own_fd
from isthmus.system.lock import Lock

GROUP = "isthmus.backends"
"""The entry point group in which other packages declare their backends."""
# The file name of a QNN library, with the backend's name in it.
_LIBRARY = re.compile(r"(?:lib)?Qnn(?P<name>[A-Za-z0-9]+?)(?:\.so|\.dll)?")
_lock = Lock()
# The backends by short name: an entry, or where it is declared ("module:name") if it has not been imported yet.
_entries: dict[str, str | BackendEntry] = dict(BUILT_IN)


def register(entry: BackendEntry) -> None:
    """Add a backend, or replace the one with the same name."""
    with _lock:
        _entries[entry.name] = entry


def names() -> tuple[str, ...]:
    """Return the short names of all backends."""
    return tuple(dict.fromkeys((*_entries, *_installed_entries())))


def entry(name: str) -> BackendEntry:
    """Return the backend with a short name, or with the file name of its library.

    >>> entry("cpu").library
    'libQnnCpu.so'
    >>> entry("/data/local/tmp/libQnnLpai.so").name
    'lpai'
    """
    library = _LIBRARY.fullmatch(Path(name).name) if isinstance(name, str) and name else None
    short = library["name"].lower() if library else name
    with _lock:
        declared = _entries.get(short) if isinstance(short, str) else None
        if declared is None and isinstance(short, str):
            declared = _installed_entries().get(short)
        if isinstance(declared, str):
            declared = _entries[short] = _import_declared(short, declared)
    if declared is None:
        # The library of another package's backend may have any file name.
        loaded = [each for each in list(_entries.values()) if isinstance(each, BackendEntry)]
        file = Path(name).name if isinstance(name, str) and name else None
        declared = next((each for each in loaded if each.library == file), None)
    if declared is None:
        rule = f"must be one of {', '.join(names())}, or a library file such as libQnnHtp.so"
        hint = f"{did_you_mean(short, names())} {install_again()}".strip()
        raise QnnError(Code.BACKEND_INVALID_ARGUMENT, f"backend {name!r}", rule, hint)
    return declared


def install_again() -> str:
    """Return a hint to install this package again if its metadata declares no backend; otherwise an empty text.

    Metadata are written when a package is installed, also from a working tree, and do not follow the sources.
    """
    try:
        points = distribution("isthmus").entry_points
    except (PackageNotFoundError, OSError):
        points = entry_points(group=GROUP)
    is_declared = any(point.group == GROUP for point in points)
    return "" if is_declared else "Install isthmus again: the installed package does not declare all of its backends."


def c_facet(name: str) -> CFacet:
    """Return what a backend declares for the C interface."""
    facet = entry(name).c
    return _import_declared(name, facet) if isinstance(facet, str) else facet


def usable(requested: Iterable[str] | None = None) -> Iterator[BackendEntry]:
    """Import and yield the backends of these names, or all; one that cannot be imported is logged and left out."""
    for name in names() if requested is None else requested:
        try:
            found = entry(name)
        except QnnError as problem:
            if problem.code is not Code.BACKEND_CANNOT_INITIALIZE:
                raise
            log_message(logging.WARNING, str(problem))
        else:
            yield found


def _import_declared(name: str, where: str) -> Any:
    """Import what a backend declares at "module:name"."""
    # The module may be another package's, so whatever it raises becomes a refusal that names the backend.
    module, _, attribute = where.partition(":")
    what, code = f"backend '{name}'", Code.BACKEND_CANNOT_INITIALIZE
    try:
        imported = import_module(module)
    except OSError as problem:
        raise _unreadable(what, problem) from None
    except Exception as problem:
        raise QnnError(code, what, f"importing '{module}' failed: {type(problem).__name__}: {problem}") from problem
    if not attribute or not hasattr(imported, attribute):
        rule = f"its entry point is '{where}', but must be 'module:name' of a BackendEntry"
        raise QnnError(code, what, rule, f"For example '{module}:ENTRY'.")
    return getattr(imported, attribute)


@lru_cache(maxsize=1)
def _installed_entries() -> dict[str, str]:
    """Return the backends that other packages have installed; looked up once, on demand."""
    try:
        # Fail first if no descriptor is left: Python would find no packages, and that result would be cached.
        with own_fd(os.open, os.sep, os.O_RDONLY):
            pass
        return {point.name: point.value for point in entry_points(group=GROUP)}
    except OSError as problem:
        raise _unreadable("backends of other packages", problem) from None


def _unreadable(what: str, problem: OSError) -> Exception:
    """Return the error for modules that cannot be read; a signal handler's `TimeoutError` is returned as it is."""
    if problem.errno is None:
        return problem
    rule = f"cannot be looked up: {problem.strerror}"
    is_shortage = problem.errno in (errno.EMFILE, errno.ENFILE)
    hint = "Close files that are not needed, and try again." if is_shortage else ""
    return QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, what, rule, hint)
