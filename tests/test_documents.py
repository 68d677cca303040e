"""Every block of code in the documents is true: it is run, or it is what the source says, or its text says why not.

The blocks of a document run in order, in one namespace and in a folder that holds what `isthmus samples` writes. The
blocks of README.md can be pasted alone: each has a namespace of its own.

- ``python`` blocks are executed, as doctests where they have prompts. After a line that ends in "From `PATH`:" a block
  is a quotation, and the file must hold its lines; ``...`` stands for what is left out.
- ``sh`` blocks: our own commands are run and must succeed, unless a comment says "exits with N", and so are the
  programs of examples/decoder and examples/six_binaries.py. Tests cannot call other programs with ``python``, or
  ``make``, from within themselves; targets and files that those name must exist.
- ``text`` blocks begin with ``$ isthmus …`` and hold what it prints, up to times; ``...`` stands for any lines. What
  was printed for another instruction set than this machine's is not compared: kernels differ in work space.
- ``json`` blocks can be read.
- ``c``, ``cpp`` and ``yaml`` blocks are quotations.

A block behind a line "Not run by the tests: REASON." is left alone. Blocks of any other language are refused. Indented
blocks are pictures: only a command line at their beginning is run, and the lines after it must be among what it prints.
After a line "It prints:" an indented block is what the ``python`` block before it prints.
Words in capitals (MODEL) make a form of a command, which is not run.
"""

from __future__ import annotations

import doctest
import importlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import pytest
from support import libraries

from isthmus.capi import installation
from isthmus.engine.native import target
from isthmus.tools import cli

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
QUOTED = re.compile(r"From `([\w./-]+)`:$")
NOT_RUN = re.compile(r"Not run by the tests: .+\.$")
PRINTS = "It prints:"
EXIT = re.compile(r"exits with (\d+)")
ASSIGNMENT = re.compile(r"[A-Z_]+=.*")
FORM = re.compile(r"\b[A-Z]{4,}\b")
TIME = re.compile(r"\d+(\.\d+)? (ms|µs|s)\b")
TARGET = re.compile(r"on cpu \(([\w-]+),")
ELLIPSIS = "..."
NEEDS = {"onnxruntime.md": "onnxruntime_qnn", "vendor.md": "onnxruntime_qnn"}
"""Packages without which the blocks of a document cannot be run."""
ALONE = {"README.md", "index.md"}
"""Documents of which each block can be pasted alone."""
PROGRAMS = ("examples/decoder/", "examples/six_binaries.py")
"""Programs that are run."""
SCRIPT = re.compile(r'^([\w-]+) = "([\w.]+):(\w+)"$', re.MULTILINE)
COMMANDS = {
    name: (module, function) for name, module, function in SCRIPT.findall((ROOT / "pyproject.toml").read_text())
}
"""Our own commands, and what they call."""


@dataclass(frozen=True)
class Block:
    """A block of a document: its language (none for an indented one), its text, its first line, the line before it."""

    language: str | None
    text: str
    line: int
    lead: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def blocks(text: str) -> Iterator[Block]:
    """The fenced and the indented blocks of a document."""
    lines, number, lead = text.splitlines(), 0, ""
    while number < len(lines):
        start, line = number, lines[number]
        if line.lstrip().startswith("```"):
            indent = len(line) - len(line.lstrip())
            number += 1
            while not lines[number].lstrip().startswith("```"):
                number += 1
            content = [each[indent:] for each in lines[start + 1 : number]]
            yield Block(line.strip().removeprefix("```"), "\n".join(content) + "\n", start + 2, lead)
        elif line.startswith("    ") and (start == 0 or not lines[start - 1].strip()):
            while number + 1 < len(lines) and (lines[number + 1].startswith("    ") or not lines[number + 1].strip()):
                number += 1
            yield Block(None, "\n".join(each[4:] for each in lines[start : number + 1]), start + 1, lead)
        elif line.strip():
            lead = line.strip()
        number += 1


# -- what the documents name -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what `isthmus samples` writes: the files that documents may name."""
    folder = tmp_path_factory.mktemp("samples")
    with redirect_stdout(io.StringIO()):
        assert cli.main(["samples", str(folder)]) == 0
    return folder


# -- how a block is tried ----------------------------------------------------------------------------------------------


def _try_python(block: Block, path: Path, namespace: dict[str, object]) -> str:
    """Try a block, and return what it prints."""
    printed = io.StringIO()
    quoted = QUOTED.search(block.lead)
    if quoted:
        _check_quotation(block, ROOT / quoted[1])
    elif block.text.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(block.text, namespace, path.name, str(path), block.line - 1)
        # The runner works in a copy of the names, and clears it.
        test.globs = namespace
        report = io.StringIO()
        flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        doctest.DocTestRunner(optionflags=flags).run(test, out=report.write, clear_globs=False)
        if report.getvalue():
            raise AssertionError(report.getvalue())
    else:
        # So that a traceback shows the document's own line.
        code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
        with redirect_stdout(printed):
            exec(code, namespace)
    return printed.getvalue()


def _check_quotation(block: Block, source: Path) -> None:
    rest = [" ".join(line.split()) for line in source.read_text().splitlines()]
    for line in block.lines:
        expected = " ".join(line.split())
        if expected and expected != ELLIPSIS:
            assert expected in rest, f"{source.relative_to(ROOT)} has no line, or not in this order: {expected}"
            rest = rest[rest.index(expected) + 1 :]


def _run_command(command: str) -> str:
    """Return what one of our own commands prints; it must end as its comment says."""
    words = shlex.split(command, comments=True)
    variables = dict(word.split("=", 1) for word in takewhile(ASSIGNMENT.fullmatch, words))
    name, *arguments = words[len(variables) :]
    module, function = COMMANDS[name]
    main = getattr(importlib.import_module(module), function)
    # The map is drawn with what the terminal's encoding can show.
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(printed), redirect_stderr(printed), pytest.MonkeyPatch.context() as environment:
        for variable, value in variables.items():
            environment.setenv(variable, value)
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = ended.code
    output = printed.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert status == _expected_status(command), f"$ {command}\n{output}"
    return output


def _expected_status(command: str) -> int:
    found = EXIT.search(command)
    return int(found[1]) if found else 0


def _try_shell(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = [word for word in shlex.split(line, comments=True) if not ASSIGNMENT.fullmatch(word)]
        if not words:
            continue
        command = words[0].rpartition("/")[2]
        if command in COMMANDS:
            _run_command(line)
        elif command == "make":
            assert words[1] in _targets(), f"the Makefile has no target '{words[1]}'"
        else:
            assert command == "python", f"nobody checks what '{command}' does"
            if words[1].startswith(PROGRAMS):
                done = subprocess.run([sys.executable, ROOT / words[1], *words[2:]], stdout=subprocess.DEVNULL)
                assert done.returncode == _expected_status(line), line
                continue
            named = [word.partition("::") for word in words[1:] if "/" in word]
            assert named, f"'{line}' names no file"
            for file, _, test in named:
                assert (ROOT / file).exists(), f"there is no {file}"
                assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"


def _targets() -> set[str]:
    found = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found
    return set(found[1].split())


def _try_text(block: Block) -> None:
    first, *expected = block.lines
    assert first.startswith("$ isthmus "), "a text block begins with the command that prints it"
    while first.endswith("\\"):
        first, *expected = f"{first[:-1].rstrip()} {expected[0].strip()}", *expected[1:]
    printed = _run_command(first[2:]).splitlines()
    made_for = TARGET.search(block.text)
    if made_for and made_for[1] != target.host().name:
        return
    pattern = "".join(
        r"(?:.*\n)*?" if line == ELLIPSIS else re.escape(TIME.sub("TIME", line.rstrip())) + "\n" for line in expected
    )
    text = "".join(TIME.sub("TIME", line.rstrip()) + "\n" for line in printed)
    assert re.fullmatch(pattern, text.rstrip("\n") + "\n"), f"it prints\n{os.linesep.join(printed)}"


def _try_indented(block: Block, printed: str) -> None:
    if block.lead == PRINTS:
        assert block.text.strip() == printed.strip(), f"the block before it prints\n{printed}"
        return
    first, *rest = block.lines
    command = first.removeprefix("$ ")
    if not command.startswith("isthmus "):
        with pytest.raises(SyntaxError):
            compile(block.text, "indented block", "exec")
    elif not FORM.search(command):
        printed = _run_command(command)
        for line in rest:
            assert line.strip() in printed, f"'{line}' is not in\n{printed}"


def _try(block: Block, path: Path, namespace: dict[str, object], printed: str = "") -> str:
    """Try a block; `printed` is what the block before it printed. Return what this one prints, if it is Python."""
    if NOT_RUN.search(block.lead):
        return ""
    if block.language == "python":
        return _try_python(block, path, namespace)
    if block.language == "sh":
        _try_shell(block)
    elif block.language == "text":
        _try_text(block)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language in ("c", "cpp", "yaml"):
        quoted = QUOTED.search(block.lead)
        assert quoted, "the text says which file a block of C or YAML is from"
        _check_quotation(block, ROOT / quoted[1])
    else:
        assert block.language is None, f"nobody can tell whether a block of '{block.language}' is true"
        _try_indented(block, printed)
    return ""


# -- the tests ---------------------------------------------------------------------------------------------------------


def _register_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip a registration that another test of this process has made: a name can be registered once."""
    import onnxruntime

    register = onnxruntime.register_execution_provider_library
    names = {each.ep_name for each in onnxruntime.get_ep_devices()}

    def register_new(name: str, path: str) -> None:
        if name not in names:
            register(name, path)

    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", register_new)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_of_a_document_is_true(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: Path
) -> None:
    text = path.read_text()
    if path.name in NEEDS:
        pytest.importorskip(NEEDS[path.name], reason=f"needs the package {NEEDS[path.name]}")
    if path.name == "onnxruntime.md":
        _register_once(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    # Rows of an earlier run of the tests may be those of other sources.
    monkeypatch.setattr("isthmus.tools.sweep.state_folder", lambda: tmp_path / "state")
    found = list(blocks(text))
    shutil.copytree(samples, tmp_path, dirs_exist_ok=True)
    if any("libqnn_model.so" in block.text for block in found) and not (samples / "libqnn_model.so").exists():
        pytest.skip("needs a compiler, for a model library")
    if "isthmus capi install" in text:
        monkeypatch.setattr(installation, "BUILT", libraries.compiled())
    namespace: dict[str, object] = {"__name__": "__document__"}
    printed = ""
    for block in found:
        if path.name in ALONE:
            namespace = {"__name__": "__document__"}
            assert block.language != "python" or ">>>" not in block.text, f"line {block.line} cannot be pasted"
        try:
            printed = _try(block, path, namespace, printed)
        except Exception as problem:
            raise AssertionError(f"{path.relative_to(ROOT)}, line {block.line}: {problem}") from problem


def _tried(text: str, namespace: dict[str, object] | None = None) -> None:
    printed = ""
    for block in blocks(text):
        printed = _try(block, Path("document.md"), {} if namespace is None else namespace, printed)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nraise ValueError\n```\n",
        "```python\n>>> 1 + 1\n3\n\n```\n",
        "From `src/isthmus/version.py`:\n\n```python\n__version__ = 'none'\n```\n",
        "```sh\nisthmus run nothing.onnx\n```\n",
        "```sh\nisthmus pack nothing.csv  # exits with 1\n```\n",
        "```sh\nmake haste\n```\n",
        "```sh\npython tests/test_nothing.py\n```\n",
        "```sh\npython -m pytest tests/test_documents.py::test_nothing\n```\n",
        "```sh\nrm -r docs\n```\n",
        "```text\n$ isthmus --version\nisthmus 0.0.1\n```\n",
        "```text\nisthmus 0.0.1\n```\n",
        "```text\n$ isthmus plan nothing.onnx\nnothing.onnx on cpu (none, 1 thread)\n```\n",
        "```json\n{\n```\n",
        "```\nno language\n```\n",
        "```c\nint x;\n```\n",
        "Look:\n\n    import isthmus\n    isthmus.Session\n",
        "Look:\n\n    $ isthmus --version\n    isthmus 0.0.1\n",
        "```python\nprint(1)\n```\n\nIt prints:\n\n    2\n",
        "It prints:\n\n    2\n",
    ],
)
def test_a_block_that_is_not_true_is_found(text: str) -> None:
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        _tried(text)


def test_blocks_that_are_true_pass() -> None:
    names: dict[str, object] = {}
    _tried(
        "```python\nprint(1)\nprint(2)\n```\n\nIt prints:\n\n    1\n    2\n\n"
        "```python\nx = 3\n```\n\n"
        "```python\n>>> x\n3\n\n```\n\n"
        "From `src/isthmus/version.py`:\n\n```python\nimport platform\n...\ndef build_id() -> str:\n```\n\n"
        "```sh\nmake test  # and more\nISTHMUS_SHUFFLE=1 python -m pytest tests/qnn\n"
        "isthmus pack nothing.csv  # exits with 2\n```\n\n"
        "```json\n{}\n```\n\n"
        "Not run by the tests: it needs a second machine.\n\n```sh\nssh\n```\n\n"
        "A picture:\n\n    a -> b\n\nA form:\n\n    isthmus run MODEL\n",
        names,
    )
    assert names["x"] == 3


def test_every_setting_is_in_the_table_of_settings() -> None:
    sources = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    settings = set(re.findall(r'"(ISTHMUS_[A-Z_]+)"', sources))
    reported = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE))
    assert settings
    assert settings <= reported


def test_links_between_documents_lead_somewhere() -> None:
    for path in [*DOCUMENTS, ROOT / "CHANGELOG.md"]:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / link).exists(), f"{path.name} leads to {link}"


@pytest.mark.parametrize("name", ["testing.md", "onnxruntime.md"])
def test_the_workflow_is_shown_as_it_is_in_the_examples(name: str) -> None:
    shown = [block.text for block in blocks((ROOT / "docs" / name).read_text()) if block.language == "yaml"]
    assert shown == [(ROOT / "examples" / "github-workflow.yml").read_text()]


def test_the_image_and_the_releases_install_what_the_demo_needs() -> None:
    needed = re.search(r'^demo = .*"(pymicro-wakeword==[\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    demo = re.search(r"^demo: .*\n(?:\t.*\n)+", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert needed
    assert demo
    for path in (ROOT / "Dockerfile", ROOT / "docs" / "releasing.md"):
        text = path.read_text()
        assert needed[1] in text
        for script in re.findall(r"examples/\w+\.py", demo[0]):
            assert f"python {script}" in text
