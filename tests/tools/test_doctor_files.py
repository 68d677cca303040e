"""``isthmus doctor FILE`` says what a context binary needs and which libraries load it; a forged one is one line."""

import json
import random

import pytest
from support import tiny

from isthmus import Code, QnnError, frontends, qnn
from isthmus.backends.vendor.library import is_installed
from isthmus.tools import cli

needs_vendor = pytest.mark.skipif(not is_installed(), reason="needs Qualcomm's library")


@pytest.fixture
def without_vendor(monkeypatch):
    """As on a machine without Qualcomm's library."""
    monkeypatch.setattr("isthmus.tools.doctor.vendor.is_installed", lambda: False)


@pytest.fixture(scope="module")
def binaries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("binaries")
    model = tiny.convolution(folder / "conv.onnx")
    for name, config in {"cpu": None, "htp": {"devices": [{"soc_model": 69}]}}.items():
        with qnn.Backend(name, config) as backend:
            context = backend.create_context(None, backend.create_device())
            for graph in ("one", "two"):
                context.compose(model, graph).finalize()
            (folder / f"{name}.bin").write_bytes(context.get_binary())
    return folder


def diagnosis(capsys, *paths):
    status = cli.main(["doctor", *map(str, paths), "--json"])
    report = json.loads(capsys.readouterr().out)
    return status, {finding["name"]: finding for finding in report["findings"]}


@pytest.mark.parametrize(("name", "chip"), [("htp", "SM8750, v79"), ("cpu", "no chip is stated")])
def test_a_binary_of_this_project_is_loaded_and_described(binaries, capsys, name, chip) -> None:
    status, findings = diagnosis(capsys, binaries / f"{name}.bin")
    assert status == 0
    assert "isthmus-" in findings["made by"]["text"]
    assert f" for {name}, format version " in findings["made by"]["text"]
    assert findings["made by"]["text"].endswith(", 2 graphs")
    assert findings["chip"]["text"] == chip
    assert "this project's libraries with format version " in findings["needs"]["text"]
    assert (findings[f"library of {name}"]["state"], findings["Qualcomm's library"]["state"]) == ("works", "missing")
    assert cli.main(["doctor", str(binaries / f"{name}.bin")]) == 0
    assert capsys.readouterr().out.endswith("every file is loaded\n")


def test_a_backend_that_cannot_load_a_binary_says_why(binaries, capsys, monkeypatch) -> None:
    def refuse(*_):
        raise QnnError(Code.COMMON_MEM_ALLOC, "context binary", "there is no room")

    monkeypatch.setattr(qnn.Backend, "create_context_from_binary", refuse)
    status, findings = diagnosis(capsys, binaries / "htp.bin")
    assert (status, findings["library of htp"]["state"]) == (1, "broken")
    assert findings["library of htp"]["text"] == "context binary: there is no room"


def test_forged_files_are_described_in_one_line(binaries, tmp_path, capsys, without_vendor) -> None:
    rng, whole = random.Random(1), (binaries / "htp.bin").read_bytes()
    forged = [whole[: rng.randrange(len(whole))] for _ in range(20)]
    for _ in range(20):
        position = rng.randrange(len(whole))
        forged.append(whole[:position] + bytes([whole[position] ^ 1 << rng.randrange(8)]) + whole[position + 1 :])
    forged += [b"", b"\0" * 100, whole + b"\0", whole[:8] + b"\x63\0\0\0" + whole[12:]]
    for content in forged:
        (tmp_path / "forged.bin").write_bytes(content)
        assert cli.main(["doctor", str(tmp_path / "forged.bin")]) == 1
        name, finding, verdict = capsys.readouterr().out.splitlines()
        assert name == str(tmp_path / "forged.bin")
        assert finding.startswith("  !!  context binary ")
        assert verdict == "broken: context binary"
    assert "format version 99" in finding
    assert "generate it again" in finding


@pytest.mark.parametrize(("name", "words"), [("nothing.bin", "No such file"), (".", "directory"), ("a.onnx", "model")])
def test_what_is_no_context_binary_is_refused_in_one_line(tmp_path, capsys, name, words) -> None:
    tiny.convolution(tmp_path / "a.onnx")
    assert cli.main(["doctor", str(tmp_path / name)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert words in line


def test_without_qualcomms_library_an_unknown_file_names_the_package(tmp_path, capsys, without_vendor) -> None:
    (tmp_path / "vendor.bin").write_bytes(b"\1" * 64)
    status, findings = diagnosis(capsys, tmp_path / "vendor.bin")
    assert status == 1
    assert "pip install 'isthmus[qnn]'" in findings["context binary"]["text"]


@needs_vendor
def test_a_binary_of_qualcomms_tools_is_loaded_by_their_library(tmp_path, capsys) -> None:
    path = tmp_path / "vendor.bin"
    with qnn.Backend("qnn-htp", {"qnn-htp": {"soc": "SM8750"}}) as backend:
        context = backend.create_context()
        context.add_graph(frontends.load(tiny.convolution(tmp_path / "conv.onnx", 64, 64))).finalize()
        path.write_bytes(context.get_binary())
    status, findings = diagnosis(capsys, path)
    assert status == 0
    build = findings["made by"]["text"].split()[1]
    assert findings["chip"]["text"] == "SM8750, v79"
    sdk = ".".join(build.removeprefix("v").split(".")[:2])
    assert findings["needs"]["text"].startswith(f"QNN {sdk} or newer")
    assert findings["Qualcomm's library"]["text"] == f"{build} loads it"
    assert findings["this project's libraries"]["state"] == "missing"
    path.write_bytes(path.read_bytes()[:3000])
    status, findings = diagnosis(capsys, path)
    assert status == 1
    assert "no library here knows it" in findings["context binary"]["text"]
