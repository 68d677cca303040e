"""The two tools take QNN's own command lines: a binary is made, and run on raw files into Result folders."""

import json

import numpy as np
import pytest
from onnx import helper
from support import oracles, tiny

from isthmus.backends.seam import binary
from isthmus.graph.datatypes import TensorMemType
from isthmus.tools.cli import main
from isthmus.tools.raw_files import file_names


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a model, three inputs and a list of them."""
    monkeypatch.chdir(tmp_path)
    tiny.convolution(tmp_path / "model.onnx")
    generator = np.random.default_rng(0)
    for n in range(3):
        generator.standard_normal((1, 3, 8, 8)).astype(np.float32).tofile(f"in{n}.raw")
    (tmp_path / "input_list.txt").write_text("in0.raw\nx:=in1.raw\nin2.raw\n")
    return tmp_path


def expected(folder):
    session = oracles.onnx_session(folder / "model.onnx")
    inputs = [np.fromfile(folder / f"in{n}.raw", np.float32).reshape(1, 3, 8, 8) for n in range(3)]
    return [session.run(None, {"x": x})[0] for x in inputs]


def check_results(folder, output="output"):
    for n, result in enumerate(expected(folder)):
        got = np.fromfile(folder / output / f"Result_{n}" / "y.raw", np.float32).reshape(result.shape)
        np.testing.assert_allclose(got, result, rtol=1e-5, atol=1e-5)


def generate(*more, backend="libQnnHtp.so", model="model.onnx"):
    return main(["context-binary-generator", "--model", model, "--backend", backend,
                 "--binary_file", "qnngraph.serialized", "--output_dir", "output", *more])  # fmt: skip


def run(*more, backend="libQnnHtp.so", lists="input_list.txt"):
    return main(["net-run", "--input_list", lists, "--backend", backend, *more])


RETRIEVE = ("--retrieve_context", "output/qnngraph.serialized.bin")


@pytest.mark.parametrize("mem_type", ["raw", "memhandle"])
def test_htp_from_model_to_results(folder, mem_type, capsys) -> None:
    assert generate("--input_output_tensor_mem_type", mem_type) == 0
    [graph] = binary.inspect(folder / "output" / "qnngraph.serialized.bin").graphs
    assert {info.mem_type for info in graph.tensors} == {TensorMemType[mem_type.upper()]}
    assert run(*RETRIEVE, "--shared_buffer") == 0
    assert " 0 bytes copied" in capsys.readouterr().out
    check_results(folder)


def test_without_shared_buffers_every_byte_is_copied(folder, capsys) -> None:
    generate()
    assert run(*RETRIEVE, "--output_dir", "raw") == 0
    moved = 3 * 4 * (3 * 8 * 8 + 4 * 8 * 8)
    assert f"{moved:,} bytes copied" in capsys.readouterr().out
    check_results(folder, "raw")


def test_lpai_in_direct_mode_shows_the_messages_of_tcm(folder, capsys, fresh_tcm) -> None:
    (folder / "eaiParams_direct.conf").write_text(json.dumps({"lpai_graph": {"execute": {"mem_type": "tcm"}}}))
    (folder / "eaiParams_direct.json").write_text(
        json.dumps(
            {
                "backend_extensions": {
                    "shared_library_path": "/data/local/tmp/libQnnLpaiNetRunExtensions.so",
                    "config_file_path": "eaiParams_direct.conf",
                },
                "context_configs": {"is_persistent_binary": True},
            }
        )
    )
    assert generate(backend="libQnnLpai.so") == 0
    code = run("--direct_mode", "adsp", "--config_file", "eaiParams_direct.json", *RETRIEVE, "--log_level", "debug",
               backend="/data/local/tmp/libQnnLpai.so")  # fmt: skip
    assert code == 0
    messages = capsys.readouterr().err
    assert "max_size: 2035712" in messages
    assert messages.count("from tcm pool 0") == 3
    check_results(folder)


@pytest.mark.parametrize("backend", ["libQnnCpu.so", "libQnnHtp.so", "libQnnLpai.so", "cpu"])
def test_a_model_runs_without_a_binary(folder, backend) -> None:
    assert run("--model", "model.onnx", backend=backend) == 0
    check_results(folder)


def test_several_models_become_several_graphs(folder) -> None:
    tiny.gate(folder / "gate.onnx", 4)
    np.ones(4, np.float32).tofile("ones.raw")
    (folder / "gate_list.txt").write_text("#y\nones.raw ones.raw\n")
    assert generate(model="model.onnx,gate.onnx") == 0
    assert run(*RETRIEVE, lists="input_list.txt,gate_list.txt") == 0
    check_results(folder, "output/model")
    got = np.fromfile(folder / "output" / "gate" / "Result_0" / "y.raw", np.float32)
    np.testing.assert_allclose(got, 1 / (1 + np.exp(-1)) + 1, rtol=1e-5)


NAMES = ("a/b", "a_b", "a:b", "a%2Fb", "a~b", "..", "größe", "long/" * 60 + "1", "long/" * 60 + "2")


def test_every_output_has_a_file_of_its_own_and_plain_names_stay(folder) -> None:
    nodes = [helper.make_node("Mul", ["x", f"factor{i}"], [name]) for i, name in enumerate(NAMES)]
    factors = {f"factor{i}": np.float32([i + 2]) for i in range(len(NAMES))}
    tiny.save(folder / "names.onnx", nodes, {"x": [2]}, dict.fromkeys(NAMES, (2,)), factors)
    np.ones(2, np.float32).tofile("ones.raw")
    (folder / "ones.txt").write_text("ones.raw\n")
    assert run("--model", "names.onnx", backend="libQnnCpu.so", lists="ones.txt") == 0
    names = file_names(NAMES)
    for i, name in enumerate(NAMES):
        content = np.fromfile(folder / "output" / "Result_0" / f"{names[name]}.raw", np.float32)
        assert content.tolist() == [i + 2] * 2
    files = [path.name for path in (folder / "output" / "Result_0").iterdir()]
    assert len(files) == len(NAMES)
    assert names["a_b"] == "a_b"
    assert {"a_b.raw", "a_b_1.raw", "a_b_2.raw", "a_2Fb.raw", "__.raw"} < set(files)


@pytest.mark.parametrize(
    ("name", "file"), [("y", "y"), ("Identity_1", "Identity_1"), ("dense-2.out", "dense_2_out"), ("9", "_9"),
                       ("x:0", "x_0"), ("conv/Relu:0", "conv_Relu_0")],
)  # fmt: skip
def test_files_are_named_as_qnn_names_tensors(name, file) -> None:
    assert file_names([name]) == {name: file}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "lists no inference"),
        ("in0.raw in1.raw\n", "2 files for 1 input"),
        ("z:=in0.raw\n", "no input 'z'"),
        ("missing.raw\n", "cannot be read"),
        ("in0.raw\nmodel.onnx\n", "line 2: input file 'model.onnx': has"),
        ("#z\nin0.raw\n", "output 'z'"),
    ],
)
def test_bad_input_lists_are_refused_by_name(folder, capsys, content, words) -> None:
    (folder / "bad.txt").write_text(content)
    assert run("--model", "model.onnx", lists="bad.txt", backend="cpu") == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--retrieve_context", "nowhere.bin"), "cannot be opened"),
        (("--retrieve_context", "in0.raw"), "does not begin as one does"),
        (("--model", "nowhere.onnx"), "nowhere.onnx"),
        (("--model", "model.onnx", "--direct_mode", "adsp"), "no such mode"),
    ],
)
def test_invalid_options_are_refused(folder, capsys, arguments, words) -> None:
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err


def test_unknown_backends_are_refused(folder, capsys) -> None:
    assert run("--model", "model.onnx", backend="libQnnAbacus.so") == 2
    assert generate("--input_output_tensor_mem_type", "memhandle", backend="libQnnCpu.so") == 2
    error = capsys.readouterr().err
    assert "libQnnAbacus.so" in error
    assert "no such hint" in error
