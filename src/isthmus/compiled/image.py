"""Object files in this process: LLVM loads them and returns the addresses of their functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Image:
    """Code that was loaded together and lives as long as this object.

    References in an object file reach at most 2 GiB. LLVM's newer linker (JITLink) lays each file out as one piece of
    memory, even if drivers occupy large parts of the address space. The older one allocates memory for a file's code
    and then for its constants, and aborts the process if the second is far from the first.
    """

    def __init__(self) -> None:
        import llvmlite.binding as llvm  # here, so that preparing and planning without running need not load it

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._linker = llvm.create_lljit_compiler(machine, use_jit_link=True)
        # They keep the loaded code alive.
        self._libraries: list[Any] = []

    def add(self, objects: Iterable[bytes], symbols: Iterable[str]) -> dict[str, int]:
        """Load object files and return the addresses of the named functions. The files may call each other."""
        import llvmlite.binding as llvm

        library = llvm.JITLibraryBuilder().add_current_process()
        for code in objects:
            library.add_object_img(code)
        names = list(symbols)
        for symbol in names:
            library.export_symbol(symbol)
        loaded = library.link(self._linker, f"objects {len(self._libraries)}")
        self._libraries.append(loaded)
        return {symbol: loaded[symbol] for symbol in names}
