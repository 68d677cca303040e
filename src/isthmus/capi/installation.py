"""Makes the libraries: one C source, compiled once for each, and a file that says where Python is.

A wheel carries them compiled, beside this module; out of a source tree the first C compiler that is found makes them.
Nothing in a library depends on the Python it is used with: `isthmus.conf` beside it names that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import Code, QnnError

HERE = Path(__file__).parent
SOURCE, INCLUDE, BUILT = HERE / "library.c", HERE / "include", HERE / "libraries"
SETTINGS = "isthmus.conf"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    "-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete", "-Wl,-z,now",
)  # fmt: skip


@dataclass(frozen=True)
class Library:
    """A library to be made.

    Parameters
    ----------
    name
        Without ``lib`` and ``.so``.
    defines
        What the source is compiled with.
    """

    name: str
    defines: Sequence[str]

    @property
    def file(self) -> str:
        """Its file's name."""
        return f"lib{self.name}.so"


def _backend(name: str, number: int, version: str) -> Library:
    provider = f"{name.upper()}_ISTHMUS"
    return Library(
        f"Qnn{name}",
        (f"ISTHMUS_BACKEND={number}", f'ISTHMUS_PROVIDER="{provider}"', f"ISTHMUS_VERSION={version}"),
    )


LIBRARIES = (
    _backend("Cpu", 3, "1,1,0"),
    _backend("Gpu", 4, "3,15,0"),
    _backend("Htp", 6, "5,51,0"),
    _backend("Lpai", 12, "2,5,0"),
    Library("QnnSystem", ("ISTHMUS_SYSTEM",)),
    Library("cdsprpc", ("ISTHMUS_RPCMEM",)),
)


def install(folder: str | os.PathLike[str]) -> list[Path]:
    """Put the libraries and their settings into a folder; what was there of the same names is replaced.

    Returns
    -------
    list
        The libraries' files.

    Raises
    ------
    QnnError
        COMMON_PLATFORM_NOT_SUPPORTED when they are not built and there is no C compiler, COMMON_SYSTEM when the folder
        cannot be written.
    """
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        made = _copied(target) if _are_built() else compile_all(target)
        (target / SETTINGS).write_text(settings())
    except OSError as problem:
        raise QnnError(Code.COMMON_SYSTEM, f"folder '{target}'", f"cannot be written: {problem}") from None
    return made


def _are_built() -> bool:
    return all((BUILT / library.file).exists() for library in LIBRARIES)


def _copied(target: Path) -> list[Path]:
    for library in LIBRARIES:
        _replace(target / library.file, (BUILT / library.file).read_bytes())
    return [target / library.file for library in LIBRARIES]


def _replace(file: Path, content: bytes) -> None:
    """Write a file under its name at once: a program that has the old one loaded keeps that."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.chmod(0o755)
    fresh.replace(file)


def compile_all(target: Path) -> list[Path]:
    """Compile the libraries into a folder."""
    compiler = next((found for name in _compilers() if (found := shutil.which(name))), None)
    if compiler is None:
        raise QnnError(
            Code.COMMON_PLATFORM_NOT_SUPPORTED,
            "libraries for C",
            f"there is no C compiler ({', '.join(_compilers())})",
            "Install gcc or clang, or set CC.",
        )
    made = []
    for library in LIBRARIES:
        file = target / library.file
        fresh = file.with_name(f".{file.name}.{os.getpid()}")
        defines = [f"-D{define}" for define in (f"ISTHMUS_LIBRARY={library.name}", *library.defines)]
        command = [
            compiler, *FLAGS, f"-Wl,-soname,{library.file}", f"-I{INCLUDE}", *defines, str(SOURCE), "-o", str(fresh),
            "-ldl", "-lpthread",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            fresh.unlink(missing_ok=True)
            raise QnnError(
                Code.COMMON_SYSTEM, library.file, f"{compiler} refuses it: {done.stderr.strip()[:2000]}"
            )
        fresh.replace(file)
        made.append(file)
    return made


def _compilers() -> tuple[str, ...]:
    wanted = os.environ.get("CC")
    return (wanted, *COMPILERS) if wanted else COMPILERS


def settings() -> str:
    """What a library needs to start Python in a program that has none: plain lines of names and values."""
    root = HERE.parents[1]
    places = [str(root), *(place for place in sys.path if place.endswith(("site-packages", "dist-packages")))]
    bootstrap = f"import site, sys; sys.executable = {sys.executable!r}; [site.addsitedir(p) for p in {places!r}]"
    found = libpython()
    return "\n".join(
        [
            "# Where a program without Python finds one. Written by `isthmus capi install`.",
            f"libpython={found or ''}",
            f"home={sys.base_prefix}",
            f"bootstrap={bootstrap}; sys.path.insert(0, {str(root)!r}); import isthmus.capi.serve",
            "",
        ]
    )


def libpython() -> Path | None:
    """The shared library of the Python that runs this, if it has one."""
    names = [sysconfig.get_config_var(name) for name in ("INSTSONAME", "LDLIBRARY")]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    names += [f"libpython{version}.so.1.0", f"libpython{version}.so"]
    folders = [sysconfig.get_config_var(name) for name in ("LIBDIR", "LIBPL")]
    folders += [str(Path(sys.base_prefix) / "lib"), f"/usr/lib/{sysconfig.get_config_var('MULTIARCH') or ''}"]
    for folder in filter(None, folders):
        for name in filter(None, names):
            file = Path(folder) / name
            if ".so" in name and file.is_file():
                return file.resolve()
    return None
