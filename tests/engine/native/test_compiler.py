"""The code of a kernel depends on its source and its target only, not on what was compiled before it."""

from __future__ import annotations

from numba import njit, types

from isthmus.engine.native.compiler import compile_kernel
from isthmus.engine.native.kernels.base import device, device_reassociated
from isthmus.engine.native.target import host


def test_a_function_keeps_its_rounding_whoever_calls_it_first() -> None:
    rounded = device(lambda x: x + 12582912.0 - 12582912.0)
    caller = device_reassociated(lambda x: rounded(x) + x)
    signature = (types.float64,)
    caller.compile(signature)
    assert "fadd reassoc" in caller.overloads[signature].library.get_llvm_str()
    assert "reassoc" not in rounded.overloads[signature].library.get_llvm_str()


def test_compiling_a_kernel_leaves_numba_as_it_was_for_others() -> None:
    compile_kernel("executor:stop", host())

    @njit
    def twice(x):  # type: ignore[no-untyped-def]
        return 2 * x

    assert twice(21) == 42
