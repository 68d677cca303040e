"""Numbers of BFLOAT_16 go into a session as ml_dtypes.bfloat16 or as bits, and come out as bits."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

import isthmus
from isthmus import QnnError
from isthmus.comparison.comparison import input_arrays
from isthmus.frontends.onnx import load
from isthmus.graph import DataType

X = np.array([[0.5, -1.5, 2, 300]]).astype(ml_dtypes.bfloat16)
W = np.array([1, 2, -3, 4]).astype(ml_dtypes.bfloat16)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The sum of an input and an initializer, both of bfloat16."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [1, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "sum", [x], [y], [
        numpy_helper.from_array(W, "w")
    ])  # fmt: skip
    path = tmp_path_factory.mktemp("models") / "sum.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10), path)
    return path


@pytest.mark.parametrize("backend", ["cpu", "htp"])
@pytest.mark.parametrize("given", [X, X.view(np.uint16), X.view("V2"), np.asfortranarray(np.vstack([X, X]))[:1]])
def test_a_session_takes_numbers_or_bits_and_returns_bits(model, backend, given) -> None:
    with isthmus.Session(model, backend=backend) as session:
        result = session.run({"x": given})["y"]
    assert result.dtype == np.uint16
    np.testing.assert_array_equal(result.view(ml_dtypes.bfloat16), X + W)
    np.testing.assert_array_equal(DataType.BFLOAT_16.decode(result), (X + W).astype(np.float32))


def test_numbers_are_written_into_a_view_of_their_type(model) -> None:
    with isthmus.Session(model) as session:
        session.inputs["x"].view(ml_dtypes.bfloat16)[...] = X
        session.run()
        np.testing.assert_array_equal(session.outputs["y"].view(ml_dtypes.bfloat16), X + W)


def test_other_floats_are_refused_with_what_to_pass(model) -> None:
    with isthmus.Session(model) as session:
        for other in (np.float32, np.float16, np.int16, ml_dtypes.float8_e4m3fn):
            with pytest.raises(QnnError, match=r"input 'x'.*must be uint16.*ml_dtypes\.bfloat16"):
                session.run({"x": X.astype(np.float32).astype(other)})


@pytest.mark.parametrize("type", [ml_dtypes.bfloat16, np.uint16])
def test_nan_is_refused_unless_it_is_allowed(model, type) -> None:
    numbers = X.copy()
    numbers[0, 2] = np.nan
    with isthmus.Session(model) as session:
        with pytest.raises(QnnError, match="it holds NaN"):
            session.run({"x": numbers.view(type)})
        result = session.run({"x": numbers.view(type)}, allow_nan=True)["y"].view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(numbers))


def test_the_command_line_takes_files_of_bfloat16_arrays(model, tmp_path) -> None:
    np.savez(tmp_path / "in.npz", x=X)
    command = ["run", model, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz"]
    subprocess.run([sys.executable, "-m", "isthmus", *command], check=True, timeout=300, capture_output=True)
    with np.load(tmp_path / "out.npz") as results:
        np.testing.assert_array_equal(results["y"].view(ml_dtypes.bfloat16), X + W)


def test_a_comparison_takes_bfloat16_arrays(model) -> None:
    arrays = input_arrays(load(model), {"x": X}, seed=0)
    np.testing.assert_array_equal(arrays["x"], X.view(np.uint16))
