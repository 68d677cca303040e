"""The libraries for programs in C, compiled once for all tests of a source tree."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from pathlib import Path

from isthmus.capi import building
from isthmus.capi.installation import SETTINGS, install

_CACHE = Path(__file__).parents[2] / ".cache" / "libraries"


def compiled() -> Path:
    """Return a folder with the libraries of the present sources, which the first process that asks compiles."""
    sources = sorted(file for file in building.HERE.rglob("*") if file.suffix in (".c", ".h", ".hpp", ".supp"))
    digest = hashlib.sha256(repr((building.FLAGS, building.LIBRARIES, building.compilers())).encode())
    for file in sources:
        digest.update(file.read_bytes())
    folder = _CACHE / digest.hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The settings are written last.
        if not (folder / SETTINGS).exists():
            install(folder)
    return folder


def copy_into(folder: Path) -> None:
    """Copy the libraries and their settings into a folder of a test's own."""
    shutil.copytree(compiled(), folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock"))
