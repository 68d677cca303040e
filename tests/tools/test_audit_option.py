"""``--audit`` and ``--max-copied``: a report of copies on standard error, and a limit on them for CI."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from support import tiny
from support.suites import sampled

from isthmus.tools.cli import main
from isthmus.tools.commands import AUDITED, COMMANDS, parser_of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.gate(tmp_path_factory.mktemp("models") / "gate.onnx", 16))


@pytest.mark.parametrize(("io", "status"), [("memhandle", 0), ("raw", 1)])
def test_a_limit_on_copies_is_an_exit_status(model, io, status, capsys) -> None:
    command = ["run", model, "--backend", "htp", "--io", io, "--max-copied", "0", "--json"]
    assert main(command) == status
    captured = capsys.readouterr()
    copied = json.loads(captured.out)["backend_copied_bytes"]
    assert (copied > 0) == bool(status)
    assert f"copied: {copied:,} bytes" in captured.err
    assert "mistakes: none" in captured.err
    assert ("bytes were copied, 0 are allowed" in captured.err) == bool(status)


def test_an_audit_names_each_copied_tensor_with_its_remedy(model, capsys) -> None:
    assert main(["run", model, "--backend", "htp", "--io", "raw", "--audit", "--repeat", "2"]) == 0
    report = capsys.readouterr().err
    for name in "xsy":
        assert f"128 bytes in 2 copies of '{name}'" in report
    assert "mem_register" in report


@pytest.mark.parametrize("compared", [False, True])
def test_a_page_adds_nothing_to_the_audit(model, tmp_path, compared, capsys) -> None:
    command = ["run", model, "--backend", "htp", "--io", "raw", "--audit"]
    page = ["--html", str(tmp_path / "page.html"), *["--compare", model] * compared]
    # Kernels that are not compiled yet are compiled now: standard error would say so below.
    assert main([*command, *page]) == 0
    capsys.readouterr()
    assert main(command) == 0
    expected = capsys.readouterr().err
    assert main([*command, *page]) == 0
    assert capsys.readouterr().err == f"written: {page[1]}\n{expected}"


def test_a_command_that_fails_prints_its_audit_too(model, tmp_path, capsys) -> None:
    command = ["run", model, "--backend", "htp", "--io", "raw", "--outputs", "/dev/full"]
    assert main([*command, "--audit"]) == 2
    *report, error = capsys.readouterr().err.splitlines()
    assert report[0] == "audit"
    assert any("in 1 copy of 'x'" in line for line in report)
    assert "cannot be written" in error


@pytest.mark.parametrize(
    "line",
    [
        "run absent.onnx",
        "run {model} --backend htp --inputs absent.npz",
        "fit {model} --scratch-limit never",
        "net-run --model {model} --backend libQnnCpu.so --input_list absent.txt",
        "throughput-net-run --config absent.json",
    ],
)
def test_a_command_that_is_refused_before_it_uses_memory_prints_no_audit(model, line, capsys) -> None:
    assert main([*line.format(model=model).split(), "--audit"]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert error.startswith(f"isthmus {line.split()[0]}: [")


def test_a_limit_on_copies_that_is_no_number_is_refused_in_one_line(model, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", model, "--max-copied", "few"])
    assert ended.value.code == 2
    assert "'few' is not a size" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_only_commands_that_execute_models_have_options_for_audits(command, capsys) -> None:
    has_options = "--audit" in parser_of(command, "isthmus")._option_string_actions
    assert has_options is (command in AUDITED)
    assert ("--max-copied" in parser_of(command, "isthmus")._option_string_actions) is has_options
    if command == "plan":
        with pytest.raises(SystemExit) as ended:
            main(["plan", "model.onnx", "--audit"])
        assert ended.value.code == 2
        assert "It is an option of isthmus fit, isthmus run" in capsys.readouterr().err


LINES = {
    "run": "run {model} --backend htp",
    "page": "run {model} --html {folder}/page.html --compare {model}",
    "trace": "run {model} --backend htp --trace {folder}/trace.json",
    "fit": "fit {model} --rounds 1",
    "net-run": "net-run --model {model} --backend libQnnHtp.so --input_list {folder}/list.txt --output_dir {folder}",
    "shared": "net-run --model {model} --backend libQnnHtp.so --input_list {folder}/list.txt --output_dir {folder} "
    "--shared_buffer",
    "compare": "compare {model} --backend htp --against cpu",
    "throughput": "throughput-net-run --config {folder}/threads.json",
}


@pytest.mark.parametrize("line", sampled((pytest.param(line, id=name) for name, line in LINES.items()), 3))
def test_what_a_command_begins_ends_as_often(model, tmp_path, line, capsys) -> None:
    for name in "xs":
        np.zeros(16, np.float32).tofile(tmp_path / f"{name}.raw")
    (tmp_path / "list.txt").write_text(f"x:={tmp_path}/x.raw s:={tmp_path}/s.raw\n")
    threads = {
        "backends": [{"backendName": "htp", "backendPath": "libQnnHtp.so"}],
        "models": [{"modelName": "model", "modelPath": model, "inputPath": str(tmp_path / "list.txt")}],
        "contexts": [{"contextName": "context"}],
        "testCase": {
            "threads": [{"threadName": "one", "backend": "htp", "context": "context", "model": "model", "loop": 2}]
        },
    }
    (tmp_path / "threads.json").write_text(json.dumps(threads))
    assert main([*line.format(model=model, folder=tmp_path).split(), "--audit"]) == 0
    report = capsys.readouterr().err
    counts = Counter({action: int(count) for action, count in re.findall(r"^  (\w+) +(\d+) ", report, re.MULTILINE)})
    for first, second in (("allocate", "free"), ("register", "deregister"), ("create", "destroy")):
        assert counts[first] == counts[second], report
    assert "mistakes: none" in report
