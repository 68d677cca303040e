"""Code that comes with this package: a wheel has an archive of compiled code for each of its targets.

An archive is a ZIP file of the files that the folder of compiled code would have. Each is checked against its key, so
code of other sources is never used. A source tree has no archives.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.compiled.folder import pack, unpack

if TYPE_CHECKING:
    import zipfile

FOLDER = Path(__file__).with_name("archives")
"""Where the archives are."""


def read(archive: str, name: str, key: str) -> bytes | None:
    """Return the code under a name and a key, or None if it is absent, damaged or of another key."""
    opened = _open(FOLDER / f"{archive}.zip")
    if opened is None:
        return None
    try:
        content = opened.read(name)
    except Exception:  # absent or damaged: there is an exception for each kind of damage
        return None
    return unpack(key, content)


def write(file: Path, codes: Mapping[str, tuple[str, bytes]]) -> None:
    """Write an archive of codes, each given by its name with its key and its content. Equal codes give equal bytes."""
    import zipfile

    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (key, code) in sorted(codes.items()):
            # An entry without a date of its own has ZIP's first one.
            archive.writestr(zipfile.ZipInfo(name), pack(key, code), zipfile.ZIP_DEFLATED)


@lru_cache(maxsize=8)
def _open(file: Path) -> zipfile.ZipFile | None:
    """Return an archive, from a copy in memory: the process keeps no descriptor. None if there is no such file."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    import zipfile  # here, since a process without an archive does not need it

    try:
        return zipfile.ZipFile(io.BytesIO(content))
    except zipfile.BadZipFile:
        return None
