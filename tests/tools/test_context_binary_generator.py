"""A context binary is written whole or not at all; what was there before stays, for everyone who uses it."""

import os

import numpy as np
import pytest
from support import tiny

from isthmus import qnn
from isthmus.system import writing
from isthmus.system.interrupts import own_fd
from isthmus.tools.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with two models and the binary of one of them."""
    monkeypatch.chdir(tmp_path)
    tiny.convolution(tmp_path / "model.onnx")
    tiny.gate(tmp_path / "other.onnx", 4)
    assert generate("model.onnx") == 0
    return tmp_path


def generate(model, *more, backend="libQnnCpu.so", name="kept", output="output"):
    return main(["context-binary-generator", "--model", model, "--backend", backend, "--binary_file", name,
                 "--output_dir", output, *more])  # fmt: skip


@pytest.mark.parametrize("backend", ["cpu", "htp"])
def test_a_context_of_the_old_binary_still_works_while_a_new_one_replaces_it(folder, backend) -> None:
    path = folder / "output" / "kept.bin"
    assert generate("model.onnx", backend=backend) == 0
    old = path.read_bytes()
    with qnn.Backend(backend) as live, path.open("rb") as stream:
        graph = live.create_context_from_binary(path).graphs["model"]
        memory = graph.allocate()
        memory.inputs["x"][...] = 1
        memory.binding.execute()
        before = memory.outputs["y"].copy()
        assert generate("other.onnx", backend=backend) == 0
        assert path.read_bytes() != old
        assert stream.read() == old
        memory.inputs["x"][...] = 1
        memory.binding.execute()
        np.testing.assert_array_equal(memory.outputs["y"], before)
    memory.close()
    assert [file.name for file in path.parent.iterdir()] == ["kept.bin"]


def full_disk(monkeypatch):
    """Let every write to a file fail as on a full disk."""

    def on_a_full_disk(opened, name, flags, mode):
        os.close(os.open(name, flags, mode))
        return own_fd(os.open, "/dev/full", os.O_WRONLY)

    monkeypatch.setattr(writing, "own_fd", on_a_full_disk)


def test_a_full_disk_leaves_the_old_file_and_nothing_half(folder, monkeypatch, capsys) -> None:
    path = folder / "output" / "kept.bin"
    old, number = path.read_bytes(), path.stat().st_ino
    full_disk(monkeypatch)
    assert generate("other.onnx") == 2
    error = capsys.readouterr().err
    assert "'output/kept.bin': cannot be written: No space left on device" in error
    assert len(error.splitlines()) == 1
    assert (path.read_bytes(), path.stat().st_ino) == (old, number)
    assert [file.name for file in path.parent.iterdir()] == ["kept.bin"]


@pytest.mark.parametrize(
    ("output", "name", "words"),
    [
        ("model.onnx", "kept", "is a file, not a folder"),
        ("model.onnx/below", "kept", "cannot be written: Not a directory"),
        ("/proc", "kept", "cannot be written"),
        ("taken", "folder", "cannot be written: Is a directory"),
        ("output", "no/such/kept" + "n" * 300, "cannot be written: File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_and_nothing_changes(folder, capsys, output, name, words) -> None:
    (folder / "taken" / "folder.bin").mkdir(parents=True)
    old = (folder / "model.onnx").read_bytes(), (folder / "output" / "kept.bin").read_bytes()
    assert generate("other.onnx", output=output, name=name) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
    assert ((folder / "model.onnx").read_bytes(), (folder / "output" / "kept.bin").read_bytes()) == old
    assert not list((folder / "taken" / "folder.bin").iterdir())
    assert not list(folder.rglob(".writing-*"))


@pytest.mark.parametrize("link", [False, True])
def test_a_model_is_not_overwritten_by_its_binary(folder, capsys, link) -> None:
    content = (folder / "model.onnx").read_bytes()
    os.rename("model.onnx", "model.bin")
    if link:
        os.symlink("model.bin", "linked.bin")
    assert generate("model.bin", name="linked" if link else "model", output=".") == 2
    assert "would overwrite" in capsys.readouterr().err
    assert (folder / "model.bin").read_bytes() == content


def test_the_permissions_of_a_file_that_is_replaced_stay(folder) -> None:
    path = folder / "output" / "kept.bin"
    path.chmod(0o600)
    assert generate("other.onnx") == 0
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_binary_is_named_after_the_first_model(folder) -> None:
    assert main(["context-binary-generator", "--model", "other.onnx,model.onnx", "--backend", "libQnnCpu.so"]) == 0
    info = qnn.SystemContext().get_binary_info(folder / "output" / "other.bin")
    assert [graph.name for graph in info.graphs] == ["other", "model"]


@pytest.mark.parametrize(("name", "reason"), [("", "names no file"), ("folder/", "names no file"),
                                              ("x" * 300, "File name too long")])  # fmt: skip
def test_a_name_that_cannot_be_a_file_name_is_refused_in_one_line(folder, capsys, name, reason) -> None:
    capsys.readouterr()
    assert generate("model.onnx", name=name) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert reason in line
