"""The tables of what backends accept are what their engines answer, call by call.

`PYTHONPATH=tests python tests/engine/native/test_acceptance.py` writes the tables again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.suites import LONG

import isthmus
from engine.native.test_supports import CASES, F32, Case, calls, tensor
from isthmus import QnnError, qnn
from isthmus.backends.gpu import accepted as of_gpu
from isthmus.backends.gpu.compile import lower as gpu_lower
from isthmus.backends.htp import accepted as of_htp
from isthmus.backends.seam import registry
from isthmus.engine.native import accepted as of_engine
from isthmus.engine.native import lower
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.acceptance import (
    PLAIN_FUNCTIONS,
    Acceptance,
    format_table,
    parse,
    principal_operand,
    principal_type,
)
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS

ROOT = Path(isthmus.__file__).parent
ENGINES: dict[str, tuple[Path, Acceptance, Callable[[Call], str | None]]] = {
    "native": (ROOT / "engine" / "native" / "accepted.txt", of_engine.ACCEPTED, lower.supports),
    "gpu": (ROOT / "backends" / "gpu" / "accepted.txt", of_gpu.ACCEPTED, gpu_lower.supports),
}


def in_any_type(case: Case) -> Case:
    """A case whose data may have any type, also where a case gives it one."""
    op, operands, params, shapes = case
    fixed = [isinstance(o[0], DataType) if o else False for o in operands]
    typed = [o and (o if fixed[i] else (F32, o)) for i, o in enumerate(operands)]
    made = [o and tensor(f"in{i}", TensorType.APP_WRITE, *o) for i, o in enumerate(typed)]
    for index, operand in enumerate(operands):
        if made[index] is principal_operand(op, made):
            operands = [*operands[:index], operand[1] if fixed[index] else operand, *operands[index + 1 :]]
    return op, operands, params, shapes


def without_contents(call: Call) -> Call:
    """The call with constants whose contents are not known, so that none makes it easier than it is."""
    inputs = []
    for operand in call.inputs:
        if operand is not None and operand.is_static:
            operand = Tensor(operand.name, TensorType.APP_WRITE, operand.dtype, operand.dims, operand.quantization)
            operand.type = TensorType.STATIC
        inputs.append(operand)
    return replace(call, inputs=inputs)


def measured(supports: Callable[[Call], str | None], cases: Sequence[Case]) -> dict[str, set[DataType]]:
    """The data types in which an engine executes some call of each operation."""
    table: dict[str, set[DataType]] = {}
    for case in map(in_any_type, cases):
        for call in map(without_contents, calls(*case)):
            if not any(output.elements for output in call.declared or ()):
                continue
            dtype = principal_type(call.op, call.inputs, call.declared or ())
            types = table.setdefault(call.op, set())
            if dtype not in types and supports(call) is None:
                types.add(dtype)
    return {op: types for op, types in table.items() if types}


def written(table: Mapping[str, Collection[DataType]]) -> dict[str, Collection[DataType]]:
    """What the file of a table has: all but what follows from tables of functions."""
    return {op: types for op, types in table.items() if op not in PLAIN_FUNCTIONS}


@LONG
@pytest.mark.parametrize("name", ENGINES)
def test_a_table_has_all_operations_and_types_that_its_engine_executes(name: str) -> None:
    _, table, supports = ENGINES[name]
    assert measured(supports, CASES) == table.types


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "op",
    [
        "Conv2d", "Softmax", "Gather", "ElementWiseSelect", "OneHot", "RotaryEmbedding", "Buffer", "Nv12ToRgb",
        "ElementWiseAdd", "ElementWiseNeg", "ElementWiseNot", "IsInf", "Mish", "Relu6", "BitwiseAnd",
    ],
)  # fmt: skip
def test_a_table_has_the_types_of_some_operations(name: str, op: str) -> None:
    _, table, supports = ENGINES[name]
    assert measured(supports, [case for case in CASES if case[0] == op]).get(op, set()) == set(table.types.get(op, ()))


def test_a_table_is_read_as_it_is_written() -> None:
    for path, table, _ in ENGINES.values():
        assert table.types.keys() <= OPERATIONS.keys()
        assert path.read_text() == format_table(written(table.types))
        assert parse(path.read_text()) == written(table.types)


def test_what_is_data_decides_the_type_of_an_operation() -> None:
    kinds = {"in0": DataType.BOOL_8, "in1": DataType.FLOAT_16, "in2": DataType.FLOAT_16, "out": DataType.FLOAT_16}
    tensors = {name: tensor(name, TensorType.APP_WRITE, dtype, (2,)) for name, dtype in kinds.items()}
    chosen = principal_type("ElementWiseSelect", [tensors["in0"], tensors["in1"], tensors["in2"]], [tensors["out"]])
    assert chosen is DataType.FLOAT_16
    index = tensor("index", TensorType.APP_WRITE, DataType.INT_32, (2,))
    assert principal_type("OneHot", [index], [tensors["out"]]) is DataType.FLOAT_16


@pytest.mark.parametrize("name", ["cpu", "htp", "lpai"])
def test_a_refusal_names_the_types_that_are_accepted(name: str) -> None:
    x = tensor("x", TensorType.APP_WRITE, DataType.FLOAT_64, (2, 3))
    y = tensor("y", TensorType.APP_READ, DataType.FLOAT_64, (2, 3))
    with qnn.Backend(name) as backend, pytest.raises(QnnError, match="FLOAT_64 is not accepted; it takes FLOAT_32"):
        backend.validate_op_config("n", "Gelu", [x], [y])


def test_every_backend_declares_what_it_accepts() -> None:
    for name in ("cpu", "htp", "lpai", "gpu"):
        accepted = registry.entry(name).accepted
        assert accepted is not None
        assert DataType.FLOAT_32 in accepted.types["Conv2d"]


def test_what_only_we_accept_on_htp_is_known() -> None:
    vendor = of_htp.ACCEPTED.vendor
    assert vendor.keys() <= OPERATIONS.keys()
    assert DataType.FLOAT_16 in vendor["Conv2d"]
    assert DataType.SFIXED_POINT_8 in of_htp.ACCEPTED.only_here("Lrn")
    assert of_htp.ACCEPTED.only_here("Erf") == of_htp.ACCEPTED.types["Erf"], "the vendor does not know it"
    assert not of_engine.ACCEPTED.only_here("Erf"), "the engine has no vendor"


if __name__ == "__main__":
    for path, _, supports in ENGINES.values():
        path.write_text(format_table(written(measured(supports, CASES))))
