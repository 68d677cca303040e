"""``isthmus doctor`` says what works, what is missing and what to do, and fails if something installed is broken."""

import json
import re
from pathlib import Path

import pytest

from isthmus.backends.seam import registry
from isthmus.tools import cli, doctor


def diagnosis(capsys):
    status = cli.main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    return status, {finding["name"]: finding for finding in report["findings"]}


def test_every_backend_is_tried_and_its_results_are_checked(capsys, monkeypatch) -> None:
    status, findings = diagnosis(capsys)
    assert status == 0
    assert findings.keys() >= {*registry.names(), "processor", "onnx", "shared memory (rpcmem)"}
    assert all(findings[name]["state"] == "works" for name in ("cpu", "htp", "lpai"))
    # A backend whose results are wrong is found out.
    monkeypatch.setattr(doctor.np, "maximum", lambda x, y: x)
    status, findings = diagnosis(capsys)
    assert (status, findings["cpu"]["state"]) == (1, "broken")
    assert "gave [[0.0, 0.0" in findings["cpu"]["text"]


def test_a_library_that_is_not_installed_is_missing_and_not_broken(capsys, monkeypatch) -> None:
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    monkeypatch.setattr("isthmus.backends.vendor.library.importlib.util.find_spec", lambda name: None)
    status, findings = diagnosis(capsys)
    assert (status, findings["qnn-htp"]["state"]) == (0, "missing")
    assert "isthmus[qnn]" in findings["qnn-htp"]["remedy"]


def test_what_is_not_installed_is_listed_with_the_command_that_installs_it(capsys, monkeypatch) -> None:
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


def test_a_user_is_not_told_to_install_what_developers_of_this_project_need(monkeypatch) -> None:
    def version(package):
        raise doctor.metadata.PackageNotFoundError(package)

    requirements = ["onnx>=1; extra == 'onnx'", "torch==2.15.0; extra == 'clients'", "ruff; extra == 'test'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: requirements)
    monkeypatch.setattr(doctor.metadata, "version", version)
    remedies = {each.name: each.remedy for each in doctor._packages()}
    # What `isthmus compare` needs comes alone, without torch.
    assert remedies == {"onnx": "pip install 'isthmus[onnx]'", "onnxruntime": "pip install onnxruntime"}


@pytest.mark.parametrize(
    ("variable", "value", "name", "state"),
    [
        ("ISTHMUS_CACHE_DIR", "/proc/none", "cache of compiled code", "missing"),
        ("ISTHMUS_RPCMEM", "/none/librpcmem.so", "shared memory (rpcmem)", "broken"),
    ],
)
def test_what_does_not_work_is_named_with_its_reason(capsys, monkeypatch, variable, value, name, state) -> None:
    monkeypatch.setattr(doctor.registry, "names", lambda: ())
    monkeypatch.setenv(variable, value)
    status, findings = diagnosis(capsys)
    assert findings[name]["state"] == state
    assert value in findings[name]["text"]
    assert status == (1 if state == "broken" else 0)


@pytest.fixture
def declared(monkeypatch):
    """Make the installation declare the plugin, which an older one that is being worked on may not."""
    plugin = doctor.metadata.EntryPoint("isthmus", doctor.PLUGIN, "pytest11")
    monkeypatch.setattr(doctor.registry, "names", lambda: ())
    monkeypatch.setattr(doctor.metadata, "entry_points", lambda group: [plugin] if group == "pytest11" else [])
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)


def test_the_pytest_plugin_is_loaded_or_the_reason_why_not_is_named(capsys, monkeypatch, declared) -> None:
    loaded = f"pytest {pytest.__version__} loads it"
    found = diagnosis(capsys)[1]["pytest plugin"]
    assert (found["state"], found["text"], found["remedy"]) == ("works", loaded, "")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    found = diagnosis(capsys)[1]["pytest plugin"]
    assert (found["state"], found["remedy"]) == ("missing", "Use pytest -p isthmus.testing.plugin")
    assert "PYTEST_DISABLE_PLUGIN_AUTOLOAD" in found["text"]
    monkeypatch.setattr(doctor.metadata, "entry_points", lambda group: [])
    status, findings = diagnosis(capsys)
    assert (status, findings["pytest plugin"]["state"]) == (0, "missing")
    assert "pip" in findings["pytest plugin"]["remedy"]


def test_commands_are_found_on_the_path_or_named(capsys, monkeypatch, declared, tmp_path) -> None:
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = diagnosis(capsys)[1]["QNN's commands"]
    assert found["text"] == f"not on PATH: {', '.join(doctor.COMMANDS)}"
    assert found["remedy"].startswith("Install")
    for command in doctor.COMMANDS:
        (tmp_path / command).write_text("")
        (tmp_path / command).chmod(0o755)
    found = diagnosis(capsys)[1]["QNN's commands"]
    assert (found["state"], found["text"]) == ("works", f"{len(doctor.COMMANDS)} commands in {tmp_path}")
    monkeypatch.setenv("PATH", "/nowhere")
    found = diagnosis(capsys)[1]["QNN's commands"]
    assert (found["state"], found["remedy"]) == ("missing", f"Add {tmp_path} to PATH.")


def test_the_commands_and_the_plugin_are_those_that_the_package_declares() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert tuple(re.findall(r"^(qnn-[\w-]+) = .isthmus.tools", text, re.MULTILINE)) == doctor.COMMANDS
    assert f'isthmus = "{doctor.PLUGIN}"' in text


def test_the_text_ends_with_a_verdict(capsys, monkeypatch) -> None:
    monkeypatch.setattr(doctor.registry, "names", lambda: ("cpu",))
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "machine"
    assert lines[-1] == "everything that is installed works"
