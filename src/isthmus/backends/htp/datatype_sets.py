"""The validation rules of the vendor's library: data types of operands together, ranks, and parameters.

The table is a text file of facts, as the library for x86 answered for a chip of version 79. A line that is not indented
has operations with what they share: each is written with the highest rank of its first input and the parameters that
may not be left out, as in ``Argmax:4:axis``. The indented lines after it are the sets of data types that these
operations take: those of inputs, an arrow, those of outputs. Types of one tensor are separated by commas. A set that is
taken with a higher rank than the others of its operation ends with it, as in ``uq8 uq8 -> uq8 :5``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from isthmus.graph.acceptance import code_of, in_order, principal_index, type_of
from isthmus.graph.datatypes import DataType, TensorType
from isthmus.graph.operation import Call, names_of
from isthmus.graph.ops import OPERATIONS

Types = frozenset[DataType]
_WEIGHTS = DataType.SFIXED_POINT_8
_ARROW = "->"


@dataclass(frozen=True)
class DatatypeSet:
    """Data types of inputs and outputs that an operation takes together; each tensor may have one of several.

    `max_rank` is the highest rank of the first input with these types, 0 for that of the operation.
    """

    inputs: tuple[Types, ...]
    outputs: tuple[Types, ...]
    max_rank: int = 0

    @classmethod
    def parse(cls, line: str) -> DatatypeSet:
        """Return the set that a line of the table has.

        >>> DatatypeSet.parse("f16 u8,i32 -> f16").inputs[1] == {DataType.UINT_8, DataType.INT_32}
        True
        """
        types, _, rank = line.partition(":")
        inputs, _, outputs = types.partition(_ARROW)
        first, last = (tuple(frozenset(map(type_of, word.split(","))) for word in s.split()) for s in (inputs, outputs))
        return cls(first, last, int(rank or 0))

    def __str__(self) -> str:
        sides = (
            " ".join(",".join(map(code_of, in_order(types))) for types in side) for side in (self.inputs, self.outputs)
        )
        rank = f" :{self.max_rank}" if self.max_rank else ""
        return f" {_ARROW} ".join(sides).strip() + rank

    def types(self, side: str, index: int) -> Types:
        """Return the types of an input ("in") or output ("out"); none for one that the set does not have."""
        tensors = self.inputs if side == "in" else self.outputs
        return tensors[index] if index < len(tensors) else frozenset()

    @classmethod
    def merge(cls, sets: Iterable[DatatypeSet]) -> tuple[DatatypeSet, ...]:
        """Return fewer sets that allow the same: two sets that differ in only one tensor become one."""
        merged: list[DatatypeSet] = []
        for each in sets:
            while (other := next((candidate for candidate in merged if each._join(candidate)), None)) is not None:
                merged.remove(other)
                each = each._join(other) or each
            merged.append(each)
        return tuple(sorted(merged, key=str))

    def _join(self, other: DatatypeSet) -> DatatypeSet | None:
        """Return the set that allows what either allows, if they differ in at most one tensor; None if in more."""
        both = (*zip(self.inputs, other.inputs, strict=False), *zip(self.outputs, other.outputs, strict=False))
        alike = len(self.inputs) == len(other.inputs) and len(self.outputs) == len(other.outputs)
        if not alike or self.max_rank != other.max_rank or sum(one != two for one, two in both) > 1:
            return None
        joined = [one | two for one, two in both]
        count = len(self.inputs)
        return DatatypeSet(tuple(joined[:count]), tuple(joined[count:]), self.max_rank)


@dataclass(frozen=True)
class VendorRule:
    """What the vendor's library validates of an operation.

    - `sets`: The data types that it takes together.
    - `max_rank`: The highest rank of its first input, unless a set has a higher one.
    - `required`: The parameters that may not be left out.
    """

    sets: tuple[DatatypeSet, ...]
    max_rank: int
    required: tuple[str, ...] = ()

    def principal_types(self, op: str) -> Types:
        """Return the data types that the operation is computed in, as `principal_type` defines them."""
        index = principal_index(op)
        types = [each.outputs[0] if index is None else each.inputs[index] for each in self.sets]
        return frozenset[DataType]().union(*types)

    def refusal(self, call: Call) -> str | None:
        """Return why the vendor's library refuses a call that is right in itself; None if it does not."""
        for name in self.required:
            if name in call.omitted:
                return f"HTP needs the parameter '{name}'"
        if any(tensor is not None and not tensor.dims for tensor in (*call.inputs, *(call.declared or ()))):
            return "HTP has no tensors of rank 0; a single number has the dimensions [1]"
        rank = len(call.inputs[0].dims) if call.inputs and call.inputs[0] is not None else 0
        left = tuple(each for each in self.sets if rank <= max(each.max_rank, self.max_rank))
        if not left:
            highest = max(self.max_rank, *(each.max_rank for each in self.sets))
            return f"HTP takes in[0] of rank {highest} at most; it has rank {rank}"
        operation = OPERATIONS[call.op]
        sides = (("in", call.inputs, operation.inputs[1]), ("out", call.declared or (), operation.outputs[1]))
        for side, tensors, most in sides:
            for index, tensor in enumerate(tensors):
                types = [each.types(side, index) for each in left]
                if tensor is None or (most is None and not any(types)):
                    # An absent operand, or a further one of any number of tensors: sets have only the first of these.
                    continue
                if not any(tensor.dtype in each for each in types):
                    allowed = names_of(in_order(frozenset[DataType]().union(*types)))
                    return f"HTP does not take {side}[{index}] {tensor.dtype.name} here; it takes {allowed or 'none'}"
                left = tuple(each for each in left if tensor.dtype in each.types(side, index))
        return _refuse_weights(call)


def _refuse_weights(call: Call) -> str | None:
    """Return why the vendor's library refuses fixed-point weights of a product of 16-bit floats, or None."""
    x, weights = (*call.inputs, None, None)[:2]
    if x is None or weights is None or x.dtype is not DataType.FLOAT_16 or weights.dtype is not _WEIGHTS:
        return None
    encoding = weights.quantization
    if weights.type is not TensorType.STATIC or encoding is None or encoding.axis is None or encoding.block:
        return "HTP takes fixed-point weights of FLOAT_16 only as constants with a scale for each index of an axis"
    if call.op == "Conv2d" and tuple(weights.dims[:2]) != (1, 1):
        return "HTP takes fixed-point weights of FLOAT_16 only in convolutions of one element"
    return None


def parse(text: str) -> dict[str, VendorRule]:
    """Return the rules of each operation of a table."""
    table: dict[str, VendorRule] = {}
    heads: list[str] = []
    lines: list[str] = []

    def end() -> None:
        sets = tuple(map(DatatypeSet.parse, lines))
        for head in heads:
            op, rank, required = head.split(":")
            table[op] = VendorRule(sets, int(rank), tuple(filter(None, required.split(","))))
        heads.clear()
        lines.clear()

    for line in text.splitlines():
        if line[:1].isspace():
            lines.append(line)
        else:
            if lines:
                end()
            heads += line.split()
    end()
    return table


def format_table(table: Mapping[str, VendorRule]) -> str:
    """Return the text of a table; `parse` reads it."""
    groups: dict[tuple[DatatypeSet, ...], list[str]] = {}
    for op, rule in sorted(table.items()):
        groups.setdefault(rule.sets, []).append(f"{op}:{rule.max_rank}:{','.join(rule.required)}")
    return "".join(_heads(heads) + "".join(f"    {each}\n" for each in sets) for sets, heads in groups.items())


def _heads(heads: Sequence[str]) -> str:
    """Return the lines of the operations that share their sets."""
    lines = [""]
    for head in heads:
        if lines[-1] and len(lines[-1]) + len(head) > 118:
            lines.append("")
        lines[-1] += f" {head}" if lines[-1] else head
    return "".join(f"{line}\n" for line in lines)
