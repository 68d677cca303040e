"""``isthmus doctor`` says what works, what is missing and what to do, and fails if something installed is broken."""

import json

import pytest

from isthmus.backends.seam import registry
from isthmus.tools import cli, doctor


def diagnosis(capsys):
    status = cli.main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    return status, {finding["name"]: finding for finding in report["findings"]}


def test_every_backend_is_tried_and_its_results_are_checked(capsys, monkeypatch):
    status, findings = diagnosis(capsys)
    assert status == 0
    assert findings.keys() >= {*registry.names(), "processor", "onnx", "shared memory (rpcmem)"}
    assert all(findings[name]["state"] == "works" for name in ("cpu", "htp", "lpai"))
    # A backend whose results are wrong is found out.
    monkeypatch.setattr(doctor.np, "maximum", lambda x, y: x)
    status, findings = diagnosis(capsys)
    assert (status, findings["cpu"]["state"]) == (1, "broken")
    assert "gave [[0.0, 0.0" in findings["cpu"]["text"]


def test_what_is_not_installed_is_listed_with_the_command_that_installs_it(capsys, monkeypatch):
    real = doctor.metadata.version

    def version(package):
        if package == "onnx":
            raise doctor.metadata.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(doctor.metadata, "version", version)
    status, findings = diagnosis(capsys)
    assert status == 0
    assert findings["onnx"] == {
        "group": "optional packages", "name": "onnx", "state": "missing", "text": "not installed",
        "remedy": "pip install 'isthmus[onnx]'",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("variable", "value", "name", "state"),
    [
        ("ISTHMUS_CACHE_DIR", "/proc/none", "cache of compiled code", "missing"),
        ("ISTHMUS_RPCMEM", "/none/librpcmem.so", "shared memory (rpcmem)", "broken"),
    ],
)
def test_what_does_not_work_is_named_with_its_reason(capsys, monkeypatch, variable, value, name, state):
    monkeypatch.setattr(doctor.registry, "names", lambda: ())
    monkeypatch.setenv(variable, value)
    status, findings = diagnosis(capsys)
    assert findings[name]["state"] == state
    assert value in findings[name]["text"]
    assert status == (1 if state == "broken" else 0)


def test_the_text_ends_with_a_verdict(capsys, monkeypatch):
    monkeypatch.setattr(doctor.registry, "names", lambda: ("cpu",))
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "machine"
    assert lines[-1] == "everything that is installed works"
