"""Functions that are compiled ahead: read from the folder of compiled code, or compiled into it by a child process.

This is for code that every machine of an architecture runs alike. Each function is an object file of its own.
"""

from __future__ import annotations

import hashlib
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.compiled.children import compile_into
from isthmus.compiled.folder import Folder, Unavailable
from isthmus.compiled.toolchain import toolchain
from isthmus.errors import QnnError
from isthmus.system.isolated import end_with


def triple() -> str:
    """The architecture of this machine, as LLVM calls it."""
    return f"{platform.machine().replace('arm64', 'aarch64')}-unknown-linux-gnu"


@dataclass(frozen=True)
class Ahead:
    """Functions that belong together.

    Parameters
    ----------
    name
        What their files begin with.
    functions
        Their names.
    sources
        The files that their code is made from.
    compiler
        The module that compiles them: a program that ends with `compile_ahead`.
    what
        What they are, for messages.
    """

    name: str
    functions: tuple[str, ...]
    sources: tuple[Path, ...]
    compiler: str
    what: str

    def key(self) -> str:
        """The hash of all that the code depends on."""
        digest = hashlib.sha256(triple().encode() + b"\0" + toolchain())
        for source in self.sources:
            digest.update(hashlib.sha256(source.read_bytes()).digest())
        return digest.hexdigest()

    def file(self, function: str) -> str:
        """The file that the code of a function is kept in."""
        return f"{self.name}_{function}-{platform.machine()}-{self.key()[:24]}.o"

    def objects(self) -> list[bytes]:
        """The object files of all functions. The first call of a user compiles them."""
        try:
            return self._from(Folder.of_user())
        except Unavailable as problem:
            # Nothing to keep it in is no reason not to run.
            with Folder.of_this_process(problem, f"Functions of {self.what}") as folder:
                return self._from(folder)

    def _from(self, folder: Folder) -> list[bytes]:
        """The object files as a folder has them, compiled into it if need be."""
        key = self.key()
        files = {function: self.file(function) for function in self.functions}
        found = {function: folder.read(file, key) for function, file in files.items()}
        if None in found.values():
            with folder.alone():
                absent = [function for function, file in files.items() if folder.read(file, key) is None]
                if absent:
                    compile_into(folder, self.compiler, [], absent, self.what)
                found = {function: folder.read(file, key) for function, file in files.items()}
        whole = [code for code in found.values() if code is not None]
        if len(whole) != len(files):
            raise folder.not_kept()
        return whole


def compile_ahead(ahead: Ahead, compile_: Callable[[str, str], bytes], arguments: Sequence[str]) -> int:
    """Compile functions into the cache and name each, as a program whose arguments are ``PARENT FUNCTION...``.

    It ends with the process that started it, whose number is the first argument.

    Parameters
    ----------
    compile_
        What gives the object file of a function for an architecture.
    """
    end_with(int(arguments[0]))
    # An interrupt from the terminal is the parent's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for name in arguments[1:]:
            Folder.of_user().write(ahead.file(name), ahead.key(), compile_(name, triple()))
            print(name, flush=True)
    except QnnError as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0
