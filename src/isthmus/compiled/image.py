"""Object files in this process: LLVM loads them and tells where their functions are."""

from __future__ import annotations

from collections.abc import Iterable


class Image:
    """Code that was loaded together: one space of names, which lives as long as this object."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm  # here, so that preparing and planning without running do without it

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._engine = llvm.create_mcjit_compiler(
            llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine()
        )

    def add(self, objects: Iterable[bytes]) -> None:
        """Load object files."""
        import llvmlite.binding as llvm

        for code in objects:
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, symbol: str) -> int:
        """Where a function is."""
        return self._engine.get_function_address(symbol)
