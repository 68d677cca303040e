"""The page of parity is what the record says, and every difference of call sequences has a reason."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from differential import children, context_rules, decisions, forms, layers, sequences, validation
from differential.operations import USES, kinds_of, node_of
from differential.parity import page
from differential.run import worse

HERE = Path(__file__).parent
RUN = HERE / "run.py"


def test_the_page_is_what_the_record_says() -> None:
    record = json.loads((HERE / "agreement.json").read_text())
    written = (HERE.parents[1] / "docs" / "parity.md").read_text()
    assert written == page(record), "run `python tests/differential/run.py --write`"


def test_every_rule_of_contexts_is_there_once_with_tests_that_exist_or_a_reason() -> None:
    assert [rule.number for rule in context_rules.RULES] == list(range(1, 102))
    for rule in context_rules.RULES:
        assert rule.known in (context_rules.MEASURED, context_rules.DOCUMENTED, context_rules.ASSUMED)
        if rule.ours == context_rules.NOT:
            assert rule.note, f"rule {rule.number} needs a reason"
            assert not rule.tests
        else:
            assert rule.ours in (
                context_rules.DOES, context_rules.REFUSES, context_rules.LOGS, context_rules.CHECKED,
            )  # fmt: skip
            assert rule.tests, f"rule {rule.number} needs a test"
        for file, function in rule.named():
            tree = ast.parse((HERE.parents[1] / file).read_text())
            names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert function in names, f"rule {rule.number}: {file} has no {function}"


def test_the_record_has_enough_cases_and_a_reason_for_every_difference() -> None:
    record = json.loads((HERE / "agreement.json").read_text())
    assert len(validation.cases()) >= 3000
    assert len(sequences.cases()) >= 302
    for chip in record["validation"].values():
        assert chip["cases"] == len(validation.cases())
    for chip in record["forms"].values():
        assert chip["cases"] == len(forms.cases())
        assert all(each["reason"] for each in chip["differences"].values()), "decide them in decisions.py"
    found = record["sequences"]["any"]
    assert found["cases"] == len(sequences.cases())
    for name, each in found["differences"].items():
        assert decisions.reason(name, each["vendor"], each["ours"]), f"{name}: decide it in decisions.py"


def test_a_difference_that_has_a_reason_is_reported_when_it_changes() -> None:
    def results(outcome: str) -> dict[str, Any]:
        return {"chip": {"equal": 3, "undecided": [], "differences": {"Conv2d": {"vendor": "runs", "ours": outcome}}}}

    assert worse("forms", results("differs by 5"), results("differs by 5")) == []
    [problem] = worse("forms", results("differs by 5"), results("differs by 1e+03"))
    assert "Conv2d: ours is 'differs by 1e+03', and was 'differs by 5'" in problem
    [problem] = worse("forms", {"chip": {"equal": 4}}, results("differs by 5"))
    assert "equal is 3, and was 4" in problem


def test_every_operation_of_the_vendors_library_has_a_use() -> None:
    assert len(USES) == 130
    for op in USES:
        for kind in kinds_of(op):
            node_of(op, kind).in_c()


def test_answers_are_kept_and_a_child_that_ends_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a layer of three cases, one of which ends the process."""
    package = tmp_path / "differential"
    package.mkdir()
    for name in ("__init__.py", "child.py", "layers.py"):
        (package / name).write_text((HERE / name).read_text())
    with (package / "layers.py").open("a") as file:
        file.write("\nQUESTIONS['dying'] = Layer('dying', (), ())\n")
    (package / "client.py").write_text("")
    (package / "dying.py").write_text(DYING)
    monkeypatch.setenv("DIFFERENTIAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(children, "HERE", package)
    monkeypatch.setitem(layers.QUESTIONS, "dying", layers.Layer("dying", (), ()))
    side = children.Side("ours", tmp_path / "log", "")
    expected = {"one": 3, "dies": "ended by SIGABRT", "three": 5}
    assert children.answers("dying", side, None, list(expected)) == expected
    assert children.answers("dying", side, None, list(expected)) == expected
    assert (tmp_path / "log").read_text().split() == ["one", "dies", "three"], "each case was answered once"


DYING = """
import os

def opened(library, chip):
    def answer(name):
        with open(library, "a") as log:
            log.write(name + " ")
        return os.abort() if name == "dies" else len(name)

    return answer
"""


def test_without_the_package_one_line_says_what_to_install(tmp_path: Path) -> None:
    hidden = f"""
import importlib.metadata, runpy, sys

def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)

importlib.metadata.distribution = missing
sys.argv = [{str(RUN)!r}]
runpy.run_path({str(RUN)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "make differential: nothing to compare with; install the package onnxruntime-qnn\n"
