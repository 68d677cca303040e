"""Documents that are made from declarations: error codes, options of backends and graphs, operations.

``python -m isthmus.tools.reference docs`` writes them into a folder.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

from isthmus.backends.seam import registry
from isthmus.backends.seam.config import TOOL_KEYS, ConfigError, Key, Objects, Table
from isthmus.backends.seam.driver import Configurable
from isthmus.capi.messages import SENTENCES, name_of
from isthmus.errors import Code
from isthmus.qnn import GraphConfig
from isthmus.tools import operations

_ERRORS = """# Error codes

Every refusal is a `QnnError` with one of these codes, and in C the function returns the number. A message has the code,
the object, the rule that it broke and, where there is one, the remedy:

    [6004 GRAPH_INVALID_TENSOR] input 'x': must have shape (1, 3, 8, 8), has (3, 8, 8)

`isthmus.Code` has the codes by name, `QnnError_getMessage` describes a code in C. Commands print the message and end
with status 2, or with status 1 if a model does not fit the memory, or a limit on it.

This table is made by `python -m isthmus.tools.reference docs`.

| number | in Python | in C | meaning |
|---|---|---|---|"""
_OPTIONS = """# Options of backends and graphs

Configuration files are JSON objects with these keys; the option `--config` of `isthmus run` and `isthmus plan`,
`--config_file` of QNN's tools, `Session(..., config=...)` and `qnn.Backend(name, config)` take them. A key that is
checked but has no effect here is logged once. Configs and properties are set and read on objects, by `set_config` and
`get_property`.

This document is made by `python -m isthmus.tools.reference docs`."""


class _Nothing:
    """A value that every check of a configuration refuses, so that the check states its rule."""


def errors() -> str:
    """Return the document of error codes."""
    rows = [f"| {int(code)} | `{code.name}` | `{name_of(code)}` | {SENTENCES[code]} |" for code in Code]
    return "\n".join([_ERRORS, *rows, ""])


def options() -> str:
    """Return the document of options."""
    lines = [_OPTIONS, "", "## Every backend", "", "The file of QNN's tools, which leads to the backend's own:", ""]
    lines += [*_keys_table(TOOL_KEYS), "", "Configs of graphs:", "", *_members_table(GraphConfig), ""]
    for name in registry.names():
        entry = registry.entry(name)
        if not entry.driver.__module__.startswith("isthmus."):
            # A backend of another package.
            continue
        lines += [f"## `{name}`", ""]
        if entry.keys:
            lines += ["Keys of configuration files:", "", *_keys_table(entry.keys), ""]
        members = list(_enumerations(entry.driver))
        for title, kind in members:
            lines += [f"{title}:", "", *_members_table(kind), ""]
        for noun, unused in registry.c_facet(name).without_effect.items():
            lines += [f"Custom configs of a {noun} in C that are accepted, logged and change nothing:", ""]
            lines += ["| name | number | reason |", "|---|---|---|"]
            lines += [f"| `{option.name}` | {int(option)} | {reason} |" for option, reason in unused.items()]
            lines.append("")
        if not entry.keys and not members:
            lines += ["It has none of its own.", ""]
    return "\n".join(lines)


def _keys_table(table: Table) -> Iterator[str]:
    """Yield the lines of a table of configuration keys."""
    yield from ("| key | value | effect here |", "|---|---|---|")
    for path, key in _keys(table):
        effect = "yes" if key.effective else "none"
        yield f"| `{path}` | {_rule(key)} | {effect}{f': {key.reason}' if key.reason else ''} |"


def _keys(table: Table, path: str = "") -> Iterator[tuple[str, Key]]:
    """Yield the keys of a table with the keys that lead to them; those of a list of objects have brackets."""
    for name, value in table.items():
        if isinstance(value, Key):
            yield f"{path}{name}", value
        elif isinstance(value, Objects):
            yield from _keys(value.table, f"{path}{name}[].")
        elif isinstance(value, Mapping):
            yield from _keys(value, f"{path}{name}.")


def _rule(key: Key) -> str:
    """Return which values a key takes, in the words of its check."""
    if key.allowed:
        return key.allowed
    try:
        key.check(_Nothing())
    except ConfigError as refusal:
        return re.sub(r",? is [^,]*$", "", str(refusal)).removeprefix("must be ").replace("|", "\\|")
    raise AssertionError(f"the check of '{key.setting}' accepts anything; declare what is allowed")


def _enumerations(driver: type) -> Iterator[tuple[str, type[IntEnum]]]:
    """Yield the properties and configs that the classes of a backend's package declare, each with a title."""
    package = driver.__module__.rpartition(".")[0]
    # A class with several bases is found several times.
    found = {kind for kind in _subclasses(Configurable) if kind.__module__.startswith(f"{package}.")}
    for kind in sorted(found, key=lambda kind: kind.__qualname__):
        for noun, members in (("Properties", kind.properties), ("Configs", kind.configs)):
            inherited = [getattr(base, noun.lower(), None) for base in kind.__bases__]
            if members is not None and members not in inherited:
                yield f"{noun}, `{members.__name__}`", members


def _subclasses(kind: type) -> Iterator[Any]:
    """Yield all subclasses of a class."""
    subclasses: list[type] = kind.__subclasses__()
    for each in subclasses:
        yield each
        yield from _subclasses(each)


def _members_table(kind: type[IntEnum]) -> Iterator[str]:
    """Yield the lines of a table of an enumeration's members, with what its source says about each."""
    yield from ("| name | number | meaning |", "|---|---|---|")
    texts = _docstrings(kind)
    for member in kind:
        yield f"| `{member.name}` | {int(member)} | {texts.get(member.name, '')} |"


def _docstrings(kind: type) -> dict[str, str]:
    """Return the texts after the members of a class, by member; Python itself does not keep them."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for statement, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(statement, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            [target] = statement.targets
            assert isinstance(target, ast.Name)
            texts[target.id] = " ".join(str(after.value.value).split()).replace("``", "`").replace("|", "\\|")
    return texts


DOCUMENTS = {"errors.md": errors, "options.md": options, "operations.md": operations.document}
"""What makes each document."""


def write(folder: Path) -> None:
    """Write all documents into a folder."""
    for name, document in DOCUMENTS.items():
        (folder / name).write_text(document())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
