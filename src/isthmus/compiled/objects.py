"""Compilation of typed Python to object files: numba produces LLVM IR, and LLVM compiles it for a machine.

Numba is only the front end. Its IR is taken unoptimised, given a plain C entry point and compiled for the wanted
machine, which need not be this one. Only compilers import this module, in processes of their own.

Most of the time goes into the front end. So it skips what our functions have no use for (`OPTIONS`), and remembers how
numba has typed an operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from numba import njit, types
from numba.core import codegen, config, cpu
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.config import _OptLevel
from numba.core.types.functions import BaseFunction

# Numba's passes for what our functions do not contain: closures, context managers, exceptions, arrays, `literally`.
_UNUSED_PASSES = frozenset(
    ("WithLifting", "InlineClosureLikes", "RewriteDynamicRaises", "MakeFunctionToJitFunction", "InlineInlinables",
     "FindLiterallyCalls", "LiteralUnroll", "LiteralPropagationSubPipelinePass", "InlineOverloads", "NopythonRewrites",
     "NoPythonSupportedFeatureValidation", "AnnotateTypes", "DumpParforDiagnostics")
)  # fmt: skip


class _ShortPipeline(CompilerBase):  # type: ignore[misc]
    """Numba's passes without those that would change nothing."""

    def define_pipelines(self) -> list[Any]:
        """Return the only list of passes."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes[:] = [entry for entry in passes.passes if entry[0].__name__ not in _UNUSED_PASSES]
        passes.finalize()
        return [passes]


OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    # There are no references to count.
    "_nrt": False,
    "pipeline_class": _ShortPipeline,
}
"""Numba's options for every function that is compiled here."""

# The signature of each operator for operands that are numbers.
_signatures: dict[Any, Any] = {}
_signature = BaseFunction.get_call_type


def _remembered_signature(function: Any, context: Any, args: Any, kws: Any) -> Any:
    """Return what numba's own method returns, which tries dozens of candidates each time."""
    is_operator = getattr(getattr(function, "typing_key", None), "__module__", "") == "_operator"
    if kws or not is_operator or not all(isinstance(operand, (types.Number, types.Boolean)) for operand in args):
        return _signature(function, context, args, kws)
    key = function, args
    if key not in _signatures:
        _signatures[key] = _signature(function, context, args, kws)
    return _signatures[key]


class CompileError(Exception):
    """The error for a function that cannot be compiled: always a mistake in the function."""


@contextmanager
def _front_end_only() -> Iterator[None]:
    """Make numba produce only IR inside the block; afterwards restore it for its other users in this process."""
    # Objects of numba, the names of their attributes, and the values inside the block.
    changes: list[tuple[Any, str, Any]] = [
        # Take the IR as the front end wrote it: optimisation is for the wanted target.
        (config, "OPT", _OptLevel(0)),
        # Numba must not compile it for this machine, which may lack features of the target.
        (codegen.JITCPUCodegen, "_add_module", lambda self, module: None),
        (codegen.JITCodeLibrary, "_finalize_specific", lambda self: None),
        # The entry point from Python is never called. Numba requires a builtin function in its place, another one for
        # each compiled function.
        (cpu.CPUContext, "get_executable", lambda self, library, fndesc, env: [].append),
        (BaseFunction, "get_call_type", _remembered_signature),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def front_end() -> Iterator[None]:
    """Provide the block in which functions are decorated and passed to `intermediate`."""
    with global_compiler_lock, _front_end_only():
        yield


def intermediate(function: Any) -> tuple[str, str]:
    """Return the unoptimised IR of a function of four integers that numba has decorated, and its name in the IR."""
    signature = (types.int64,) * 4
    function.compile(signature)
    compiled = function.overloads[signature]
    compiled.library._ensure_finalized()
    return compiled.library.get_llvm_str(), compiled.fndesc.llvm_func_name


def warm_up() -> None:
    """Make numba load all that it loads at the first compilation, and type the usual operators."""

    @njit(**OPTIONS)
    def usual(p: int, b: int, tid: int, nt: int) -> None:
        count = 0
        for index in range(p, b, nt):
            if (index >= tid and index != nt) or count == p:
                count += (index - tid) * nt // 3 % 5
            while count > b and not count <= 7:
                count = min(-count >> 1, max(index << 2, count & 3 | 1 ^ p))
        if count < 0.5 * float(p) + 1.5 - float(b) / 2.0:
            return

    with front_end():
        intermediate(usual)
    machine_for(llvm.get_default_triple(), "", "")


def machine_for(triple: str, cpu: str, features: str) -> llvm.TargetMachine:
    """Return LLVM's code generator for a machine, given in LLVM's names; its code is position-independent."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small"
    )


def answers(function: Any) -> bool:
    """Return whether a function that was passed to `intermediate` returns an integer."""
    [compiled] = function.overloads.values()
    return bool(compiled.signature.return_type == types.int64)


def optimise(
    text: str, name: str, entry: str, machine: llvm.TargetMachine, may_call: Set[str], answer: bool = False
) -> llvm.ModuleRef:
    """Return a module with one C function ``void entry(i64, i64, i64, i64)``, ready to be emitted.

    - `text`, `name`: The IR, and the function in it that the entry calls.
    - `entry`: The name of the C function.
    - `machine`: The target machine.
    - `may_call`: The C functions that it may call; cached code needs no others.
    - `answer`: Whether the function, and so the C function, returns an i64.
    """
    # The IR names the machine that numba runs on.
    lines = [
        line
        for line in text.splitlines()
        if not line.startswith(("target triple", "target datalayout", "source_filename"))
    ]
    lines.insert(0, f'target triple = "{machine.triple}"')
    lines.insert(0, f'target datalayout = "{machine.target_data}"')
    # Numba's functions return a status, and the result and an exception through two pointers that come first.
    lines.append(
        f"define {'i64' if answer else 'void'} @{entry}(i64 %p, i64 %b, i64 %t, i64 %n) {{\n"
        "  %r = alloca ptr\n  %e = alloca ptr\n"
        f'  %s = call i32 @"{name}"(ptr %r, ptr %e, i64 %p, i64 %b, i64 %t, i64 %n)\n'
        + ("  %v = load i64, ptr %r\n  ret i64 %v\n}\n" if answer else "  ret void\n}\n")
    )
    module = llvm.parse_assembly("\n".join(lines))
    # Only the entry is visible to other object files, and whatever it does not use is removed.
    for function in module.functions:
        if not function.is_declaration and function.name != entry:
            function.linkage = "internal"
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = True
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    # What is still declared without a body would be called in another library; "llvm." marks LLVM's intrinsics.
    foreign = sorted(
        function.name
        for function in module.functions
        if function.is_declaration and not function.name.startswith("llvm.") and function.name not in may_call
    )
    if foreign:
        raise CompileError(f"{entry} for {machine.triple} would call {', '.join(foreign)}")
    return module
