"""``--audit`` and ``--max-copied``: a report of copies on standard error, and a limit on them for CI."""

import json

import pytest
from support import tiny

from isthmus.tools.cli import main
from isthmus.tools.commands import COMMANDS


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny.gate(tmp_path_factory.mktemp("models") / "gate.onnx", 16))


@pytest.mark.parametrize(("io", "status"), [("memhandle", 0), ("raw", 1)])
def test_a_limit_on_copies_is_an_exit_status(model, io, status, capsys):
    command = ["run", model, "--backend", "htp", "--io", io, "--max-copied", "0", "--json"]
    assert main(command) == status
    captured = capsys.readouterr()
    copied = json.loads(captured.out)["backend_copied_bytes"]
    assert (copied > 0) == bool(status)
    assert f"copied: {copied:,} bytes" in captured.err
    assert "mistakes: none" in captured.err
    assert ("bytes were copied, 0 are allowed" in captured.err) == bool(status)


def test_an_audit_names_each_copied_tensor_with_its_remedy(model, capsys):
    assert main(["run", model, "--backend", "htp", "--io", "raw", "--audit", "--repeat", "2"]) == 0
    report = capsys.readouterr().err
    for name in "xsy":
        assert f"128 bytes in 2 copies of '{name}'" in report
    assert "mem_register" in report


@pytest.mark.parametrize("compared", [False, True])
def test_a_page_adds_nothing_to_the_audit(model, tmp_path, compared, capsys):
    command = ["run", model, "--backend", "htp", "--io", "raw", "--audit"]
    assert main(command) == 0
    expected = capsys.readouterr().err
    page = ["--html", str(tmp_path / "page.html"), *["--compare", model] * compared]
    assert main([*command, *page]) == 0
    assert capsys.readouterr().err == expected


def test_a_plan_can_be_audited(model, capsys):
    assert main(["plan", model, "--audit"]) == 0
    assert "copied: 0 bytes" in capsys.readouterr().err


def test_a_command_that_fails_prints_its_audit_too(model, tmp_path, capsys):
    command = ["run", model, "--backend", "htp", "--io", "raw", "--outputs", str(tmp_path / "none" / "out.npz")]
    assert main([*command, "--audit"]) == 2
    *report, error = capsys.readouterr().err.splitlines()
    assert report[0] == "audit"
    assert any("in 1 copy of 'x'" in line for line in report)
    assert "cannot be written" in error


def test_a_limit_that_is_no_number_is_one_line(model, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", model, "--max-copied", "few"])
    assert ended.value.code == 2
    assert "'few' is not a number of bytes" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_the_options(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "--audit" in text
    assert "--max-copied BYTES" in text


def test_a_command_that_splits_a_model_can_be_audited(model, tmp_path, capsys):
    assert main(["split", model, str(tmp_path / "out.onnx"), "--scratch-limit", "least", "--audit"]) in (0, 1)
    assert "copied: 0 bytes" in capsys.readouterr().err
