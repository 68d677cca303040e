"""Files of net-run: floats or elements as stored, by option; bad files are refused before anything is written."""

import os
import pty
import signal
import subprocess
import sys

import numpy as np
import pytest
from onnx import helper
from support import tiny

from isthmus import qnn
from isthmus.graph import DataType, Graph, Quantization, TensorInfo, TensorType
from isthmus.system import writing
from isthmus.system.interrupts import own_fd
from isthmus.tools import raw_files
from isthmus.tools.cli import main, net_run
from isthmus.tools.raw_files import write_results

SCALE, ZERO = 0.5, 10
REAL = np.float32([-1, 0, 1.5, 100])
STORED = np.uint8([8, 10, 13, 210])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a binary whose graphs relay a quantized tensor and an integer one, and files for them."""
    monkeypatch.chdir(tmp_path)
    with qnn.Backend("cpu") as backend:
        context = backend.create_context()
        for name, dtype, quantization in (
            ("bytes", DataType.UFIXED_POINT_8, Quantization.per_tensor(SCALE, ZERO)),
            ("numbers", DataType.INT_32, None),
        ):
            graph = Graph(name)
            x = graph.create_tensor("x", TensorType.APP_WRITE, dtype, (1, 4), quantization)
            y = graph.create_tensor("y", TensorType.APP_READ, dtype, (4, 1), quantization)
            graph.add_node("relay", "Reshape", [x], [y])
            context.add_graph(graph)
        (tmp_path / "both.bin").write_bytes(context.prepare_offline())
    REAL.tofile("real.raw")
    STORED.tofile("stored.raw")
    np.float32([1, -2, 3, 4]).tofile("floats.raw")
    np.int32([1, -2, 3, 4]).tofile("integers.raw")
    for name in ("real", "stored", "floats", "integers"):
        (tmp_path / f"{name}.txt").write_text(f"{name}.raw\n")
    return tmp_path


def execute(lists, *more):
    return net_run(["--retrieve_context", "both.bin", "--backend", "libQnnCpu.so", "--input_list", lists, *more])


def files(folder):
    return {str(path.relative_to(folder)) for path in (folder / "output").rglob("*.raw")}


def test_files_hold_floats_by_default_whatever_the_type(folder) -> None:
    assert execute("real.txt,floats.txt") == 0
    np.testing.assert_array_equal(np.fromfile("output/bytes/Result_0/y.raw", np.float32), REAL)
    np.testing.assert_array_equal(np.fromfile("output/numbers/Result_0/y.raw", np.float32), [1, -2, 3, 4])


@pytest.mark.parametrize("option", [["--use_native_input_files"], ["--input_data_type", "native"],
                                    ["--native_input_tensor_names", "bytes:x;numbers:x"],
                                    ["--native_input_tensor_names", "bytes:x,numbers:x"]])  # fmt: skip
def test_input_files_may_hold_elements_as_stored(folder, option) -> None:
    assert execute("stored.txt,integers.txt", *option) == 0
    np.testing.assert_array_equal(np.fromfile("output/bytes/Result_0/y.raw", np.float32), REAL)
    np.testing.assert_array_equal(np.fromfile("output/numbers/Result_0/y.raw", np.float32), [1, -2, 3, 4])


def test_integers_that_are_read_as_floats_are_warned_of(folder, capsys) -> None:
    np.int32([1, 2, 3, 4]).tofile("integers.raw")
    assert execute("real.txt,integers.txt") == 0
    np.testing.assert_array_equal(np.fromfile("output/numbers/Result_0/y.raw", np.float32), 0)
    [line] = capsys.readouterr().err.splitlines()
    assert line == (
        "[WARN] input 'x' is INT_32, and its files are read as floats, as in QNN; "
        "files of int32 elements as stored need --use_native_input_files or --native_input_tensor_names"
    )
    assert execute("real.txt,__") == 0
    assert execute("stored.txt,integers.txt", "--use_native_input_files") == 0
    assert not capsys.readouterr().err


def test_native_inputs_are_chosen_by_graph(folder) -> None:
    assert execute("stored.txt,floats.txt", "--native_input_tensor_names", "bytes:x") == 0
    np.testing.assert_array_equal(np.fromfile("output/numbers/Result_0/y.raw", np.float32), [1, -2, 3, 4])


@pytest.mark.parametrize("option", [["--use_native_output_files"], ["--output_data_type", "native_only"]])
def test_outputs_as_stored_have_names_of_their_own(folder, option) -> None:
    assert execute("real.txt,floats.txt", *option) == 0
    np.testing.assert_array_equal(np.fromfile("output/bytes/Result_0/y_native.raw", np.uint8), STORED)
    np.testing.assert_array_equal(np.fromfile("output/numbers/Result_0/y_native.raw", np.int32), [1, -2, 3, 4])
    assert files(folder) == {"output/bytes/Result_0/y_native.raw", "output/numbers/Result_0/y_native.raw"}


def test_both_kinds_of_outputs_are_written_on_request(folder) -> None:
    assert execute("real.txt,__", "--output_data_type", "float_and_native") == 0
    assert files(folder) == {"output/bytes/Result_0/y_native.raw", "output/bytes/Result_0/y.raw"}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("real.raw\nstored.raw\n", "line 2: input file 'stored.raw': has 4 bytes, tensor 'x' needs 16 as float32. "
         "Files of elements as stored (uint8) need --use_native_input_files."),
        ("#y\n\nreal.raw\nreal.raw\nlist.txt\n", "line 5: input file 'list.txt': has"),
        ("real.raw\ngone.raw\n", "line 2: input file 'gone.raw': cannot be read: No such file"),
        ("real.raw\nreal.raw real.raw\n", "line 2: it has 2 files for 1 input"),
        ("real.raw\nxx:=real.raw\n", "line 2: there is no input 'xx'. Did you mean 'x'?"),
        ("x:=\n", "line 1: input 'x' has no file. Write x:=FILE."),
        ("#z\nreal.raw\n", "line 1: output 'z': the graph has no such output; it has 'y'"),
    ],
)  # fmt: skip
def test_a_bad_line_is_refused_by_its_number_before_anything_is_written(folder, capsys, lines, words) -> None:
    (folder / "list.txt").write_text(lines)
    assert execute("list.txt,floats.txt") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"input list 'list.txt', {words}" in line
    assert not (folder / "output").exists()


def test_a_full_disk_leaves_no_part_of_an_inference(folder, monkeypatch, capsys) -> None:
    (folder / "list.txt").write_text("real.raw\nreal.raw\n")
    opened = []

    def full_from_the_fourth_file_on(what, name, flags, mode):
        opened.append(name)
        if len(opened) < 4:
            return own_fd(what, name, flags, mode)
        os.close(os.open(name, flags, mode))
        return own_fd(os.open, "/dev/full", os.O_WRONLY)

    monkeypatch.setattr(writing, "own_fd", full_from_the_fourth_file_on)
    assert execute("list.txt,__", "--output_data_type", "float_and_native") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "cannot be written: No space left on device" in line
    assert files(folder) == {"output/bytes/Result_0/y_native.raw", "output/bytes/Result_0/y.raw"}
    assert [path.name for path in (folder / "output" / "bytes").iterdir()] == ["Result_0"]


def test_a_failed_inference_leaves_the_results_of_the_one_before(folder, capsys) -> None:
    assert execute("real.txt,__", "--output_data_type", "float_and_native") == 0
    results = folder / "output" / "bytes" / "Result_0"
    (results / "y_native.raw").write_bytes(b"old")
    (results / "y.raw").unlink()
    (results / "y.raw").mkdir()
    assert execute("real.txt,__", "--output_data_type", "float_and_native") == 2
    assert "y.raw': cannot be written: Is a directory" in capsys.readouterr().err
    assert {path.name for path in results.iterdir()} == {"y.raw", "y_native.raw"}
    assert (results / "y_native.raw").read_bytes() == b"old"


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(folder, capsys) -> None:
    (folder / "taken").write_text("")
    assert execute("real.txt,__", "--output_dir", "taken") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "cannot be written: Not a directory" in line


def test_results_of_half_precision_are_floats(tmp_path) -> None:
    values = np.float32([1.5, -2])
    for dtype in (DataType.FLOAT_16, DataType.BFLOAT_16):
        info = TensorInfo("y", dtype, (2,), None, 4)
        write_results(tmp_path, [("y", dtype.encode(values), info)], raw_files.BOTH)
        np.testing.assert_array_equal(np.fromfile(tmp_path / "y.raw", np.float32), values)
        assert (tmp_path / "y_native.raw").stat().st_size == 4


@pytest.mark.parametrize("command", ["run", "net-run"])
def test_an_interrupted_command_reports_its_progress_and_shows_it_on_a_terminal(tmp_path, command) -> None:
    nodes = [helper.make_node("Add", ["x", "k"], ["y"])]
    tiny.save(tmp_path / "m.onnx", nodes, {"x": [1, 4]}, {"y": [1, 4]}, {"k": np.float32([1])})
    np.zeros(4, np.float32).tofile(tmp_path / "x.raw")
    (tmp_path / "list.txt").write_text("x.raw\n")
    arguments = ["run", "m.onnx", "--repeat", "1000000000"]
    if command == "net-run":
        arguments = ["net-run", "--model", "m.onnx", "--backend", "cpu", "--input_list", "list.txt",
                     "--num_inferences", "1000000000", "--keep_num_outputs", "1"]  # fmt: skip
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "isthmus", *arguments], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while b"of 1,000,000,000 " not in shown:
            shown += os.read(ours, 1 << 12)
        child.send_signal(signal.SIGINT)
        while b"interrupted\r\n" not in shown:
            shown += os.read(ours, 1 << 12)
        assert child.wait() == 130
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    noun = "runs" if command == "run" else "inferences"
    assert shown.endswith(f" of 1,000,000,000 {noun} are complete\r\nisthmus: interrupted\r\n".encode())


@pytest.mark.parametrize("command", ["run", "generator"])
def test_the_limit_that_fit_advises_is_an_option_of_run_and_the_generator(tmp_path, command, capsys) -> None:
    tiny.convolution(tmp_path / "m.onnx")
    arguments = ["run", str(tmp_path / "m.onnx")]
    if command == "generator":
        arguments = ["context-binary-generator", "--model", str(tmp_path / "m.onnx"), "--backend", "libQnnCpu.so",
                     "--output_dir", str(tmp_path)]  # fmt: skip
    assert main([*arguments, "--scratch-limit", "least"]) == 0
    capsys.readouterr()
    assert main([*arguments, "--scratch-limit", "1"]) == 1
    assert "1 bytes" in capsys.readouterr().err
