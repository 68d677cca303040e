"""Compilation of the libraries from one C source. Imports nothing of this package: the wheel build uses it too."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCE, INCLUDE = HERE / "library.c", HERE / "include"
HANDWRITTEN = HERE / "handwritten"
"""The headers that are not generated; a wheel has them in `INCLUDE` only."""
SUPPRESSIONS = HERE / "isthmus.supp"
COMPILERS = ("cc", "gcc", "clang")
# "nodelete": a library that runs Python cannot be unloaded. "now": a missing symbol is reported when it is loaded.
# "Bsymbolic": several of the libraries in one program each call their own functions.
FLAGS = (
    "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete",
    "-Wl,-z,now", "-Wl,-Bsymbolic",
)  # fmt: skip


class NoCompiler(Exception):
    """The error that no C compiler was found."""


class BuildError(Exception):
    """The error that the compiler rejected the source."""


@dataclass(frozen=True)
class LibraryRecipe:
    """A library to compile."""

    name: str
    defines: Sequence[str]

    @property
    def file(self) -> str:
        """The file name."""
        return f"lib{self.name}.so"


def backend_recipe(library: str, backend_id: int, version: Sequence[int], *more: str) -> LibraryRecipe:
    """Return the recipe for a backend's library, given its file name and the backend's id and interface version.

    `more` are further definitions.
    """
    name = library.removeprefix("lib").removesuffix(".so")
    provider, numbers = f"{name.removeprefix('Qnn').upper()}_ISTHMUS", ",".join(map(str, version))
    defines = (f"SERVES_BACKEND={backend_id}", f'PROVIDER_NAME="{provider}"', f"PROVIDER_VERSION={numbers}", *more)
    return LibraryRecipe(name, defines)


def _backends() -> Iterator[LibraryRecipe]:
    """Find this package's backends: those whose `__init__.py`, which imports nothing, declares a backend id."""
    for file in sorted((HERE.parent / "backends").glob("*/__init__.py")):
        if "BACKEND_ID" in file.read_text():
            facts = runpy.run_path(str(file))
            library = f"libQnn{file.parent.name.capitalize()}.so"
            yield backend_recipe(library, facts["BACKEND_ID"], facts["INTERFACE_VERSION"])


LIBRARIES = (
    *_backends(),
    # Backends that compose and execute nothing (composing.py), and one that is not there. The numbers are QNN's.
    backend_recipe("libQnnIr.so", 9, (0, 1, 0)),
    backend_recipe("libQnnSaver.so", 2, (1, 1, 0), "SERVES_SAVER"),
    backend_recipe("libQnnDsp.so", 5, (5, 0, 1)),
    LibraryRecipe("QnnLpaiNetRunExtensions", ("SERVES_LPAI_EXTENSIONS",)),
    LibraryRecipe("QnnHtpNetRunExtensions", ("SERVES_HTP_EXTENSIONS",)),
    LibraryRecipe("QnnSystem", ("SERVES_SYSTEM",)),
    LibraryRecipe("cdsprpc", ("SERVES_RPCMEM",)),
    LibraryRecipe("QnnTFLiteDelegate", ("SERVES_DELEGATE",)),
)


def compilers() -> tuple[str, ...]:
    """Return the commands of compilers to look for, in order. CC may contain arguments, as for make."""
    preferred = os.environ.get("CC", "").strip()
    return (preferred, *COMPILERS) if preferred else COMPILERS


def _compiler() -> list[str]:
    """Return the words of the first command whose program exists."""
    for command in compilers():
        # A path with spaces is a program, too.
        program, *arguments = [command] if shutil.which(command) else command.split()
        if path := shutil.which(program):
            return [path, *arguments]
    raise NoCompiler(f"there is no C compiler ({', '.join(compilers())})")


def compile_all(target: Path, libraries: Sequence[LibraryRecipe] = LIBRARIES) -> list[Path]:
    """Compile libraries into a folder, by the first compiler that is found. Programs that have loaded an old library
    keep using it.
    """
    if not libraries:
        return []
    compiler = _compiler()
    compiled = []
    for library in libraries:
        file = target / library.file
        # A new file that replaces the old one: the old one may be mapped by a program.
        fresh = file.with_name(f".{file.name}.{os.getpid()}")
        defines = [f"-D{define}" for define in (f"LIBRARY_NAME={library.name}", *library.defines)]
        command = [
            *compiler, *FLAGS, f"-Wl,-soname,{library.file}", f"-I{INCLUDE}", f"-I{HERE}", *defines, str(SOURCE),
            "-o", str(fresh), "-ldl", "-lpthread",
        ]  # fmt: skip
        # In a separate session: only this process handles an interrupt from the terminal.
        done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
        if done.returncode:
            fresh.unlink(missing_ok=True)
            raise BuildError(f"{' '.join(compiler)} cannot compile {library.file}: {done.stderr.strip()[:2000]}")
        fresh.replace(file)
        compiled.append(file)
    return compiled
