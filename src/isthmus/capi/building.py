"""Compiles the libraries: one C source, once for each. It needs nothing of this package: wheels are built by it too."""

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
SUPPRESSIONS = HERE / "isthmus.supp"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete",
    "-Wl,-z,now", "-Wl,-Bsymbolic-functions",
)  # fmt: skip


class NoCompiler(Exception):
    """There is no C compiler."""


class BuildError(Exception):
    """The compiler does not take the source."""


@dataclass(frozen=True)
class LibraryRecipe:
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


def backend_recipe(library: str, backend_id: int, version: Sequence[int]) -> LibraryRecipe:
    """Write the recipe for a backend's library, of its file name and what its table says of the backend."""
    name = library.removeprefix("lib").removesuffix(".so")
    provider, numbers = f"{name.removeprefix('Qnn').upper()}_ISTHMUS", ",".join(map(str, version))
    defines = (f"SERVES_BACKEND={backend_id}", f'PROVIDER_NAME="{provider}"', f"PROVIDER_VERSION={numbers}")
    return LibraryRecipe(name, defines)


def _backends() -> Iterator[LibraryRecipe]:
    """Find the backends of this package: those whose `__init__.py`, which imports nothing, declares their numbers."""
    for file in sorted((HERE.parent / "backends").glob("*/__init__.py")):
        if "BACKEND_ID" in file.read_text():
            facts = runpy.run_path(str(file))
            library = f"libQnn{file.parent.name.capitalize()}.so"
            yield backend_recipe(library, facts["BACKEND_ID"], facts["INTERFACE_VERSION"])


LIBRARIES = (
    *_backends(),
    LibraryRecipe("QnnLpaiNetRunExtensions", ("SERVES_LPAI_EXTENSIONS",)),
    LibraryRecipe("QnnSystem", ("SERVES_SYSTEM",)),
    LibraryRecipe("cdsprpc", ("SERVES_RPCMEM",)),
    LibraryRecipe("QnnTFLiteDelegate", ("SERVES_DELEGATE",)),
)


def compilers() -> tuple[str, ...]:
    """The compilers that are looked for, in order."""
    wanted = os.environ.get("CC")
    return (wanted, *COMPILERS) if wanted else COMPILERS


def compile_all(target: Path, libraries: Sequence[LibraryRecipe] = LIBRARIES) -> list[Path]:
    """Compile libraries into a folder; a program that has one loaded keeps what it has."""
    if not libraries:
        return []
    compiler = next((found for name in compilers() if (found := shutil.which(name))), None)
    if compiler is None:
        raise NoCompiler(f"there is no C compiler ({', '.join(compilers())})")
    made = []
    for library in libraries:
        file = target / library.file
        fresh = file.with_name(f".{file.name}.{os.getpid()}")
        defines = [f"-D{define}" for define in (f"LIBRARY_NAME={library.name}", *library.defines)]
        command = [
            compiler, *FLAGS, f"-Wl,-soname,{library.file}", f"-I{INCLUDE}", f"-I{HERE}", *defines, str(SOURCE),
            "-o", str(fresh), "-ldl", "-lpthread",
        ]  # fmt: skip
        # In a session of its own: an interrupt from the terminal is this process's to answer.
        done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
        if done.returncode:
            fresh.unlink(missing_ok=True)
            raise BuildError(f"{compiler} refuses {library.file}: {done.stderr.strip()[:2000]}")
        fresh.replace(file)
        made.append(file)
    return made
