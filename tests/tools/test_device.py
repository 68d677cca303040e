"""``isthmus device``: the vendor's figures beside our plan. Commands that compile need the vendor's package."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial

import pytest
from support import dlc_graphs, dlc_write, model_libraries, tiny
from support.processes import children
from support.suites import LONG
from support.terminals import shown
from support.waiting import eventually

from isthmus import qnn
from isthmus.backends.vendor import measurement
from isthmus.backends.vendor.library import is_installed
from isthmus.tools.cli import main

needs_package = pytest.mark.skipif(not is_installed(), reason="needs the package onnxruntime-qnn")
TARGETS = ["--soc", "SM8750,SM8650", "--vtcm", "2", "--level", "2,3"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of measurements."""
    folder = tmp_path / "cache"
    kept = partial(measurement.MeasurementCache, folder)
    monkeypatch.setattr("isthmus.tools.device.measurement_cache", kept)
    return folder


@pytest.fixture
def model(tmp_path):
    return tiny.convolution(tmp_path / "conv.onnx")


def device(capsys, *arguments, status=0):
    capsys.readouterr()
    assert main(["device", *map(str, arguments)]) == status
    return capsys.readouterr()


def test_chips_are_listed_without_the_library(capsys, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    text = device(capsys, "--chips").out
    assert "69  SM8750          v79    8 MB" in text
    listed = json.loads(device(capsys, "--chips", "--json").out)
    assert all(each["vtcm_mb"] for each in listed["chips"])
    assert listed["library"].startswith("v")


def test_without_the_library_one_line_says_what_to_install(capsys, monkeypatch, model) -> None:
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    monkeypatch.setattr("isthmus.backends.vendor.library.importlib.util.find_spec", lambda name: None)
    for command in (["device", str(model)], ["fit", str(model), "--judge", "htp", "--soc", "SM8750"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "pip install 'isthmus[qnn]'" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--soc", "SM8250"], "it has no HTP"),
        (["--soc", "nothing"], "no such chip"),
        (["--soc", "SM8751"], "no such chip. Did you mean 'SM8750'?"),
        (["--soc", "SM8750,SM7350", "--vtcm", "8"], "chip SM7350 has 2 MB"),
        (["--vtcm", "two"], "must be numbers"),
        (["--level", "4"], "optimization level 4"),
        (["--jobs", "-1"], "must not be negative"),
        ([], "names no model"),
    ],
)
def test_impossible_command_lines_are_refused_in_one_line(capsys, model, arguments, rule) -> None:
    models = [model] if arguments else []
    error = device(capsys, *models, *arguments, status=2).err
    assert rule in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["another.onnx"], "`isthmus sweep --mode device` measures many models."),
        (["--csv", "rows.csv"], "`isthmus sweep --mode device --csv` does that."),
        (["--html", "page.html"], "`isthmus sweep --mode device --html` does that."),
        (["--shard", "1/2"], "`isthmus sweep --mode device --shard` does that."),
        (["--merge"], "`isthmus sweep --mode device --merge` does that."),
        (["--scheduler", "tcp://farm:8786"], "`isthmus sweep --mode device --scheduler` does that."),
    ],
)
def test_an_option_for_many_models_is_refused_with_a_hint_at_sweep(capsys, model, arguments, words) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["device", str(model), *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"{words}\n")


@needs_package
def test_figures_come_as_text_and_json(capsys, cache, model) -> None:
    report = json.loads(device(capsys, model, *TARGETS, "--json").out)
    assert [(row["chip"], row["vtcm_mb"], row["level"]) for row in report["rows"]] == [
        ("SM8750", 2, 2), ("SM8750", 2, 3), ("SM8650", 2, 2), ("SM8650", 2, 3),
    ]  # fmt: skip
    for row in report["rows"]:
        parts = ("spill_fill", "op_data", "constants", "ddr", "io", "vtcm", "shared_weights")
        assert row["total_ram"] == sum(row[part] for part in parts)
        assert row["vtcm"] == 2 << 20
        assert row["file_bytes"] > 0
        assert row["plan_io"] > 0
        assert row["build"] == report["library"]
    text = device(capsys, model, *TARGETS).out
    assert "our plan has scratch" in text
    assert report["library"] in text


@needs_package
def test_what_was_measured_is_not_measured_again(capsys, cache, model, monkeypatch) -> None:
    first = json.loads(device(capsys, model, *TARGETS, "--json").out)
    assert len(list(cache.iterdir())) == 4
    measure, asked = measurement.measure, []
    monkeypatch.setattr(measurement, "measure", lambda *arguments: asked.append(arguments) or measure(*arguments))
    assert json.loads(device(capsys, model, *TARGETS, "--json").out) == first
    assert not asked
    device(capsys, model, *TARGETS, "--no-cache")
    assert len(asked) == 4


@needs_package
def test_an_operation_that_the_compiler_lacks_is_a_row_with_a_problem(capsys, cache, tmp_path) -> None:
    from onnx import helper

    nodes = [helper.make_node("Erf", ["x"], ["y"], name="erf")]
    model = tiny.save(tmp_path / "erf.onnx", nodes, {"x": (1, 8)}, {"y": (1, 8)})
    made = device(capsys, model, "--level", "2", status=1)
    assert "lacks 1 of its node: erf (Erf)" in made.out


@needs_package
def test_a_binary_is_read_and_inspected_by_the_vendors_own_library(capsys, cache, model, tmp_path) -> None:
    config = {"qnn-htp": {"soc": "SM8650", "vtcm_mb": 4, "optimization": 2}}
    with qnn.Backend("qnn-htp", config) as backend:
        context = backend.create_context()
        graph = context.compose(model)
        graph.finalize()
        figures, dims = graph.get_property(qnn.vendor.FIGURES), list(graph.info.inputs[0].dims)
        (tmp_path / "conv.bin").write_bytes(context.get_binary())
    assert main(["inspect", str(tmp_path / "conv.bin"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["chip"], report["arch"]) == ("SM8650", 75)
    assert report["graphs"][0]["figures"] == figures.to_json()
    assert [tensor["shape"] for tensor in report["graphs"][0]["inputs"]] == [dims]
    assert main(["inspect", str(tmp_path / "conv.bin")]) == 0
    assert "1 graph for SM8650 (v75)" in capsys.readouterr().out
    row = json.loads(device(capsys, tmp_path / "conv.bin", "--json").out)["rows"][0]
    assert (row["chip"], row["vtcm_mb"], row["level"]) == ("SM8650", 4, 2)
    assert row["constants"] == figures.constants


@needs_package
def test_graphs_of_a_dlc_and_of_a_model_library_are_compiled_in_one_context(capsys, cache, tmp_path) -> None:
    files = [tmp_path / "two.dlc"]
    files[0].write_bytes(dlc_write.dlc([dlc_graphs.convolution("first"), dlc_graphs.convolution("second")]))
    if shutil.which("cc") or shutil.which("gcc"):
        files.append(model_libraries.build(tmp_path))
    for file in files:
        (row,) = json.loads(device(capsys, file, "--vtcm", "2", "--level", "3", "--json").out)["rows"]
        assert len(row["graphs"]) == 2
        assert row["vtcm"] == 2 * (2 << 20)  # 2 MiB for each of the two graphs
        assert row["total_ram"] > row["vtcm"]


def test_a_file_that_nothing_reads_says_what_may_read_it(capsys, monkeypatch, tmp_path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x02\x00\x00\x00 of another maker")
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    monkeypatch.setattr("isthmus.backends.vendor.library.importlib.util.find_spec", lambda name: None)
    assert main(["inspect", str(tmp_path / "x.bin")]) == 2
    error = capsys.readouterr().err
    assert "its format is not known" in error
    assert "isthmus[qnn]" in error


def command() -> str:
    found = shutil.which("isthmus", path=os.path.dirname(sys.executable))
    assert found is not None
    return found


@LONG
@needs_package
def test_a_progress_bar_is_for_terminals_only(model, tmp_path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("ISTHMUS_CACHE_DIR", None)
    arguments = ["device", str(model), *TARGETS]
    assert "] 4 of 4 compilations" in shown(tmp_path, arguments, environment)
    quiet = subprocess.run([command(), *arguments, "--no-cache"], env=environment, capture_output=True, check=True)
    assert quiet.stderr == b""


@LONG
@needs_package
def test_an_interrupted_command_keeps_what_is_finished_and_ends_its_processes(model, tmp_path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("ISTHMUS_CACHE_DIR", None)
    chips = "SM8750,SM8650,SM8550,SM8450,SM8350,SM8850"
    arguments = [command(), "device", str(model), "--soc", chips, "--vtcm", "1,2", "--jobs", "1"]
    running = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    kept = tmp_path / "isthmus" / "device"
    assert eventually(lambda: kept.is_dir() and len(list(kept.iterdir())) >= 2)
    started = children(running.pid)
    running.send_signal(signal.SIGINT)
    said = running.communicate()[1].decode().splitlines()
    assert said[-1] == "isthmus: interrupted"
    assert said[0].endswith(" of 24 compilations are complete")
    assert running.returncode == 130
    assert eventually(lambda: not any(os.path.exists(f"/proc/{child}") for child in started))
    finished = {file.name: file.stat().st_mtime_ns for file in kept.glob("*.json")}
    subprocess.run(arguments, env=environment, stdout=subprocess.DEVNULL, check=True)
    assert len(list(kept.glob("*.json"))) == 24
    # What was finished was not compiled again.
    assert finished == {name: (kept / name).stat().st_mtime_ns for name in finished}


@needs_package
def test_the_report_of_a_run_has_the_figures(capsys, model, tmp_path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"qnn-htp": {"soc": "SM8650", "vtcm_mb": 4, "optimization": 2}}))
    capsys.readouterr()
    assert main(["run", str(model), "--backend", "qnn-htp", "--config", str(config), "--repeat", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["target"] == "SM8650, 4 MB, O2"
    assert report["device"]["vtcm"] == 4 << 20
    assert report["device"]["total_ram"] > 4 << 20
    assert report["backend_copied_bytes"] > 0


@needs_package
def test_what_a_run_moves_is_shown_beside_our_plan_with_the_difference(capsys, cache, model) -> None:
    arguments = [model, "--soc", "SM8750", "--vtcm", "2", "--level", "2"]
    [row] = json.loads(device(capsys, *arguments, "--json").out)["rows"]
    names = ("spill_fill", "spilled", "filled", "written", "read")
    lines = [line.split() for line in device(capsys, *arguments).out.splitlines()]
    shown = {line[-6]: line[-5:] for line in lines if len(line) > 5}
    assert shown["compiler"] == [f"{row[name]:,}" for name in names]
    assert shown["ours"] == [f"{row[f'plan_{name}']:,}" for name in names]
    assert shown["difference"] == [f"{row[f'plan_{name}'] - row[name]:+,}" for name in names]
