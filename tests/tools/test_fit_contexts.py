"""``isthmus fit --contexts`` reads sizes from binaries, bundles and logs, and says what fits in which order."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from backends.htp.sized import binary_of
from support import chromium, tiny

from isthmus import frontends, qnn
from isthmus.backends.vendor.library import is_installed
from isthmus.domains import ContextSizes, GraphNeeds, SpillGroup, profile, search
from isthmus.report.page.contexts import context_sections
from isthmus.report.page.saved import BEGIN, END
from isthmus.tools.cli import main
from isthmus.tools.context_files import contexts_of
from isthmus.tools.fit_contexts import describe, profile_of

GIB, MIB = 1 << 30, 1 << 20
DECODER = Path(__file__).parents[2] / "examples" / "decoder"
SIX = [word for k in range(1, 7) for word in ("--context", f"part-{k}=700MiB,spill=1536MiB")]
"""Six parts of a model, of which the third does not fit beside the others."""


def called(capsys, *arguments):
    status = main(["fit", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(scope="module")
def binaries(tmp_path_factory):
    """Two context binaries of this project."""
    folder = tmp_path_factory.mktemp("binaries")
    for name, backend in (("a", "htp"), ("b", "cpu")):
        model = tiny.convolution(folder / f"{name}.onnx", 64, 64)
        command = ["context-binary-generator", "--model", model, "--backend", backend, "--binary_file", name]
        assert main([*map(str, command), "--output_dir", str(folder)]) == 0
    return folder / "a.bin", folder / "b.bin"


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_six_parts_fail_at_the_third_and_the_advice_makes_them_load(capsys) -> None:
    status, out, _ = called(capsys, *SIX)
    assert status == 1
    assert "error 1002, context 'part-3'" in out
    assert "Failed to find available PD for contextId 3 on deviceId 0 coreId 0with context size estimate" in out
    assert "group (one spill-fill buffer for all contexts): they fit" in out
    status, out, _ = called(capsys, *SIX, "--with", "group", "--json")
    report = json.loads(out)
    assert status == 0
    assert (report["verdict"], report["as_given"]) == ("fits", None)
    assert [{block["context"] for block in each["blocks"]} for each in report["domains"]] == [
        {"part-1", "part-2", "part-3", "group shared"}, {"part-4", "part-5", "part-6", "group shared"},
    ]  # fmt: skip


def test_advice_says_that_nothing_tried_helps(capsys, tmp_path) -> None:
    full = ("--context", "a=3GiB", "--context", "b=3GiB", "--context", "c=3GiB")
    status, out, _ = called(capsys, *full, "--html", tmp_path / "page.html")
    assert status == 1
    assert "what was tried does not help:" in out
    assert "What does not help" in (tmp_path / "page.html").read_text()
    assert "what would help:" in called(capsys, *SIX)[1]


def test_an_order_is_printed_where_the_one_that_was_given_fails(capsys) -> None:
    sizes = {"a": 1, "b": 1, "c": 2816 / 1024, "d": 2816 / 1024}
    words = [word for name, size in sizes.items() for word in ("--context", f"{name}={int(size * 1024)}MiB")]
    status, out, _ = called(capsys, *words, "--json")
    report = json.loads(out)
    assert status == 0
    assert report["as_given"]["code"] == 1002
    by_name = {name: ContextSizes(name, file_bytes=int(size * GIB)) for name, size in sizes.items()}
    assert search([by_name[name] for name in report["order"]], profile()).as_given is None
    _, out, _ = called(capsys, *words)
    assert "they fit, in this order:" in out


def test_every_figure_of_the_profile_is_printed_with_its_source(capsys) -> None:
    _, out, _ = called(capsys, "--context", "a=1GiB", "--soc", "SA8255P")
    assert "  domains    0, 2, 4 (measured by users on devices: " in out
    assert "  capacity   3,403,453,184 (measured by users on devices: " in out


@pytest.mark.parametrize(
    ("soc", "name", "vtcm"),
    [("SM8750", "SM8750", 8), ("69", "SM8750", 8), ("sa8255p", "SA8255P", 8), ("default", "default", 0)],
)
def test_a_chip_is_chosen_by_name_or_number(soc, name, vtcm) -> None:
    found = profile_of(soc)
    assert (found.name, found.vtcm_mb) == (name, vtcm)


def test_a_users_profile_is_a_file(tmp_path, capsys) -> None:
    board = tmp_path / "board.json"
    board.write_text(json.dumps({"domains": [0], "capacity": 1000}))
    status, out, _ = called(capsys, "--soc", board, "--context", "a=1001")
    assert status == 1
    assert "they need 1,001 bytes together, all domains have 1,000" in out
    assert called(capsys, "--soc", board, "--context", "a=1000")[0] == 0


def test_buffers_are_registered_as_they_are_given(capsys, tmp_path) -> None:
    board = tmp_path / "board.json"
    board.write_text(json.dumps({"domains": [0], "capacity": 1000}))
    assert called(capsys, "--soc", board, "--context", "a=500,io=900", "--io", "a=200,300")[0] == 0
    status, out, _ = called(capsys, "--soc", board, "--context", "a=500,io=900", "--io", "a=200,301")
    assert status == 1
    assert "error 8003, I/O of context 'a'" in out
    assert "Failed to register mem with error 0x1f43" in out


@pytest.mark.parametrize(
    ("context", "remedy"),
    [
        (("a=2GiB,spill=1GiB", "b=2GiB,spill=1GiB", "c=400MiB,spill=1GiB"), "group"),
        (("llm=4GiB,graphs=2",), "share"),
        (("a=1GiB,io=4GiB,graphs=4",), "reuse"),
        (("llm=5GiB,graphs=4",), "switch"),
        (("a=2250MiB", "b=2250MiB", "c=2250MiB"), "split=1536MiB"),
    ],
)
def test_a_remedy_that_helps_makes_them_fit(capsys, context, remedy) -> None:
    words = [word for text in context for word in ("--context", text)]
    status, out, _ = called(capsys, *words)
    assert status == 1
    assert any(
        line.startswith(f"  {remedy.partition('=')[0]} (") and line.endswith("they fit") for line in out.splitlines()
    )
    assert called(capsys, *words, "--with", remedy)[0] == 0


def test_an_estimate_with_io_makes_a_context_go_where_its_io_has_room(capsys, tmp_path) -> None:
    board = tmp_path / "board.json"
    board.write_text(json.dumps({"domains": [0, 1], "capacity": [1000, 1200]}))
    words = ["--soc", board, "--context", "a=800,io=300"]
    assert called(capsys, *words)[0] == 1
    assert called(capsys, *words, "--with", "estimate")[0] == 0


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_sizes_of_our_binaries_are_those_of_their_descriptions(binaries) -> None:
    listed = contexts_of(binaries)
    for file, context in zip(binaries, listed.contexts, strict=True):
        [graph] = qnn.SystemContext().get_binary_info(file).graphs
        [sizes] = context.graphs
        assert context.name == file.name
        assert sizes.constants == graph.memory.constant_bytes > 0
        assert sizes.spill_fill >= graph.memory.scratch_bytes > 0
        assert sizes.io == graph.io_bytes > 0
        assert context.file_bytes == file.stat().st_size


def test_binaries_fit_beside_sizes_by_hand(binaries, capsys) -> None:
    status, out, _ = called(capsys, "--contexts", *binaries, "--context", "large=3GiB", "--json")
    assert status == 0
    assert json.loads(out)["order"] == ["a.bin", "b.bin", "large"]


def test_a_genie_bundle_is_read_with_its_binaries_and_its_group(binaries, tmp_path, capsys) -> None:
    for file in binaries:
        shutil.copy(file, tmp_path)
    config = {
        "dialog": {
            "engine": [
                {
                    "backend": {"QnnHtp": {"spill-fill-bufsize": 10 * MIB}},
                    "model": {"binary": {"ctx-bins": ["a.bin", "b.bin"]}},
                }
            ]
        }
    }
    (tmp_path / "genie_config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "genie_config.json"):
        listed = contexts_of([path])
        assert [each.name for each in listed.contexts] == ["a.bin", "b.bin"]
        assert {each.group for each in listed.contexts} == {SpillGroup("spill-fill-bufsize", 10 * MIB)}
        assert listed.io_estimation
        assert called(capsys, "--contexts", path)[0] == 0


TABLES = {"a": 10_000, "b": 20_000, "c": 30_000}
"""The bytes that each graph of a binary needs."""


def bundle(folder, **options):
    """A bundle of one binary with three graphs, and options of its backend."""
    (folder / "three.bin").write_bytes(binary_of(*TABLES.values(), names=[*TABLES]))
    engine = {"backend": {"QnnHtp": options}, "model": {"binary": {"ctx-bins": ["three.bin"]}}}
    (folder / "genie_config.json").write_text(json.dumps({"dialog": {"engine": engine}}))
    return folder


@pytest.mark.parametrize(
    ("options", "charge", "note"),
    [
        ({}, sum(TABLES.values()), ""),
        (
            {"enable-graph-switching": True}, 30_000,
            "enable-graph-switching: one graph of a context is loaded at a time",
        ),
        (
            {"enable-graph-switching": True, "graph-retention-order": ["c", "a"]}, 40_000,
            "one graph of a context is loaded at a time; c, a stay loaded (graph-retention-order)",
        ),
        ({"enable-graph-switching": True, "graph-retention-order": ["a"]}, 30_000, "a stay"),
        (
            {"graph-retention-order": ["c", "a"]}, sum(TABLES.values()),
            "graph-retention-order has no effect: enable-graph-switching is not set",
        ),
        (
            {"use-mmap": True, "mmap-budget": 25}, sum(TABLES.values()),
            "use-mmap: Genie maps the files and does not read them; in the domains nothing changes",
        ),
    ],
    ids=["none", "switching", "retention", "a small graph stays", "retention without switching", "mmap"],
)  # fmt: skip
def test_options_of_a_bundle_count(tmp_path, capsys, options, charge, note) -> None:
    bundle(tmp_path, **options)
    board = tmp_path / "board.json"
    for capacity, status in ((charge + 2000, 0), (charge - 1, 1)):
        board.write_text(json.dumps({"domains": [0], "capacity": capacity}))
        words = ["--contexts", tmp_path, "--soc", board, "--io", "three.bin=1"]
        found, out, _ = called(capsys, *words, "--json")
        [context] = json.loads(out)["contexts"]
        assert (found, context["charge"] - 1) == (status, charge)
        assert note in called(capsys, *words)[1]
    called(capsys, *words, "--html", tmp_path / "page.html")
    titles = [each["title"] for each in facts(tmp_path / "page.html")["sections"] if each["kind"] == "notes"]
    assert ("What Genie's configuration changes" in titles) == bool(note)


def test_a_remedy_lets_no_graph_stay(tmp_path, capsys) -> None:
    bundle(tmp_path, **{"enable-graph-switching": True, "graph-retention-order": ["b", "c"]})
    (tmp_path / "board.json").write_text(json.dumps({"domains": [0], "capacity": 35_000}))
    status, out, _ = called(capsys, "--contexts", tmp_path, "--soc", tmp_path / "board.json")
    assert status == 1
    assert "switch (one loaded graph of each context at a time): they fit" in out


def test_each_engine_of_a_bundle_has_its_own_options(binaries, tmp_path) -> None:
    engines = []
    for file, options in zip(binaries, ({"spill-fill-bufsize": MIB}, {"spill-fill-bufsize": 2 * MIB}), strict=True):
        shutil.copy(file, tmp_path)
        engines.append({"backend": {"QnnHtp": options}, "model": {"binary": {"ctx-bins": [file.name]}}})
    engines.append({"backend": {"type": "QnnGenAiTransformer"}, "model": {"library": {"model-bin": "other.bin"}}})
    (tmp_path / "genie_config.json").write_text(json.dumps({"dialog": {"engine": engines}}))
    first, second = (each.group for each in contexts_of([tmp_path]).contexts)
    assert (first.nbytes, second.nbytes) == (MIB, 2 * MIB)
    assert first.name != second.name


@pytest.mark.parametrize(
    ("order", "rule"),
    [
        (["a", "d"], "names 'd', which no binary has"),
        ("a", "must be a list of names"),
        ([1], "must be a list of names"),
    ],
)
def test_an_order_of_retention_that_cannot_be_meant_is_one_line(tmp_path, capsys, order, rule) -> None:
    bundle(tmp_path, **{"enable-graph-switching": True, "graph-retention-order": order})
    status, _, err = called(capsys, "--contexts", tmp_path)
    assert status == 2
    assert err.count("\n") == 1
    assert rule in err


def test_the_decoder_of_the_examples_is_a_bundle(tmp_path, capsys) -> None:
    pytest.importorskip("onnx")
    subprocess.run([sys.executable, DECODER / "make_decoder.py", tmp_path], check=True)
    status, out, _ = called(capsys, "--contexts", tmp_path, "--soc", "SM8750", "--json")
    report = json.loads(out)
    assert status == 0
    [context] = report["contexts"]
    assert (context["name"], context["graphs"]) == ("decoder.bin", 2)
    assert context["charge"] > context["shared_weights"] > 0


@pytest.mark.skipif(not is_installed(), reason="needs Qualcomm's library")
def test_the_sizes_of_the_vendors_binaries_are_those_of_their_description(tmp_path) -> None:
    model = tiny.convolution(tmp_path / "conv.onnx", 64, 64)
    with qnn.Backend("qnn-htp", config={"qnn-htp": {"soc": "SM8750"}}) as backend:
        context = backend.create_context()
        graph = context.add_graph(frontends.load(model))
        graph.finalize()
        (tmp_path / "vendor.bin").write_bytes(context.get_binary())
        figures = graph.get_property(qnn.vendor.FIGURES)
    [found] = contexts_of([tmp_path / "vendor.bin"]).contexts
    [sizes] = found.graphs
    assert (sizes.constants, sizes.op_data, sizes.spill_fill, sizes.io) == (
        figures.constants, figures.op_data, figures.spill_fill, figures.io,
    )  # fmt: skip


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--context", "a"], "must look like NAME=SIZE"),
        (["--context", "=5"], "must look like NAME=SIZE"),
        (["--context", "a=big"], "'big' is not a size"),
        (["--context", "a=1,spil=2"], "Did you mean 'spill'?"),
        (["--context", "a=1,spill=2,spill=3"], "given twice"),
        (["--context", "a=1,graphs=0"], "not a number from 1"),
        (["--context", "a=1,graphs=99999999999"], "not a number from 1"),
        (["--context", f"a={1 << 41}"], "not from 0 to"),
        (["--context", "a=1", "--context", "a=2"], "two are called 'a'"),
        (["--context", "a=1", "--io", "b=5"], "name of a context"),
        (["--context", "a=1", "--io", "a=x"], "not a size"),
        (["--context", "a=1", "--with", "magic"], "must be one of estimate"),
        (["--context", "a=1", "--with", "split"], "must be one of estimate"),
        (["--context", "a=1", "--soc", "SM8751"], "Did you mean 'SM8750'?"),
        (["--context", "a=1", "--soc", "SM8750,SM8650"], "one chip"),
        (["--context", "a=1", "--soc", "nothing.json"], "cannot be read"),
        (["--context", "a=1", "--budget", "5"], "no meaning with --contexts"),
        (["model.onnx", "--context", "a=1"], "there is no MODEL"),
        (["--contexts", "nothing.bin"], "nothing.bin"),
        (["--contexts", "."], "genie_config.json"),
        ([], "names no model"),
    ],
)
def test_what_cannot_be_meant_is_one_line(tmp_path, monkeypatch, capsys, words, rule) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = called(capsys, *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert rule in err


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"ctx-bins": 5}', '{"ctx-bins": [5]}', "[" * 100_000, '{"ctx-bins": ["nothing.bin"]}']
)
def test_a_damaged_bundle_is_one_line(tmp_path, capsys, content) -> None:
    (tmp_path / "genie_config.json").write_text(content)
    status, _, err = called(capsys, "--contexts", tmp_path)
    assert status == 2
    assert err.count("\n") == 1


def test_a_bundle_of_many_values_is_read_in_time_that_grows_with_its_size(tmp_path, capsys) -> None:
    (tmp_path / "genie_config.json").write_text(json.dumps({"ctx-bins": [], "others": [0] * 400_000}))
    begin = time.process_time()
    status, _, err = called(capsys, "--contexts", tmp_path)
    assert status == 2
    assert "names no context binaries" in err
    assert time.process_time() - begin < 30


def test_another_file_is_refused_with_the_way_by_hand(tmp_path, capsys) -> None:
    (tmp_path / "other.bin").write_bytes(b"something else")
    status, _, err = called(capsys, "--contexts", tmp_path / "other.bin")
    assert status == 2
    assert "--context NAME=SIZE" in err


# -- the page ----------------------------------------------------------------------------------------------------------


def facts(path):
    text = path.read_text()
    begin = text.index(BEGIN) + len(BEGIN)
    return json.loads(text[begin : text.index(END, begin)])


def test_the_page_has_the_domains_with_their_blocks_and_those_of_each_remedy_that_helps(tmp_path, capsys) -> None:
    called(capsys, *SIX, "--html", tmp_path / "six.html")
    sections = facts(tmp_path / "six.html")["sections"]
    drawn = [each for each in sections if each["kind"] == "domains"]
    assert [each["title"] for each in drawn] == [
        "Process domains, as far as contexts load in the order given",
        "With group: one spill-fill buffer for all contexts",
    ]
    for each in drawn:
        for column in each["columns"]:
            ends = [block["address"] + block["bytes"] for block in column["blocks"]]
            assert all(end <= following["address"] for end, following in zip(ends, column["blocks"][1:], strict=False))
            assert ends[-1] <= column["capacity"] == 15 * GIB // 4


def test_the_page_says_that_a_search_gave_up() -> None:
    contexts = (ContextSizes("a", (GraphNeeds("g", 5 * GIB),)),)
    listed = type(contexts_of([], ["a=5GiB"]))(contexts, ("given",))
    result = search(contexts, profile())
    report = describe(listed, profile(), result, []) | {"verdict": "not decided"}
    [figures, *_] = context_sections(report)
    assert figures.note.startswith("No order is known")  # type: ignore[union-attr]


@pytest.mark.parametrize("viewport", [(1440, 900), chromium.PHONE])
def test_the_page_draws_blocks_where_they_are(tmp_path, capsys, viewport) -> None:
    called(capsys, *SIX, "--html", tmp_path / "six.html")
    with chromium.browser() as browser:
        browser.open(tmp_path / "six.html", viewport)
        browser.settle()
        script = """[...document.querySelectorAll('.domains .stack')].map((stack) => [...stack.children].map((block) =>
            [block.offsetTop / stack.offsetHeight, block.offsetHeight / stack.offsetHeight, block.title]))"""
        stacks = browser.evaluate(script)
        assert not browser.problems
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert len(stacks) == 4
    weights, spill = 700 / 3840, 1536 / 3840
    (top, height, title), (second, tall, _) = stacks[0]
    assert title == "part-1: weights, 734,003,200 bytes at 0"
    assert (top, second) == pytest.approx((0, weights), abs=0.01)
    assert (height, tall) == pytest.approx((weights, spill), abs=0.01)
