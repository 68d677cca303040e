"""Which words of its instruction a kernel's source reads, and as what: found by reading the source, not by running it.

An index is a number where it does not vary; an index that does is the least one that it can be, as in ``7 + rank + d``.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from isthmus.engine.native.compiler import _device_function
from isthmus.engine.native.target import Target


@dataclass(frozen=True)
class Index:
    """Where in an instruction: so far from its start, and whether it varies beyond that."""

    start: int
    varies: bool = False


@dataclass(frozen=True)
class Access:
    """One way in which a word is read: as a "number", a "real" or an "operand"."""

    index: Index
    kind: str


_READERS = {"word": ("number", 1), "real": ("real", 1), "address": ("operand", 2), "load_i64": ("number", 1),
            "read_i64": ("number", 1)}  # fmt: skip
_UNKNOWN = Index(0, True)


def reads(kernel: str, target: Target) -> set[Access]:
    """How a kernel reads its instruction."""
    return _reads(_device_function(kernel, target).py_func, {}, 0)


def _reads(function: Callable, given: dict[str, Index], first: int) -> set[Access]:
    """The reads of a function whose parameter number `first` is the instruction."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    names = [argument.arg for argument in definition.args.args]
    known: dict[str, Any] = {**function.__globals__, **_closure(function)}
    known |= {name: given.get(name, _UNKNOWN) for name in names}
    found: set[Access] = set()
    for node in _in_order(definition, known):
        if isinstance(node, ast.Assign):
            _assign(node, known)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= _call(node, known, names[first])
    return found


def _closure(function: Callable) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}


def _in_order(node: ast.AST, known: dict[str, Any]) -> Iterator[ast.AST]:
    """A node and all within it, but what stands under a condition that this variant never meets."""
    yield node
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and isinstance(known.get(node.test.id), bool):
        inner = node.body if known[node.test.id] else node.orelse
    else:
        inner = list(ast.iter_child_nodes(node))  # type: ignore[arg-type]
    for child in inner:
        yield from _in_order(child, known)


def _assign(node: ast.Assign, known: dict[str, Any]) -> None:
    targets, values = node.targets[0], node.value
    pairs = [(targets, values)]
    if isinstance(targets, ast.Tuple):
        pairs = list(zip(targets.elts, getattr(values, "elts", [None] * len(targets.elts)), strict=False))
    for target, value in pairs:
        if isinstance(target, ast.Name):
            known[target.id] = _UNKNOWN if value is None else _value(value, known)


def _value(node: ast.expr, known: dict[str, Any]) -> Index:
    """The index that an expression is; what is not known counts as 0 or more."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Index(node.value)
    if isinstance(node, ast.Name):
        value = known.get(node.id)
        return value if isinstance(value, Index) else Index(value) if isinstance(value, int) else _UNKNOWN
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        place = getattr(known.get(node.value.id), node.attr, None)
        return Index(place) if isinstance(place, int) else _UNKNOWN
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult, ast.Sub)):
        left, right = _value(node.left, known), _value(node.right, known)
        varies = left.varies or right.varies
        if isinstance(node.op, ast.Add):
            return Index(left.start + right.start, varies)
        if isinstance(node.op, ast.Sub):
            # What varies is at least what is taken off it.
            return left if left.varies else Index(left.start - right.start, varies)
        return Index(left.start * right.start, varies)
    return _UNKNOWN


def _call(node: ast.Call, known: dict[str, Any], instruction: str) -> set[Access]:
    assert isinstance(node.func, ast.Name)
    passed = [i for i, a in enumerate(node.args) if isinstance(a, ast.Name) and a.id == instruction]
    if not passed:
        return set()
    if node.func.id in _READERS and passed[0] == 0:
        kind, place = _READERS[node.func.id]
        return {Access(_value(node.args[place], known), kind)}
    callee = known.get(node.func.id)
    if not hasattr(callee, "py_func"):
        return set()
    names = list(inspect.signature(callee.py_func).parameters)
    given = {name: _value(argument, known) for name, argument in zip(names, node.args, strict=True)}
    return _reads(callee.py_func, given, passed[0])
