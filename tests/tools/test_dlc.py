"""The commands take DLCs as QNN's own do: run, planned, prepared and inspected."""

import json
import zipfile

import numpy as np
import pytest
from support.dlc_graphs import convolution, convolved, single
from support.dlc_write import archive, dlc, node

from isthmus import qnn
from isthmus.tools.cli import main

X = np.random.default_rng(0).standard_normal((1, 6, 6, 2)).astype(np.float32)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a DLC of two graphs, an input and lists of it by position and by QNN's name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.dlc").write_bytes(dlc([convolution("first"), convolution("second")]))
    (tmp_path / "one.dlc").write_bytes(dlc([convolution()], more={"htp.cache.0": bytes(100)}))
    X.tofile("x.raw")
    (tmp_path / "list.txt").write_text("x.raw\n")
    (tmp_path / "named.txt").write_text("in_x_0:=x.raw\n")
    return tmp_path


def check_result(folder="."):
    got = np.fromfile(f"output/{folder}/Result_0/y.raw", np.float32).reshape(1, 6, 6, 4)
    np.testing.assert_allclose(got, convolved(X), atol=1e-5)


@pytest.mark.parametrize("backend", ["libQnnCpu.so", "libQnnHtp.so", "libQnnLpai.so"])
def test_all_graphs_of_a_dlc_are_run(folder, backend) -> None:
    assert main(["net-run", "--dlc_path", "two.dlc", "--backend", backend, "--input_list", "list.txt,named.txt"]) == 0
    check_result("first")
    check_result("second")


def test_the_library_that_reads_dlcs_may_be_named_beside_it(folder) -> None:
    assert main(["net-run", "--model", "libQnnModelDlc.so", "--dlc_path", "one.dlc", "--backend", "libQnnCpu.so",
                 "--input_list", "named.txt"]) == 0  # fmt: skip
    check_result()


@pytest.mark.parametrize("kind", ["raw", "memhandle"])
def test_dlcs_become_a_context_binary_that_is_run(folder, kind, capsys) -> None:
    assert main(["context-binary-generator", "--dlc_path", "two.dlc,one.dlc", "--backend", "libQnnHtp.so",
                 "--binary_file", "all", "--input_output_tensor_mem_type", kind]) == 0  # fmt: skip
    assert "3 graphs for htp" in capsys.readouterr().out
    info = qnn.SystemContext().get_binary_info(folder / "output" / "all.bin")
    assert [graph.name for graph in info.graphs] == ["first", "second", "net"]
    assert {tensor.mem_type.name.lower() for graph in info.graphs for tensor in graph.tensors} == {kind}
    assert [tensor.name for tensor in info.graphs[0].inputs] == ["in_x_0"]
    assert main(["net-run", "--retrieve_context", "output/all.bin", "--backend", "libQnnHtp.so",
                 "--input_list", "list.txt,list.txt,list.txt"]) == 0  # fmt: skip
    check_result("net")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "a.onnx", "--dlc_path", "one.dlc"], "name one of --model, --dlc_path and --retrieve_context"),
        (["--dlc_path", "one.dlc", "--retrieve_context", "x.bin"], "name one of"),
        ([], "name one of"),
        (["--dlc_path", ","], "--dlc_path ,: names no file"),
        (["--dlc_path", "none.dlc"], "there is no such file"),
    ],
)
def test_a_command_line_without_a_model_or_with_several_sources_is_refused(folder, arguments, words, capsys) -> None:
    assert main(["net-run", *arguments, "--backend", "libQnnCpu.so", "--input_list", "list.txt"]) == 2
    assert words in capsys.readouterr().err


def test_a_binary_needs_models(folder, capsys) -> None:
    assert main(["context-binary-generator", "--backend", "libQnnHtp.so"]) == 2
    assert "name models by --model or --dlc_path" in capsys.readouterr().err


def test_a_graph_of_a_dlc_is_run_and_planned_by_name(folder, capsys) -> None:
    assert main(["run", "two.dlc", "--graph", "second", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"]["in/x:0"]["shape"] == [1, 6, 6, 2]
    assert main(["plan", "two.dlc", "--graph", "second", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 1
    assert main(["run", "two.dlc"]) == 2
    assert "it holds 2 graphs: 'first', 'second'" in capsys.readouterr().err


def test_inspect_lists_what_a_dlc_holds(folder, capsys) -> None:
    assert main(["inspect", "one.dlc", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["version"], report["caches"]) == ("dlc", 4, ["htp.cache.0"])
    assert report["bytes"] == (folder / "one.dlc").stat().st_size
    assert report["entries"]["htp.cache.0"] == 100
    [graph] = report["graphs"]
    assert graph["name"] == "net"
    assert graph["inputs"] == [{"name": "in/x:0", "datatype": "FLOAT_32", "shape": [1, 6, 6, 2], "quantization": None}]
    assert graph["operations"] == {"Conv2d": 1, "ElementWiseNeuron": 1}
    # 72 weights and 4 biases, of 4 bytes each.
    assert (graph["constants"], graph["constant_bytes"]) == (2, 4 * (72 + 4))


def test_inspect_shows_what_it_cannot_run(folder, capsys) -> None:
    (folder / "strange.dlc").write_bytes(dlc([single(node("r", "PyramidPooling", ["x"], ["y"]))]))
    assert main(["inspect", "strange.dlc"]) == 0
    assert "not supported: PyramidPooling" in capsys.readouterr().out
    assert main(["inspect", "one.dlc"]) == 0
    assert "htp.cache.0: 100 bytes prepared for another machine; shown here, not executed" in capsys.readouterr().out
    (folder / "cache.dlc").write_bytes(archive({"htp.cache.0": b"1234"}))
    assert main(["inspect", "cache.dlc"]) == 0
    assert "0 graphs" in capsys.readouterr().out


def test_a_damaged_dlc_is_refused_in_one_line(tmp_path, capsys) -> None:
    good = dlc([convolution()])
    old = bytearray(good)
    old[good.index(b"\xd5\x0a\x04") + 2] = 2
    with zipfile.ZipFile(tmp_path / "packed.dlc", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("model", "x" * 1000)
    with zipfile.ZipFile(tmp_path / "other.dlc", "w") as packed:
        packed.writestr("word/document.xml", "x")
    files = {
        "cut.dlc": (good[:-40], "its end is missing, where an archive has its directory"),
        "old.dlc": (bytes(old), "it is a DLC of version 2; versions 3 and 4 are read. Convert its model again"),
        "packed.dlc": (None, "is compressed or encrypted; a DLC's entries are stored as they are. It is another kind"),
        "other.dlc": (None, "it is an archive of 'word/document.xml'; a DLC has an entry 'model', or a cache"),
        "text.dlc": (
            b"plain text of no kind",
            "its format is not known: it begins with b'plain text of no'",
        ),
        "model.tflite": (b"\x1c\0\0\0TFL3" + bytes(40), "damaged, or it is neither a TFLite file nor a DLC"),
    }
    for name, (content, reported) in files.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        assert main(["inspect", str(tmp_path / name)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert reported in line
        assert name.partition(".")[0] in line
