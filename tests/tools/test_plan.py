"""``isthmus plan`` tells and draws the memory of a model without compiling or running anything."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from support import tiny

from isthmus.report.text import FLOATS_SHOWN
from isthmus.tools.cli import main

MODELS = Path(__file__).parents[2] / ".models"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Four branches side by side, each large in the middle."""
    nodes, parts = [], []
    for i in range(4):
        nodes.append(helper.make_node("MatMul", ["x", f"up{i}"], [f"wide/branch_{i}"]))
    for i in range(4):
        nodes.append(helper.make_node("MatMul", [f"wide/branch_{i}", f"down{i}"], [f"narrow/branch_{i}"]))
        parts.append(f"narrow/branch_{i}")
    nodes.append(helper.make_node("Sum", parts, ["y"]))
    rng = np.random.default_rng(0)
    constants = {f"up{i}": rng.standard_normal((8, 1024)).astype(np.float32) for i in range(4)}
    constants |= {f"down{i}": rng.standard_normal((1024, 8)).astype(np.float32) for i in range(4)}
    path = tmp_path_factory.mktemp("models") / "branches.onnx"
    return tiny.save(path, nodes, {"x": ["n", 8]}, {"y": ["n", 8]}, constants)


@pytest.fixture
def wake_word():
    path = MODELS / "okay_nabu.tflite"
    if not path.exists():
        pytest.skip(f"{path.name} has not been fetched")
    return path


def plan(capsys, *arguments):
    status = main(["plan", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_json_is_one_object_with_all_that_is_promised(model, capsys) -> None:
    status, out, _ = plan(capsys, model, "--shape", "x=16,8", "--json")
    report = json.loads(out)
    assert status == 0
    assert report["status"] == "optimal"
    assert report["lower_bound"] == report["scratch_bytes"] <= report["greedy_bytes"] <= report["unshared_bytes"]
    assert report["io_bytes"] == 2 * 16 * 8 * 4
    assert report["constant_bytes"] >= 8 * 8 * 1024 * 4
    assert report["state_bytes"] == 0
    assert report["order_saved_bytes"] >= 2 * 16 * 1024 * 4
    assert report["aliased_bytes"] >= 0
    assert 0 < report["plan_seconds"] < report["seconds"]
    for row in report["tensors"]:
        assert set(row) == {"name", "bytes", "first", "last", "offset"}
    assert max(r["offset"] + r["bytes"] for r in report["tensors"]) == report["scratch_bytes"]


def test_the_peak_names_its_step_and_what_is_live_there(model, capsys) -> None:
    report = json.loads(plan(capsys, model, "--shape", "x=16,8", "--json")[1])
    peak = report["peak"]
    live = [r for r in report["tensors"] if r["first"] <= peak["step"] <= r["last"]]
    assert [r["name"] for r in live] == [r["name"] for r in peak["live"]]
    assert peak["live_bytes"] == sum(r["bytes"] for r in live) <= report["scratch_bytes"]
    assert peak["op"]


def test_the_report_for_people_has_figures_and_a_picture_that_fits(model, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = plan(capsys, model, "--shape", "x=16,8")
    assert status == 0
    for words in ("proved optimal", "without sharing", "greedy by size", "lower bound", "order of op", "▼ peak"):
        assert words in out
    picture = out[out.index("▼ peak") :]
    assert max(map(len, picture.splitlines())) <= 80
    assert "\x1b" not in out


def test_the_table_lists_every_block(model, capsys) -> None:
    status, out, _ = plan(capsys, model, "--shape", "x=16,8", "--table")
    rows = json.loads(plan(capsys, model, "--shape", "x=16,8", "--json")[1])["tensors"]
    assert status == 0
    assert len(out[out.index("offset") :].splitlines()) == 1 + len(rows)


def test_more_threads_may_need_more_work_space_and_never_less(model, capsys) -> None:
    one, four = (json.loads(plan(capsys, model, "--threads", n, "--json")[1])["scratch_bytes"] for n in (1, 4))
    assert one <= four


def test_lpai_plans_inputs_and_outputs_into_scratch(model, capsys) -> None:
    cpu, lpai = (
        json.loads(plan(capsys, model, "--shape", "x=16,8", "--backend", b, "--json")[1]) for b in ("cpu", "lpai")
    )
    assert "x" not in [r["name"] for r in cpu["tensors"]]
    assert "x" in [r["name"] for r in lpai["tensors"]]
    assert "inside scratch" in plan(capsys, model, "--backend", "lpai")[1]


def test_a_model_that_needs_no_scratch_says_so(tmp_path, capsys) -> None:
    path = tiny.save(tmp_path / "relu.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 4]}, {"y": [1, 4]})
    status, out, _ = plan(capsys, path)
    assert status == 0
    assert "no scratch memory is in use" in out
    assert json.loads(plan(capsys, path, "--json")[1])["peak"] is None


def test_planning_loads_no_compiler(model) -> None:
    script = (
        "import sys; from isthmus.tools.cli import main; main(['plan', sys.argv[1]]);"
        "print([m for m in ('numba', 'llvmlite', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(model)], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


@pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="LiteRT is not installed")
def test_embed_writes_a_copy_and_reports_its_arena(wake_word, tmp_path, capsys) -> None:
    out = tmp_path / "planned.tflite"
    before = wake_word.read_bytes()
    report = json.loads(plan(capsys, wake_word, "--embed", out, "--json")[1])["embedded"]
    assert wake_word.read_bytes() == before
    assert out.read_bytes().endswith(before)
    assert b"OfflineMemoryAllocation" in out.read_bytes()
    assert report["status"] == "optimal"
    assert 0 < report["arena_bytes"] <= report["greedy_bytes"]
    assert [p.name for p in tmp_path.iterdir()] == ["planned.tflite"]
    status, text, _ = plan(capsys, out, "--embed", tmp_path / "again.tflite")
    assert status == 0
    assert "embedded" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.onnx"], "absent.onnx"),
        (["MODEL", "--shape", "x"], "must look like"),
        (["MODEL", "--shape", "x=0,8"], "positive"),
        (["MODEL", "--shape", "z=1"], "z"),
        (["MODEL", "--threads", "0"], "number of threads"),
        (["MODEL", "--threads", "2", "--backend", "lpai"], "one thread"),
        (["MODEL", "--embed", "out.tflite"], "only a TFLite file"),
        (["absent.tflite", "--embed", "out.tflite"], "no such file"),
        (["WAKE", "--embed", "WAKE"], "would overwrite"),
        (["WAKE", "--embed", "."], "directory"),
        (["WAKE", "--embed", "no/such/folder/out.tflite"], "cannot be written"),
    ],
)
def test_bad_input_is_one_clear_line_and_status_two(model, wake_word, capsys, arguments, words) -> None:
    names = {"MODEL": str(model), "WAKE": str(wake_word)}
    status, out, err = plan(capsys, *[names.get(a, a) for a in arguments])
    assert status == 2
    assert out == ""
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_a_file_with_open_shapes_gets_no_plan_and_nothing_is_written(tmp_path, capsys) -> None:
    path = MODELS / "precise_vad.tflite"
    if not path.exists():
        pytest.skip(f"{path.name} has not been fetched")
    status, out, err = plan(capsys, path, "--embed", tmp_path / "out.tflite")
    assert (status, out) == (2, "")
    assert "is open" in err
    assert not any(tmp_path.iterdir())


def test_a_plan_names_the_steps_that_have_no_8_bit_kernel(tmp_path, capsys) -> None:
    from frontends.tflite.build import T, options, single

    images = [[T("i8", (1, 8, 8, 4), scale=scale, zero=3, name=name)] for name, scale in (("x", 0.1), ("length", 0.01))]
    path = tmp_path / "normal.tflite"
    path.write_bytes(single("L2_NORMALIZATION", *images, options("L2Norm")))
    assert main(["plan", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["in_float"]
    assert [step["op"] for step in found] == ["L2Norm"]
    assert main(["plan", str(path)]) == 0
    assert "L2Norm length has no integer kernel" in capsys.readouterr().out


def test_of_many_steps_without_an_8_bit_kernel_the_first_are_named_and_all_others_counted(
    capsys, monkeypatch, tmp_path
) -> None:
    from isthmus.tools import plan as command

    describe = command.describe
    steps = [{"op": "L2Norm", "name": f"norm {number}"} for number in range(FLOATS_SHOWN + 3)]
    monkeypatch.setattr(command, "describe", lambda *given: {**describe(*given), "in_float": steps})
    assert main(["plan", str(tiny.gate(tmp_path / "gate.onnx", 4))]) == 0
    out = capsys.readouterr().out
    assert all((step["name"] in out) is (number < FLOATS_SHOWN) for number, step in enumerate(steps))
    assert "and 3 more" in out


@pytest.mark.parametrize(
    ("side", "mem_type", "status", "verdict"),
    [
        (64, "tcm", 0, ": fits, "),
        (1024, "tcm", 1, ": does not fit: "),
        (64, "ddr", 0, ": would fit, "),
        (1024, "ddr", 0, ": would not fit: "),
        (64, None, 0, ": fits, "),
        (1024, None, 1, ": does not fit: "),
    ],
)
@pytest.mark.parametrize("json_too", [False, True])
def test_a_model_that_does_not_fit_ends_with_status_1(
    tmp_path, capsys, side, mem_type, status, verdict, json_too
) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    constants = {"w": np.ones((side, side), np.float32)}
    path = tiny.save(tmp_path / "dense.onnx", nodes, {"x": [1, side]}, {"y": [1, side]}, constants)
    setting = ["--set", f"lpai_graph.execute.mem_type={mem_type}"] if mem_type else []
    assert main(["plan", str(path), "--backend", "lpai", *setting, *["--json"] * json_too]) == status
    shown = capsys.readouterr().out
    if json_too:
        section = json.loads(shown)["lpai"]
        assert (section["fits"], section["tcm"]["fits"]) == (status == 0, side == 64)
    else:
        assert verdict in shown


# -- the size of TCM ---------------------------------------------------------------------------------------------------


def test_a_stated_size_of_tcm_has_verdict_and_exit_status(tmp_path, capsys) -> None:
    path = tiny.convolution(tmp_path / "model.onnx")
    need = json.loads(plan(capsys, path, "--backend", "lpai", "--json")[1])["lpai"]["tcm"]["bytes"]
    assert plan(capsys, path, "--backend", "lpai", "--tcm", need)[0] == 0
    status, out, _ = plan(capsys, path, "--backend", "lpai", "--tcm", need - 1)
    assert status == 1
    assert f"{need:,} bytes of {need - 1:,}: binary" in out
    assert "does not fit: 1 byte too many" in out
    config = tmp_path / "device.json"
    config.write_text(json.dumps({"lpai_backend": {"tcm_size": "4KiB"}}))
    for given in (["--tcm", "4KiB"], ["--set", "tcm=4KiB"], ["--config", config]):
        status, out, _ = plan(capsys, path, "--backend", "lpai", *given, "--json")
        assert status == 1
        assert json.loads(out)["lpai"]["limits"][0]["limit"] == 4096


@pytest.mark.parametrize("backend", ["cpu", "htp"])
def test_a_backend_without_tcm_refuses_its_size(tmp_path, capsys, backend) -> None:
    status, _, err = plan(capsys, tiny.convolution(tmp_path / "model.onnx"), "--backend", backend, "--tcm", "64KiB")
    assert status == 2
    assert f"--tcm 65536: backend '{backend}' has no TCM. These backends have it: lpai." in err


@pytest.mark.parametrize("size", ["0", "4MiB"])
@pytest.mark.parametrize("command", ["plan", "fit", "run", "sweep"])
def test_a_size_that_no_tcm_has_is_refused_by_the_name_of_the_option(tmp_path, capsys, command, size) -> None:
    path = tiny.convolution(tmp_path / "model.onnx")
    assert main([command, str(path), "--backend", "lpai", "--tcm", size]) == 2
    err = capsys.readouterr().err
    assert f"--tcm {0 if size == '0' else 4 << 20}: must be a size such as 65536 or '64KiB', 1 to 2035712 bytes" in err
    assert "lpai_backend" not in err


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (["--tcm", "64KiB", "--set", "tcm=4KiB"], "--set tcm=4KiB: --tcm 65536 states another size"),
        (["--tcm", "64KiB", "--set", "lpai_backend.tcm_size=4KiB"], "tcm_size=4KiB: --tcm 65536 states another size"),
        (["--set", "tcm=1KiB", "--set", "lpai_backend.tcm_size=2KiB"], "--set tcm=1KiB states another size"),
        (["--set", "lpai_backend.tcm_size=2KiB", "--set", "tcm=1KiB"], "tcm_size=2KiB states another size"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "sweep"])
def test_two_sizes_of_tcm_are_refused(tmp_path, capsys, command, given, refused) -> None:
    path = tiny.convolution(tmp_path / "model.onnx")
    assert main([command, str(path), "--backend", "lpai", *given]) == 2
    assert refused in capsys.readouterr().err


def test_a_size_of_tcm_may_be_stated_twice_and_holds_for_the_model_to_compare_with(tmp_path, capsys) -> None:
    path = tiny.convolution(tmp_path / "model.onnx")
    sizes = ["--set", "tcm=64KiB", "--set", "lpai_backend.tcm_size=65536"]
    pages = ["--html", tmp_path / "page.html", "--compare", path]
    assert plan(capsys, path, "--backend", "lpai", *sizes, *pages)[0] == 0


@pytest.mark.parametrize(("size", "status", "verdict"), [("64", 1, "does not fit: "), ("1MiB", 0, "fits, ")])
def test_a_plan_in_stages_has_the_verdict_of_each_stage(tmp_path, capsys, size, status, verdict) -> None:
    path = tiny.in_stages(tmp_path / "stages.onnx")
    ended, out, _ = plan(capsys, path, "--backend", "lpai", "--tcm", size)
    assert ended == status
    assert "2 stages" in out
    verdicts = [line for line in out.splitlines() if line.startswith("    TCM: binary and IO: ")]
    assert [verdict in line for line in verdicts] == [True, True]
    assert ("--set lpai_graph.execute.mem_type=ddr makes this a remark" in out) is (status == 1)
    assert "each stage is judged alone" in out
    ended, out, _ = plan(capsys, path, "--backend", "lpai", "--tcm", size, "--json")
    assert ended == status
    assert [stage["lpai"]["fits"] for stage in json.loads(out)["stages"]] == [status == 0] * 2
    assert "judged" not in plan(capsys, path, "--backend", "htp")[1]


def test_the_size_of_tcm_is_no_question_to_a_context_binary(tmp_path, capsys) -> None:
    model = str(tiny.convolution(tmp_path / "model.onnx"))
    made = ["--model", model, "--backend", "libQnnLpai.so", "--output_dir", str(tmp_path), "--binary_file", "model"]
    assert main(["context-binary-generator", *made]) == 0
    status, _, err = plan(capsys, tmp_path / "model.bin", "--tcm", "64KiB")
    assert status == 2
    assert "a context binary is judged when it is run. Plan the model that it was made from with --tcm, or run" in err
    in_tcm = ["--direct-mode", "adsp", "--set", "lpai_graph.execute.mem_type=tcm", "--tcm"]
    assert main(["run", str(tmp_path / "model.bin"), *in_tcm, "64KiB"]) == 0
    assert main(["run", str(tmp_path / "model.bin"), *in_tcm, "4KiB"]) == 1
    assert "4096 of 4096 are left" in capsys.readouterr().err
