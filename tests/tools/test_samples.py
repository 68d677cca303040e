"""``isthmus samples`` writes small models of every format; each runs, and gives what another runtime gives."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from support import oracles

import isthmus
from isthmus.tools import samples
from isthmus.tools.cli import main
from isthmus.tools.sample_models import library


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("samples")
    assert main(["samples", str(made / "new")]) == 0
    return made / "new"


def filled(session, seed=5):
    """Fill the inputs of a session with random numbers; return them by name."""
    generator = np.random.default_rng(seed)
    for view in session.inputs.values():
        is_float = view.dtype.kind == "f"
        view[...] = generator.random(view.shape) if is_float else generator.integers(-128, 128, view.shape)
    return {name: view.copy() for name, view in session.inputs.items()}


def test_every_file_is_listed_and_written(folder, capsys) -> None:
    assert main(["samples", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [os.path.basename(each["file"]) for each in report["files"]] == list(samples.SAMPLES)
    assert {file.name: file.stat().st_size for file in folder.iterdir()} == {
        os.path.basename(each["file"]): each["bytes"] for each in report["files"]
    }


def test_another_process_writes_the_same_bytes(folder, tmp_path) -> None:
    command = [sys.executable, "-m", "isthmus", "samples", "again"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=os.environ | {"PYTHONHASHSEED": "77"})
    for file in folder.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize("name", ["model.onnx", "camera.onnx", "camera_qdq.onnx", "camera_a16.onnx"])
def test_onnx_runtime_agrees(folder, name) -> None:
    with isthmus.Session(folder / name) as session:
        feeds = filled(session)
        session.run()
        expected = oracles.onnx_session(folder / name).run(None, feeds)
        # A step of 8 bits is 1/255 of the scores.
        for view, other in zip(session.outputs.values(), expected, strict=True):
            np.testing.assert_allclose(view, other, atol=1.01 / 255 if "_" in name else 1e-5)


def test_the_quantized_camera_models_are_near_the_float_one(folder) -> None:
    scores = {}
    for name in ("camera.onnx", "camera_qdq.onnx", "camera_a16.onnx"):
        with isthmus.Session(folder / name) as session:
            filled(session)
            session.run()
            scores[name] = session.outputs["scores"].copy()
    assert np.abs(scores["camera_qdq.onnx"] - scores["camera.onnx"]).max() < 0.03
    assert np.abs(scores["camera_a16.onnx"] - scores["camera.onnx"]).max() < 0.01


def test_litert_agrees_over_a_stream_of_frames(folder) -> None:
    interpreter_module = pytest.importorskip("ai_edge_litert.interpreter", reason="needs LiteRT")
    interpreter = interpreter_module.Interpreter(str(folder / "model.tflite"))
    interpreter.allocate_tensors()
    [x], [y] = interpreter.get_input_details(), interpreter.get_output_details()
    seen = set()
    with isthmus.Session(folder / "model.tflite") as session:
        assert session.info.memory.state_bytes > 0
        for step in range(20):
            [frames] = filled(session, step).values()
            session.run()
            interpreter.set_tensor(x["index"], frames)
            interpreter.invoke()
            [probability] = session.outputs.values()
            seen.add(int(probability[0, 0]))
            assert abs(int(probability[0, 0]) - int(interpreter.get_tensor(y["index"])[0, 0])) <= 1
    assert len(seen) > 5, "the probability hardly depends on the frames"


def test_litert_agrees_on_the_camera_model(folder) -> None:
    interpreter_module = pytest.importorskip("ai_edge_litert.interpreter", reason="needs LiteRT")
    interpreter = interpreter_module.Interpreter(str(folder / "camera.tflite"))
    interpreter.allocate_tensors()
    with isthmus.Session(folder / "camera.tflite") as session, isthmus.Session(folder / "camera.bin") as prepared:
        [image] = filled(session).values()
        session.run()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image)
        interpreter.invoke()
        expected = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        np.testing.assert_allclose(session.outputs["scores"], expected, atol=1e-5)
        assert prepared.backend == "htp"
        prepared.fill({"image": image})
        prepared.run()
        # Only the CPU computes convolutions by Winograd's algorithm.
        np.testing.assert_allclose(prepared.outputs["scores"], session.outputs["scores"], atol=1e-6)


def test_the_model_library_gives_the_mean_colour_as_probabilities(folder) -> None:
    if not (folder / "libqnn_model.so").exists():
        pytest.skip("needs a compiler")
    with isthmus.Session(folder / "libqnn_model.so") as session:
        picture = filled(session)["x"]
        session.run()
        e = np.exp(picture.mean((1, 2)))
        np.testing.assert_allclose(session.outputs["probabilities"], e / e.sum(), rtol=1e-5)


def test_without_a_compiler_the_model_library_is_left_out(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(library, "compilers", lambda: ("no-such-compiler",))
    assert main(["samples", str(tmp_path)]) == 0
    assert "left out: libqnn_model.so." in capsys.readouterr().out
    assert (tmp_path / "qnn_model.c").exists()


def test_files_that_differ_are_not_replaced_unless_asked(tmp_path, capsys) -> None:
    (tmp_path / "net.dlc").write_bytes(b"mine")
    assert main(["samples", str(tmp_path)]) == 2
    assert "net.dlc': it exists already and differs. Name another folder, or use --replace." in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["net.dlc"]
    assert main(["samples", str(tmp_path), "--replace"]) == 0
    assert (tmp_path / "net.dlc").read_bytes() != b"mine"


def test_nothing_is_left_if_one_file_cannot_be_written(tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / "problem.csv").mkdir()
    assert main(["samples", str(tmp_path), "--replace"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["problem.csv"]


def test_a_failed_replacement_leaves_the_files_of_the_user(tmp_path, capsys) -> None:
    (tmp_path / "model.onnx").write_bytes(b"mine")
    (tmp_path / "net.dlc").mkdir()
    assert main(["samples", str(tmp_path), "--replace"]) == 2
    assert "net.dlc': cannot be written: Is a directory" in capsys.readouterr().err
    assert (tmp_path / "model.onnx").read_bytes() == b"mine"
    assert {file.name for file in tmp_path.iterdir()} == {"model.onnx", "net.dlc"}


def test_without_the_package_onnx_its_files_are_left_out(tmp_path, capsys, monkeypatch) -> None:
    find_spec = samples.importlib.util.find_spec
    monkeypatch.setattr(samples.importlib.util, "find_spec", lambda name: None if name == "onnx" else find_spec(name))
    assert main(["samples", str(tmp_path)]) == 0
    assert "left out: model.onnx, text.onnx, camera.onnx" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.onnx"))
    assert (tmp_path / "camera.bin").exists()
