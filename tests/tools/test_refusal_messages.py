"""Messages about mistakes name the file or the option, what is wrong with it, and what would be right."""

import contextlib

import pytest

from isthmus.tools import cli

LONG_NAME = "a" * 300


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    assert cli.main(["samples", str(folder)]) == 0
    (folder / "text").write_bytes(b"hello\n")
    for name, size in (("camera.onnx", 300), ("camera.tflite", 3000), ("camera.bin", 5000)):
        for cut in (f"cut_{name.partition('.')[2]}", f"cut.{name.partition('.')[2]}"):
            (folder / cut).write_bytes((folder / name).read_bytes()[:size])
    (folder / "whole").write_bytes((folder / "model.onnx").read_bytes())
    return folder


@pytest.fixture
def refused(samples, monkeypatch, capsys):
    """Return a function that runs a command line in the folder of samples and returns its one line of refusal."""
    monkeypatch.chdir(samples)

    def run(line):
        before = sorted(samples.rglob("*"))
        capsys.readouterr()
        try:
            status = cli.main(line.split())
        except SystemExit as ended:
            status = ended.code
        said = capsys.readouterr()
        assert (status, said.out) == (2, "")
        assert sorted(samples.rglob("*")) == before
        return said.err.splitlines()[-1]

    return run


KINDS = "Known are ONNX, TFLite and DLC files, model libraries (.so) and context binaries (.bin)"
NET_RUN = "net-run --backend libQnnCpu.so --input_list input_list.txt --retrieve_context"


@pytest.mark.parametrize(
    ("line", "words"),
    {
        "sweep model.onnx ./model.onnx": ("'model.onnx': it is named twice",),
        "sweep model.onnx camera.onnx model.onnx --mode device": ("'model.onnx': it is named twice",),
        "inspect /dev/null": ("'/dev/null'", "a pipe or a device, not a file"),
        "run model.onnx --outputs none/out.npz": ("--outputs none/out.npz: cannot be written: No such file",),
        "profile-viewer --input_log ,": ("--input_log ',': it names no file",),
        "pack problem.csv --timeout nan": ("--timeout nan is not a number of seconds",),
        # Files of another kind than the command reads, and damaged ones, also without a suffix.
        "run text": ("model file 'text'", r"it begins with b'hello\n'", KINDS),
        "inspect text": ("model file 'text'", r"it begins with b'hello\n'", KINDS),
        "compare text": ("model file 'text'", r"it begins with b'hello\n'", KINDS),
        "split text --out out.onnx": ("model file 'text'", r"it begins with b'hello\n'", KINDS),
        "run cut_onnx": ("model file 'cut_onnx'", "not an ONNX model or is damaged: it begins with b'", KINDS),
        "plan cut_tflite": ("file 'cut_tflite'", "damaged, or it is neither a TFLite file nor a DLC"),
        "run cut_bin": ("context binary 'cut_bin'", "bytes, it has 5000"),
        **{
            f"{command} cut.{suffix}": (f"file 'cut.{suffix}'", "is damaged")
            for command in ("run", "plan", "inspect", "compare", "fit", "split") for suffix in ("onnx", "tflite")
        },
        "compare camera.bin": ("'camera.bin': it is a context binary", "the model that it was made from"),
        "compare camera.onnx --against camera.bin": ("'camera.bin': it is a context binary",),
        "split camera.bin --out out.onnx": ("'camera.bin': it is a context binary",),
        "split net.dlc --out out.onnx": ("'net.dlc'", "only .onnx and .tflite files can be split"),
        "plan model.onnx --html out.html --compare camera.bin": ("'camera.bin': it is a context binary",),
        "context-binary-generator --model camera.bin --backend libQnnHtp.so --binary_file out": (
            "'camera.bin': it is a context binary",
        ),
        f"{NET_RUN} model.onnx": ("context binary 'model.onnx'", "It is a model"),
        f"{NET_RUN} text": ("context binary 'text'",),
        f"{NET_RUN} camera.bin": ("context binary 'camera.bin'", "backend 'htp', not for 'cpu'"),
        f"{NET_RUN} none.bin": ("context binary 'none.bin'", "No such file"),
        "context-binary-utility --context_binary model.onnx --json_file out.json": (
            "context binary 'model.onnx'", "It is a model",
        ),
        # References with other inputs.
        "compare camera.onnx --against model.onnx": (
            "--against model.onnx", "it has an input 'x' [1, 3, 8, 8], 'camera.onnx' has not",
        ),
        "compare camera.onnx --against camera.tflite": (
            "--against camera.tflite", "its input 'image' is [1, 64, 64, 3], in 'camera.onnx' [1, 3, 64, 64]",
        ),
        # Values of options.
        "run model.onnx --scratch-limit 300%": ("scratch limit '300%'", "at most 100%"),
        "plan model.onnx --scratch-limit 1000%": ("scratch limit '1000%'", "at most 100%"),
        "samples text": ("'text' is a file, not a folder",),
        f"context-binary-generator --model model.onnx --backend libQnnHtp.so --binary_file {LONG_NAME}": (
            "aaa.bin'", "File name too long (304 bytes)",
        ),
        f"plan model.onnx --svg {LONG_NAME}": ("aaa: cannot be written", "File name too long (300 bytes)"),
        # Options of other commands.
        "fit model.onnx --svg out.svg": ("unrecognized arguments: --svg out.svg. It is an option of isthmus plan.",),
        "warm model.onnx --svg=out.svg": ("It is an option of isthmus plan.",),
        "fit model.onnx --htlm out.html": ("Did you mean '--html'?",),
        # Options and arguments that are expected.
        "": ("give a command; 'isthmus --help' lists them",),
        "capi": ("the following arguments are required: {install,include}",),
        "compare model.onnx camera.onnx": ("unrecognized arguments: camera.onnx. --against REFERENCE names",),
        "compare model.onnx --reference=camera.onnx": ("--against REFERENCE names what to compare with.",),
        # Options that had other names in earlier versions.
        "split model.onnx out.onnx": ("unrecognized arguments: out.onnx. --out FILE writes the result.",),
        "split model.onnx --scratch-limit 25%": ("--live-limit limits what is alive.",),
        "split model.onnx --scratch-limit=25%": ("--live-limit limits what is alive.",),
        "split model.onnx out.onnx --scratch-limit 25%": ("--out FILE writes the result.",),
        "sweep model.onnx --limit 3": ("--row-timeout limits the time of a row.",),
    }.items(),
)  # fmt: skip
def test_a_refusal_says_what_is_wrong_and_what_would_be_right(refused, line, words) -> None:
    message = refused(line)
    assert all(each in message for each in words), message
    assert len(message) < 500


def test_a_model_without_a_suffix_is_recognized_by_every_command(samples, monkeypatch, capsys) -> None:
    monkeypatch.chdir(samples)
    for command in ("run", "plan", "inspect", "compare", "fit --rounds 1"):
        assert cli.main([*command.split(), "whole"]) == 0
    capsys.readouterr()


def test_a_reference_may_leave_dimensions_open_that_the_model_fixes(samples, monkeypatch, capsys) -> None:
    monkeypatch.chdir(samples)
    assert cli.main(["compare", "model.onnx", "--against", "text.onnx"]) == 0
    assert "agrees" in capsys.readouterr().out


HOSTILE = "m\x1b[31m\nforged"
"""A name that would turn a terminal red and begin a line of its own."""


@pytest.mark.parametrize(
    "line",
    [
        ("run", f"{HOSTILE}.onnx"),
        ("plan", f"{HOSTILE}.onnx"),
        ("fit", f"{HOSTILE}.onnx", "--rounds", "1"),
        ("split", f"{HOSTILE}.onnx", "--out", f"{HOSTILE}_split.onnx"),
        ("context-binary-generator", "--model", f"{HOSTILE}.onnx", "--backend", "libQnnCpu.so"),
        ("net-run", "--model", f"{HOSTILE}.onnx", "--backend", "libQnnCpu.so", "--input_list", "input_list.txt"),
        ("pack", HOSTILE),
        (HOSTILE,),
        ("run", "model.onnx", f"--{HOSTILE}"),
        ("run", "model.onnx", "--max-copied", HOSTILE),
    ],
)
def test_names_neither_end_a_line_nor_control_the_terminal(samples, tmp_path, monkeypatch, capsys, line) -> None:
    (tmp_path / f"{HOSTILE}.onnx").write_bytes((samples / "model.onnx").read_bytes())
    for name in ("model.onnx", "input_list.txt", "x.raw"):
        (tmp_path / name).symlink_to(samples / name)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    with contextlib.suppress(SystemExit):
        cli.main(line)
    said = "".join(capsys.readouterr())
    assert "\\x1b[31m\\nforged" in said
    assert "\x1b" not in said
    assert not any(each.startswith("forged") for each in said.splitlines())
