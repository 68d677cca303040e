"""The examples in the documents are true."""

import doctest
import re
from pathlib import Path

import pytest
import tiny

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["planning.md"])
def test_examples_print_what_the_document_says(name):
    failed, tried = doctest.testfile(str(DOCS / name), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("name", ["lpai.md"])
def test_every_block_of_code_runs_after_those_before_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.convolution(tmp_path / "model.onnx")
    blocks = BLOCK.findall((DOCS / name).read_text())
    assert blocks
    namespace = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"block {number} of {name}", "exec"), namespace)
