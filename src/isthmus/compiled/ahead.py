"""Functions compiled ahead of time: shipped, read from the folder of compiled code, or compiled into it by a child.

This is for code that is the same on every machine of an architecture. Each function has its own object file.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isthmus.compiled import shipped
from isthmus.compiled.children import CodePiece, Compiler, provide
from isthmus.compiled.toolchain import toolchain, usage


def triple(architecture: str | None = None) -> str:
    """Return LLVM's name of an architecture, by default of this machine's."""
    return f"{(architecture or platform.machine()).replace('arm64', 'aarch64')}-unknown-linux-gnu"


@dataclass(frozen=True)
class Ahead:
    """A group of functions.

    - `name`: The prefix of their files.
    - `compiler`: The module that compiles them: its `compile_job` calls this class's.
    - `what`: What they are, for messages.
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
        """Return the hash of a machine's name, a compiler's description (`toolchain` or `usage`) and the sources."""
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
        compiler = Compiler(self.compiler, (machine,), lambda count: self.what)
        codes = provide(compiler, lambda: [CodePiece(each, self.file(each), self.key()) for each in self.functions])
        return [codes[function] for function in self.functions]

    def compile_job(self, compile_: Callable[[str, str], bytes], function: str, architecture: str) -> tuple[str, bytes]:
        """Return the key and the code of a function for an architecture, in a compiler.

        `compile_` returns the object file of a function for an architecture, both given by LLVM's name.
        """
        code = compile_(function, triple(architecture))
        return self._key(triple(architecture), toolchain()), code
