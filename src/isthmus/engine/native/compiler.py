"""From a kernel's name to machine code: numba types it and writes LLVM IR, LLVM optimises it for a target.

Numba serves as a front end only: its IR is taken unoptimised, given a plain C entry point and compiled for the wanted
target, which need not be this machine's. Run as a program (see `main`) it compiles the named kernels into the
cache, so that the process which runs models never loads numba.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm

from isthmus.engine.native import cache
from isthmus.engine.native.target import Target, by_name

_ALLOWED_EXTERNALS = frozenset(
    ("memcpy", "memset", "memmove", "syscall", "sched_getcpu", "expf", "logf", "powf", "sinf", "cosf", "tanf", "erff",
     "asinf", "acosf", "atanf", "sinhf", "coshf", "asinhf", "acoshf", "atanhf", "exp2f", "fmodf", "roundf", "rintf",
     "floorf", "ceilf", "truncf", "fmaf", "exp", "log", "pow", "sin", "cos", "tan", "fmod", "round", "rint", "floor",
     "ceil", "trunc", "fma", "sqrt", "sqrtf", "nearbyintf", "nearbyint", "roundevenf", "roundeven", "tanhf", "tanh",
     "__powidf2", "ldexpf", "ldexp", "fmaximumf", "fminimumf", "fmaxf", "fminf", "fmax", "fmin", "log1pf", "expm1f")
)  # fmt: skip
"""The C functions that compiled code may call; each is in every process, so cached code needs nothing else."""


class CompileError(Exception):
    """A kernel that cannot be compiled: always a mistake in the kernel."""


@contextmanager
def _front_end_only() -> Iterator[None]:
    """Within, numba writes IR and nothing else; after, it is as it was, for whoever else uses it in this process."""
    from numba.core import codegen, config, cpu
    from numba.core.config import _OptLevel

    changes: list[tuple[Any, str, Any]] = [
        # The IR must reach us as the front end wrote it: optimisation belongs to the wanted target.
        (config, "OPT", _OptLevel(0)),
        # Numba must not turn it into code for this machine, which may lack what the target has.
        (codegen.JITCPUCodegen, "_add_module", lambda self, module: None),
        (codegen.JITCodeLibrary, "_finalize_specific", lambda self: None),
        # In the place of an entry point it wants a builtin of its own for each function.
        (cpu.CPUContext, "get_executable", lambda self, library, fndesc, env: [].append),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def target_machine(target: Target) -> llvm.TargetMachine:
    """LLVM's code generator for a target."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )


def _device_function(kernel: str, target: Target) -> Any:
    module_name, _, rest = kernel.partition(":")
    function_name, _, variant = rest.partition(".")
    module = importlib.import_module(f"isthmus.engine.native.kernels.{module_name}")
    function = getattr(module, function_name)
    return function(target, variant) if getattr(function, "is_generator", False) else function


def front_end(kernel: str, target: Target) -> tuple[str, str]:
    """The unoptimised IR of a kernel, and the name of its function in it."""
    from numba import types
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock, _front_end_only():
        function = _device_function(kernel, target)
        signature = (types.int64,) * 4
        function.compile(signature)
        compiled = function.overloads[signature]
        compiled.library._ensure_finalized()
        return compiled.library.get_llvm_str(), compiled.fndesc.llvm_func_name


def compile_kernel(kernel: str, target: Target, assembly: bool = False) -> bytes | str:
    """The object file of one kernel for a target: one C function ``void (i64, i64, i64, i64)``."""
    text, name = front_end(kernel, target)
    entry = cache.symbol(kernel)
    machine = target_machine(target)
    lines = [
        line
        for line in text.splitlines()
        if not line.startswith(("target triple", "target datalayout", "source_filename"))
    ]
    lines.insert(0, f'target triple = "{target.triple}"')
    lines.insert(0, f'target datalayout = "{machine.target_data}"')
    lines.append(
        f"define void @{entry}(i64 %p, i64 %b, i64 %t, i64 %n) {{\n"
        "  %r = alloca ptr\n  %e = alloca ptr\n"
        f'  %s = call i32 @"{name}"(ptr %r, ptr %e, i64 %p, i64 %b, i64 %t, i64 %n)\n'
        "  ret void\n}\n"
    )
    module = llvm.parse_assembly("\n".join(lines))
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
    foreign = sorted(
        f.name
        for f in module.functions
        if f.is_declaration and not f.name.startswith("llvm.") and f.name not in _ALLOWED_EXTERNALS
    )
    if foreign:
        raise CompileError(f"kernel {kernel} for {target.name} would call {', '.join(foreign)}")
    return machine.emit_assembly(module) if assembly else machine.emit_object(module)


def main(arguments: list[str]) -> int:
    """Compile kernels into the cache and name each: ``python -m isthmus.engine.native.compiler TARGET KERNEL...``."""
    target = by_name(arguments[0])
    for kernel in arguments[1:]:
        code = compile_kernel(kernel, target)
        assert isinstance(code, bytes)
        cache.write(kernel, target, code)
        print(kernel, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
