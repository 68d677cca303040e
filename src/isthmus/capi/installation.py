"""Installation of the libraries into a folder, with a file that locates Python and a suppression file for valgrind.

A wheel contains them compiled, beside this module; from a source tree they are compiled by the first C compiler found.
A library does not depend on a particular Python: `isthmus.conf` beside it names the one to use.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from isthmus.backends.seam import registry
from isthmus.capi import building
from isthmus.capi.building import HANDWRITTEN, INCLUDE, LIBRARIES, SUPPRESSIONS, LibraryRecipe
from isthmus.errors import Code, QnnError

BUILT = Path(__file__).parent / "libraries"
"""The folder with compiled libraries, in a wheel."""
SETTINGS = "isthmus.conf"
"""The file beside the libraries that names the Python to use."""
_PACKAGES = ("site-packages", "dist-packages")
SDK_FOLDERS = {"x86_64": "x86_64-linux-clang", "aarch64": "aarch64-oe-linux-gcc11.2"}
"""The folders of an SDK in which libraries and tools for a machine are."""
SDK_TOOLS = {
    "qnn-net-run": "net_run",
    "qnn-context-binary-generator": "context_binary_generator",
    "qnn-context-binary-utility": "context_binary_utility",
    "qnn-throughput-net-run": "throughput_net_run",
    "qnn-profile-viewer": "profile_viewer",
}
"""The tools of an SDK that this package has, each with its function in `isthmus.tools.cli`."""
__all__ = ["BUILT", "INCLUDE", "LIBRARIES", "include", "install", "install_sdk", "libpython", "settings"]


def include() -> Path:
    """Return the folder of the headers. A wheel contains them; in a source tree they are written now.

    Raises `QnnError`: COMMON_SYSTEM if they cannot be written.
    """
    if HANDWRITTEN.exists():
        # Imported here, because it imports every backend.
        from isthmus.capi import headers

        try:
            headers.write()
        except OSError as problem:
            raise QnnError(Code.COMMON_SYSTEM, f"folder '{INCLUDE}'", f"cannot be written: {problem}") from None
    return INCLUDE


def install(folder: str | os.PathLike[str]) -> list[Path]:
    """Write the libraries and their settings into a folder, all or none, replacing files of the same names.

    Backends of other packages get libraries too; these need a compiler.

    Returns
    -------
    list
        The paths of the libraries.

    Raises
    ------
    QnnError
        COMMON_INVALID_ARGUMENT if the argument is not a path, COMMON_PLATFORM_NOT_SUPPORTED if the libraries are not
        built and there is no C compiler, COMMON_SYSTEM if the folder cannot be written.
    """
    target = folder_of(folder)
    include()
    try:
        target.mkdir(parents=True, exist_ok=True)
        libraries = (*LIBRARIES, *_of_other_packages())
        paths = [BUILT / library.file for library in libraries if (BUILT / library.file).exists()]
        # Compiled elsewhere: where the folder's disk is full, the folder is at fault and not the compiler.
        with tempfile.TemporaryDirectory(prefix="isthmus-") as elsewhere:
            rest = [library for library in libraries if BUILT / library.file not in paths]
            paths += building.compile_all(Path(elsewhere), rest)
            files = {path.name: (path.read_bytes(), 0o755) for path in paths}
        files[SETTINGS] = settings().encode("utf-8", "surrogateescape"), 0o644
        files[SUPPRESSIONS.name] = SUPPRESSIONS.read_bytes(), 0o644
        _replace(target, files)
    except building.NoCompiler as problem:
        hint = "Install gcc or clang, or set CC."
        raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, "libraries for C", str(problem), hint) from None
    except building.BuildError as problem:
        raise QnnError(Code.COMMON_SYSTEM, "libraries for C", str(problem)) from None
    except OSError as problem:
        raise QnnError(Code.COMMON_SYSTEM, f"folder '{target}'", f"cannot be written: {problem}") from None
    return [target / path.name for path in paths]


def install_sdk(folder: str | os.PathLike[str]) -> list[Path]:
    """Write the libraries, QNN's tools and the headers into a folder as an SDK has them.

    Clients that find an SDK by ``QNN_SDK_ROOT`` use that folder as one.

    Returns
    -------
    list
        The paths of the libraries, of the tools, and of the folder of headers.

    Raises
    ------
    QnnError
        As for `install`, and COMMON_PLATFORM_NOT_SUPPORTED on a machine that no SDK has a folder for.
    """
    root, machine = folder_of(folder), platform.machine()
    if machine not in SDK_FOLDERS:
        rule = f"an SDK has folders for {' and '.join(SDK_FOLDERS)}, not for {machine}"
        raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, "layout of an SDK", rule)
    paths = install(root / "lib" / SDK_FOLDERS[machine])
    tools, headers = root / "bin" / SDK_FOLDERS[machine], root / "include"
    try:
        tools.mkdir(parents=True, exist_ok=True)
        files = {}
        for tool, function in SDK_TOOLS.items():
            # The working folder comes first on the path of `python -c`: a file numpy.py beside a model would be run.
            start = f"import sys; sys.path[:] = [{str(Path(__file__).parents[2])!r}, *filter(None, sys.path)]; "
            start += f"from isthmus.tools.cli import {function}; raise SystemExit({function}())"
            script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(start)} "$@"\n'
            files[tool] = script.encode("utf-8", "surrogateescape"), 0o755
        _replace(tools, files)
        shutil.copytree(INCLUDE, headers, dirs_exist_ok=True)
    except OSError as problem:
        raise QnnError(Code.COMMON_SYSTEM, f"folder '{root}'", f"cannot be written: {problem}") from None
    return [*paths, *(tools / tool for tool in SDK_TOOLS), headers]


def folder_of(folder: object) -> Path:
    """Return a user's argument as the path of a folder."""
    text = os.fspath(folder) if isinstance(folder, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"folder {folder!r}", "must be the path of a folder")
    return Path(text)


def _of_other_packages() -> list[LibraryRecipe]:
    """List the libraries of backends that other packages have registered or installed."""
    ours = [library.file.lower() for library in LIBRARIES]
    others = [name for name in registry.names() if f"libqnn{name}.so" not in ours]
    facets = [(entry.library, registry.c_facet(entry.name)) for entry in registry.usable(others)]
    return [building.backend_recipe(library, facet.backend_id, facet.version) for library, facet in facets if library]


def _replace(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Write files (content and mode) once there is room for all; programs that have loaded an old one keep it."""
    fresh = {name: folder / f".{name}.{os.getpid()}" for name in files}
    try:
        for name, (content, mode) in files.items():
            fresh[name].write_bytes(content)
            fresh[name].chmod(mode)
        for name, file in fresh.items():
            file.replace(folder / name)
    finally:
        for file in fresh.values():
            file.unlink(missing_ok=True)


def settings() -> str:
    """Return the settings with which a library starts Python in a program without one: lines of names and values."""
    root = Path(__file__).parents[2]
    places = [str(root), *(place for place in sys.path if place.endswith(_PACKAGES))]
    # Use the same package folders as this process, not those of the base Python.
    bootstrap = (
        f"import site, sys; here = {places!r}; site.ENABLE_USER_SITE = {bool(site.ENABLE_USER_SITE)}; "
        "[site.addsitedir(place) for place in here]; "
        f"sys.path[:] = here + [p for p in sys.path if p not in here and not p.endswith({_PACKAGES!r})]; "
        # Python silently skips folders that it may not read; this raises an error.
        "import os; os.scandir(here[0]).close(); import isthmus.capi.serve"
    )
    library = libpython()
    return "\n".join(
        [
            "# Where a program without Python finds one. Written by `isthmus capi install`.",
            f"libpython={library or ''}",
            f"executable={sys.executable}",
            f"bootstrap={bootstrap}",
            "",
        ]
    )


def libpython() -> Path | None:
    """Return the shared library of the running Python, if it has one."""
    names = [sysconfig.get_config_var(name) for name in ("INSTSONAME", "LDLIBRARY")]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    names += [f"libpython{version}.so.1.0", f"libpython{version}.so"]
    folders = [sysconfig.get_config_var(name) for name in ("LIBDIR", "LIBPL")]
    folders += [str(Path(sys.base_prefix) / "lib"), f"/usr/lib/{sysconfig.get_config_var('MULTIARCH') or ''}"]
    for folder in filter(None, folders):
        for name in filter(None, names):
            file = Path(folder, str(name))
            if ".so" in name and file.is_file():
                return file.resolve()
    return None
