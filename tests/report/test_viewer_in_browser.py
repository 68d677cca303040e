"""The page of ``isthmus view`` in headless Chromium: plans are dropped or chosen, compared, and closed again."""

import copy
import json

import pytest
from support import chromium, tiny

from isthmus.errors import QnnError
from isthmus.report.page import page
from isthmus.report.page.saved import saved_report
from isthmus.tools.cli import main
from report.test_saved_reports import REPORT

MAPS = "[...document.querySelectorAll('section.map')].map(each => each.memoryMap)"
OPENED = "[...document.querySelectorAll('.opened li')].map(each => each.firstChild.textContent)"
PROBLEMS = "[...document.querySelectorAll('.drop .notes li')].map(each => each.textContent)"
HOSTILE = "<img src=x onerror=alert(1)></script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the viewer, and plans as JSON and as pages."""
    path = tmp_path_factory.mktemp("viewer")
    assert main(["view", str(path / "view.html")]) == 0
    for name, size in (("small", 8), ("large", 64)):
        model = str(tiny.convolution(path / f"{name}.onnx", size, size))
        assert main(["plan", model, "--backend", "lpai", "--html", str(path / f"{name}.html")]) == 0
        assert main(["run", model, "--html", str(path / f"{name}-run.html")]) == 0
    return path


def facts(path):
    return json.loads(path.read_text().partition('id="facts">')[2].partition("</script>")[0])


@pytest.fixture
def viewer(browser, folder):
    """An open viewer without plans."""
    browser.problems.clear()
    browser.open(folder / "view.html")
    yield browser
    assert browser.problems == []


def choose(browser, *paths):
    """Choose files in the field."""
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    field = browser.call("DOM.querySelector", nodeId=root, selector="input[type=file]")["nodeId"]
    browser.call("DOM.setFileInputFiles", nodeId=field, files=[str(path) for path in paths])


def drop(browser, *paths):
    """Drag files onto the page and drop them."""
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        browser.call("Input.dispatchDragEvent", type=kind, x=200, y=300, data=data)


@pytest.mark.parametrize("opening", [choose, drop])
def test_plans_that_are_dropped_or_chosen_are_compared(viewer, folder, opening) -> None:
    opening(viewer, folder / "large.html", folder / "small.html")
    viewer.wait(f"{MAPS}.length === 2")
    assert viewer.evaluate(OPENED) == ["large.onnx", "small.onnx"]
    large, small = (facts(folder / f"{name}.html")["reports"][0] for name in ("large", "small"))
    cells = "[...document.querySelectorAll('section.table tbody tr')][0].children"
    texts = viewer.evaluate(f"[...{cells}].slice(0, 4).map(each => each.textContent)")
    sizes = large["scratch_bytes"], small["scratch_bytes"]
    assert texts == ["Scratch", *(f"{size:,}" for size in sizes), f"{sizes[1] - sizes[0]:,}"]
    # Both maps have one scale, and are drawn.
    assert viewer.evaluate(f"{MAPS}.map(each => each.view.high)") == [max(sizes)] * 2
    pixels = "each.getContext('2d').getImageData(0, 0, each.width, each.height).data"
    assert viewer.evaluate(f"[...document.querySelectorAll('canvas')].every(each => {pixels}.some(Boolean))")
    assert viewer.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_output_of_json_is_opened_with_its_times(viewer, folder) -> None:
    (folder / "run.json").write_text(json.dumps(facts(folder / "large-run.html")["reports"][0]))
    choose(viewer, folder / "run.json")
    viewer.wait(f"{MAPS}.length === 1")
    titles = viewer.evaluate("[...document.querySelectorAll('h2')].map(each => each.textContent.split(':')[0])")
    assert titles == ["Open plans", "large.onnx", "Scratch over time", "Live at the peak", "Time per operation"]
    assert "µs" in viewer.evaluate("document.querySelector('.node.step .amount').textContent")


def test_panels_above_and_below_each_other_are_equally_far_apart(viewer, folder) -> None:
    drop(viewer, *(folder / f"{name}.html" for name in ("large", "small", "large-run")))
    viewer.wait(f"{MAPS}.length === 3")
    panels = "[...document.querySelectorAll('section')].filter(each => !each.parentElement.closest('section'))"
    boxes = viewer.evaluate(f"{panels}.map(each => each.getBoundingClientRect()).map(each => [each.top, each.bottom])")
    tops = sorted({top for top, _ in boxes})
    gaps = {round(top - max(bottom for _, bottom in boxes if bottom <= top)) for top in tops[1:]}
    assert (len(tops) > 3, len(gaps)) == (True, 1), gaps


def test_plans_of_one_model_are_distinguished_and_closed_one_by_one(viewer, folder) -> None:
    drop(viewer, folder / "large.html", folder / "large-run.html")
    viewer.wait(f"{MAPS}.length === 2")
    assert viewer.evaluate(OPENED) == ["large.onnx on lpai", "large.onnx on cpu"]
    drop(viewer, folder / "large.html")
    viewer.wait(f"{MAPS}.length === 3")
    assert viewer.evaluate(OPENED) == [f"large.onnx ({number})" for number in (1, 2, 3)]
    for left in (2, 1, 0):
        viewer.evaluate("document.querySelector('.opened button').click()")
        assert viewer.evaluate(f"{MAPS}.length") == left
    # The colours are changed without an error although the maps are gone.
    viewer.evaluate("document.querySelector('button.theme').click()")


def test_what_is_no_plan_is_named_and_the_others_are_opened(viewer, folder) -> None:
    (folder / "broken.json").write_text(json.dumps({**REPORT, "scratch_bytes": "many"}))
    (folder / "other.json").write_text('{"model": "x"}')
    (folder / "text.txt").write_text("[1, 2")
    drop(viewer, *(folder / name for name in ("broken.json", "other.json", "text.txt", "small.html")))
    viewer.wait(f"{MAPS}.length === 1")
    assert viewer.evaluate(PROBLEMS) == [
        "broken.json: it is damaged",
        "other.json: it has no plan of memory",
        "text.txt: it is neither a page of --html nor the output of --json",
    ]
    # The problems are forgotten with the next files.
    drop(viewer, folder / "large.html")
    viewer.wait(f"{MAPS}.length === 2")
    assert viewer.evaluate(PROBLEMS) == []


def test_a_plan_that_cannot_be_drawn_is_named_and_the_others_stay(viewer, folder) -> None:
    (folder / "bad.json").write_text(json.dumps({**REPORT, "model": "bad.onnx"}))
    fails = "(report) => { if (report.model === 'bad.onnx') throw new RangeError(); return original(report); }"
    viewer.evaluate(f"{{ const original = planFacts; planFacts = {fails}; }}")
    drop(viewer, folder / "bad.json", folder / "small.html")
    viewer.wait(f"{MAPS}.length === 1")
    assert viewer.evaluate(OPENED) == ["small.onnx"]
    assert viewer.evaluate(PROBLEMS) == ["bad.json: it cannot be drawn"]
    # What is dropped later is opened.
    drop(viewer, folder / "large.html")
    viewer.wait(f"{MAPS}.length === 2")
    assert viewer.evaluate(OPENED) == ["small.onnx", "large.onnx"]
    assert viewer.evaluate(PROBLEMS) == []


def test_a_plan_of_more_steps_than_can_be_rows_is_drawn(viewer, folder) -> None:
    """So many that they are more than a call can have arguments."""
    steps = 200_000
    links = {"reads": [], "writes": [0], "inputs": [], "outputs": []}
    order = [{"op": "Add", "name": f"n{k}", "after": [0, k - 1] if k > 1 else [0] * k, **links} for k in range(steps)]
    tensors = [{"name": "t", "bytes": 8, "offset": 8 * k, "first": k, "last": k} for k in range(steps)]
    times = [{"name": f"Add n{k}", "us": 1 + k} for k in range(steps)]
    report = {**REPORT, "model": "long.onnx", "steps": steps, "order": order, "tensors": tensors, "operations": times}
    (folder / "long.json").write_text(json.dumps(report))
    drop(viewer, folder / "long.json")
    viewer.wait(f"{MAPS}.length === 1")
    assert viewer.evaluate("document.querySelectorAll('.node').length") == 20_000
    legend = viewer.evaluate("document.querySelector('.legend').textContent")
    assert "The graph shows the first 20,000 of 200,000 inputs, operations and outputs." in legend
    assert viewer.evaluate(f"{MAPS}[0].plan.blocks.length") == steps
    # The table of times shows as many rows too.
    more = "document.querySelector('section.table .more')"
    assert viewer.evaluate(f"{more}.textContent") == "Show 20,000 of 200,000"
    viewer.evaluate(f"{more}.click()")
    assert viewer.evaluate(f"[{more}.textContent, {more}.disabled]") == ["20,000 of 200,000 are shown", True]
    assert viewer.evaluate("document.querySelectorAll('section.table tbody tr').length") == 20_000


def test_names_in_files_stay_text(viewer, folder) -> None:
    report = json.loads(json.dumps(REPORT).replace('"r"', json.dumps(HOSTILE)).replace("a.onnx", "<b>bold<i>"))
    (folder / "hostile.json").write_text(json.dumps(report))
    (folder / "hostile.html").write_text(page(HOSTILE, [], reports=[report]))
    drop(viewer, folder / "hostile.json", folder / "hostile.html")
    viewer.wait(f"{MAPS}.length === 2")
    assert HOSTILE in viewer.evaluate("[...document.querySelectorAll('.node .name')].map(each => each.textContent)")
    assert viewer.evaluate("document.querySelectorAll('main img, main b:not(:empty), main script').length") == 0


def test_a_page_that_is_dropped_runs_no_script(viewer, folder) -> None:
    text = (folder / "small.html").read_text().replace("<body>", "<body><img src=x onerror='window.ran = 1'>", 1)
    (folder / "script.html").write_text(text.replace('"use strict";', "window.ran = 1;", 1))
    drop(viewer, folder / "script.html")
    viewer.wait(f"{MAPS}.length === 1")
    assert viewer.evaluate("window.ran") is None


def test_the_field_is_reached_by_the_tab_key_and_has_a_label(viewer) -> None:
    for _ in range(2):
        viewer.key("Tab")
    assert viewer.evaluate("document.activeElement.type") == "file"
    assert viewer.evaluate("document.activeElement.labels[0].textContent") == "Choose files"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [chromium.LAPTOP, chromium.PHONE], ids=["laptop", "phone"])
def test_the_viewer_fits_its_window(browser, folder, size, dark) -> None:
    browser.problems.clear()
    browser.open(folder / "view.html", size, dark, touch=size == chromium.PHONE)
    for paths in ((), (folder / "large.html", folder / "small-run.html")):
        if paths:
            choose(browser, *paths)
            browser.wait(f"{MAPS}.length === 2")
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert browser.problems == []


def test_the_viewer_refuses_what_compare_refuses(viewer) -> None:
    changes = [
        (path, value)
        for path in (
            ("model",), ("steps",), ("peak",), ("peak", "step"), ("tensors",), ("tensors", 0, "first"), ("order",),
            ("tensors", 0, "bytes"), ("order", 1, "after"), ("order", 1, "reads"), ("order", 0, "name"), ("regions",),
            ("latency_ms",), ("operations",), ("target",), ("threads",),
        )
        for value in (None, True, "text", 7, -3, 1.5, 1 << 21, 1 << 60, [], [9], ["x"], {}, [[]])
    ]  # fmt: skip
    reports, accepted = [], []
    for path, value in changes:
        report = copy.deepcopy(REPORT)
        inner = report
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        reports.append(report)
        try:
            saved_report(json.dumps(report), "it")
            accepted.append(True)
        except QnnError:
            accepted.append(False)
    assert 10 < sum(accepted) < len(accepted) - 10
    script = "(reports => reports.map(each => { try { savedReport(each); return true; } catch { return false; } }))"
    found = viewer.evaluate(f"{script}({json.dumps(reports)})")
    differing = [change for change, own, other in zip(changes, found, accepted, strict=True) if own != other]
    assert differing == []
