"""No output option of a command may name one of the command's inputs: the command is refused and changes nothing."""

import os

import pytest
from support import tiny

from isthmus.tools.cli import main

QNN = "--model m.onnx --backend libQnnCpu.so"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with the inputs of all commands; link.onnx is the model by another name."""
    monkeypatch.chdir(tmp_path)
    tiny.convolution(tmp_path / "m.onnx", 8, 8)
    os.symlink("m.onnx", "link.onnx")
    os.link("m.onnx", "m.bin")
    for name in ("m.npz", "m.reference.onnx", "list.txt", "log", "c.json", "other.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        ("plan m.onnx --svg m.onnx", "m.onnx"),
        ("plan m.onnx --svg link.onnx", "m.onnx"),
        ("plan m.onnx --html p.html --compare other.json --svg other.json", "other.json"),
        ("run m.onnx --trace m.onnx", "m.onnx"),
        ("run m.onnx --inputs m.npz --html m.npz", "m.npz"),
        ("run m.onnx --inputs m.npz --outputs m.npz", "m.npz"),
        ("run m.onnx --config c.json --outputs c.json", "c.json"),
        ("fit m.onnx --html m.onnx", "m.onnx"),
        ("fit m.onnx --judge htp --out m.onnx", "m.onnx"),
        ("split m.onnx --out link.onnx", "m.onnx"),
        ("compare m.onnx --reduce m.onnx", "m.onnx"),
        ("compare link.onnx --reduce m.onnx", "link.onnx"),
        ("compare m.reference.onnx --reduce m.onnx", "m.reference.onnx"),
        ("compare m.reference.onnx --against m.onnx --reduce m.onnx", "m.onnx"),
        ("pack m.bin --out m.onnx", "m.bin"),
        ("sweep m.onnx --csv m.onnx", "m.onnx"),
        ("sweep m.onnx --html m.onnx", "m.onnx"),
        ("sweep m.onnx --mode device --csv m.onnx", "m.onnx"),
        ("sweep m.onnx --mode device --html m.onnx", "m.onnx"),
        (f"net-run {QNN} --input_list list.txt --html list.txt", "list.txt"),
        (f"net-run {QNN} --input_list list.txt --trace m.onnx", "m.onnx"),
        ("context-binary-generator --model m.bin --backend libQnnCpu.so --output_dir .", "m.bin"),
        ("context-binary-utility --context_binary m.bin --json_file m.onnx", "m.bin"),
        ("throughput-net-run --config c.json --output c.json", "c.json"),
        ("throughput-net-run --config c.json --trace c.json", "c.json"),
        ("profile-viewer --input_log log --output log", "log"),
    ],
)
def test_an_output_that_is_an_input_is_refused_in_one_line(folder, capsys, arguments, source) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(arguments.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"would overwrite '{source}'. Name another file." in line
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_arrays_of_a_reduction_do_not_overwrite_the_inputs(folder, capsys) -> None:
    tiny.convolution(folder / "model.onnx", 8, 8)
    (folder / "small.npz").write_text("{}")
    assert main(["compare", "model.onnx", "--inputs", "small.npz", "--reduce", "small.onnx"]) == 2
    assert "--reduce small.npz: would overwrite 'small.npz'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "first", "second"),
    [
        ("run m.onnx --html new --trace new", "--html", "--trace"),
        ("run m.onnx --html ./new --outputs ../{folder}/new", "--html", "--outputs"),
        ("plan m.onnx --html log --svg log", "--html", "--svg"),
        ("sweep m.onnx --csv new --html new", "--html", "--csv"),
        ("sweep m.onnx --mode device --csv new --html new", "--html", "--csv"),
        (f"net-run {QNN} --input_list list.txt --html new --trace new", "--html", "--trace"),
        ("throughput-net-run --config c.json --output new --trace new", "--output", "--trace"),
        (f"context-binary-generator {QNN} --binary_file new --backend_binary new", "--binary_file", "--backend_binary"),
    ],
)
def test_two_outputs_in_one_file_are_refused_in_one_line(folder, capsys, arguments, first, second) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(arguments.format(folder=folder.name).split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{first} names the same file. Name another file." in line
    assert f"] {second} " in line
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_device_takes_two_outputs(folder) -> None:
    assert main(["plan", "m.onnx", "--html", "/dev/null", "--svg", "/dev/null"]) == 0


DROP = "isthmus view view.html, then drop {} on it"


@pytest.mark.parametrize(
    ("name", "rule", "hint"),
    [
        ("m.onnx", "must end in .html", DROP.format("pages of --html or the output of --json")),
        ("other.json", "must end in .html", DROP.format("other.json")),
        ("new.json", "must end in .html", DROP.format("new.json")),
        ("new", "must end in .html", DROP.format("pages of --html or the output of --json")),
        ("plan.html", "would overwrite 'plan.html'", DROP.format("plan.html")),
        ("foreign.htm", "would overwrite 'foreign.htm'", DROP.format("foreign.htm")),
        ("view.html", "would overwrite 'view.html'", "isthmus view other.html, then drop view.html on it"),
    ],
)
def test_view_writes_over_no_file_that_may_be_meant_to_be_opened(folder, capsys, name, rule, hint) -> None:
    assert main(["plan", "m.onnx", "--html", "plan.html"]) == 0
    for foreign in ("foreign.htm", "view.html"):
        (folder / foreign).write_text("<!doctype html><p>Notes")
    capsys.readouterr()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(["view", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert rule in line
    assert line.endswith(hint)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_view_writes_its_own_page_again(folder) -> None:
    for path in ("view.html", "view.html", "VIEW.HTM", "/dev/null"):
        assert main(["view", path]) == 0
    assert (folder / "view.html").read_bytes() == (folder / "VIEW.HTM").read_bytes()
