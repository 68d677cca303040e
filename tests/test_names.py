"""Every name in backticks in the documents exists.

What stands in backticks is judged by its form:

- ``ISTHMUS_…`` is an environment variable and ``--option`` an option of a command: words of the sources.
- ``tests/….py::test_…`` is a test of that file.
- A word with a slash, or with the suffix of a file of the tree, is a path, of which the beginning may be left out, or
  the name of a file that the package writes. A path from the root is one of the system.
- ``name``, ``name()``, ``owner.name``: where the owner is a module or class of the package, or an object that has a
  class's name, it has the name as a member. Otherwise it is a word of the code (not of comments and docstrings), a
  word of our headers in C, or a key in the table of options.

Everything else (formulas, shapes, commands with arguments) is no name: only options and variables in it are looked up.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from isthmus import qnn

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "isthmus"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = ("src", "tests", "bench", "examples", "packaging")
SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
NAME = re.compile(r"@?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\)|\[.*\])?")
PATH = re.compile(r"[\w.*-]*(?:/[\w.*-]+)*/?")
SUFFIXES = (".py", ".md", ".h", ".hpp", ".c", ".txt", ".json", ".toml", ".yml", ".html", ".css", ".js", ".supp")
TEST = re.compile(r"[\w/]+\.py(::[\w]+)+(\[.*\])?")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
WORD = re.compile(r"--[a-z][\w-]*|[A-Za-z_]\w*")
VARIABLE = re.compile(r"\bISTHMUS_[A-Z_]+\b")


_OTHERS = {
    "QNN's SDK: its folders, and files that its tools write": """
        lib/x86_64-linux-clang lib/aarch64-oe-linux-gcc11.2 bin/x86_64-linux-clang LPAIBackendExtensions
        output/qnngraph.serialized.bin saver_output/saver_output.c Qualcomm_LICENSE.pdf""",
    "sources of clients of QNN": """
        backends/qualcomm litert/vendors/qualcomm core/providers/qnn source/backend/qnn ggml/src/ggml-qnn
        mllm/backends/qnn executorch/backends/qualcomm/qc_compiler_spec_generated.h PyQnnManagerAdaptor SharedBuffer
        onnxruntime_config.h genai_config.json""",
    "TFLite, and the delegate of QNN's SDK": """
        SetPerf UpdateHtpPerfMode GetProfilingResult --external_delegate_path TfLiteInterpreterCreate
        SetCustomAllocationForTensor""",
    "settings of ONNX Runtime's sessions": "session.disable_cpu_ep_fallback session.qdqisint8allowed",
    "OpenCL": "cl_mem",
    "a record of DLC files that is refused without its name": "NR64",
    "commands of others: Python's configure, git, docker": "--enable-shared --tag --rm",
    "what commands make, and git does not know": """
        .venv/bin/python .venv/bin/isthmus .cache/arm64 build/clients/ small.reference.onnx""",
    "a file in a repository of the reader": ".github/workflows/npu.yml",
}
"""Names of others, by whose they are. This list may only shrink."""
OTHERS = {name for names in _OTHERS.values() for name in names.split()}
PROSE = re.compile(r'""".*?"""|"(?:\\.|[^"\\\n])*"|#[^\n]*', re.DOTALL)


def without_prose(found: re.Match[str]) -> str:
    """Keep a text if it is a name or names with marks between them, and nothing of comments and docstrings."""
    return "" if found[0].startswith(('"""', "#")) or " " in found[0] else found[0]


@cache
def texts() -> dict[Path, str]:
    """Read every Python file of the tree but this one, which names what does not exist."""
    files = [file for folder in SOURCES for file in sorted((ROOT / folder).rglob("*.py"))]
    return {file: file.read_text() for file in [*files, ROOT / "setup.py"] if file != Path(__file__)}


@cache
def vocabulary() -> frozenset[str]:
    """Collect every word of the code: no word of a comment, a docstring or a text of several words."""
    words = {part for file in texts() for part in file.relative_to(ROOT).with_suffix("").parts}
    for text in texts().values():
        words |= set(WORD.findall(PROSE.sub(without_prose, text)))
    for file in [file for suffix in ("*.h", "*.hpp", "*.c") for file in PACKAGE.rglob(suffix)]:
        words |= set(re.findall(r"[A-Za-z_]\w*", file.read_text()))
    return frozenset(words)


@cache
def literals() -> frozenset[str]:
    """Collect the texts without a space that the package holds, such as the names of files that it writes."""
    found = (each for file, text in texts().items() if file.is_relative_to(PACKAGE) for each in PROSE.findall(text))
    return frozenset(each.strip('"') for each in found if " " not in each)


@cache
def members(owner: str) -> frozenset[str]:
    """Collect the members of the modules, folders and classes of the package with this name; of none if it is no owner.

    A name in lower case also stands for an object of a class that ends in it: ``log`` for an ``AuditLog``.
    """
    title = "".join(part.capitalize() for part in owner.split("_")) if owner.islower() else owner
    beginning = r"\w*" if owner.islower() else ""
    pattern = re.compile(rf"^ *class ({beginning}{title})\b", re.MULTILINE)
    # Its modules add the names of enumerations as they are imported, and its classes have shorter names.
    public = getattr(qnn, owner, None)
    found = set(dir(public)) if isinstance(public, ModuleType | type) else set()
    for file, text in texts().items():
        if file.is_relative_to(PACKAGE):
            folders = file.relative_to(ROOT).with_suffix("").parts
            found |= {inner for outer, inner in pairwise(folders) if outer == owner}
            if owner == (file.parent.name if file.name == "__init__.py" else file.stem):
                found |= {name for statement in tree(file).body for name in bound(statement)}
            if pattern.search(text):
                found |= of_classes(file, set(pattern.findall(text)))
    return frozenset(found)


@cache
def keys() -> frozenset[str]:
    """Collect the keys of configuration files from the table of options, which is written from the sources."""
    return frozenset(re.findall(r"^\| `([\w.]+)`", (ROOT / "docs" / "options.md").read_text(), re.MULTILINE))


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(texts()[file])


def of_classes(file: Path, names: set[str]) -> set[str]:
    """Collect the members of classes of a file, with those that they inherit."""
    found = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ClassDef) and node.name in names:
            found |= {name for statement in node.body for name in bound(statement)}
            stored = (each for each in ast.walk(node) if isinstance(each, ast.Attribute))
            found |= {each.attr for each in stored if isinstance(each.ctx, ast.Store)}
            for base in node.bases:
                name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", node.name)
                if name != node.name:
                    found |= members(name)
    return found


def bound(statement: ast.stmt) -> Iterator[str]:
    """Name what one statement binds in its module or class, inside conditions too."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.alias():
                yield node.asname or node.name.partition(".")[0]


def spans(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what stands in backticks in a document, with its line, outside blocks of code."""
    fenced = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            for found in SPAN.finditer(line):
                yield number, found[2].strip()


def is_path(text: str) -> bool:
    """Tell whether a text is a path of the tree by its form; paths from the root are those of the system."""
    return bool(PATH.fullmatch(text)) and not text.startswith("/") and ("/" in text or text.endswith(SUFFIXES))


@cache
def files() -> tuple[str, ...]:
    """List the files and folders of the tree, each with a slash before it."""
    below = [file for folder in (*SOURCES, "docs", ".ci") for file in (ROOT / folder, *(ROOT / folder).rglob("*"))]
    return tuple(f"/{file.relative_to(ROOT).as_posix()}" for file in (*ROOT.iterdir(), *below))


def has_path(text: str) -> bool:
    """Tell whether the tree has a file or folder whose path ends so."""
    return any(fnmatch(file, f"*/{text.strip('/')}") for file in files())


def has_name(text: str) -> bool:
    """Tell whether a name, or a name of an owner, is one of the tree's."""
    *owners, name = text.split(".")
    if text in keys():
        return True
    if owners and members(owners[-1]):
        return name in members(owners[-1])
    return name in vocabulary()


def has_test(text: str) -> bool:
    """Tell whether a file of tests has the test, of a class or not, that is named behind two colons."""
    file, *names = text.partition("[")[0].split("::")
    text_of_file = texts().get(ROOT / file, "")
    return all(re.search(rf"^ *(?:def|class) {re.escape(name)}\b", text_of_file, re.MULTILINE) for name in names)


def untrue(text: str) -> Iterator[str]:
    """Yield the names in one text in backticks that do not exist."""
    yield from (each for each in OPTION.findall(text) + VARIABLE.findall(text) if each not in vocabulary())
    name = NAME.fullmatch(text)
    if TEST.fullmatch(text):
        exists = has_test(text)
    elif is_path(text) and not text.startswith("isthmus."):
        exists = text in literals() or has_path(text)
    elif name:
        exists = text in literals() or has_path(text) or has_name(name[1])
    else:
        return
    if not exists:
        yield text


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_name_in_a_document_exists(path: Path) -> None:
    found = {f"line {line}: {name}" for line, text in spans(path) for name in untrue(text) if name not in OTHERS}
    assert not found, f"{path.name} names what does not exist"


def test_every_exception_is_needed() -> None:
    """This list may only shrink."""
    named = {name for path in DOCUMENTS for _, text in spans(path) for name in untrue(text)}
    assert not OTHERS - named


@pytest.mark.parametrize(
    "text",
    [
        "log.nothing",
        "Session.nothing",
        "isthmus.engine.nothing",
        "qnn.htp.NOTHING",
        "nothing_of_the_kind",
        "nothing_of_the_kind()",
        "ISTHMUS_NOTHING=1",
        "isthmus plan --nothing",
        "engine/nothing.py",
        "nothing/",
        "nothing.py",
        "tests/test_rooms.py::test_nothing",
        "tests/test_nothing.py::test_every_room_is_listed",
        "QnnNothing_create",
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str) -> None:
    assert list(untrue(text))


@pytest.mark.parametrize(
    "text",
    [
        "Session.run()",
        "isthmus.engine.native",
        "qnn.htp.PRECISION",
        "log.events",
        "ISTHMUS_TARGET=generic",
        "isthmus plan MODEL --target NAME",
        "engine/native",
        "tests/test_rooms.py::test_every_room_is_listed",
        "QnnGraph_execute",
        "x + 1",
        "[1, 2, 3]",
    ],
)
def test_a_name_that_exists_passes(text: str) -> None:
    assert not list(untrue(text))
