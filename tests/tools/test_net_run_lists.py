"""Input lists of net-run: each of several graphs has a folder, and a first line names the outputs to write."""

import numpy as np
import pytest
from onnx import helper
from support import tiny

from isthmus.tools.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with three models that add 1, 2 and 3, and numbers to add them to."""
    monkeypatch.chdir(tmp_path)
    for number in (1, 2, 3):
        nodes = [helper.make_node("Add", ["x", "k"], ["y"]), helper.make_node("Sub", ["x", "k"], ["z"])]
        shapes = {"y": [1, 4], "z": [1, 4]}
        tiny.save(tmp_path / f"add{number}.onnx", nodes, {"x": [1, 4]}, shapes, {"k": np.float32([number])})
    for number in range(5):
        np.full((1, 4), 10 * number, np.float32).tofile(f"in{number}.raw")
    return tmp_path


def net_run(lists, *more):
    return main(["net-run", "--input_list", lists, "--backend", "cpu", *more])


def result(number, name="y", folder="output"):
    return np.fromfile(f"{folder}/Result_{number}/{name}.raw", np.float32)[0]


def test_each_of_three_graphs_has_a_folder_of_results_and_may_be_skipped(folder) -> None:
    models = ",".join(f"add{number}.onnx" for number in (1, 2, 3))
    assert main(["context-binary-generator", "--model", models, "--backend", "libQnnHtp.so", "--binary_file", "all",
                 "--output_dir", "output"]) == 0  # fmt: skip
    for number, files in enumerate((["in0", "in1"], ["in2", "in3", "in0"], ["in4"]), 1):
        (folder / f"list{number}.txt").write_text("".join(f"{name}.raw\n" for name in files))
    assert main(["net-run", "--input_list", "list1.txt,list2.txt,list3.txt", "--backend", "libQnnHtp.so",
                 "--retrieve_context", "output/all.bin"]) == 0  # fmt: skip
    results = {1: [1, 11], 2: [22, 32, 2], 3: [43]}
    for number, values in results.items():
        assert [result(n, folder=f"output/add{number}") for n in range(len(values))] == values
        assert len(list((folder / "output" / f"add{number}").iterdir())) == len(values)
    assert main(["net-run", "--input_list", "__,list2.txt,__", "--backend", "libQnnHtp.so", "--output_dir", "some",
                 "--retrieve_context", "output/all.bin"]) == 0  # fmt: skip
    assert [path.name for path in (folder / "some").iterdir()] == ["add2"]


@pytest.mark.parametrize("mark", ["#", "%"])
def test_a_marked_line_names_the_outputs_to_write(folder, mark) -> None:
    (folder / "list.txt").write_text(f"{mark}z\nin1.raw\nin2.raw\n")
    assert net_run("list.txt", "--model", "add1.onnx") == 0
    assert [result(n, "z") for n in (0, 1)] == [9, 19]
    for number in (0, 1):
        assert [path.name for path in (folder / "output" / f"Result_{number}").iterdir()] == ["z.raw"]


@pytest.mark.parametrize("mark", ["#", "%"])
def test_a_marked_line_may_name_several_outputs(folder, mark) -> None:
    (folder / "list.txt").write_text(f"{mark}z y\nin1.raw\n")
    assert net_run("list.txt", "--model", "add1.onnx") == 0
    assert (result(0, "y"), result(0, "z")) == (11, 9)
