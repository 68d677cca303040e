"""What every operation takes and gives, written down a second time, one line an operation.

`operations.txt` has the operands, results, parameters with their defaults, data types and traits of all operations.
It is what users rely on, so a change shows as a changed line; `python tests/graph/test_tables.py` writes it again.
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from isthmus.graph import DataType, TensorMemType, TensorType
from isthmus.graph.datatypes import FIXED_POINTS, FLOATS, INDICES, NUMBERS, REALS
from isthmus.graph.operation import Operation, Param
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.ops.elementwise import FUNCTIONS, NUMBERED
from isthmus.graph.traits import Movement, Picks

WRITTEN = Path(__file__).with_name("operations.txt")
_SETS = {"NUMBERS": NUMBERS, "REALS": REALS, "FLOATS": FLOATS, "FIXED_POINTS": FIXED_POINTS, "INDICES": INDICES}


def count(limits: tuple[int, int | None]) -> str:
    fewest, most = limits
    return f"{fewest}" if fewest == most else f"{fewest}..{'' if most is None else most}"


def types(allowed: Any) -> str:
    if allowed is None:
        return "any"
    if callable(allowed):
        return "as an operand"
    allowed = allowed if isinstance(allowed, tuple) else (allowed,)
    name = next((name for name, members in _SETS.items() if allowed[: len(members)] == members), None)
    rest = allowed if name is None else allowed[len(_SETS[name]) :]
    return "+".join([*([name] if name else []), *(t.name for t in rest)])


def parameter(param: Param) -> str:
    kind = f"{param.name}:{param.kind}"
    return kind if param.required else f"{kind}={param.default}"


def trait(name: str, value: Any) -> str:
    if isinstance(value, Movement):
        value = (value.picks.name, *(f"in[{i}]" for i in value.sources), *(["fills"] if value.fills else []))
        return f"{name}({' '.join(value)})"
    if isinstance(value, Enum):
        return f"{name}({value.name})"
    return name if value is True else f"{name}({value})"


def line(operation: Operation) -> str:
    traits = {f.name: getattr(operation.traits, f.name) for f in fields(operation.traits)}
    kept = (trait(name, value) for name, value in traits.items() if value)
    parts = [
        f"{operation.package} {operation.name} {count(operation.inputs)} -> {count(operation.outputs)}",
        ", ".join(map(parameter, operation.params)),
        ", ".join(f"in[{i}] {types(t)}" for i, t in operation.input_types.items()),
        ", ".join(f"out[{i}] {types(t)}" for i, t in operation.output_types.items()),
        ", ".join(kept),
    ]
    return " | ".join(parts)


def table() -> list[str]:
    """All operations, those that only a number names after the others, and what the numbers mean."""
    functions = [f for name, f in FUNCTIONS.items() if name not in OPERATIONS]
    numbers = [f"{name}: {' '.join(f'{i}={f}' for i, f in enumerate(named))}" for name, named in NUMBERED.items()]
    sets = [f"{name}: {' '.join(t.name for t in members)}" for name, members in _SETS.items()]
    return [*sets, *sorted(map(line, OPERATIONS.values())), *map(line, functions), *numbers]


def test_every_operation_is_what_it_is_written_to_be() -> None:
    assert table() == WRITTEN.read_text().splitlines()


@pytest.mark.parametrize(
    ("movement", "of_one"),
    [
        (Movement(Picks.PLACE), True),
        (Movement(Picks.ORDER, (0,)), True),
        (Movement(Picks.PLACE, (0,), fills=True), False),
        (Movement(Picks.PLACE, (0, 2)), False),
        (Movement(Picks.PLACE, ()), False),
        (Movement(Picks.PLACE, (), fills=True), False),
    ],
)
def test_all_comes_from_one_operand_when_it_is_the_only_source_and_nothing_is_filled_in(
    movement: Movement, of_one: bool
) -> None:
    assert movement.of_one is of_one


NUMBERED_KINDS = ("INT", "UINT", "FLOAT", "SFIXED_POINT", "UFIXED_POINT", "BOOL")
BITS = {8: 1, 16: 2, 32: 4, 64: 8}


@pytest.mark.parametrize(
    "dtype", [t for t in DataType if t not in (DataType.UNDEFINED, DataType.BFLOAT_16)], ids=lambda t: t.name
)
def test_a_data_type_is_what_its_name_says(dtype: DataType) -> None:
    kind, _, bits = dtype.name.rpartition("_")
    # QNN's numbers: the kind in the high byte, the bits in the low one, written in decimal digits.
    assert dtype.value == 0x100 * NUMBERED_KINDS.index(kind) + int(bits, 16)
    assert dtype.itemsize == BITS[int(bits)]
    assert dtype.is_float == (kind == "FLOAT")
    assert dtype.is_fixed_point == ("FIXED" in kind)
    assert dtype.is_integer == (kind in ("INT", "UINT"))
    if dtype.is_fixed_point:
        assert DataType.fixed_point(dtype.numpy) is dtype
    else:
        assert DataType.of(dtype.numpy) is dtype


def test_the_upper_half_of_a_float_is_a_float_that_numpy_stores_as_bits() -> None:
    half = DataType.BFLOAT_16
    assert (half, half.itemsize, half.is_float, half.is_fixed_point, half.is_integer) == (0x226, 2, True, False, False)
    assert DataType.of(half.numpy) is DataType.UINT_16, "bits alone do not tell"


def test_other_enumerations_have_qnn_s_numbers() -> None:
    assert DataType.UNDEFINED == 0x7FFFFFFF
    kinds = ["APP_WRITE", "APP_READ", "APP_READWRITE", "NATIVE", "STATIC", "NULL"]
    assert [TensorType[name].value for name in kinds] == list(range(6))
    assert (TensorMemType.RAW, TensorMemType.MEMHANDLE) == (0, 1)


if __name__ == "__main__":
    WRITTEN.write_text("\n".join(table()) + "\n")
