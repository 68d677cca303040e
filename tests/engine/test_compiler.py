"""The code of a kernel depends on its source and its target only, not on what was compiled before it."""

from __future__ import annotations

from numba import types

from isthmus.engine.kernels.base import device, device_reassociated


def test_a_function_keeps_its_rounding_whoever_calls_it_first() -> None:
    rounded = device(lambda x: x + 12582912.0 - 12582912.0)
    caller = device_reassociated(lambda x: rounded(x) + x)
    signature = (types.float64,)
    caller.compile(signature)
    assert "fadd reassoc" in caller.overloads[signature].library.get_llvm_str()
    assert "reassoc" not in rounded.overloads[signature].library.get_llvm_str()
