"""The command line runs models, prints what happened, and answers bad input with one line and status 2."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from onnx import helper
from support import tiny

from isthmus.errors import QnnError
from isthmus.tools.cli import main
from isthmus.tools.run import write_arrays


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.convolution(tmp_path_factory.mktemp("models") / "conv.onnx", height="h")


def run(capsys, *arguments):
    status = main(["run", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_json_is_one_object_with_all_that_is_promised(model, capsys) -> None:
    status, out, _ = run(capsys, model, "--shape", "x=1,3,6,8", "--repeat", 5, "--threads", 2, "--json")
    report = json.loads(out)
    assert status == 0
    assert report["backend"] == "cpu"
    assert report["inputs"] == {"x": {"shape": [1, 3, 6, 8], "dtype": "float32"}}
    assert report["outputs"] == {"y": {"shape": [1, 4, 6, 8], "dtype": "float32"}}
    for name in ("scratch_bytes", "state_bytes", "constant_bytes", "copied_bytes"):
        assert isinstance(report[name], int)
    assert 0 < report["latency_ms"]["p50"] <= report["latency_ms"]["p99"]
    assert report["runs"] == 5


def test_inputs_are_read_and_outputs_written(model, tmp_path, capsys) -> None:
    x = np.random.default_rng(3).standard_normal((1, 3, 1, 8)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    status, out, _ = run(capsys, model, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
    assert status == 0
    assert "memory  scratch" in out
    with np.load(tmp_path / "out.npz") as written:
        assert written["y"].shape == (1, 4, 1, 8)
        assert written["y"].any()


def test_names_of_a_model_do_not_steer_the_terminal(tmp_path, capsys) -> None:
    name = "a\x1b[31m\nb"
    path = tiny.save(tmp_path / "m.onnx", [helper.make_node("Relu", [name], ["y\r"])], {name: [2]}, {"y\r": [2]})
    status, out, _ = run(capsys, path)
    assert status == 0
    assert "input   a\\x1b[31m\\nb: float32[2]\n" in out
    assert "\n  y\\r = [" in out
    assert not {"\x1b", "\r"} & set(out)


@pytest.mark.parametrize("command", ["run", "plan", "fit", "inspect", "tflite-benchmark"])
def test_an_empty_name_is_not_taken_for_the_working_folder(capsys, command) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, ""])
    assert ended.value.code == 2
    assert "the name of the file is empty" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["file", "allow_pickle", "args", "a/b", "größe"])
def test_an_output_may_have_any_name(tmp_path, capsys, name) -> None:
    path = tiny.save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], [name])], {"x": [2]}, {name: [2]})
    assert run(capsys, path, "--outputs", tmp_path / "out.npz")[0] == 0
    with np.load(tmp_path / "out.npz") as written:
        assert written.files == [name]
        assert written[name].shape == (2,)


def test_raw_bytes_are_refused_as_inputs_without_advice_on_pickles(model, tmp_path, capsys) -> None:
    (tmp_path / "x.raw").write_bytes(bytes(96))
    status, _, err = run(capsys, model, "--inputs", tmp_path / "x.raw")
    assert status == 2
    assert "cannot be read as .npz: it is no archive of arrays" in err


def test_outputs_may_go_to_a_device(model, capsys) -> None:
    assert run(capsys, model, "--outputs", "/dev/null")[0] == 0


def test_a_plain_npy_file_is_refused_as_inputs(model, tmp_path, capsys) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 1, 8), np.float32))
    status, _, err = run(capsys, model, "--inputs", tmp_path / "x.npy")
    assert status == 2
    assert "cannot be read as .npz: it holds one array without a name" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_outputs_that_cannot_be_written_whole_leave_all_as_it_was(tmp_path, monkeypatch, problem) -> None:
    write_array = np.lib.format.write_array

    def fail_after_the_first(stream, array, **more):
        if not array.any():
            raise problem
        write_array(stream, array, **more)

    monkeypatch.setattr(np.lib.format, "write_array", fail_after_the_first)
    out = tmp_path / "out.npz"
    out.write_bytes(b"from before")
    expected = QnnError if isinstance(problem, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        write_arrays(out, {"a": np.ones(1000), "b": np.zeros(1000)})
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("out.npz", b"from before")]


def test_outputs_are_written_through_a_link_and_with_the_usual_permissions(tmp_path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (tmp_path / "out.npz").symlink_to(folder / "real.npz")
    (tmp_path / "plain").write_bytes(b"")
    write_arrays(tmp_path / "out.npz", {"a": np.ones(2)})
    assert (tmp_path / "out.npz").is_symlink()
    assert (folder / "real.npz").stat().st_mode == (tmp_path / "plain").stat().st_mode
    with np.load(tmp_path / "out.npz") as written:
        assert written["a"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.onnx"], "absent.onnx"),
        (["MODEL", "--shape", "x"], "must look like"),
        (["MODEL", "--shape", "x=1,a"], "must look like"),
        (["MODEL", "--shape", "x=0,3,4,8"], "positive"),
        (["MODEL", "--shape", "z=1"], "z"),
        (["MODEL", "--repeat", "0"], "at least 1"),
        (["MODEL", "--threads", "0"], "number of threads"),
        (["MODEL", "--inputs", "absent.npz"], "absent.npz"),
        (["MODEL", "--inputs", "MODEL"], "cannot be read as .npz"),
        (["MODEL", "--outputs", "no/such/folder/out.npz"], "cannot be written"),
        (["MODEL", "--outputs", "MODEL"], "would overwrite"),
        (["MODEL", "--outputs", "."], "cannot be written"),
    ],
)
def test_bad_input_is_one_clear_line_and_status_two(model, capsys, arguments, words) -> None:
    status, out, err = run(capsys, *[str(model) if a == "MODEL" else a for a in arguments])
    assert status == 2
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"hello, this is not a model", bytes(range(256)) * 8])
def test_files_that_are_no_models_are_refused(tmp_path, capsys, content) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    status, _, err = run(capsys, path)
    assert status == 2
    assert "bad.onnx" in err


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "isthmus", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("isthmus ")
    missing = subprocess.run([sys.executable, "-m", "isthmus"], capture_output=True, text=True, check=False)
    assert missing.returncode == 2
    assert "usage" in missing.stderr


def test_a_run_loads_nothing_that_takes_long_to_load() -> None:
    """Runs a graph, since a frontend may load more."""
    script = """
import sys
import numpy as np
from isthmus import qnn
with qnn.Backend("cpu") as backend:
    graph = backend.create_context().create_graph("g")
    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (1, 8))
    y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (1, 8))
    graph.add_node("relu", "Relu", [x], [y])
    memory = graph.allocate()
    memory.binding.execute()
print([name for name in ("numba", "llvmlite", "asyncio", "numpy.ma", "onnx") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_loads_neither_numba_nor_llvm_nor_a_frontend() -> None:
    late = ("numba", "llvmlite", "onnx", "isthmus.session")
    script = f"import sys, isthmus; print([m for m in {late} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_times_of_operations_are_a_table_and_in_json(model, command, capsys) -> None:
    assert main([command, str(model), "--profile"]) == 0
    text = capsys.readouterr().out
    times = [float(number.replace(",", "")) for number in re.findall(r"([\d.,]+) us +[\d.]+%", text)]
    assert "time per operation" in text
    assert times == sorted(times, reverse=True)
    assert main([command, str(model), "--profile", "--json"]) == 0
    operations = json.loads(capsys.readouterr().out)["operations"]
    assert len(operations) == len(times) >= 1
    assert all(each["us"] >= 0 and each["name"] for each in operations)


def test_the_profile_of_a_model_in_stages_says_why_it_has_no_times(tmp_path, capsys) -> None:
    path = tiny.in_stages(tmp_path / "stages.onnx")
    assert main(["run", str(path), "--profile"]) == 0
    assert "times of operations are not measured, because the model runs in stages\n" in capsys.readouterr().out


def test_the_size_of_tcm_has_no_effect_in_ddr_and_the_help_says_so(tmp_path, capsys) -> None:
    path = str(tiny.convolution(tmp_path / "model.onnx"))
    assert main(["run", path, "--backend", "lpai", "--tcm", "1KiB"]) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "allocations in TCM are within it; it has no effect on a model in DDR" in shown
    assert "the verdict" not in shown
