"""The example of the TFLite delegate does what it says."""

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import zoo

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="LiteRT is not installed")
def test_the_tutorial_of_the_delegate_runs_line_by_line(monkeypatch, capsys):
    try:
        path = zoo.path("okay_nabu")
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    monkeypatch.syspath_prepend(EXAMPLES)
    for module in ("tflite_shared_memory", "wake_word"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    example = importlib.import_module("tflite_shared_memory")
    monkeypatch.setattr(example, "find_model", lambda: path)
    example.main()
    assert capsys.readouterr().out.splitlines() == [
        "INFO: TfLiteQnnDelegate delegate: 61 nodes delegated out of 61 nodes with 1 partitions.",
        "INFO: Replacing 61 node(s) with delegate (TfLiteQnnDelegate) node, yielding 1 partitions.",
        "INFO: Tensor 0 is successfully registered to shared memory.",
        "INFO: Tensor 104 is successfully registered to shared memory.",
        "0 bytes copied, 121 used in place",
    ]
