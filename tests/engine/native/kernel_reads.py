"""Which words of its instruction a kernel uses: found by reading its source, not by running it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from isthmus.engine.native.compiler import _device_function
from isthmus.engine.native.target import Target

OTHERS = {"tid", "nt", "instruction", "bases"}
"""The parameters of kernels that are not words."""


def words_of(kernel: str, target: Target) -> tuple[set[str], set[str]]:
    """The words that a kernel has as parameters without a default, and those of its parameters that it uses."""
    function = _device_function(kernel, target)
    parameters = inspect.signature(function.execute.py_func).parameters
    declared = {word.name for word in function.signature.words}
    optional = {name for name, parameter in parameters.items() if parameter.default is not parameter.empty}
    used = _names(function.execute.py_func)
    return set(parameters) - OTHERS - (optional - declared), used & (set(parameters) - OTHERS)


def _names(function: Any) -> set[str]:
    """The names that a function reads, but under conditions that this variant never meets."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    cells = function.__closure__ or ()
    closure = {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}
    assert isinstance(definition, ast.FunctionDef)
    nodes = (node for statement in definition.body for node in _in_order(statement, closure))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _in_order(node: ast.AST, known: dict[str, Any]) -> Iterator[ast.AST]:
    """A node and all within it, but what stands under a condition that this variant never meets."""
    yield node
    if isinstance(node, (ast.If, ast.IfExp)) and isinstance(node.test, ast.Name) and node.test.id in known:
        body = node.body if known[node.test.id] else node.orelse
        inner = body if isinstance(body, list) else [body]
    else:
        inner = list(ast.iter_child_nodes(node))  # type: ignore[arg-type]
    for child in inner:
        yield from _in_order(child, known)
