"""The document of all operations is what the tables of backends and converters say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.backends.seam import registry
from isthmus.frontends.onnx.builder import OnnxBuilder
from isthmus.frontends.onnx.node import OnnxNode
from isthmus.frontends.onnx.operators import CONVERTERS
from isthmus.graph.acceptance import Acceptance
from isthmus.graph.ops import OPERATIONS
from isthmus.tools.operations import document, operations_of

WRITTEN = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_document_is_what_is_written() -> None:
    assert document() == WRITTEN.read_text(), "python -m isthmus.tools.operations > docs/operations.md"


def test_the_document_is_the_same_with_backends_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    before = document()
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    registry.register(replace(registry.entry("cpu"), name="elsewhere", accepted=registry.entry("gpu").accepted))
    registry.register(replace(registry.entry("cpu"), name="nowhere", accepted=Acceptance({})))
    assert document() == before


def test_every_operation_has_a_row_with_the_types_of_each_backend() -> None:
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in document().splitlines() if line.startswith("| ")}
    assert OPERATIONS.keys() <= rows.keys()
    assert rows["operation"] == "| operation | cpu, lpai | htp | gpu | ONNX | TFLite |"
    assert rows["Softmax"].endswith("| SOFTMAX |")
    assert "(" in rows["Erf"], "the vendor's library does not know it"


def test_operators_are_found_with_the_operations_that_their_converters_emit() -> None:
    context = (OnnxNode, OnnxBuilder)
    assert operations_of(CONVERTERS["Tanh"], context) == {"Tanh"}
    assert operations_of(CONVERTERS["MaxPool"], context) >= {"PoolMax2d", "PoolMax3d"}
    assert operations_of(CONVERTERS["Conv"], context) >= {"Conv1d", "Conv2d", "DepthWiseConv2d"}
    assert "Reshape" in operations_of(CONVERTERS["Reshape"], context)
