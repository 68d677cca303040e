"""Tables of the operations and data types that a backend accepts, for validation, the delegate and documents.

A table is a text file, in groups: a line with data types, then the operations that are accepted in exactly these. A
data type is written as its kind and its bits: f32, bf16, i32 and u8 for plain numbers, sq8 and uq16 for signed and
unsigned fixed point, b8 for booleans. Elementwise functions are not in it: the tables of functions of an engine decide.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isthmus.graph.datatypes import FLOATS, INDICES, DataType
from isthmus.graph.operation import Call, Operation, names_of
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.ops.elementwise import FUNCTIONS
from isthmus.graph.tensor import Tensor

_KINDS = {
    "FLOAT": "f", "BFLOAT": "bf", "INT": "i", "UINT": "u", "SFIXED_POINT": "sq", "UFIXED_POINT": "uq", "BOOL": "b",
}  # fmt: skip
_DEFINED = tuple(dtype for dtype in DataType if dtype is not DataType.UNDEFINED)
# All data types in the order of tables: floats, fixed point, integers, booleans.
_ORDER = (
    *FLOATS, *(t for t in _DEFINED if t.is_fixed_point), *(t for t in _DEFINED if not (t.is_float or t.is_fixed_point)),
)  # fmt: skip
_SELECTORS = frozenset((*INDICES, DataType.BOOL_8))


PLAIN_FUNCTIONS = {name: f for name, f in FUNCTIONS.items() if name in OPERATIONS and f.inputs[1] in (1, 2)}
"""The operations that are functions of one or two elements."""


def code_of(dtype: DataType) -> str:
    """Return the short name of a data type in tables.

    >>> code_of(DataType.SFIXED_POINT_8), code_of(DataType.BFLOAT_16)
    ('sq8', 'bf16')
    """
    kind, _, bits = dtype.name.rpartition("_")
    return f"{_KINDS[kind]}{bits}"


_TYPES = {code_of(dtype): dtype for dtype in _DEFINED}


def type_of(code: str) -> DataType:
    """Return the data type of a short name."""
    return _TYPES[code]


def in_order(types: Collection[DataType]) -> list[DataType]:
    """Return data types in the order of tables."""
    return [dtype for dtype in _ORDER if dtype in types]


def principal_index(op: str) -> int | None:
    """Return the number of the first operand that is data; those that can only be indices, shapes or booleans are not.

    It is None if the operation need not have such an operand.
    """
    operation = OPERATIONS[op]
    for index in range(operation.inputs[0]):
        allowed = operation.input_types.get(index)
        if allowed is None or not _SELECTORS.issuperset(allowed):
            return index
    return None


def principal_operand(op: str, inputs: Sequence[Tensor | None]) -> Tensor | None:
    """Return the operand with the number `principal_index`; None if it is not there."""
    index = principal_index(op)
    return None if index is None or index >= len(inputs) else inputs[index]


def principal_type(op: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> DataType:
    """Return the data type that an operation is computed in: that of its first operand which is data.

    If there is none, the type of the first result counts.
    """
    operand = principal_operand(op, inputs)
    return outputs[0].dtype if operand is None else operand.dtype


def parse(text: str) -> dict[str, frozenset[DataType]]:
    """Return the data types of each operation of a table.

    >>> parse("f32 sq8\\n    Relu Tanh\\n")["Tanh"] == {DataType.FLOAT_32, DataType.SFIXED_POINT_8}
    True
    """
    table: dict[str, frozenset[DataType]] = {}
    types: frozenset[DataType] = frozenset()
    for line in text.splitlines():
        if line[:1].isspace():
            table.update(dict.fromkeys(line.split(), types))
        elif line:
            types = frozenset(_TYPES[code] for code in line.split())
    return table


def load(module: str, name: str, accepts: Callable[[Operation, DataType], bool]) -> dict[str, frozenset[DataType]]:
    """Read the table in the file `name` beside a module, whose ``__file__`` is given, and add elementwise functions.

    `accepts` tells whether the engine computes one of `PLAIN_FUNCTIONS` in one of its data types.
    """
    functions = {
        name: frozenset(dtype for dtype in function.input_types[0] or () if accepts(function, dtype))
        for name, function in PLAIN_FUNCTIONS.items()
    }
    table = parse(Path(module).with_name(name).read_text("ascii"))
    return dict(sorted({**table, **{name: types for name, types in functions.items() if types}}.items()))


def format_table(table: Mapping[str, Collection[DataType]]) -> str:
    """Return the text of a table; `parse` reads it."""
    groups: dict[str, list[str]] = {}
    for op, types in sorted(table.items()):
        groups.setdefault(" ".join(map(code_of, in_order(types))), []).append(op)
    wrapped = {types: textwrap.indent(textwrap.fill(" ".join(ops), 112), "    ") for types, ops in groups.items()}
    return "".join(f"{types}\n{ops}\n" for types, ops in sorted(wrapped.items()))


@dataclass(frozen=True)
class Acceptance:
    """The operations and data types that a backend accepts.

    - `types`: the data types of each operation, as `principal_type` defines them.
    - `vendor`: the data types in which the library of the device's vendor accepts an operation, if that is known.
      Types that only `types` has are accepted here although that library refuses them.
    """

    types: Mapping[str, frozenset[DataType]]
    vendor: Mapping[str, frozenset[DataType]] = field(default_factory=dict)

    def explain(self, call: Call) -> str | None:
        """Return a message that a call's data type is not accepted, with those that are; None if it is accepted."""
        types = self.types.get(call.op)
        if types is None:
            return "the backend does not accept this operation"
        dtype = principal_type(call.op, call.inputs, call.declared or ())
        return None if dtype in types else f"{dtype.name} is not accepted; it takes {names_of(in_order(types))}"

    def refusal(self, call: Call, reason: str | None) -> str | None:
        """Return why a call is refused: what the table says, else the engine's `reason`; None if that is None.

        The table is not asked without a reason: a call that needs no computing, as on constants, may have any type.
        """
        return None if reason is None else self.explain(call) or reason

    def only_here(self, op: str) -> frozenset[DataType]:
        """Return the data types that are accepted here although the vendor's library refuses them.

        There are none if nothing is known of a vendor's library.
        """
        return self.types.get(op, frozenset()) - self.vendor.get(op, frozenset()) if self.vendor else frozenset()
