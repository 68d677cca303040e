"""``--html``, ``--compare`` and ``--svg``: pages with what a command found, each written whole or not at all."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from comparison import fault_models as faults
from onnx import helper
from support import tiny

from isthmus.report.page.comparisons import comparison_sections
from isthmus.tools.cli import main
from isthmus.tools.sample_models import networks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with two models, an input and a list of it."""
    monkeypatch.chdir(tmp_path)
    tiny.convolution(tmp_path / "small.onnx", 8, 8)
    tiny.convolution(tmp_path / "large.onnx", 32, 32)
    np.ones((1, 3, 8, 8), np.float32).tofile("x.raw")
    (tmp_path / "list.txt").write_text("x.raw\nx.raw\n")
    return tmp_path


def facts(path):
    """Return the facts of a page."""
    text = path.read_text().partition('id="facts">')[2].partition("</script>")[0]
    return json.loads(text)


def section(found, kind, title=""):
    return next(each for each in found["sections"] if each["kind"] == kind and each.get("title", "").startswith(title))


def bars(found, title):
    return {each["label"]: each for each in section(found, "bars", title)["bars"]}


def test_the_page_of_a_plan_has_what_json_prints(folder, capsys) -> None:
    assert main(["plan", "large.onnx", "--html", "plan.html", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = facts(folder / "plan.html")
    assert found["reports"] == [printed]
    assert len(printed["order"]) == printed["steps"]
    assert section(found, "map")["report"] == 0
    plan = bars(found, "This plan")
    assert plan["This plan"]["value"] == printed["scratch_bytes"]
    assert plan["Lower bound"]["value"] == printed["lower_bound"]
    assert plan["Greedy by size"]["value"] == printed["greedy_bytes"]
    assert printed["peak"]["name"] in section(found, "figures")["note"]


def test_limits_are_marked_and_what_does_not_fit_has_its_remedies(folder, capsys) -> None:
    assert main(["plan", "large.onnx", "--html", "plan.html", "--scratch-limit", "90%", "--backend", "lpai"]) == 0
    assert main(["plan", "large.onnx", "--html", "limited.html", "--scratch-limit", "1MiB"]) == 0
    capsys.readouterr()
    tcm = bars(facts(folder / "plan.html"), "Pools")["TCM: binary and IO"]
    assert 0 < tcm["value"] < tcm["limit"]
    assert bars(facts(folder / "limited.html"), "Pools")["Scratch"]["limit"] == 1 << 20
    tiny.convolution(folder / "huge.onnx", 512, 512)
    for mem_type, status, verdict, tone in (("tcm", 1, "does not fit", "bad"), ("ddr", 0, "would not fit", "")):
        setting = f"lpai_graph.execute.mem_type={mem_type}"
        assert main(["plan", "huge.onnx", "--backend", "lpai", "--set", setting, "--html", "huge.html"]) == status
        found = facts(folder / "huge.html")
        tcm = bars(found, "Pools")["TCM: binary and IO"]
        assert tcm["value"] > tcm["limit"]
        assert verdict in tcm["note"]
        advice = section(found, "notes", "What would help")["notes"]
        over = f"{tcm['value'] - tcm['limit']:,} bytes too many"
        assert (advice[0]["text"], advice[0]["tone"]) == (f"TCM: binary and IO: {verdict}: {over}.", tone)
        assert any('mem_type to "ddr"' in note["text"] for note in advice) is (mem_type == "tcm")


@pytest.mark.parametrize("backend", ["cpu", "htp", "lpai"])
@pytest.mark.parametrize("model", ["small.onnx", "large.onnx", "state.tflite"])
def test_the_figures_of_a_page_add_up(folder, capsys, model, backend) -> None:
    (folder / "state.tflite").write_bytes(networks.wake_word_tflite())
    assert main(["plan", model, "--backend", backend, "--html", "plan.html"]) == 0
    found = facts(folder / "plan.html")
    figures = {each["title"]: each for each in section(found, "figures")["figures"]}
    inside = figures["Inputs and outputs"]["note"] == "inside scratch"
    assert inside is (backend == "lpai")
    parts = [figures.get(name, {"value": 0})["value"] for name in ("Scratch", "Constants", "State")]
    total = sum(parts) + (0 if inside else figures["Inputs and outputs"]["value"])
    assert figures["All memory"]["value"] == total
    assert figures["All memory"]["note"] == f"{total:,} bytes"
    [report] = found["reports"]
    assert sum(each["bytes"] for each in report["peak"]["live"]) == report["peak"]["live_bytes"]


def test_too_many_buffers_for_tcm_are_in_the_advice(folder, capsys) -> None:
    names = [f"{kind}{number}" for kind in "xy" for number in range(16)]
    nodes = [helper.make_node("Relu", [f"x{number}"], [f"y{number}"]) for number in range(16)]
    shapes = {name: [1, 4] for name in names}
    inputs, outputs = dict(list(shapes.items())[:16]), dict(list(shapes.items())[16:])
    tiny.save(folder / "many.onnx", nodes, inputs, outputs, {})
    setting = "lpai_graph.execute.mem_type=tcm"
    assert main(["plan", "many.onnx", "--backend", "lpai", "--set", setting, "--html", "many.html"]) == 1
    advice = section(facts(folder / "many.html"), "notes", "What would help")["notes"]
    assert advice[0]["text"] == "TCM: binary and IO: does not fit: 33 buffers, the allocator has 32."


@pytest.mark.parametrize("other", ["small.onnx", "saved.html", "saved.json"])
def test_two_models_are_shown_side_by_side(folder, capsys, other) -> None:
    assert main(["plan", "small.onnx", "--html", "saved.html", "--json"]) == 0
    small = capsys.readouterr().out
    (folder / "saved.json").write_text(small)
    assert main(["plan", "large.onnx", "--html", "both.html", "--compare", other, "--json"]) == 0
    large, small = json.loads(capsys.readouterr().out), json.loads(small)
    found = facts(folder / "both.html")
    assert [each["scratch_bytes"] for each in found["reports"]] == [large["scratch_bytes"], small["scratch_bytes"]]
    rows = {row[0]: row[1:4] for row in section(found, "table", "Figures")["rows"]}
    sizes = large["scratch_bytes"], small["scratch_bytes"]
    assert rows["Scratch"] == [*sizes, sizes[1] - sizes[0]]
    sides = section(found, "sides")
    # Both maps have one scale.
    assert [sides[side][0]["bytes"] for side in ("left", "right")] == [max(sizes)] * 2


@pytest.mark.parametrize(("io", "copied"), [("memhandle", False), ("raw", True)])
def test_the_page_of_a_run_has_times_copies_and_the_audit(folder, capsys, io, copied) -> None:
    command = ["run", "large.onnx", "--backend", "htp", "--io", io, "--repeat", "3", "--html", "run.html", "--json"]
    assert main(command) == 0
    printed = json.loads(capsys.readouterr().out)
    found = facts(folder / "run.html")
    report = found["reports"][0]
    assert report == printed
    assert report["runs"] == 3
    labels = [f"{each['op']} {each['name']}" for each in report["order"]]
    times = section(found, "table", "Time per operation")["rows"]
    assert {row[0] for row in times} <= set(labels)
    assert times == sorted(times, key=lambda row: -row[1])
    # The runs for the times are not in the audit.
    totals = {row[0]: row[1:] for row in section(found, "table", "Audit")["rows"]}
    assert totals["execute"][0] == 3
    assert (report["audit"]["copied_bytes"] > 0) == copied
    assert report["audit"]["copied_bytes"] == report["backend_copied_bytes"]
    assert [note["text"] for note in section(found, "notes", "Mistakes")["notes"]] == ["None."]


def test_runs_of_two_models_are_compared(folder, capsys) -> None:
    assert main(["run", "large.onnx", "--html", "run.html", "--compare", "small.onnx"]) == 0
    titles = [each.get("title") for each in facts(folder / "run.html")["sections"]]
    assert titles.count("Time per operation") == 2
    assert "Scratch over time, on one scale" in titles


def test_the_page_of_net_run_has_every_graph(folder, capsys) -> None:
    lists = ["--input_list", "list.txt", "--backend", "libQnnHtp.so"]
    assert main(["net-run", "--model", "small.onnx", *lists, "--html", "net.html"]) == 0
    found = facts(folder / "net.html")
    assert [report["runs"] for report in found["reports"]] == [2]
    assert found["reports"][0]["operations"]
    assert section(found, "map")["report"] == 0
    assert section(found, "table", "Audit")["rows"]
    # The log for the viewer is written only on request.
    assert not list((folder / "output").glob("*.log"))


def test_a_net_run_is_compared_with_a_saved_page(folder, capsys) -> None:
    command = ["net-run", "--model", "small.onnx", "--input_list", "list.txt", "--backend", "libQnnHtp.so"]
    assert main(["run", "large.onnx", "--backend", "htp", "--html", "large.html"]) == 0
    assert main([*command, "--html", "both.html", "--compare", "large.html"]) == 0
    found = facts(folder / "both.html")
    assert [report["model"] for report in found["reports"]] == ["small", "large.onnx"]
    assert section(found, "sides")["left"][0]["report"] == 0
    assert section(found, "table", "Audit")["rows"]
    two = ["net-run", "--model", "small.onnx,large.onnx", "--input_list", "list.txt,list.txt", *command[5:]]
    assert main([*two, "--html", "two.html", "--compare", "large.html"]) == 2
    assert "a saved report has one graph, 2 are to run. __ in --input_list skips a graph." in capsys.readouterr().err


def test_the_page_of_fit_has_the_plans_without_a_limit_and_as_advised(folder, capsys) -> None:
    assert main(["fit", "large.onnx", "--rounds", "1", "--html", "fit.html", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = facts(folder / "fit.html")
    points = section(found, "table", "Limits")["rows"]
    assert [row[1] for row in points] == [point["scratch_bytes"] for point in printed["points"]]
    assert found["reports"][0]["scratch_bytes"] == max(row[1] for row in points)


@pytest.fixture
def broken(folder):
    """A model like small.onnx whose convolution has other weights."""
    return faults.damaged(folder / "broken.onnx", folder / "small.onnx", faults.clipped("w"))


def test_the_page_of_a_comparison_has_what_json_prints(folder, broken, capsys) -> None:
    command = ["compare", "broken.onnx", "--against", "small.onnx", "--html", "compare.html", "--json"]
    assert main([*command, "--reduce", "least.onnx"]) == 1
    printed = json.loads(capsys.readouterr().out)
    found = facts(folder / "compare.html")
    assert found["reports"] == [printed]
    figures = section(found, "figures")
    assert figures["note"].startswith("conv_1 (Conv) is the first operation that is wrong. Alone")
    values = {each["title"]: each["value"] for each in figures["figures"]}
    assert (values["First wrong operation"], values["Wrong operations"], values["Tensors compared"]) == ("conv_1", 1, 1)
    [suspect] = section(found, "notes", "Operations that are wrong")["notes"]
    assert suspect["text"] == "conv_1 (Conv): wrong by itself"
    table = section(found, "table", "Tensors")
    titles = [column["title"] for column in table["columns"]]
    rows = [dict(zip(titles, row, strict=True)) for row in table["rows"]]
    assert [row["operation"] for row in rows] == ["conv_1 (Conv)", "relu_1 (Relu)"]
    # The convolution is computed in one step with the relu, and has figures alone because it is wrong.
    assert rows[0]["alone"] == printed["suspects"][0]["alone"]["max_abs"] > rows[0]["tolerance"]
    assert rows[1]["relative"] == printed["tensors"][1]["in_model"]["relative"]
    assert table["tones"] == ["bad", "bad"]
    points = section(found, "profile")["points"]
    assert [point["tone"] for point in points] == ["bad", "bad"]
    assert "conv_1" in section(found, "notes", "Reduced model")["notes"][0]["text"]


def test_the_page_of_a_model_that_agrees_says_so(folder, capsys) -> None:
    assert main(["compare", "small.onnx", "--html", "compare.html"]) == 0
    found = facts(folder / "compare.html")
    assert section(found, "figures")["note"] == "Every operation alone computes what the reference computes."
    assert not any(each.get("title") == "Operations that are wrong" for each in found["sections"])
    assert set(section(found, "table", "Tensors")["tones"]) == {""}


def test_the_page_of_a_comparison_says_what_saturates_as_its_text_does(folder, capsys) -> None:
    path, source = faults.quantized_relu(folder / "quantized.onnx", 0.0, 0.5)
    x = np.full((1, 8, 64), 0.25, np.float32)
    x[0, 0, :3] = 1
    np.savez("in.npz", x=x)
    command = ["compare", str(path), "--against", str(source), "--html", "compare.html"]
    assert main([*command, "--inputs", "in.npz"]) == 1
    beyond = "3 of 512 values exceed the range of its quantizer, 0 to 0.5, by up to 0.5"
    assert f"{beyond}; within it the operation is right" in capsys.readouterr().out
    found = facts(folder / "compare.html")
    [suspect] = section(found, "notes", "Operations that are wrong")["notes"]
    assert suspect["detail"].startswith(f"{beyond}; within it the operation is right.")
    assert section(found, "figures")["note"].endswith(f"{beyond}; within it the operation is right.")
    assert not any(each.get("title") == "Operations that saturate" for each in found["sections"])
    table = section(found, "table", "Tensors")
    place = [column["title"] for column in table["columns"]].index("beyond")
    assert [row[place] for row in table["rows"] if row[place]] == [3]


def test_the_page_of_a_comparison_notes_what_saturates_on_random_inputs(folder) -> None:
    rows = [row_that_saturates(number) for number in range(12)]
    data = {"model": "m", "suspects": [], "tensors": rows, "fused": 0, "compared": 12, "random_inputs": ["x"]}
    [notes] = [each for each in comparison_sections(data) if getattr(each, "title", "") == "Operations that saturate"]
    texts = [note.text for note in notes.notes]
    assert texts[0].startswith("12 operations saturate: no fault, since random inputs may exceed what was calibrated")
    # Those that exceed their range most are first.
    assert texts[1] == "op11 (Relu): 11 of 99 values exceed the range of its quantizer, 0 to 1, by up to 11"
    assert texts[2:][-1] == "and 2 more, which the table of tensors has"
    assert {note.tone for note in notes.notes} == {""}


def row_that_saturates(number):
    """A row of a comparison as JSON has it."""
    differs = {"max_abs": 1.0, "rms": 1.0, "relative": 1.0, "steps": None}
    range_and_excess = {"low": 0.0, "high": 1.0, "excess": float(number), "span": 1.0 + number}
    return {
        "operation": f"op{number}", "kind": "Relu", "tensor": f"t{number}", "shape": [99], "dtype": "float_32",
        "verdict": "saturates", "in_model": differs, "alone": None, "tolerance": 0.0, "fused": [],
        "saturation": {"count": number, "elements": 99, **range_and_excess},
    }  # fmt: skip


def test_the_page_of_a_comparison_has_the_times_of_operations(folder, capsys) -> None:
    assert main(["compare", "small.onnx", "--profile", "--html", "compare.html", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    rows = section(facts(folder / "compare.html"), "table", "Time per operation")["rows"]
    assert {row[0]: row[1] for row in rows} == {each["name"]: each["us"] for each in printed["operations"]}
    assert main(["compare", "small.onnx", "--html", "compare.html"]) == 0
    assert not any(each.get("title") == "Time per operation" for each in facts(folder / "compare.html")["sections"])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--html", "none/page.html"], "cannot be written"),
        (["--html", "small.onnx"], "would overwrite 'small.onnx'"),
        (["--html", "large.onnx", "--against", "large.onnx"], "would overwrite 'large.onnx'"),
        (["--html", "least.onnx", "--reduce", "least.onnx"], "--html names the same file"),
        (["--html", "least.npz", "--reduce", "least.onnx"], "--html names the same file"),
    ],
)
def test_a_comparison_writes_no_page_over_another_file(folder, capsys, more, words) -> None:
    assert main(["compare", "small.onnx", *more]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line


def test_the_viewer_has_no_data_and_is_written_whole_or_not_at_all(folder, capsys) -> None:
    assert main(["view", "view.html"]) == 0
    assert capsys.readouterr().err == "written: view.html\n"
    found = facts(folder / "view.html")
    assert (found["sections"], found["reports"]) == ([{"kind": "viewer"}], [])
    assert "://" not in (folder / "view.html").read_text()
    for path, words in (("none/view.html", "cannot be written"), (".", "cannot be written")):
        assert main(["view", path]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert words in line
    assert not (folder / "none").exists()


def test_a_picture_is_xml_with_every_block(folder, capsys) -> None:
    assert main(["plan", "large.onnx", "--svg", "plan.svg", "--json"]) == 0
    tensors = json.loads(capsys.readouterr().out)["tensors"]
    tree = ElementTree.fromstring((folder / "plan.svg").read_text())
    rectangles = tree.findall("{*}rect")[1:]
    assert len(rectangles) == len(tensors)
    tips = [rectangle.find("{*}title").text for rectangle in rectangles]
    assert all(tip.startswith(each["name"]) for tip, each in zip(tips, tensors, strict=True))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--compare", "small.onnx"], "needs --html FILE"),
        (["--html", "none/plan.html"], "cannot be written"),
        (["--html", "large.onnx"], "would overwrite 'large.onnx'"),
        (["--html", "plan.html", "--compare", "none.json"], "cannot be read"),
        (["--html", "plan.html", "--compare", "wrong.json"], "neither a page of --html"),
        (["--html", "plan.html", "--compare", "broken.json"], "it is damaged"),
        (["--html", "plan.html", "--compare", "other.json"], "it has no plan of memory"),
        (["--html", "plan.html", "--compare", "none.onnx"], "none.onnx"),
        (["--svg", "none/plan.svg"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(folder, capsys, more, words) -> None:
    (folder / "wrong.json").write_text("[1, 2")
    (folder / "other.json").write_text('{"model": "x"}')
    sizes = {f"{name}_bytes": "few" for name in ("scratch", "state", "io", "constant")}
    (folder / "broken.json").write_text(json.dumps({"model": "x", **sizes}))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(["plan", "large.onnx", *more]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
