"""Commands report each file that an option names, once, on standard error; standard output stays what it is."""

import json

import pytest

from isthmus.tools import cli


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    assert cli.main(["samples", str(folder)]) == 0
    return folder


@pytest.fixture
def carried_out(samples, monkeypatch, capsys):
    """Return a function that runs a command line in the folder of samples; it returns the files that are reported, and
    standard output.
    """
    monkeypatch.chdir(samples)

    def run(*lines):
        for line in lines:
            capsys.readouterr()
            assert cli.main(line.split()) == 0
        said = capsys.readouterr()
        start = "written: "
        return [line.removeprefix(start) for line in said.err.splitlines() if line.startswith(start)], said.out

    return run


NET_RUN = "net-run --backend libQnnCpu.so --input_list input_list.txt --model model.onnx --output_dir results"
GENERATOR = "context-binary-generator --backend libQnnCpu.so --model model.onnx --output_dir results"


@pytest.mark.parametrize(
    ("lines", "files"),
    {
        ("run model.onnx --outputs o.npz --html r.html --trace r.json --json",): ["r.json", "r.html", "o.npz"],
        ("plan model.onnx --html p.html --svg p.svg --json",): ["p.html", "p.svg"],
        ("plan camera.tflite --embed e.tflite --json",): ["e.tflite"],
        ("split camera.onnx --out s.onnx --live-limit 80% --json",): ["s.onnx"],
        ("pack problem.csv --out solved.csv --json",): ["solved.csv"],
        ("sweep model.onnx --state kept --csv t.csv --html t.html --json",): ["t.csv", "t.html"],
        # Results are many; the line on standard output names their folder.
        (f"{NET_RUN} --html n.html --trace n.json --json",): ["n.json", "n.html"],
        (f"{NET_RUN} --profiling_level basic --json",): ["results/qnn-profiling-data_0.log"],
        (
            f"{NET_RUN} --profiling_level basic",
            "profile-viewer --input_log results/qnn-profiling-data_0.log --output v.csv --json",
        ): ["v.csv"],
        # The report of the generator names the binary.
        (f"{GENERATOR} --binary_file made --json",): [],
        ("samples more --json",): [],
    }.items(),
)
def test_every_file_is_reported_once_and_json_stays_json(carried_out, samples, lines, files) -> None:
    reported, output = carried_out(*lines)
    assert reported == files
    assert all((samples / file).is_file() for file in files)
    assert json.loads(output)


def test_the_utility_reports_the_file_that_it_writes(carried_out) -> None:
    reported, output = carried_out(
        f"{GENERATOR} --binary_file binary",
        "context-binary-utility --context_binary results/binary.bin --json_file d.json",
    )
    assert (reported, output) == (["d.json"], "")


def test_a_device_is_not_reported(carried_out) -> None:
    assert carried_out("plan model.onnx --svg /dev/null")[0] == []


def test_control_characters_in_a_name_are_escaped(samples, monkeypatch, capsys) -> None:
    monkeypatch.chdir(samples)
    assert cli.main(["plan", "model.onnx", "--svg", "a\x1b[31m\nb.svg"]) == 0
    assert r"written: a\x1b[31m\nb.svg" in capsys.readouterr().err.splitlines()


def test_one_of_anything_is_in_the_singular(samples, monkeypatch, capsys) -> None:
    monkeypatch.chdir(samples)
    (samples / "one.csv").write_text("id,lower,upper,size\na,0,1,1\n")
    printed = []
    for line in (
        "pack one.csv --capacity 1",
        "inspect model.onnx",
        "plan camera.tflite --scratch-limit 50%",
        "split camera.onnx --out singular.onnx --live-limit 80%",
        f"{NET_RUN} --profiling_level basic",
        "profile-viewer --input_log results/qnn-profiling-data_0.log",
    ):
        assert cli.main(line.split()) == 0
        said = capsys.readouterr()
        printed += [*said.out.splitlines(), *said.err.splitlines()]
    assert "peak            1 byte" in printed
    nouns = "bytes", "calls", "constants", "nodes", "runs", "steps", "tensors", "threads", "tiles", "times"
    assert [line for line in printed if any(f" 1 {noun}" in f" {line} " for noun in nouns)] == []
