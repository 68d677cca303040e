"""What a new user tries in Python: completion, help, the text of an object, a habit from ONNX Runtime."""

import subprocess
import sys

import numpy as np
import pytest
from onnx import helper
from support import tiny

import isthmus
from isthmus import QnnError, Session, qnn
from isthmus.tools import cli


def small(folder):
    """Return the file of a Relu with two elements."""
    return tiny.save(folder / "small.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 2]}, {"y": [1, 2]})


def test_completion_offers_the_public_names_before_they_are_imported():
    code = "import isthmus, sys; print(*dir(isthmus)); print('isthmus.session' in sys.modules)"
    names, imported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"Session", "qnn", "memory", "QnnError", "Code"} <= set(names.split())
    assert not {"annotations", "TYPE_CHECKING"} & set(names.split())
    assert imported == "False"


def test_help_names_what_a_session_has():
    for name in ("inputs", "outputs", "info", "plan", "stats"):
        assert name in Session.__doc__
    for name in ("Session", "qnn", "memory", "QnnError"):
        assert name in isthmus.__doc__


def test_objects_say_what_they_are(tmp_path):
    with Session(small(tmp_path)) as session:
        assert repr(session) == "<Session 'small.onnx' on cpu: 'x' float32[1, 2] -> 'y' float32[1, 2]>"
        assert repr(session.graph) == "<QnnGraph: graph 'small'>"
    assert repr(session).endswith(", closed>")
    backend = qnn.Backend("cpu")
    assert repr(backend) == "<Backend: backend 'cpu'>"
    backend.free()
    assert repr(backend) == "<Backend: backend 'cpu', freed>"


def test_the_arguments_of_onnx_runtime_are_refused_in_one_line(tmp_path):
    with Session(small(tmp_path)) as session:
        with pytest.raises(QnnError, match="takes feeds only"):
            session.run(None, {"x": np.ones((1, 2), np.float32)})
        assert session.stats.runs == 0


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["rum", "small.onnx"], "run"),
        (["run", "small.onnx", "--bakend", "cpu"], "--backend"),
        (["plan", "small.onnx", "--scratch-limt=3"], "--scratch-limit"),
        (["run", "small.onnx", "--backend", "hpt"], "htp"),
        (["run", "small.onnx", "--backend", "libQnnHtpp.so"], "htp"),
    ],
)
def test_a_misspelt_command_option_or_backend_gets_the_nearest(tmp_path, monkeypatch, capsys, arguments, nearest):
    small(tmp_path)
    monkeypatch.chdir(tmp_path)
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert f"Did you mean '{nearest}'?" in capsys.readouterr().err


def test_a_misspelt_operation_graph_tensor_or_key_gets_the_nearest(tmp_path):
    with qnn.Backend("cpu") as backend:
        graph = backend.create_context().compose(small(tmp_path))
        with pytest.raises(QnnError, match="Did you mean 'small'"):
            graph.context.retrieve("smal")
        with pytest.raises(QnnError, match="Did you mean 'ElementWiseMultiply'"):
            graph.context.create_graph("sums").add_node("sum", "ElementWiseMultipy", [], [])
        with pytest.raises(QnnError, match="Did you mean 'ElementWiseMultiply'"):
            backend.validate_op_config("sum", "elementwise_multiply", [], [])
    with pytest.raises(QnnError, match="Did you mean 'lpai_graph'"):
        qnn.Backend("lpai", {"lpai_grap": {}})
