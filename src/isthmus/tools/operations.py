"""The document of all operations: the data types that each backend accepts, and the operators that become them.

``python -m isthmus.tools.operations > docs/operations.md`` writes the document; a test compares it with the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from isthmus.backends.seam import registry
from isthmus.frontends.onnx.builder import OnnxBuilder
from isthmus.frontends.onnx.node import WORDS, OnnxNode
from isthmus.frontends.onnx.operators import CONVERTERS as ONNX
from isthmus.frontends.tflite.operator_context import OperatorContext
from isthmus.frontends.tflite.operators import CONVERTERS as TFLITE
from isthmus.graph import DataType
from isthmus.graph.acceptance import Acceptance, code_of, in_order
from isthmus.graph.operation import QTI, Operation
from isthmus.graph.ops import OPERATIONS

_FRONTENDS = "isthmus.frontends."
# Methods that provide operands; operations that they emit count for the operators that compute these operands.
_OPERANDS = frozenset({"array", "constant", "dequantize", "literal", "need", "need_all", "plain"})
# Kinds of data types that are written with a star if all their widths are accepted.
_FAMILIES = ("i", "u", "sq", "uq")
_TITLE = """# Operations

Every operation, the data types in which each backend accepts it, and the ONNX and TFLite operators that are converted
to it. `python -m isthmus.tools.operations > docs/operations.md` writes this page from the tables that validation uses.

- The type of an operation is that of its first operand which is data; if all are indices or booleans, that of its
  result.
- f32, f16, bf16 and f64 are floats, i8 to i64 and u8 to u64 integers, b8 booleans; sq8 is SFIXED_POINT_8, uq16 is
  UFIXED_POINT_16, and so on. A star means all widths: `i*` is i8, i16, i32 and i64.
- On htp, types in parentheses are executed here although the vendor's library refuses them or does not have the
  operation. Validation refuses them too, and types of operands that the library does not take together
  ([htp.md](htp.md#validation)).
- An operator is listed with all operations that its converter may use, not only with the one that is like it.
- `NonZero` and `NonMaxSuppression` have room for the most rows; rows of -1 follow the last real one, as QNN's own
  operations have it. ONNX models read the real rows only ([dynamic-shapes.md](dynamic-shapes.md)).
"""


def operations_of(converter: Callable[..., Any], contexts: Sequence[type]) -> frozenset[str]:
    """Return the operations that a converter, or a function of the frontends that it calls, may emit.

    They are the names of operations among the constants, tables and enclosed values of the functions, and those that
    `WORDS` stand for. If there are none, methods of the objects that converters work with emit them, or methods that
    those call; `contexts` are the types of these objects.
    """
    names, called = _operation_names([converter])
    names |= _operation_names([getattr(context, word, None) for context in contexts for word in called & WORDS])[0]
    if names:
        return names
    visited = _OPERANDS
    while called - visited:
        methods = [getattr(context, name, None) for context in contexts for name in called - visited]
        visited |= called
        further, called = _operation_names(methods)
        names |= further
    return names


def _operation_names(functions: list[Any]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the operations that functions name, and the names of all methods and functions that they call."""
    found: set[str] = set()
    called: set[str] = set()
    seen: set[int] = set()
    waiting = functions
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            # Converters append the number of dimensions to some names, as in PoolMax2d.
            found.update({value, *(f"{value}{rank}d" for rank in (1, 2, 3))} & OPERATIONS.keys())
        elif id(value) not in seen:
            seen.add(id(value))
            waiting += _inside(value)
            if isinstance(value, CodeType):
                called.update(value.co_names)
    return frozenset(found), frozenset(called)


def _inside(value: Any) -> Iterator[Any]:
    """Yield the values that a function, a piece of code or a collection refers to."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (tuple, list, frozenset, set)):
        yield from value
    elif isinstance(value, CodeType):
        yield from value.co_consts
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, FunctionType) and value.__module__.startswith(_FRONTENDS):
        yield value.__code__
        yield from value.__defaults__ or ()
        yield from (cell.cell_contents for cell in value.__closure__ or ())
        yield from (value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names that code and the functions inside it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def operators(converters: Mapping[str, Callable[..., Any]], *contexts: type) -> dict[str, list[str]]:
    """Return for each operation the operators whose converters may emit it; `contexts` is as in `operations_of`."""
    by_operation: dict[str, list[str]] = {}
    for operator in sorted(converters):
        for op in operations_of(converters[operator], contexts):
            by_operation.setdefault(op, []).append(operator)
    return by_operation


def _types(types: Collection[DataType]) -> str:
    """Return data types as text; families of which all widths are there are abbreviated."""
    codes = [code_of(dtype) for dtype in in_order(types)]
    for family in _FAMILIES:
        whole = [code_of(t) for t in in_order(tuple(DataType)) if code_of(t).rstrip("0123456789") == family]
        if set(whole) <= set(codes):
            first = codes.index(whole[0])
            codes = [*codes[:first], f"{family}*", *(code for code in codes[first:] if code not in whole)]
    return " ".join(codes)


def _accepted_types(accepted: Acceptance, op: str) -> str:
    """Return the types that a backend accepts; those that its vendor's library refuses are in parentheses."""
    types, ours = accepted.types.get(op, frozenset()), accepted.only_here(op)
    return " ".join(filter(None, (_types(types - ours), f"({_types(ours)})" if ours else "")))


def _columns() -> dict[str, Acceptance]:
    """Return the columns of the table, of this package's backends: those that accept the same share one."""
    columns: dict[str, Acceptance] = {}
    for name in registry.BUILT_IN:
        accepted = registry.entry(name).accepted
        if accepted is None:
            continue
        same = next((title for title, other in columns.items() if other == accepted), None)
        if same is not None:
            columns = {f"{title}, {name}" if title == same else title: one for title, one in columns.items()}
        else:
            columns[name] = accepted
    return columns


def _table(operations: Collection[Operation]) -> Iterator[str]:
    """Yield the lines of a table of operations."""
    columns, onnx, tflite = _columns(), operators(ONNX, OnnxNode, OnnxBuilder), operators(TFLITE, OperatorContext)
    titles = ["operation", *columns, "ONNX", "TFLite"]
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for operation in sorted(operations, key=lambda operation: operation.name):
        name = operation.name
        accepted = [_accepted_types(column, name) for column in columns.values()]
        cells = [name, *accepted, ", ".join(onnx.get(name, ())), ", ".join(tflite.get(name, ()))]
        yield f"| {' | '.join(cells)} |".replace("  ", " ")


def document() -> str:
    """Return the whole document."""
    of_qnn = [operation for operation in OPERATIONS.values() if operation.package == QTI]
    of_isthmus = [operation for operation in OPERATIONS.values() if operation.package != QTI]
    ours = ["## This project's package, `isthmus`", "", "Operations that models need and QNN's package lacks.", ""]
    return "\n".join([_TITLE, f"## QNN's package, `{QTI}`", "", *_table(of_qnn), "", *ours, *_table(of_isthmus), ""])


if __name__ == "__main__":
    print(document(), end="")
