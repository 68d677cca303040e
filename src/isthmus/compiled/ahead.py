"""Functions compiled ahead of time: shipped, read from the folder of compiled code, or compiled into it by a child.

This is for code that is the same on every machine of an architecture. Each function has its own object file.
"""

from __future__ import annotations

import hashlib
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.compiled import shipped
from isthmus.compiled.children import compile_into
from isthmus.compiled.folder import Folder, Unavailable
from isthmus.compiled.toolchain import toolchain, usage
from isthmus.errors import QnnError
from isthmus.system.isolated import end_with


def triple(architecture: str | None = None) -> str:
    """Return LLVM's name of an architecture, by default of this machine's."""
    return f"{(architecture or platform.machine()).replace('arm64', 'aarch64')}-unknown-linux-gnu"


@dataclass(frozen=True)
class Ahead:
    """A group of functions.

    Parameters
    ----------
    name
        The prefix of their files.
    functions
        Their names.
    sources
        The source files of their code.
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
        """Return the hash of everything that code compiled here depends on."""
        return self._key(triple(), toolchain())

    def shipped_key(self, architecture: str) -> str:
        """Return the hash of everything that shipped code depends on, except for the versions of its compiler."""
        return self._key(triple(architecture), usage())

    def _key(self, machine: str, compiler: bytes) -> str:
        """Return the hash of a machine's name, a compiler's and the sources."""
        digest = hashlib.sha256(machine.encode() + b"\0" + compiler)
        for source in self.sources:
            digest.update(hashlib.sha256(source.read_bytes()).digest())
        return digest.hexdigest()

    def file(self, function: str) -> str:
        """Return the name of the file with a function's code."""
        return f"{self.name}_{function}-{platform.machine()}-{self.key()[:24]}.o"

    def shipped_file(self, function: str) -> str:
        """Return the name of a function's file in the archive of an architecture."""
        return f"{self.name}_{function}.o"

    def objects(self) -> list[bytes]:
        """Return the object files of all functions. If they are not shipped, the first call of a user compiles them."""
        machine = platform.machine()
        key = self.shipped_key(machine)
        ready = [shipped.read(machine, self.shipped_file(function), key) for function in self.functions]
        complete = [code for code in ready if code is not None]
        if len(complete) == len(ready):
            return complete
        try:
            return self._from(Folder.of_user())
        except Unavailable as problem:
            # Code that cannot be kept can still run.
            with Folder.of_this_process(problem, f"Functions of {self.what}") as folder:
                return self._from(folder)

    def _from(self, folder: Folder) -> list[bytes]:
        """Return the object files from a folder, after compiling the missing ones into it."""
        key = self.key()
        files = {function: self.file(function) for function in self.functions}
        codes = [folder.read(file, key) for file in files.values()]
        if None in codes:
            with folder.alone():
                # Another process may have compiled some while this one waited for the folder.
                absent = [function for function, file in files.items() if folder.read(file, key) is None]
                if absent:
                    compile_into(folder, self.compiler, [], absent, self.what)
                codes = [folder.read(file, key) for file in files.values()]
        complete = [code for code in codes if code is not None]
        if len(complete) != len(files):
            raise folder.not_kept()
        return complete


def compile_ahead(ahead: Ahead, compile_: Callable[[str, str], bytes], arguments: Sequence[str]) -> int:
    """Compile functions into the cache and print each name; a main program with arguments ``PARENT FUNCTION...``.

    It ends with the process that started it, whose process id is the first argument.

    Parameters
    ----------
    ahead
        The group that the functions belong to.
    compile_
        Returns the object file of a function for an architecture, both given by name.
    arguments
        The program's arguments.
    """
    end_with(int(arguments[0]))
    # The parent responds to an interrupt from the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for name in arguments[1:]:
            Folder.of_user().write(ahead.file(name), ahead.key(), compile_(name, triple()))
            print(name, flush=True)
    except QnnError as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0
