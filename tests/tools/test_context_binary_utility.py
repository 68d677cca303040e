"""qnn-context-binary-utility describes a binary as JSON with the names of QNN's structures."""

import json

import pytest
from backends.htp.sized import table_graph

from isthmus import qnn
from isthmus.graph import DataType, Graph, Quantization, TensorType
from isthmus.tools.cli import context_binary_utility


@pytest.fixture
def binary(tmp_path):
    """A binary with a graph that relays a quantized tensor, and one that relays floats."""
    with qnn.Backend("cpu") as backend:
        context = backend.create_context()
        for name, dtype, quantization in (
            ("bytes", DataType.UFIXED_POINT_8, Quantization.per_tensor(0.5, 10)),
            ("reals", DataType.FLOAT_32, None),
        ):
            graph = Graph(name)
            x = graph.create_tensor("x", TensorType.APP_WRITE, dtype, (1, 4), quantization)
            y = graph.create_tensor("y", TensorType.APP_READ, dtype, (4,), quantization)
            graph.add_node("relay", "Reshape", [x], [y])
            context.add_graph(graph)
        path = tmp_path / "both.bin"
        path.write_bytes(context.prepare_offline())
    return path


def test_a_binary_is_described_with_qnns_names(binary, tmp_path) -> None:
    file = tmp_path / "info.json"
    assert context_binary_utility(["--context_binary", str(binary), "--json_file", str(file)]) == 0
    info = json.loads(file.read_text())["info"]
    assert info["numGraphs"] == 2
    assert info["contextBlobSize"] == binary.stat().st_size
    first, second = (graph["info"] for graph in info["graphs"])
    assert (first["graphName"], second["graphName"]) == ("bytes", "reals")
    [x], [y] = first["graphInputs"], first["graphOutputs"]
    assert x["info"] == {
        "name": "x",
        "type": "QNN_TENSOR_TYPE_APP_WRITE",
        "dataType": "QNN_DATATYPE_UFIXED_POINT_8",
        "quantizeParams": {
            "definition": "QNN_DEFINITION_DEFINED",
            "quantizationEncoding": "QNN_QUANTIZATION_ENCODING_SCALE_OFFSET",
            "scaleOffset": {"scale": 0.5, "offset": -10},
        },
        "rank": 2,
        "dimensions": [1, 4],
        "memType": "QNN_TENSORMEMTYPE_RAW",
    }
    assert (y["info"]["type"], y["info"]["dimensions"]) == ("QNN_TENSOR_TYPE_APP_READ", [4])
    undefined = second["graphInputs"][0]["info"]["quantizeParams"]
    assert undefined["definition"] == "QNN_DEFINITION_UNDEFINED"


def test_without_a_file_the_description_is_printed(binary, capsys) -> None:
    assert context_binary_utility(["--context_binary", str(binary)]) == 0
    assert json.loads(capsys.readouterr().out)["info"]["graphs"][0]["info"]["graphName"] == "bytes"


@pytest.mark.parametrize("content", [None, b"", b"no binary at all", "cut"])
def test_what_is_no_binary_is_refused_in_one_line_and_nothing_is_written(binary, tmp_path, capsys, content) -> None:
    path = tmp_path / "odd.bin"
    if content is not None:
        path.write_bytes(binary.read_bytes()[:-10] if content == "cut" else content)
    assert context_binary_utility(["--context_binary", str(path), "--json_file", str(tmp_path / "info.json")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("qnn-context-binary-utility: [")
    assert not (tmp_path / "info.json").exists()


def test_the_memory_of_a_graph_on_a_chip_has_the_names_of_htps_blobs(binary, tmp_path, capsys) -> None:
    path = tmp_path / "htp.bin"
    with qnn.Backend("htp") as backend, backend.create_context() as context:
        table_graph(context, "g", 5000)
        path.write_bytes(context.prepare_offline())
    assert context_binary_utility(["--context_binary", str(path)]) == 0
    [graph] = json.loads(capsys.readouterr().out)["info"]["graphs"]
    found = qnn.SystemContext().get_binary_info(str(path)).graphs[0].figures
    first, second = graph["info"]["graphBlobInfo"]["info"], graph["info"]["graphBlobInfoV2"]
    assert first["vtcmSize"] == 4 << 20
    assert first["spillFillBufferSize"] == found.spill_fill
    assert second["constSize"] == found.constants == 5000
    assert (second["ioTensorSize"], second["opDataSize"]) == (found.io, found.op_data)
    # A binary of another backend states nothing of a chip.
    assert context_binary_utility(["--context_binary", str(binary)]) == 0
    assert "graphBlobInfo" not in capsys.readouterr().out
