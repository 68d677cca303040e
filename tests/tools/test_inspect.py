"""``isthmus inspect`` tells what a context binary holds, for people and as data."""

import json

import pytest
from support import tiny

from isthmus import qnn
from isthmus.tools.cli import main
from isthmus.version import PRODUCER


@pytest.fixture(params=["cpu", "htp", "lpai"])
def binary(request, tmp_path):
    """A binary of two graphs, and the backend it is for."""
    models = tiny.convolution(tmp_path / "conv.onnx"), tiny.gate(tmp_path / "gate.onnx", 4)
    assert main(["context-binary-generator", "--model", ",".join(map(str, models)), "--backend", request.param,
                 "--output_dir", str(tmp_path)]) == 0  # fmt: skip
    return tmp_path / "conv.bin", request.param


def test_json_is_what_the_system_context_says(binary, capsys) -> None:
    path, backend = binary
    capsys.readouterr()
    assert main(["inspect", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    info = qnn.SystemContext().get_binary_info(path)
    assert report["backend"] == backend
    assert report["producer"] == info.producer
    assert report["producer"] == PRODUCER
    assert report["version"] == info.version
    assert report["bytes"] == path.stat().st_size
    assert [graph["name"] for graph in report["graphs"]] == ["conv", "gate"]
    for graph, known in zip(report["graphs"], info.graphs, strict=True):
        assert graph["scratch_bytes"] == known.memory.scratch_bytes
        assert graph["io_bytes"] == known.io_bytes
        assert graph["target"] == known.target
        for kind in ("inputs", "outputs"):
            assert [(t["name"], tuple(t["shape"]), t["bytes"]) for t in graph[kind]] == [
                (t.name, t.dims, t.nbytes) for t in getattr(known, kind)
            ]


def test_the_text_for_people_has_the_facts_of_the_json(binary, capsys) -> None:
    path, backend = binary
    capsys.readouterr()
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    for words in (f"2 graphs for {backend}", "graph 'conv'", "  input   x: FLOAT_32[1, 3, 8, 8], 768 bytes, raw",
                  "  output  y: FLOAT_32[1, 4], 16 bytes", "  memory  scratch "):  # fmt: skip
        assert words in text


def test_quantization_is_shown(tmp_path, capsys) -> None:
    from isthmus.graph import DataType, Quantization, TensorType

    with qnn.Backend("cpu") as backend:
        context = backend.create_context()
        graph = context.create_graph("g")
        scale = Quantization.per_tensor(0.5, -3)
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.SFIXED_POINT_8, [4], scale)
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.SFIXED_POINT_8, [4], scale)
        graph.add_node("relu", "Relu", [x], [y])
        graph.finalize()
        (tmp_path / "q.bin").write_bytes(context.get_binary())
    assert main(["inspect", str(tmp_path / "q.bin")]) == 0
    assert "x: SFIXED_POINT_8[4], 4 bytes, raw, scale 0.5, offset 3" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "q.bin"), "--json"]) == 0
    [reported] = json.loads(capsys.readouterr().out)["graphs"]
    plain = {"bits": 0, "block": 0, "factors": []}
    assert reported["inputs"][0]["quantization"] == {"scales": [0.5], "offsets": [3], "axis": None, **plain}


@pytest.mark.parametrize("content", [b"", b"no binary at all", b"ISTHMCTX" + bytes(64)])
def test_what_is_no_binary_is_one_clear_line(tmp_path, capsys, content) -> None:
    path = tmp_path / "odd.bin"
    path.write_bytes(content)
    assert main(["inspect", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("isthmus inspect: [")
    assert len(captured.err.splitlines()) == 1
