"""What becomes of a call that fits when one of its numbers is one off: another shape, or a refusal.

`neighbours.txt` has, for each call of `graph_cases`, what becomes of it when a dimension of an operand, its rank, that
it is there, or an element of a parameter changes. Whether a neighbour is refused is half of what an operation
says, and the half that nobody notices. `PYTHONPATH=tests python tests/graph/test_neighbours.py` writes it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from support.graph_cases import DECLARED, SHAPES

from isthmus.errors import QnnError
from isthmus.graph import DataType, Quantization, Tensor, TensorType
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS

WRITTEN = Path(__file__).with_name("neighbours.txt")
Dims = tuple[int, ...]


def operand(given: Any) -> tuple[DataType, Dims] | None:
    if given is None:
        return None
    return given if given and isinstance(given[0], DataType) else (DataType.FLOAT_32, tuple(given))


def outcome(op: str, operands: list, params: dict[str, Any], declared: list[Dims] | None) -> str:
    """The shapes that a call gives, or that it is refused."""
    tensors: list[Tensor | None] = []
    for index, given in enumerate(operands):
        dtype, dims = given or (DataType.UNDEFINED, ())
        quantization = Quantization.per_tensor(0.1) if dtype.is_fixed_point else None
        tensors.append(given and Tensor(f"in{index}", TensorType.APP_WRITE, dtype, dims, quantization))
    outputs = declared and [Tensor("out", TensorType.NATIVE, DataType.FLOAT_32, dims) for dims in declared]
    try:
        call = Call("n", op, tensors, OPERATIONS[op].complete("n", params), outputs)
        shapes = " ".join(text(dims) for dims in OPERATIONS[op].derive(call)[:3])
    except QnnError:
        return "refused"
    resolved = {n: np.asarray(v).tolist() for n, v in call.params.items() if n not in params and v is not None}
    left = OPERATIONS[op].complete("n", params)
    reported = [f"{n}={v}" for n, v in resolved.items() if v != np.asarray(left[n]).tolist()]
    return " ".join([shapes, *reported])


def text(dims: Any) -> str:
    return f"[{','.join(str(int(d)) for d in dims)}]"


def shapes_near(dims: Dims) -> Iterator[Dims]:
    for axis, size in enumerate(dims):
        for other in sorted({size + 1, max(size - 1, 0), 1, 0} - {size}):
            yield (*dims[:axis], other, *dims[axis + 1 :])
    if dims:
        yield dims[:-1]
    yield (1, *dims)


def numbers_near(value: Any) -> Iterator[Any]:
    array = np.asarray(value)
    if array.dtype.kind not in "iub":
        return
    if not array.shape:
        yield from sorted({int(value) + step for step in (-1, 1, 2, 3, 4)})
        return
    for at in np.ndindex(array.shape):
        for step in (-1, 1):
            near = array.astype(np.int64)
            near[at] += step
            yield near.tolist()
    yield array[..., :-1].tolist()


def neighbours(op: str, operands: list, params: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, list, dict]]]]:
    """For each operand and each parameter what it may be instead, as (its name, [(text, operands, parameters)])."""
    for index, given in enumerate(operands):
        if given is not None:
            dtype, dims = given
            made = [(text(near), [*operands[:index], (dtype, near), *operands[index + 1 :]], params)
                    for near in shapes_near(dims)]  # fmt: skip
            absent = ("none", [*operands[:index], None, *operands[index + 1 :]], params)
            yield f"in[{index}]", [*made, absent]
    for param in OPERATIONS[op].params:
        value = params.get(param.name, param.default)
        if value is not None or param.name == "axis":
            near = list(numbers_near(0 if value is None else value))
            yield param.name, [(str(other).replace(" ", ""), operands, {**params, param.name: other}) for other in near]


def account() -> list[str]:
    """All calls, each with what becomes of its neighbours: those that are refused, and what the others give."""
    lines = []
    declaring = [(*case[:3], case[3]) for case in DECLARED]
    for op, given, params, declared in [*((*case[:3], None) for case in SHAPES), *declaring]:
        operands = [operand(each) for each in given]
        reported = " ".join("none" if each is None else text(each[1]) for each in operands)
        lines.append(f"{op} {reported} {params or ''} -> {outcome(op, operands, params, declared)}")
        for name, others in neighbours(op, operands, params):
            ends = [(what, outcome(op, *call, declared)) for what, *call in others]
            refused = [what for what, end in ends if end == "refused"]
            if refused:
                lines.append(f"    {name} refused: {' '.join(refused)}")
            taken = [f"{what} -> {end}" for what, end in ends if end != "refused"]
            if taken:
                lines.append(f"    {name} {'; '.join(taken)}")
    return lines


def test_a_call_with_one_change_matches_the_definition_or_is_refused() -> None:
    assert account() == WRITTEN.read_text().splitlines()


if __name__ == "__main__":
    WRITTEN.write_text("\n".join(account()) + "\n")
