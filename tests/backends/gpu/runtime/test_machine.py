"""The loop of launches is kept under a key of all that it is made from."""

import ast
import importlib.util
from dataclasses import replace
from pathlib import Path

from isthmus.backends.gpu.runtime import machine

OUTSIDE = {"isthmus.compiled.objects", "isthmus.compiled.ahead"}
"""What is a part of every key, and what writes no code."""


def test_the_key_changes_with_each_source_and_with_the_architecture(monkeypatch) -> None:
    sources = machine.LOOP.sources
    variants = [machine.LOOP, *(replace(machine.LOOP, sources=sources[:n] + sources[n + 1 :]) for n in range(3))]
    keys = {variant.key() for variant in variants}
    monkeypatch.setattr("platform.machine", lambda: "z80")
    assert len(keys | {variant.key() for variant in variants}) == 2 * len(variants)


def test_all_that_the_compiler_makes_code_from_is_a_source() -> None:
    compiler = next(path for path in machine.LOOP.sources if path.name == "compiler.py")
    imported = set()
    for node in ast.walk(ast.parse(compiler.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("isthmus"):
            for name in (node.module, *(f"{node.module}.{each.name}" for each in node.names)):
                try:
                    found = importlib.util.find_spec(name)
                except ModuleNotFoundError:
                    found = None
                if found is not None and not found.submodule_search_locations and name not in OUTSIDE:
                    imported.add(Path(found.origin))
    assert imported - {Path(machine.__file__)} <= set(machine.LOOP.sources)
    assert len(imported) > 2
