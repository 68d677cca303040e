"""Compiles a kernel, by name, to machine code for a target, which may differ from this machine.

Run as a program (see `main`), this module compiles the named kernels into the cache. So the process that runs models
never loads numba.
"""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Any

from isthmus.compiled import objects
from isthmus.engine.native import cache
from isthmus.engine.native.target import Target, by_name
from isthmus.errors import QnnError
from isthmus.system.isolated import end_with

_ALLOWED_EXTERNALS = frozenset(
    ("memcpy", "memset", "memmove", "syscall", "sched_getcpu", "expf", "logf", "powf", "sinf", "cosf", "tanf", "erff",
     "asinf", "acosf", "atanf", "sinhf", "coshf", "asinhf", "acoshf", "atanhf", "exp2f", "fmodf", "roundf", "rintf",
     "floorf", "ceilf", "truncf", "fmaf", "exp", "log", "pow", "sin", "cos", "tan", "fmod", "round", "rint", "floor",
     "ceil", "trunc", "fma", "sqrt", "sqrtf", "nearbyintf", "nearbyint", "roundevenf", "roundeven", "tanhf", "tanh",
     "__powidf2", "ldexpf", "ldexp", "fmaximumf", "fminimumf", "fmaxf", "fminf", "fmax", "fmin", "log1pf", "expm1f",
     "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf")
)  # fmt: skip
"""The C functions that compiled code may call. Every process has them, so cached code needs nothing else."""


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
    module = objects.optimised(text, name, cache.symbol(kernel), machine, _ALLOWED_EXTERNALS, objects.answers(function))
    return machine.emit_assembly(module) if assembly else machine.emit_object(module)


def main(arguments: list[str]) -> int:
    """Compile kernels into the cache and print each name; the arguments are ``PARENT TARGET KERNEL...``.

    This process ends with the process that started it, whose pid is the first argument.
    """
    end_with(int(arguments[0]))
    # The parent handles interrupts from the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        target = by_name(arguments[1])
        for kernel in arguments[2:]:
            code = compile_kernel(kernel, target)
            assert isinstance(code, bytes)
            cache.write(kernel, target, code)
            print(kernel, flush=True)
    except QnnError as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
