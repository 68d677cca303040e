"""The commands take the GPU backend by its name and by that of its library."""

import json

import numpy as np
import pytest
from support import tiny

from isthmus.tools.cli import main, net_run

pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    tiny.convolution(path)
    return path


def test_a_model_runs_as_on_the_cpu(model, tmp_path, capsys) -> None:
    results = {}
    for backend in ("cpu", "gpu"):
        file = tmp_path / f"{backend}.npz"
        assert main(["run", str(model), "--backend", backend, "--outputs", str(file), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["backend"] == backend
        results[backend] = np.load(file)
    for name in results["cpu"].files:
        np.testing.assert_allclose(results["gpu"][name], results["cpu"][name], rtol=1e-4, atol=1e-5)
    assert report["target"].startswith("opencl-")


@pytest.mark.parametrize("io", ["raw", "memhandle"])
def test_inputs_and_outputs_are_raw_or_registered(model, capsys, io) -> None:
    assert main(["run", str(model), "--backend", "gpu", "--io", io, "--json", "--repeat", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["runs"] == 2
    if io == "raw":
        assert report["backend_copied_bytes"] == 2 * report["io_bytes"]


def test_a_run_is_bounded_in_time(model, capsys) -> None:
    assert main(["run", str(model), "--backend", "libQnnGpu.so", "--timeout", "60"]) == 0


def test_a_plan_names_the_device_and_keeps_its_alignment(model, capsys) -> None:
    assert main(["plan", str(model), "--backend", "gpu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["gpu"]["launches"] > 0
    assert all(block["offset"] % report["gpu"]["alignment"] == 0 for block in report["tensors"])
    assert main(["plan", str(model), "--backend", "gpu"]) == 0
    assert report["gpu"]["device"] in capsys.readouterr().out


def test_a_plan_reports_what_is_kept_as_fp16(model, tmp_path, capsys) -> None:
    config, reports = tmp_path / "gpu.json", {}
    for precision in ("fp32", "fp16"):
        config.write_text(json.dumps({"precision_mode": precision}))
        assert main(["plan", str(model), "--backend", "gpu", "--config", str(config), "--json"]) == 0
        reports[precision] = json.loads(capsys.readouterr().out)
    assert reports["fp32"]["fp16_bytes"] == 0
    assert reports["fp16"]["fp16_bytes"] > 0
    assert reports["fp16"]["scratch_bytes"] < reports["fp32"]["scratch_bytes"]
    assert main(["plan", str(model), "--backend", "gpu", "--config", str(config)]) == 0
    assert "bytes of fp16 tensors" in capsys.readouterr().out


def test_net_run_takes_the_library_and_the_tools_configuration(model, tmp_path, capsys) -> None:
    (tmp_path / "x.raw").write_bytes(np.ones((1, 3, 8, 8), np.float32).tobytes())
    (tmp_path / "list.txt").write_text("x:=x.raw\n")
    (tmp_path / "gpu.json").write_text(json.dumps({"precision_mode": "fp32", "kernel_repo_path": str(tmp_path / "k")}))
    config = tmp_path / "tools.json"
    config.write_text(json.dumps({"backend_extensions": {"config_file_path": "gpu.json"}}))
    arguments = ["--model", str(model), "--input_list", str(tmp_path / "list.txt")]
    for library, more in (("libQnnCpu.so", []), ("libQnnGpu.so", ["--config_file", str(config)])):
        output = tmp_path / library
        assert net_run([*arguments, "--backend", library, "--output_dir", str(output), *more]) == 0
    files = [next((tmp_path / library).rglob("*.raw")) for library in ("libQnnCpu.so", "libQnnGpu.so")]
    one, other = (np.fromfile(file, np.float32) for file in files)
    np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    assert list((tmp_path / "k").glob("*.bin"))


def test_without_opencl_a_command_ends_with_one_line(model, capsys, monkeypatch) -> None:
    monkeypatch.setenv("ISTHMUS_OPENCL_DEVICE", "no such device")
    assert main(["run", str(model), "--backend", "gpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("isthmus run: [14002 DEVICE_HARDWARE_UNAVAILABLE]")
