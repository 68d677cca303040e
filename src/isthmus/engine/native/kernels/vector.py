"""The basics for writing vector micro-kernels: LLVM vectors, masks and counted loops with short names.

A micro-kernel is a Python function that emits its code with a `VectorCode`; `outlined` makes it callable from kernels.
Vector lengths come from the target, so one description serves every instruction set.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from isthmus.engine.native.kernels import half
from isthmus.engine.native.kernels.base import F32, F64, I8, I16, I32, I64
from isthmus.engine.native.target import Target

_SUFFIX = {I8: "i8", I16: "i16", I32: "i32", I64: "i64", F32: "f32", F64: "f64"}
# The types of a micro-kernel's parameters, for LLVM and for numba, by letter (see `outlined`).
_KINDS = {"i": (I64, types.int64), "f": (F32, types.float32)}


def vector_type(element: ir.Type, count: int) -> ir.VectorType:
    """Return the type of a vector of `count` elements."""
    return ir.VectorType(element, count)


def type_suffix(kind: ir.Type) -> str:
    """Return the name of a type in LLVM's overloaded intrinsics: ``f32``, ``v16i32``."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_SUFFIX[kind.element]}"
    return _SUFFIX[kind]


class VectorCode:
    """A generator of vector code for one function.

    Parameters
    ----------
    builder
        The builder that receives the instructions.
    target
        The target. Its vector registers determine `lanes`, the number of 32-bit elements in a vector, and `floats` and
        `ints`, the vector types of that length.
    """

    def __init__(self, builder: Any, target: Target) -> None:
        self.builder = builder
        self.target = target
        self.lanes = target.lanes
        self.floats = vector_type(F32, self.lanes)
        self.ints = vector_type(I32, self.lanes)

    # -- numbers -------------------------------------------------------------------------------------------------------

    def number(self, value: int, kind: ir.Type = I64) -> Any:
        """Return an integer constant."""
        return ir.Constant(kind, value)

    def plus(self, left: Any, right: Any) -> Any:
        """Return a sum of addresses or counts; either may be a Python integer."""
        if isinstance(right, int):
            if right == 0:
                return left
            right = self.number(right)
        return self.builder.add(left, right)

    def times(self, left: Any, right: Any) -> Any:
        """Return a product of counts; the right one may be a Python integer."""
        return self.builder.mul(left, self.number(right) if isinstance(right, int) else right)

    def call(self, name: str, result: ir.Type, arguments: Sequence[Any]) -> Any:
        """Call an LLVM intrinsic or a C function."""
        function = self.builder.module.globals.get(name)
        if function is None:
            function = ir.Function(self.builder.module, ir.FunctionType(result, [a.type for a in arguments]), name)
        return self.builder.call(function, arguments)

    def opaque(self, value: Any) -> Any:
        """Return the same integer, but hide from LLVM how it was computed.

        This keeps a shared loop offset in one register; the optimiser would otherwise advance every address made with
        it.
        """
        barrier = ir.InlineAsm(ir.FunctionType(value.type, [value.type]), "", "=r,0")
        return self.builder.call(barrier, [value])

    # -- vectors -------------------------------------------------------------------------------------------------------

    def splat(self, scalar: Any, count: int | None = None) -> Any:
        """Return a vector with the scalar in each lane."""
        count = self.lanes if count is None else count
        kind = vector_type(scalar.type, count)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, self.number(0, I32))
        lanes = ir.Constant(vector_type(I32, count), [0] * count)
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), lanes)

    def constant(self, value: float | int, kind: ir.VectorType | None = None) -> Any:
        """Return a vector with the same constant in each lane, of floats unless `kind` says otherwise."""
        kind = self.floats if kind is None else kind
        return ir.Constant(kind, [value] * kind.count)

    def fma(self, left: Any, right: Any, addend: Any) -> Any:
        """Return ``left * right + addend``, fused if the target has an instruction for it."""
        return self.call(f"llvm.fmuladd.{type_suffix(addend.type)}", addend.type, [left, right, addend])

    def maximum(self, value: Any, least: Any) -> Any:
        """Return the larger value; a NaN in `value` stays."""
        return self.builder.select(self.builder.fcmp_ordered("<", value, least), least, value)

    def minimum(self, value: Any, most: Any) -> Any:
        """Return the smaller value; a NaN in `value` stays."""
        return self.builder.select(self.builder.fcmp_ordered(">", value, most), most, value)

    def clamp(self, value: Any, least: Any, most: Any) -> Any:
        """Limit the value to a range given by vectors; a NaN stays."""
        return self.minimum(self.maximum(value, least), most)

    def round_even(self, value: Any) -> Any:
        """Return the nearest integer, ties to even, as a float."""
        return self.call(f"llvm.rint.{type_suffix(value.type)}", value.type, [value])

    # -- memory --------------------------------------------------------------------------------------------------------

    def pointer(self, address: Any, kind: ir.Type, offset: int = 0) -> Any:
        """Return a typed pointer to an address plus constant bytes."""
        return self.builder.inttoptr(self.plus(address, offset), kind.as_pointer())

    def load(self, address: Any, kind: ir.Type | None = None, offset: int = 0, align: int = 1) -> Any:
        """Load a value from memory: a vector of floats unless `kind` names another type."""
        return self.builder.load(self.pointer(address, self.floats if kind is None else kind, offset), align=align)

    def store(self, value: Any, address: Any, offset: int = 0, align: int = 1) -> None:
        """Store a value in memory."""
        self.builder.store(value, self.pointer(address, value.type, offset), align=align)

    def mask(self, count: Any, first: int = 0, lanes: int | None = None) -> Any:
        """Return a mask of the lanes that are below `count` if the vector begins at element `first`."""
        lanes = self.lanes if lanes is None else lanes
        numbers = ir.Constant(vector_type(I64, lanes), [first + lane for lane in range(lanes)])
        return self.builder.icmp_signed("<", numbers, self.splat(count, lanes))

    def masked_load(self, address: Any, mask: Any, kind: ir.VectorType | None = None, offset: int = 0) -> Any:
        """Load only the masked lanes of a vector; the others are zero."""
        kind = self.floats if kind is None else kind
        return self.call(
            f"llvm.masked.load.{type_suffix(kind)}.p0",
            kind,
            [self.pointer(address, kind, offset), self.number(1, I32), mask, ir.Constant(kind, None)],
        )

    def masked_store(self, value: Any, address: Any, mask: Any, offset: int = 0) -> None:
        """Store the masked lanes of a vector."""
        name = f"llvm.masked.store.{type_suffix(value.type)}.p0"
        pointer = self.pointer(address, value.type, offset)
        self.call(name, ir.VoidType(), [value, pointer, self.number(1, I32), mask])

    def load_as(self, kind: str, address: Any, offset: int = 0, mask: Any = None) -> Any:
        """Load a vector of floats that memory holds as `kind`: f32, f16 or bf16; with a mask, only those lanes."""
        stored = self.floats if kind == "f32" else vector_type(half.STORED[kind], self.lanes)
        if mask is None:
            value = self.load(address, stored, offset)
        else:
            value = self.masked_load(address, mask, stored, offset)
        return value if kind == "f32" else half.widen(self.builder, value, kind, self.target)

    def store_as(self, kind: str, value: Any, address: Any, offset: int = 0, mask: Any = None) -> None:
        """Store a vector of floats as `kind`, rounded if that has 16 bits; with a mask, only those lanes."""
        stored = value if kind == "f32" else half.narrow(self.builder, value, kind, self.target)
        if mask is None:
            self.store(stored, address, offset)
        else:
            self.masked_store(stored, address, mask, offset)

    # -- control -------------------------------------------------------------------------------------------------------

    def loop(self, count: Any, carried: Sequence[Any] = (), step: int = 1) -> VectorLoop:
        """Begin a loop that runs at least once; see `VectorLoop`."""
        return VectorLoop(self, count, carried, step)

    def either(self, condition: Any, yes: Callable[[], Sequence[Any]], no: Callable[[], Sequence[Any]]) -> list[Any]:
        """Return the values of one of two branches; only that one runs. `yes` and `no` emit them and return values."""
        ends = []
        with self.builder.if_else(condition) as branches:
            for branch, write in zip(branches, (yes, no), strict=True):
                with branch:
                    ends.append((write(), self.builder.block))
        merged = []
        for values in zip(*(values for values, _ in ends), strict=True):
            phi = self.builder.phi(values[0].type)
            for value, (_, block) in zip(values, ends, strict=True):
                phi.add_incoming(value, block)
            merged.append(phi)
        return merged

    def below(self, left: Any, right: Any) -> Any:
        """Return whether one count is below the other; either may be a Python integer."""
        left, right = (self.number(side) if isinstance(side, int) else side for side in (left, right))
        return self.builder.icmp_signed("<", left, right)


class VectorLoop:
    """A counted loop: `index` runs from 0 by `step` while below the count, and runs at least once.

    `values` are the carried values inside the loop; `end` takes those of the next iteration and returns the final ones.

    Examples
    --------
    >>> loop = code.loop(count, [total])  # doctest: +SKIP
    >>> [total] = loop.end([code.builder.fadd(loop.values[0], x)])  # doctest: +SKIP
    """

    def __init__(self, code: VectorCode, count: Any, carried: Sequence[Any], step: int) -> None:
        self._code, self._count, self._step = code, count, step
        builder = code.builder
        before = builder.block
        self._body = builder.function.append_basic_block("loop")
        builder.branch(self._body)
        builder.position_at_end(self._body)
        self.index = builder.phi(I64)
        self.index.add_incoming(code.number(0), before)
        self.values = [builder.phi(value.type) for value in carried]
        for phi, value in zip(self.values, carried, strict=True):
            phi.add_incoming(value, before)

    def end(self, values: Sequence[Any] = ()) -> list[Any]:
        """Close the loop; code emitted afterwards runs after it."""
        builder = self._code.builder
        after = self._code.plus(self.index, self._step)
        self.index.add_incoming(after, builder.block)
        for phi, value in zip(self.values, values, strict=True):
            phi.add_incoming(value, builder.block)
        leave = builder.function.append_basic_block("after")
        builder.cbranch(builder.icmp_signed("<", after, self._count), self._body, leave)
        builder.position_at_end(leave)
        return list(values)


def outlined(name: str, parameters: str, target: Target, emit: Callable[..., None]) -> Callable:
    """Return a micro-kernel that kernels can call; it is compiled once, as a separate function.

    Parameters
    ----------
    name
        A name that is unique among the micro-kernels of a kernel.
    parameters
        One letter for each parameter: ``i`` for a 64-bit integer or address, ``f`` for a float.
    emit
        Emits the body; it is called with a `VectorCode` and the arguments.
    """
    kinds = [_KINDS[letter] for letter in parameters]

    def definition(typing_context: Any, *arguments: Any) -> Any:
        """Define the call for numba: its type, and `generate`, which emits the function once and then calls it."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            function = builder.module.globals.get(name)
            if function is None:
                kind = ir.FunctionType(ir.VoidType(), [llvm_type for llvm_type, _ in kinds])
                function = ir.Function(builder.module, kind, name)
                function.linkage = "internal"
                function.attributes.add("noinline")
                body = ir.IRBuilder(function.append_basic_block("entry"))
                emit(VectorCode(body, target), *function.args)
                body.ret_void()
            builder.call(function, args)
            return context.get_dummy_value()

        return types.void(*(numba_type for _, numba_type in kinds)), generate

    # The front end matches calls against the signature, which must list the parameters explicitly.
    names = ["typing_context", *(f"argument{i}" for i in range(len(kinds)))]
    definition.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    )
    definition.__name__ = name
    return intrinsic(definition)
