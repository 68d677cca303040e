"""Missing files, wrong sizes, full disks, folders that cannot be written, interrupts: one line and nothing partial."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from support import tiny
from support.processes import small_disk, work_with_links
from support.suites import long
from support.waiting import eventually

from isthmus.tools import cli

TOOLS = {
    "isthmus": cli.main,
    "qnn-net-run": cli.net_run,
    "qnn-context-binary-generator": cli.context_binary_generator,
    "qnn-context-binary-utility": cli.context_binary_utility,
    "qnn-throughput-net-run": cli.throughput_net_run,
    "qnn-profile-viewer": cli.profile_viewer,
}
ELEMENTS = 100_000
"""The size of the large model's input and output, which a small disk cannot hold."""


def throughput(model, inputs="list.txt", loop=1):
    """The configuration of qnn-throughput-net-run for one thread."""
    return {
        "backends": [{"backendName": "b", "backendPath": "libQnnCpu.so"}],
        "models": [{"modelName": "m", "modelPath": model, "inputPath": inputs, "outputPath": "out",
                    "saveOutput": "NATIVE_ALL"}],
        "contexts": [{"contextName": "c"}],
        "testCase": {"threads": [{"threadName": "t", "backend": "b", "context": "c", "model": "m", "loop": loop}]},
    }  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    tiny.gate(folder / "model.onnx", ELEMENTS)
    assert cli.main(["samples", str(folder / "samples")]) == 0
    for name in ("camera.tflite", "camera.bin", "problem.csv"):
        shutil.move(folder / "samples" / name, folder / name)
    shutil.rmtree(folder / "samples")
    np.ones((1, ELEMENTS), np.float32).tofile(folder / "x.raw")
    np.ones((1, ELEMENTS - 1), np.float32).tofile(folder / "short.raw")
    (folder / "list.txt").write_text("x.raw x.raw\n")
    (folder / "short.txt").write_text("# y\nx.raw x.raw\nx:=x.raw s:=short.raw\n")
    (folder / "gone.txt").write_text("x.raw missing.raw\n")
    (folder / "file").write_text("not a folder\n")
    for name, content in {
        "threads.json": throughput("model.onnx"),
        "gone_model.json": throughput("missing.onnx"),
        "gone_list.json": throughput("model.onnx", "missing.txt"),
        "short_list.json": throughput("model.onnx", "short.txt"),
        "endless.json": throughput("model.onnx", loop=1 << 30),
    }.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture
def folder(prepared, tmp_path, monkeypatch, capsys):
    """A working folder that shows all prepared files."""
    work_with_links(prepared, tmp_path, monkeypatch)
    capsys.readouterr()
    return tmp_path


def files(folder):
    """All files below a folder, without the working folder's own links."""
    return {path for path in folder.rglob("*") if not path.is_symlink()}


def refused(line, capsys):
    """Return the one line that a command prints before it ends with status 2."""
    tool, *arguments = shlex.split(line)
    assert TOOLS[tool](arguments) == 2
    captured = capsys.readouterr()
    [message] = captured.err.splitlines()
    assert message.startswith(tool)
    assert captured.out == ""
    return message


NET_RUN = "qnn-net-run --backend libQnnCpu.so --model model.onnx"
GENERATE = "qnn-context-binary-generator --backend libQnnCpu.so"


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("isthmus run missing.onnx", "missing.onnx"),
        ("isthmus run missing.bin", "missing.bin"),
        ("isthmus run model.onnx --inputs missing.npz", "missing.npz"),
        ("isthmus run model.onnx --backend htp --config missing.json", "missing.json"),
        ("isthmus plan missing.tflite", "missing.tflite"),
        ("isthmus plan model.onnx --backend lpai --config missing.json", "missing.json"),
        ("isthmus fit missing.onnx", "missing.onnx"),
        ("isthmus fit missing.so", "missing.so"),
        ("isthmus inspect missing.bin", "missing.bin"),
        ("isthmus inspect missing.dlc", "missing.dlc"),
        ("isthmus split missing.onnx --out out.onnx", "missing.onnx"),
        ("isthmus pack missing.csv", "missing.csv"),
        ("isthmus warm missing.onnx", "missing.onnx"),
        ("isthmus sweep missing.onnx", "missing.onnx"),
        ("isthmus sweep missing.json --merge", "missing.json"),
        (f"{NET_RUN} --input_list missing.txt", "missing.txt"),
        (f"{NET_RUN} --input_list gone.txt", "missing.raw"),
        ("qnn-net-run --backend libQnnHtp.so --model model.onnx --input_list list.txt --config_file missing.json",
         "missing.json"),
        ("qnn-net-run --backend libQnnCpu.so --model missing.so --input_list list.txt", "missing.so"),
        ("qnn-net-run --backend libQnnCpu.so --dlc_path missing.dlc --input_list list.txt", "missing.dlc"),
        ("qnn-net-run --backend libQnnCpu.so --retrieve_context missing.bin --input_list list.txt", "missing.bin"),
        (f"{GENERATE} --model missing.so --binary_file a", "missing.so"),
        (f"{GENERATE} --dlc_path missing.dlc --binary_file a", "missing.dlc"),
        ("qnn-context-binary-utility --context_binary missing.bin --json_file out.json", "missing.bin"),
        ("qnn-throughput-net-run --config missing.json", "missing.json"),
        ("qnn-throughput-net-run --config gone_model.json", "missing.onnx"),
        ("qnn-throughput-net-run --config gone_list.json", "missing.txt"),
        ("qnn-profile-viewer --input_log missing.log", "missing.log"),
    ],
)  # fmt: skip
def test_a_missing_file_is_named_in_one_line(folder, capsys, line, missing) -> None:
    assert missing in refused(line, capsys)
    assert files(folder) == set()


@pytest.mark.parametrize(
    "line", [f"{NET_RUN} --input_list short.txt", "qnn-throughput-net-run --config short_list.json"]
)
def test_a_wrong_size_is_refused_with_the_line_and_the_bytes_before_anything_runs(folder, capsys, line) -> None:
    message = refused(line, capsys)
    assert "input list 'short.txt', line 3: input file 'short.raw': has 399,996 bytes" in message
    assert "tensor 's' needs 400,000 as float32" in message
    assert files(folder) == set()


# -- where nothing can be written --------------------------------------------------------------------------------------

WRITING = {
    "isthmus run camera.tflite --outputs {}/out.npz": "out.npz",
    "isthmus plan camera.tflite --embed {}/out.tflite": "out.tflite",
    "isthmus split camera.tflite --out {}/out.tflite --live-limit 75%": "out.tflite",
    "isthmus pack problem.csv --capacity 1000 --out {}/out.csv": "out.csv",
    "isthmus samples {}/out": "out",
    "isthmus capi install {}/out": "out",
    "isthmus sweep camera.tflite --state state --csv {}/out.csv": "out.csv",
    f"{NET_RUN} --input_list list.txt --output_dir {{}}/out": "out",
    f"{GENERATE} --model model.onnx --binary_file a --output_dir {{}}/out": "out",
    "qnn-context-binary-utility --context_binary camera.bin --json_file {}/out.json": "out.json",
    "qnn-throughput-net-run --config threads.json --output {}/out.json": "out.json",
}
"""Command lines that write to a folder, and what they write there."""


@pytest.mark.parametrize("where", ["file", long("/sys")])
@pytest.mark.parametrize("line", WRITING)
def test_a_folder_that_cannot_be_written_is_one_line(folder, capsys, line, where) -> None:
    tool, *arguments = shlex.split(line.format(where))
    assert TOOLS[tool](arguments) == 2
    [message] = messages(capsys)
    assert f"{where}/{WRITING[line]}" in message
    assert (folder / "file").read_text() == "not a folder\n"


def messages(capsys):
    """Return the lines on standard error, without those that a first run prints while it compiles."""
    return [line for line in capsys.readouterr().err.splitlines() if not line.startswith("isthmus: compiling")]


@pytest.mark.parametrize(
    "line",
    [
        "isthmus run model.onnx --outputs out.npz",
        "isthmus plan camera.tflite --embed out/out.tflite",
        "isthmus split camera.tflite --out out/out.tflite --live-limit 75%",
        "isthmus samples out/new --replace",
        f"{NET_RUN} --input_list list.txt --output_dir out/new",
        f"{GENERATE} --model camera.tflite --binary_file a --output_dir out/new",
    ],
)
def test_a_full_disk_is_one_line_and_nothing_partial_is_left(folder, capsys, line) -> None:
    (folder / "out").mkdir()
    tool, *arguments = shlex.split(line)
    with small_disk(30_000):
        assert TOOLS[tool](arguments) == 2
    captured = capsys.readouterr()
    [message] = captured.err.splitlines()[-1:]
    assert "cannot be written: File too large" in message
    assert "Traceback" not in captured.err
    assert [path for path in files(folder / "out") if path.is_file()] == []


@pytest.mark.parametrize(
    "line",
    [
        "isthmus run camera.tflite --outputs /dev/full",
        "isthmus split camera.tflite --out /dev/full --live-limit 75%",
        "isthmus sweep camera.tflite --state state --csv /dev/full",
    ],
)
def test_a_device_without_space_is_one_line(folder, capsys, line) -> None:
    tool, *arguments = shlex.split(line)
    assert TOOLS[tool](arguments) == 2
    [message] = messages(capsys)
    assert "cannot be written: No space left on device" in message


@pytest.mark.parametrize(
    "line", ["isthmus inspect camera.bin", "isthmus inspect --help", "isthmus --help", "isthmus --version"]
)
def test_standard_output_without_space_is_one_line(folder, line) -> None:
    # Python writes what is left when it ends, unless it is told to keep nothing back.
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command(line), stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert done.returncode == 2
    prog = line.split(" -")[0].removesuffix(" camera.bin")
    assert done.stderr == f"{prog}: standard output: No space left on device\n"


# -- interrupts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "noun"),
    [
        (f"{NET_RUN} --input_list list.txt --num_inferences 1000000000 --output_dir out", "inferences"),
        ("isthmus run model.onnx --repeat 1000000000 --outputs out.npz", "runs"),
        ("qnn-throughput-net-run --config endless.json", "inferences"),
        ("isthmus fit camera.tflite --rounds 1000000000", "limits|rounds of measurement"),
    ],
)
def test_an_interrupt_ends_a_long_command_in_a_line_with_whole_files_only(folder, line, noun) -> None:
    running = subprocess.Popen(command(line), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    results = folder / "out"
    if "net-run" in line:
        assert eventually(lambda: len(list(results.rglob("*.raw"))) > 2)
    wait_until_busy(running.pid)
    running.send_signal(signal.SIGINT)
    printed, messages = running.communicate()
    assert (running.returncode, printed) == (130, "")
    # In a fresh clone it also says that it compiles.
    lines = [each for each in messages.splitlines() if not each.startswith("isthmus: compiling ")]
    assert lines[-1] == f"{line.split()[0]}: interrupted"
    # Before the first of its runs, a command does not say how many are complete.
    assert len(lines) <= (2 if noun else 1)
    assert all(re.fullmatch(f".* ({noun}) are complete", each) for each in lines[:-1])
    assert not (folder / "out.npz").exists()
    for file in results.rglob("*"):
        assert file.is_dir() or (file.suffix == ".raw" and file.stat().st_size == 4 * ELEMENTS), file


def command(line):
    """Return the command line of a process that runs one of the tools."""
    tool, *arguments = shlex.split(line)
    code = f"import sys; from isthmus.tools import cli; sys.exit(cli.{TOOLS[tool].__name__}())"
    return [sys.executable, "-c", code, *arguments]


def wait_until_busy(pid):
    """Wait until a process has worked for a second."""

    def worked():
        with open(f"/proc/{pid}/stat") as stream:
            fields = stream.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > 1

    assert eventually(worked)
