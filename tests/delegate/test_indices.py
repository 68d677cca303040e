"""Indices that LiteRT refuses fail the delegate's nodes too, and those that it takes give its answers."""

from __future__ import annotations

import numpy as np
import pytest
from frontends.tflite.build import Op, Subgraph, T, model, options

import isthmus
from delegate.harness import LoggingDelegate, plain, run, with_delegate

DATA = np.arange(12, dtype=np.float32).reshape(4, 3)


def network(code: str, kind: str = "i32") -> bytes:
    """An operator whose indices are an input, and a sum behind it."""
    built = {
        "GATHER": ((3,), [0, 1], (3, 3), options("Gather", axis=0)),
        "GATHER_ND": ((3, 1), [0, 1], (3, 3), None),
        "EMBEDDING_LOOKUP": ((3,), [1, 0], (3, 3), None),
    }
    dims, inputs, result, made = built[code]
    tensors = [T("f32", (4, 3), name="x"), T(kind, dims, name="k"), T("f32", result), T("f32", result, name="y")]
    return model(Subgraph(tensors, [Op(code, inputs, [2], made), Op("ADD", [2, 2], [3], options("Add"))], [0, 1], [3]))


@pytest.mark.parametrize("backend", ["CPU", "HTP"])
@pytest.mark.parametrize("code", ["GATHER", "GATHER_ND", "EMBEDDING_LOOKUP"])
def test_an_index_out_of_range_fails_the_invocation_as_in_litert(code, backend) -> None:
    content = network(code)
    reference = plain(content)
    reference.allocate_tensors()
    delegate = LoggingDelegate(backend)
    interpreter = with_delegate(content, delegate)
    assert delegate.taken[0][0] == 2
    dims = interpreter.get_input_details()[1]["shape"]
    for indices in ([3, 0, 1], [0, 9, 0], [-1, 0, 0], [2, 2, 3]):
        k = np.array(indices, np.int32).reshape(dims)
        if set(indices) <= {0, 1, 2, 3}:
            assert np.array_equal(run(interpreter, DATA, k)[0], run(reference, DATA, k)[0])
            continue
        with pytest.raises(RuntimeError, match=r"(?i)out of bounds"):
            run(reference, DATA, k)
        with pytest.raises(RuntimeError, match=r"6004 GRAPH_INVALID_TENSOR.*out of range"):
            run(interpreter, DATA, k)
    del interpreter
    delegate.close()


def test_an_index_of_64_bits_is_not_cut_to_32(tmp_path) -> None:
    path = tmp_path / "wide.tflite"
    path.write_bytes(network("GATHER", "i64"))
    with isthmus.Session(path) as session:
        x, k = session.inputs
        assert np.array_equal(session.run({x: DATA, k: np.array([3, 0, 1])})["y"], 2 * DATA[[3, 0, 1]])
        for wrong in (2**32, -1, -(2**32)):
            with pytest.raises(isthmus.QnnError, match="out of range"):
                session.run({x: DATA, k: np.array([0, wrong, 0])})


def test_a_scatter_out_of_range_fails_as_in_litert(tmp_path) -> None:
    tensors = [
        T("i32", (2, 1), name="k"), T("f32", (2,), name="x"), T("i32", (1,), data=np.array([4], np.int32)),
        T("f32", (4,), name="y"),
    ]  # fmt: skip
    content = model(Subgraph(tensors, [Op("SCATTER_ND", [0, 1, 2], [3])], [0, 1], [3]))
    reference = plain(content)
    reference.allocate_tensors()
    path = tmp_path / "scatter.tflite"
    path.write_bytes(content)
    x = np.array([1, 2], np.float32)
    with isthmus.Session(path) as session:
        for indices in ([0, 3], [3, 3], [4, 0], [-1, 0]):
            k = np.array(indices, np.int32)[:, None]
            if set(indices) <= {0, 3}:
                assert np.array_equal(session.run({"k": k, "x": x})["y"], run(reference, k, x)[0])
                continue
            with pytest.raises(RuntimeError):
                run(reference, k, x)
            with pytest.raises(isthmus.QnnError, match="out of range"):
                session.run({"k": k, "x": x})


def test_a_class_that_does_not_exist_is_none_as_in_litert(tmp_path) -> None:
    scalars = [T("i32", (), data=np.array(4, np.int32)), *(T("f32", (), data=np.array(v, np.float32)) for v in (1, 0))]
    tensors = [T("i32", (4,), name="k"), *scalars, T("f32", (4, 4), name="y")]
    content = model(Subgraph(tensors, [Op("ONE_HOT", [0, 1, 2, 3], [4], options("OneHot", axis=-1))], [0], [4]))
    reference = plain(content)
    reference.allocate_tensors()
    path = tmp_path / "classes.tflite"
    path.write_bytes(content)
    k = np.array([1, -1, 4, 3], np.int32)
    with isthmus.Session(path) as session:
        assert np.array_equal(session.run({"k": k})["y"], run(reference, k)[0])
