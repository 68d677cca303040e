"""Deliberate mistakes: the places in a source file where one can be made, and the file with one of them made.

A mistake changes one expression or statement and leaves every other character as it was.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
_IN_ANY_ORDER = ("min", "max", "minimum", "maximum")
"""Functions of which swapped arguments change nothing."""
_REMOVABLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.Break, ast.Continue, ast.Delete)


@dataclass(frozen=True)
class Mistake:
    """One mistake in one file: lines and columns (in bytes) of what is replaced, before and after, and where it is."""

    path: str
    within: str
    kind: str
    start: tuple[int, int]
    end: tuple[int, int]
    before: str
    after: str
    line: str
    """The whole line where it begins."""
    names: tuple[str, ...] = ()
    """What the statement of the module around it defines: functions, classes and constants that others may use."""

    @property
    def key(self) -> str:
        """Its name, which stays the same when lines move: file, function and text."""
        texts = (self.path, self.within, self.line, self.before, self.after)
        return " | ".join(" ".join(text.split()) for text in texts)

    def apply(self, source: str) -> str:
        """The source with the mistake in it."""
        lines = source.encode().splitlines(keepends=True)
        (first, left), (last, right) = self.start, self.end
        changed = lines[first - 1][:left] + self.after.encode() + lines[last - 1][right:]
        return b"".join([*lines[: first - 1], changed, *lines[last:]]).decode()


def mistakes(path: str, source: str) -> list[Mistake]:
    """All mistakes that can be made in a file."""
    lines = source.encode().splitlines(keepends=True)
    found = []
    tree = ast.parse(source)
    for node, within in _code(tree, "module"):
        start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        before = _text(lines, start, end)
        for kind, after in _changes(node, before):
            line, names = lines[node.lineno - 1].decode(), _defined(tree, node.lineno)
            made = Mistake(path, within, kind, start, end, before, after, line, names)
            if " ".join(after.split()) != " ".join(before.split()):
                found.append(made)
    return found


def _defined(tree: ast.Module, line: int) -> tuple[str, ...]:
    """Return the names that the statement of a module around a line defines."""
    around = next(each for each in reversed(tree.body) if each.lineno <= line)
    if isinstance(around, (ast.FunctionDef, ast.ClassDef)):
        return (around.name,)
    targets = around.targets if isinstance(around, ast.Assign) else [getattr(around, "target", ast.Pass())]
    return tuple(each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


def _text(lines: list[bytes], start: tuple[int, int], end: tuple[int, int]) -> str:
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]].decode()
    first, *middle, last = lines[start[0] - 1 : end[0]]
    return b"".join([first[start[1] :], *middle, last[: end[1]]]).decode()


def _code(node: ast.AST, within: str) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Expressions and statements that decide what is computed, with the function or class around them.

    Annotations, decorators and docstrings do not, nor whether a zip checks its lengths; the text of a message is judged
    by its reader.
    """
    for name, child in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for each in child if isinstance(child, list) else [child]:
            if not isinstance(each, ast.AST) or isinstance(each, (ast.JoinedStr, ast.Import, ast.ImportFrom)):
                continue
            if isinstance(each, ast.keyword) and each.arg == "strict":
                continue
            if isinstance(each, ast.If) and isinstance(each.test, ast.Name) and each.test.id == "TYPE_CHECKING":
                continue
            inner = within
            if isinstance(each, (ast.FunctionDef, ast.ClassDef)):
                inner = each.name if within == "module" else f"{within}.{each.name}"
            elif isinstance(each, (ast.expr, ast.stmt)) and not _is_text(each):
                yield each, within
            yield from _code(each, inner)


def _is_text(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.Constant) and isinstance(value.value, (str, bytes, type(None), type(...)))


def _changes(node: ast.expr | ast.stmt, before: str) -> Iterator[tuple[str, str]]:
    """Kinds of mistakes at a node, with the text that takes its place."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        flipped = ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
        yield "comparison", _put(flipped)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _is_type(node):
        yield "operator", _put(ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right))
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and/or", _put(ast.BoolOp(other, node.values))
        for index in range(len(node.values)):
            kept = node.values[:index] + node.values[index + 1 :]
            yield "condition dropped", _put(kept[0] if len(kept) == 1 else ast.BoolOp(node.op, kept))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield "sign", _put(node.operand)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "off by one", f"{node.value + 1}"
        yield "off by one", f"({node.value - 1})"
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "constant", f"{not node.value}"
    elif isinstance(node, ast.IfExp):
        yield "condition negated", _put(ast.IfExp(node.test, node.orelse, node.body))
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, ast.Constant):
        yield from _negated(node, before)
    elif isinstance(node, _REMOVABLE) and not _is_text(node):
        yield "statement removed", "pass"


def _negated(node: ast.If | ast.While, before: str) -> Iterator[tuple[str, str]]:
    test = node.test
    # Offsets of the condition within the statement's own text.
    rows = before.encode().splitlines(keepends=True)
    row = test.lineno - node.lineno
    left = test.col_offset - (node.col_offset if row == 0 else 0)
    last = (test.end_lineno or test.lineno) - node.lineno
    right = (test.end_col_offset or 0) - (node.col_offset if last == 0 else 0)
    head = b"".join(rows[:row]) + rows[row][:left]
    tail = rows[last][right:] + b"".join(rows[last + 1 :])
    yield "condition negated", (head + f"(not ({ast.unparse(test)}))".encode() + tail).decode()


def _calls(node: ast.Call) -> Iterator[tuple[str, str]]:
    name = node.func
    called = name.id if isinstance(name, ast.Name) else name.attr if isinstance(name, ast.Attribute) else ""
    if isinstance(name, ast.Name) and name.id in _NAMES:
        yield "function", _put(ast.Call(ast.Name(_NAMES[name.id], ast.Load()), node.args, node.keywords))
    elif isinstance(name, ast.Attribute) and name.attr in _NAMES:
        other = ast.Attribute(name.value, _NAMES[name.attr], ast.Load())
        yield "function", _put(ast.Call(other, node.args, node.keywords))
    plain = not any(isinstance(a, ast.Starred) for a in node.args)
    if plain and len(node.args) >= 2 and called not in _IN_ANY_ORDER:
        first, second, *rest = node.args
        if ast.dump(first) != ast.dump(second):
            yield "arguments swapped", _put(ast.Call(name, [second, first, *rest], node.keywords))


def _is_type(node: ast.BinOp) -> bool:
    """Return whether an expression is a union of types."""
    sides = (node.left, node.right)
    return isinstance(node.op, ast.BitOr) and any(
        (isinstance(s, ast.Constant) and s.value is None) or (isinstance(s, ast.Name) and s.id[:1].isupper())
        for s in sides
    )


def _put(node: ast.expr) -> str:
    """An expression as text that can stand anywhere."""
    text = ast.unparse(ast.fix_missing_locations(node))
    return text if isinstance(node, (ast.Call, ast.Name, ast.Constant)) else f"({text})"
