"""The code of a kernel depends on its source and its target only, not on what was compiled before it."""

from __future__ import annotations

import pytest
from numba import njit, types

from isthmus.engine.native.compiler import compile_kernel
from isthmus.engine.native.kernels import base
from isthmus.engine.native.kernels.base import device, device_reassociated
from isthmus.engine.native.target import host


def test_a_function_rounds_alike_whatever_calls_it_first() -> None:
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


@pytest.mark.parametrize("kind", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f32", "f64"])
def test_reads_and_writes_promise_what_loads_and_stores_do_not(kind) -> None:
    """The promise lets loops vectorise; without it they give the same, more slowly, and nothing else tells."""
    for name, promises in (("load", False), ("read", True), ("store", False), ("write", True)):
        access = getattr(base, f"{name}_{kind}", None)
        if access is not None:
            defined = access._defn
            known = dict(zip(defined.__code__.co_freevars, defined.__closure__, strict=True))
            assert known["streaming"].cell_contents is promises, name
            assert str(known["numba_type"].cell_contents) == {
                "i": "int", "u": "uint", "f": "float",
            }[kind[0]] + kind[1:], name  # fmt: skip
