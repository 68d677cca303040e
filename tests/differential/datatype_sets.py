"""Asks the vendor's library what it validates, and writes the table of it that our HTP backend follows.

    python tests/differential/datatype_sets.py

The library logs the data types that an operation takes when it refuses others. Where it logs none, every pair of types
is tried. Besides, an answer has the highest rank that is accepted, and the parameters that may not be left out.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Iterable
from ctypes import c_char_p, c_uint64, c_void_p
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent)]

from differential.client import Node, Param, Session, TensorValue  # noqa: E402
from differential.operations import ENCODINGS, USES, kinds_of, node_of  # noqa: E402
from isthmus.backends.htp.accepted import TABLE  # noqa: E402
from isthmus.backends.htp.datatype_sets import DatatypeSet, VendorRule, format_table  # noqa: E402
from isthmus.cabi import tables  # noqa: E402
from isthmus.errors import QnnError  # noqa: E402
from isthmus.graph import Tensor, TensorType  # noqa: E402
from isthmus.graph.datatypes import DataType  # noqa: E402
from isthmus.graph.operation import Call  # noqa: E402
from isthmus.graph.ops import OPERATIONS  # noqa: E402

_ERRORS = 1
"""QNN's log level of errors."""
_LISTED = "Supported I/O datatype sets"
_MAX_LINE = 1 << 16
_MAX_RANK = 8
_SM8750 = 69
_BY_TYPE = {"GridSample"}
"""Operations whose highest rank depends on the data type."""
_libc = ctypes.CDLL(None)

Sets = list[list[list[str]]]
"""Sets of data types: the names of those of inputs, then of those of outputs."""


def cases() -> list[str]:
    """Name the operations."""
    return sorted(USES)


class LoggedSession(Session):
    """A session that keeps the lines of the library's log."""

    def __init__(self, library: Path, chip: int | None) -> None:
        super().__init__(library, chip)
        self.lines: list[str] = []
        self._callback = tables.LOG_CALLBACK(self._logged)
        log = self.make("logCreate", ctypes.cast(self._callback, c_void_p), _ERRORS)
        self.backend = self.make("backendCreate", log, None)
        assert self.context

    def _logged(self, text: bytes, level: int, time: int, arguments: int) -> None:
        room = ctypes.create_string_buffer(_MAX_LINE)
        _libc.vsnprintf(room, c_uint64(_MAX_LINE), c_char_p(text), c_void_p(arguments))
        self.lines.append(room.value.decode(errors="replace"))

    def accepts(self, node: Node) -> bool:
        """Validate a node; `lines` are then those about it."""
        self.lines.clear()
        code = self.code("backendValidateOpConfig", self.backend, self.operation(node))
        self.kept = self.kept[:1]
        return code == 0


def _retyped(value: TensorValue, dtype: DataType) -> TensorValue:
    """Return a tensor, which is no constant, with another data type."""
    kind = value.type if value.data is None else 0
    return replace(value, type=kind, dtype=dtype, encoding=ENCODINGS.get(dtype), data=None)


def _logged_sets(lines: Iterable[str]) -> Sets:
    """Return the sets of data types that a log lists."""
    blocks = [block for line in lines if _LISTED in line for block in re.split(r"\n\s*\d+:\s*\n", line)[1:]]
    found = [re.findall(r"(in|out)\[\d+\]:QNN_DATATYPE_(\w+)", block) for block in blocks]
    known = [each for each in found if all(name in DataType.__members__ for _, name in each)]
    return [[[name for at, name in each if at == side] for side in ("in", "out")] for each in known]


def _tried_sets(session: LoggedSession, valid: Node) -> Sets:
    """Return the sets that are accepted among those with any two types for the first input and output."""
    known = [t for t in DataType if t is not DataType.UNDEFINED and (t in ENCODINGS or not t.is_fixed_point)]
    found: Sets = []
    for first, last in product(known, known):
        inputs = [_retyped(valid.inputs[0], first), *valid.inputs[1:]]
        outputs = [_retyped(valid.outputs[0], last), *valid.outputs[1:]]
        if session.accepts(replace(valid, inputs=inputs, outputs=outputs)):
            found.append([[DataType(value.dtype).name for value in side] for side in (inputs, outputs)])
    return found


def _deeper(node: Node, extra: int) -> Node:
    """Return the node with this many dimensions of 1 in front of all, and parameters to match.

    GridSample has them after the batch, and as many more coordinates.
    """
    if node.op == "GridSample":
        x, grid, out = (replace(v, dims=(v.dims[0], *(1,) * extra, *v.dims[1:])) for v in (*node.inputs, *node.outputs))
        grid = replace(grid, dims=(*grid.dims[:-1], grid.dims[-1] + extra))
        return replace(node, inputs=[x, grid], outputs=[out])

    def tensor(value: TensorValue) -> TensorValue:
        if value.data is not None and len(value.dims) == 1:
            return value
        dims = (1,) * extra + value.dims
        return replace(value, dims=dims, data=None if value.data is None else value.data.reshape(dims))

    def param(each: Param) -> Param:
        value, rank = each.value, len(node.inputs[0].dims)
        if each.name == "axis":
            value += extra
        elif each.name == "axes":
            value = [axis + extra for axis in value]
        elif each.name == "perm":
            value = [*range(extra), *(axis + extra for axis in value)]
        elif isinstance(value, list) and len(value) == rank:
            value = [{"multiples": 1, "ranges": [0, 1, 1], "pad_amount": [0, 0]}.get(each.name, 0)] * extra + value
        return replace(each, value=value)

    return replace(
        node, inputs=[tensor(value) for value in node.inputs], outputs=[tensor(value) for value in node.outputs],
        params=[param(each) for each in node.params],
    )  # fmt: skip


def _highest_rank(session: LoggedSession, node: Node) -> int:
    """Return the highest rank of the first input that is accepted."""
    least = rank = len(node.inputs[0].dims)
    while rank < _MAX_RANK and session.accepts(_deeper(node, rank + 1 - least)):
        rank += 1
    return rank


def _is_right(node: Node) -> bool:
    """Return whether our own definition of an operation takes a node."""
    inputs, outputs = (
        [Tensor(v.name, TensorType(v.type), DataType(v.dtype), v.dims, data=v.data) for v in side]
        for side in (node.inputs, node.outputs)
    )
    try:
        params = OPERATIONS[node.op].complete(node.name, {param.name: param.value for param in node.params})
        OPERATIONS[node.op].verify(Call(node.name, node.op, inputs, params, outputs))
    except QnnError:
        return False
    return True


def opened(library: Path, chip: int | None) -> Callable[[str], Any]:
    """Return the function that says what is accepted of an operation, by its name."""
    session = LoggedSession(library, chip)

    def answer(op: str) -> dict[str, Any]:
        nodes = [node_of(op, kind) for kind in kinds_of(op) if op != "MatMul" or "w4" not in kind]
        odd = node_of(op, "fp32")
        odd = replace(odd, **{
            side: [_retyped(value, DataType.INT_16) for value in getattr(odd, side)] for side in ("inputs", "outputs")
        })  # fmt: skip
        sets: Sets = []
        for node in (odd, *nodes):
            session.accepts(node)
            sets += [each for each in _logged_sets(session.lines) if each not in sets]
        valid = [node for node in nodes if session.accepts(node)]
        if valid and not sets:
            sets += [each for node in valid for each in _tried_sets(session, node) if each not in sets]
        rank = _highest_rank(session, valid[0]) if valid else 0
        types = {DataType(node.inputs[0].dtype).name: _highest_rank(session, node) for node in valid if op in _BY_TYPE}
        without = [
            (param.name, replace(node, params=[each for each in node.params if each is not param]))
            for node in valid[:1] for param in node.params
        ]  # fmt: skip
        # Nothing is left out that makes the node wrong: without axes, a reduction ends the process.
        required = [name for name, node in without if _is_right(node) and not session.accepts(node)]
        # The ranks of operations that the probe cannot deepen are not known.
        higher = {name: found for name, found in types.items() if found > rank}
        return {"sets": sets, "rank": rank if rank > 3 else 5, "higher": higher, "required": required}

    return answer


def main() -> None:
    """Ask for all operations, and write the table."""
    from differential.children import answers, vendor

    theirs = vendor()
    if theirs is None:
        sys.exit("nothing to ask: install the package onnxruntime-qnn")
    found = answers("datatype_sets", theirs, _SM8750, cases())
    TABLE.write_text(format_table({
        op: VendorRule(
            DatatypeSet.merge([_ranked(_of_names(*each), answer["higher"]) for each in answer["sets"]]),
            answer["rank"], tuple(answer["required"]),
        )
        for op, answer in found.items() if answer["sets"]
    }))  # fmt: skip


def _of_names(inputs: Iterable[str], outputs: Iterable[str]) -> DatatypeSet:
    """Return a set from QNN's names, one for each tensor."""
    return DatatypeSet(*(tuple(frozenset({DataType[name]}) for name in side) for side in (inputs, outputs)))


def _ranked(types: DatatypeSet, higher: dict[str, int]) -> DatatypeSet:
    """Return a set with the rank that the type of its first input has, if that is higher than the operation's."""
    return replace(types, max_rank=max((higher.get(t.name, 0) for t in types.types("in", 0)), default=0))


if __name__ == "__main__":
    main()
