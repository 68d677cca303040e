"""The basics for writing kernels: raw memory access, instruction operands, and the decorators.

Kernels see memory as 64-bit addresses. Nothing here allocates, raises or touches Python objects.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from isthmus.compiled.objects import OPTIONS
from isthmus.engine.native.kernels import half
from isthmus.engine.native.program import OPERAND_BITS
from isthmus.engine.native.target import Target
from isthmus.engine.native.words import Memory, Numbers, Real, Signature

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()

_OPTIONS: dict[str, Any] = {
    **OPTIONS,
    # Explicit, because a function without this option inherits it from whichever caller is compiled first.
    "fastmath": False,
}

REASSOCIATED = {"reassoc", "contract", "nsz"}
"""What numba's `fastmath` allows where float sums may be reordered within a thread's share."""

device = njit(**_OPTIONS)
"""Decorator of a function that kernels call, or of one that no program calls."""

device_reassociated = njit(**_OPTIONS | {"fastmath": REASSOCIATED})
"""Like `device`, but float sums may be reordered within a thread's share, so that reductions vectorise."""


def generated(function: Callable) -> Callable:
    """Mark a function as a kernel generator ``(target, variant: str) -> device function``."""
    function.is_generator = True  # type: ignore[attr-defined]
    return function


def _tag(builder: Any, instruction: Any, own: str, other: str) -> Any:
    """Tell LLVM that accesses of scope `own` do not alias those of scope `other`."""
    module = builder.module
    domain = module.add_metadata(["isthmus"])
    instruction.set_metadata("alias.scope", module.add_metadata([module.add_metadata([own, domain])]))
    instruction.set_metadata("noalias", module.add_metadata([module.add_metadata([other, domain])]))
    return instruction


def _element(builder: Any, llvm_type: ir.Type, base: Any, index: Any) -> Any:
    """Return a pointer to an element of an array at an address."""
    # LLVM's vectoriser understands a pointer with an index, but not a computed address.
    return builder.gep(builder.inttoptr(base, llvm_type.as_pointer()), [index])


def _unchanged(builder: Any, value: Any) -> Any:
    return value


def _load(llvm_type: ir.Type, numba_type: Any, streaming: bool, widen: Callable[[Any, Any], Any] = _unchanged) -> Any:
    """Return ``load(base address, index)``; `streaming` makes it one of the `read_*` below.

    `widen` emits the conversion of a loaded element.
    """

    @intrinsic
    def load(typing_context: Any, base: Any, index: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_element(builder, llvm_type, *args), align=1)
            return widen(builder, _tag(builder, value, "read", "write") if streaming else value)

        return numba_type(types.int64, types.int64), emit

    return load


def _store(llvm_type: ir.Type, numba_type: Any, streaming: bool, narrow: Callable[[Any, Any], Any] = _unchanged) -> Any:
    """Return ``store(base address, index, value)``; `streaming` makes it one of the `write_*` below.

    `narrow` emits the conversion of a value to an element.
    """

    @intrinsic
    def store(typing_context: Any, base: Any, index: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            stored = narrow(builder, args[2])
            instruction = builder.store(stored, _element(builder, llvm_type, args[0], args[1]), align=1)
            if streaming:
                _tag(builder, instruction, "write", "read")
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, numba_type), emit

    return store


# Accesses are (base address, element index). Activations may be at any address that a client chose, so no access
# promises more than byte alignment.
#   load_* / store_*  may be mixed freely.
#   read_* / write_*  promise that the kernel never reads, in this way, what it wrote at another index: so loops over
#                     them vectorise, in place too.
load_i8, read_i8 = (_load(I8, types.int8, s) for s in (False, True))
load_u8, read_u8 = (_load(I8, types.uint8, s) for s in (False, True))
load_i16, read_i16 = (_load(I16, types.int16, s) for s in (False, True))
load_u16, read_u16 = (_load(I16, types.uint16, s) for s in (False, True))
load_i32, read_i32 = (_load(I32, types.int32, s) for s in (False, True))
load_u32, read_u32 = (_load(I32, types.uint32, s) for s in (False, True))
load_i64, read_i64 = (_load(I64, types.int64, s) for s in (False, True))
load_u64, read_u64 = (_load(I64, types.uint64, s) for s in (False, True))
load_f32, read_f32 = (_load(F32, types.float32, s) for s in (False, True))
load_f64, read_f64 = (_load(F64, types.float64, s) for s in (False, True))
store_i8, write_i8 = (_store(I8, types.int8, s) for s in (False, True))
store_u8, write_u8 = (_store(I8, types.uint8, s) for s in (False, True))
store_i16, write_i16 = (_store(I16, types.int16, s) for s in (False, True))
store_u16, write_u16 = (_store(I16, types.uint16, s) for s in (False, True))
store_i32, write_i32 = (_store(I32, types.int32, s) for s in (False, True))
store_u32, write_u32 = (_store(I32, types.uint32, s) for s in (False, True))
store_i64, write_i64 = (_store(I64, types.int64, s) for s in (False, True))
store_u64, write_u64 = (_store(I64, types.uint64, s) for s in (False, True))
store_f32, write_f32 = (_store(F32, types.float32, s) for s in (False, True))
store_f64, write_f64 = (_store(F64, types.float64, s) for s in (False, True))


@cache
def accessor(access: str, kind: str, target: Target | None = None) -> Callable:
    """Return one of the functions above by name and kind; bools are bytes, floats of 16 bits are float32 in registers.

    `access` is "read" or "write" for loops that vectorise, "load" or "store" otherwise.
    """
    if kind not in half.STORED:
        return globals()[f"{access}_{'u8' if kind == 'bool' else kind}"]  # type: ignore[no-any-return]
    make, convert = (_load, half.widen) if access in ("read", "load") else (_store, half.narrow)

    def convert_kind(builder: Any, value: Any) -> Any:
        assert target is not None
        return convert(builder, value, kind, target)

    converting_access: Callable = make(half.STORED[kind], types.float32, access in ("read", "write"), convert_kind)
    return converting_access


@intrinsic
def copy_bytes(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy `count` bytes between regions that do not overlap."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = I8.as_pointer()
        cgutils.raw_memcpy(builder, builder.inttoptr(args[0], pointer), builder.inttoptr(args[1], pointer), args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@intrinsic
def fill_bytes(typing_context: Any, target: Any, value: Any, count: Any) -> Any:
    """Set `count` bytes to the low byte of `value`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], I8.as_pointer())
        cgutils.memset(builder, pointer, args[2], builder.trunc(args[1], I8))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@device
def word(p: int, k: int) -> int:
    """Return word `k` of the instruction as an integer."""
    return load_i64(p, k)


@device
def real(p: int, k: int) -> float:
    """Return word `k` of the instruction as a float."""
    return load_f64(p, k)


@device
def address(p: int, b: int, k: int) -> int:
    """Return the address of the operand in word `k`: that of its pool in the base table `b`, plus its offset.

    It is 0 if the operand is absent, since pool 0 has address 0.
    """
    operand = load_i64(p, k)
    return load_i64(b, operand >> OPERAND_BITS) + (operand & ((1 << OPERAND_BITS) - 1))


@device
def share(count: int, tid: int, nt: int) -> tuple[int, int]:
    """Return thread `tid`'s half-open range when `count` equal pieces are divided among `nt` threads."""
    return count * tid // nt, count * (tid + 1) // nt


def kernel(signature: Signature, fastmath: Any = False) -> Callable[[Callable], Any]:
    """Return the decorator of a kernel: a function whose parameters are words of its instruction, by their names.

    Operands arrive as addresses (0 if absent), numbers and counts as integers, reals as float64. A list of fixed length
    is a tuple; any other is the address of its first word, for `word`. An annotation names what converts a word, as in
    ``low: f32``. A default stands for a word that only other signatures have. Further parameters are `tid`, `nt`,
    `instruction` and `bases`: this thread's number, the number of threads, the addresses of the words and of the bases.
    """

    def decorate(function: Callable) -> Any:
        execute = njit(**_OPTIONS | {"fastmath": fastmath, "forceinline": True})(function)
        values = {"tid": "tid", "nt": "nt", "instruction": "p", "bases": "b"} | _expressions(signature)
        scope: dict[str, Any] = {**function.__globals__, "word": word, "real": real, "address": address}
        arguments = []
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in values:
                if parameter.default is parameter.empty:
                    raise TypeError(f"'{name}' is no word of '{signature.kernel}'")
                scope[f"default_{name}"] = parameter.default
                arguments.append(f"default_{name}")
            elif parameter.annotation is not parameter.empty:
                arguments.append(f"{parameter.annotation}({values[name]})")
            else:
                arguments.append(values[name])
        scope["execute"] = execute
        exec(f"def entry(p, b, tid, nt):\n    return execute({', '.join(arguments)})", scope)
        entry = device(scope["entry"])
        entry.execute, entry.signature = execute, signature
        return entry

    return decorate


def _expressions(signature: Signature) -> dict[str, str]:
    """Return the source of the value of each word; `p` is the instruction's address, and `b` that of the bases."""
    values: dict[str, str] = {}
    fixed, counts = 0, ""
    for item in signature.words:
        if isinstance(item.many, str):
            values[item.name] = f"p + 8 * ({fixed}{counts})"
            counts += f" + {values[item.many]}"
            continue
        reader = (
            "address(p, b, {})"
            if isinstance(item, Memory)
            else "real(p, {})"
            if isinstance(item, Real)
            else "word(p, {})"
        )
        reads = [reader.format(f"{place}{counts}") for place in range(fixed, fixed + item.many)]
        values[item.name] = f"({', '.join(reads)})" if isinstance(item, Numbers) else reads[0]
        fixed += item.many
    return values
