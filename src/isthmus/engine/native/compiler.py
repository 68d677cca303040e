"""Compiles a kernel, by name, to machine code for a target, which may differ from this machine.

Only workers of the compile server call it (see `isthmus.compiled.children`). So the process that runs models never
loads numba.
"""

from __future__ import annotations

import importlib
from typing import Any

from isthmus.compiled import objects
from isthmus.engine.native import cache
from isthmus.engine.native.target import Target, by_name

# The C functions that compiled code may call. Every process has them, so cached code needs nothing else.
_ALLOWED_EXTERNALS = frozenset(
    ("memcpy", "memset", "memmove", "syscall", "sched_getcpu", "expf", "logf", "powf", "sinf", "cosf", "tanf", "erff",
     "asinf", "acosf", "atanf", "sinhf", "coshf", "asinhf", "acoshf", "atanhf", "exp2f", "fmodf", "roundf", "rintf",
     "floorf", "ceilf", "truncf", "fmaf", "exp", "log", "pow", "sin", "cos", "tan", "fmod", "round", "rint", "floor",
     "ceil", "trunc", "fma", "sqrt", "sqrtf", "nearbyintf", "nearbyint", "roundevenf", "roundeven", "tanhf", "tanh",
     "__powidf2", "ldexpf", "ldexp", "fmaximumf", "fminimumf", "fmaxf", "fminf", "fmax", "fmin", "log1pf", "expm1f",
     "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf")
)  # fmt: skip


def _device_function(kernel: str, target: Target) -> Any:
    """Return the numba function of a kernel, which some modules generate for a target and a variant."""
    module_name, _, rest = kernel.partition(":")
    function_name, _, variant = rest.partition(".")
    module = importlib.import_module(f"isthmus.engine.native.kernels.{module_name}")
    function = getattr(module, function_name)
    return function(target, variant) if getattr(function, "is_generator", False) else function


def compile_kernel(kernel: str, target: Target, assembly: bool = False) -> bytes | str:
    """Return the object file of a kernel, or its assembly text. It is a C function of four i64, which returns an i64 if
    the kernel does.
    """
    with objects.front_end():
        function = _device_function(kernel, target)
        text, name = objects.intermediate(function)
    machine = objects.machine_for(target.triple, target.cpu, target.features)
    module = objects.optimise(text, name, cache.symbol(kernel), machine, _ALLOWED_EXTERNALS, objects.answers(function))
    return machine.emit_assembly(module) if assembly else machine.emit_object(module)


def compile_job(kernel: str, target: str) -> tuple[str, bytes]:
    """Return the key and the object file of a kernel for a target, by name; called by workers of the compile server."""
    code = compile_kernel(kernel, by_name(target))
    assert isinstance(code, bytes)
    return cache.key(kernel, by_name(target)), code
