"""Files that are missing, empty, of another kind, damaged or hostile are refused with a clear error."""

from __future__ import annotations

import builtins
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from frontends.onnx.graphs import convert, floats, interpret, model, node
from isthmus import frontends
from isthmus.errors import Code, QnnError
from isthmus.frontends.onnx import load, schema
from isthmus.frontends.onnx.tensors import ExternalData, embed_data

SMALL = model([node("Add", "x k", "y")], {"x": floats(2)}, "y", {"k": np.float32([1, 2])})


def refusal(path: Path) -> QnnError:
    with pytest.raises(QnnError) as caught:
        frontends.load(path)
    return caught.value


def test_a_file_is_recognized_by_its_contents(tmp_path: Path) -> None:
    path = tmp_path / "renamed.tflite"
    path.write_bytes(SMALL.SerializeToString())
    graph = frontends.load(path)
    assert graph.name == "renamed"
    np.testing.assert_array_equal(interpret(graph, {"x": np.float32([1, 1])})["y"], [2, 3])


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "missing.onnx").rule
    assert "directory" in refusal(tmp_path).rule
    empty = tmp_path / "empty.onnx"
    empty.touch()
    assert "empty" in refusal(empty).rule


@pytest.mark.parametrize("data", [b"\x00", b"PK\x05\x06 an empty zip", b"\x89PNG\r\n", bytes(range(64))])
def test_the_format_of_other_files_is_not_known(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    assert refusal(path).rule == f"its format is not known: it begins with {data[:16]!r}"


def test_constants_are_for_onnx_only(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(b"\x1c\x00\x00\x00TFL3" + bytes(64))
    with pytest.raises(QnnError, match="cannot be constants"):
        frontends.load(path, constants={"x": np.zeros(1)})


@pytest.mark.parametrize("cut", range(1, len(SMALL.SerializeToString()), 7))
def test_a_truncated_file_is_refused(cut: int) -> None:
    with pytest.raises(QnnError):
        load(SMALL.SerializeToString()[:cut], "cut")


def test_a_missing_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *more: Any) -> Any:
        if name.partition(".")[0] in ("onnx", "google"):
            raise ImportError(f"No module named '{name}'")
        return real(name, *more)

    schema.messages.cache_clear()
    for name in [n for n in sys.modules if n.partition(".")[0] == "onnx"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(builtins, "__import__", absent)
    monkeypatch.setattr(schema.importlib, "import_module", lambda name: absent(name))
    with pytest.raises(QnnError, match=r"isthmus\[onnx\]"):
        schema.messages()
    schema.messages.cache_clear()


def test_reading_a_model_does_not_import_the_whole_package(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(SMALL.SerializeToString())
    script = f"import sys; from isthmus.frontends import load; load({str(path)!r}); print('onnx.helper' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def changed(change: Any) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(SMALL)
    change(made.graph)
    return made


def _cycle(graph: Any) -> None:
    graph.node[0].input[1] = "z"
    graph.node.append(node("Relu", "y", "z"))


def _dims(*dims: int) -> Any:
    def change(graph: Any) -> None:
        del graph.initializer[0].dims[:]
        graph.initializer[0].dims.extend(dims)

    return change


HOSTILE = {
    "a cycle": (_cycle, "earlier node"),
    "a missing input": (lambda g: g.node[0].input.__setitem__(0, "nowhere"), "nowhere"),
    "a missing operand": (lambda g: g.node[0].input.pop(), "input 1 is missing"),
    "two nodes writing one name": (lambda g: g.node.append(g.node[0]), "defined twice"),
    "a node writing an input": (lambda g: g.node[0].output.__setitem__(0, "x"), "defined twice"),
    "an output nobody writes": (lambda g: g.output[0].__setattr__("name", "void"), "void"),
    "no outputs": (lambda g: g.output.pop(), "needs outputs"),
    "huge input dimensions": (
        lambda g: g.input[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", 1 << 62), "too large",
    ),
    "huge constant dimensions": (_dims(1 << 40), "fits a file"),
    "negative constant dimensions": (_dims(-2), "fits a file"),
    "constant dimensions beyond its data": (_dims(3), "bytes"),
    "overflowing constant dimensions": (_dims(1 << 33, 1 << 33), "fits a file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_model(kind: str) -> None:
    change, rule = HOSTILE[kind]
    with pytest.raises(QnnError) as caught:
        convert(changed(change))
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ConstantOfShape", "big", "y")],
        [node("Expand", "one big", "y")],
        [node("Tile", "one big", "y")],
        [node("Range", "zero huge step", "y")],
    ],
    ids=lambda nodes: nodes[0].op_type,
)
def test_constants_of_absurd_size_are_refused_before_they_are_made(nodes: list[Any]) -> None:
    constants = {
        "big": np.int64([1 << 20, 1 << 20]), "one": np.zeros((1, 1), np.float32), "zero": np.int64(0),
        "huge": np.int64(1 << 50), "step": np.int64(1),
    }  # fmt: skip
    with pytest.raises(QnnError):
        convert(model(nodes, {"x": floats(1)}, "y", constants))


def external(folder: Path, location: str, value: tuple[float, ...] = (1, 2), **entries: int) -> Path:
    tensor = numpy_helper.from_array(np.float32(value), "k")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    made = changed(lambda graph: graph.initializer[0].CopyFrom(tensor))
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def test_a_model_with_external_data_at_any_depth_is_not_self_contained(tmp_path: Path) -> None:
    proto = ModelProto.FromString(external(tmp_path, "weights").read_bytes())
    assert not frontends.is_self_contained(proto.SerializeToString())
    inner = GraphProto(initializer=proto.graph.initializer)
    del proto.graph.initializer[:]
    assert frontends.is_self_contained(proto.SerializeToString())
    proto.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=inner))
    assert not frontends.is_self_contained(proto.SerializeToString())
    assert frontends.is_self_contained(proto.SerializeToString()[:-3])
    assert frontends.is_self_contained(b"")


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(4) + np.float32([3, 4]).tobytes())
    graph = frontends.load(external(tmp_path, "data.bin", offset=4, length=8))
    np.testing.assert_array_equal(interpret(graph, {"x": np.float32([0, 0])})["y"], [3, 4])


def test_external_data_of_a_model_that_is_converted_again_is_kept_beside_its_message(tmp_path: Path) -> None:
    """A message has at most 2 GB: protobuf can neither serialize a larger one nor tell its size."""
    weights = np.float32([3, 4]).tobytes()
    (tmp_path / "data.bin").write_bytes(weights)
    path = external(tmp_path, "data.bin")
    proto = ModelProto.FromString(path.read_bytes())
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    path.write_bytes(proto.SerializeToString())
    source = frontends.with_contents(frontends.ModelSource(path, {"x": (2,)}))
    frontends.staged_model(source)
    (tmp_path / "data.bin").unlink()
    [graph] = frontends.load_all(source)
    np.testing.assert_array_equal(interpret(graph, {"x": np.float32([0, 0])})["y"], [3, 4])
    assert source.model is not None
    assert weights not in source.model.message.SerializeToString()


def test_external_data_of_a_model_with_old_operators_is_read(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(np.float32([3, 4]).tobytes())
    path = external(tmp_path, "data.bin")
    proto = ModelProto.FromString(path.read_bytes())
    proto.ir_version, proto.opset_import[0].version = 4, 6
    proto.graph.output[0].type.CopyFrom(proto.graph.input[0].type)
    path.write_bytes(proto.SerializeToString())
    np.testing.assert_array_equal(interpret(frontends.load(path), {"x": np.float32([0, 0])})["y"], [3, 4])


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (TensorProto.FLOAT, np.float32([1, 2, 3]).tobytes()),
        (TensorProto.BFLOAT16, bytes(range(6))),
        (TensorProto.BOOL, bytes([1, 0, 1])),
        (TensorProto.INT4, b"\xe1\x07"),
    ],
)
def test_external_data_can_be_stored_in_the_message(tmp_path: Path, kind: int, raw: bytes) -> None:
    (tmp_path / "data.bin").write_bytes(raw)
    message = TensorProto(name="k", data_type=kind, dims=[3], data_location=TensorProto.EXTERNAL)
    message.external_data.add(key="location", value="data.bin")
    embed_data(message, ExternalData(tmp_path))
    assert message == TensorProto(name="k", data_type=kind, dims=[3], raw_data=raw)


@pytest.mark.parametrize(
    ("location", "entries"),
    [
        ("../data.bin", {}),
        ("/etc/passwd", {}),
        ("link.bin", {}),
        ("", {}),
        ("missing.bin", {}),
        ("data.bin", {"offset": 8}),
        ("data.bin", {"offset": -4}),
        ("data.bin", {"length": 1 << 60}),
        ("data.bin", {"offset": "x"}),
    ],
)
def test_external_data_elsewhere_or_out_of_bounds_is_refused(
    tmp_path: Path, location: str, entries: dict[str, Any]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for place in (tmp_path, folder):
        (place / "data.bin").write_bytes(np.float32([3, 4]).tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "data.bin")
    assert refusal(external(folder, location, **entries)).code is Code.GRAPH_CREATE_FAILED


def test_external_data_in_a_pipe_is_refused_even_if_none_would_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    other_end = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        assert "pipe or a device" in refusal(external(tmp_path, "pipe", ())).rule
    finally:
        os.close(other_end)


def test_external_data_of_bytes_without_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QnnError, match="by its path"):
        load(external(tmp_path, "data.bin").read_bytes(), "bytes")
