"""``isthmus plan`` of context binaries: what their graphs share, their caches, and what they need together."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import chromium, decoders, tiny

from isthmus import frontends, qnn
from isthmus.backends.vendor.library import is_installed
from isthmus.graph import DataType, TensorType
from isthmus.graph.figures import total_ram
from isthmus.report.page.saved import BEGIN, END
from isthmus.tools.cli import main
from isthmus.tools.context_files import files_of
from isthmus.tools.plan_contexts import describe

LAYERS, KV_HEADS, WIDTH = 3, 2, 8
SIZES = ("--layers", LAYERS, "--kv-heads", KV_HEADS, "--head-width", WIDTH, "--ar", 32, 1, "--context", 128, 256)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A decoder in one binary, the same with a binary for each context length, and one in float16."""
    pytest.importorskip("onnx")
    kinds = {"one": (), "two": ("--separate",), "float16": ("--precision", "float16")}
    return {name: decoders.make(tmp_path_factory.mktemp(name), *SIZES, *more) for name, more in kinds.items()}


def planned(capsys, *arguments):
    status = main(["plan", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def in_all(report, side):
    return {each["what"]: each[side] for each in report["in_all"]}


def cache_bytes(context, itemsize):
    """Keys and values of all layers, by the sizes that the decoder was made with."""
    return 2 * LAYERS * KV_HEADS * WIDTH * context * itemsize


# -- figures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "bits"), [("one", 8), ("two", 8), ("float16", 16)])
def test_caches_are_as_large_as_the_decoder_makes_them(folders, capsys, kind, bits) -> None:
    status, out, _ = planned(capsys, folders[kind], "--json")
    report = json.loads(out)
    assert status == 0
    assert report["caches"] == [
        {"context_length": context, "bits": bits, "bytes": cache_bytes(context, bits // 8)} for context in (128, 256)
    ]
    for graph in (graph for context in report["contexts"] for graph in context["graphs"]):
        length = int(graph["name"].partition("_cl")[2])
        assert (graph["context_length"], graph["cache"]) == (length, cache_bytes(length, bits // 8))


def test_the_sum_of_all_graphs_is_that_of_the_binary(folders) -> None:
    binary = folders["one"] / "decoder.bin"
    figures = [graph.figures for graph in qnn.SystemContext().get_binary_info(binary).graphs]
    report = describe(files_of([binary]))
    apart = in_all(report, "alone")
    stated = apart["op data"] + apart["scratch"] + apart["I/O"] + in_all(report, "together")["constants"]
    assert stated == total_ram(figures) - sum(each.vtcm for each in figures)


def test_weights_count_once_for_each_context(folders) -> None:
    one, two = (describe(files_of([folders[kind]])) for kind in ("one", "two"))
    [shared] = {graph["shared"] for context in one["contexts"] for graph in context["graphs"]}
    # The weights are in a file of their own too, without scales and tables.
    assert shared > (folders["one"] / "weights.data").stat().st_size
    assert (in_all(one, "together")["constants"], in_all(one, "alone")["constants"]) == (shared, 4 * shared)
    assert (in_all(two, "together")["constants"], in_all(two, "alone")["constants"]) == (2 * shared, 4 * shared)


SIZE = 512
NUMBERS = (np.random.default_rng(0).standard_normal((2, SIZE, SIZE)) * 0.05).astype(np.float32)


@pytest.fixture(scope="module", params=["cpu", "gpu", "lpai"])
def binary(request, tmp_path_factory) -> Path:
    """A binary of a backend with three graphs of one product: two with equal weights, and one with others."""
    if request.param == "gpu":
        pytest.importorskip("pyopencl", reason="needs OpenCL")
    path = tmp_path_factory.mktemp(request.param) / "products.bin"
    with qnn.Backend(request.param) as backend:
        context = backend.create_context()
        for name, rows, weights in (("a", 128, NUMBERS[0]), ("b", 128, NUMBERS[0].copy()), ("c", 128, NUMBERS[1])):
            graph = context.create_graph(name)
            x, y = (
                graph.create_tensor(each, kind, DataType.FLOAT_32, (rows, SIZE))
                for each, kind in (("x", TensorType.APP_WRITE), ("y", TensorType.APP_READ))
            )
            w = graph.create_tensor("w", TensorType.STATIC, DataType.FLOAT_32, weights.shape, None, weights)
            graph.add_node("product", "MatMul", [x, w], [y])
        path.write_bytes(context.prepare_offline())
    return path


def test_binaries_of_every_backend_say_what_is_shared(binary, capsys) -> None:
    [context] = describe(files_of([binary]))["contexts"]
    own, shared = {each["name"]: each["constants"] for each in context["graphs"]}, context["graphs"][0]["shared"]
    # Packed constants may be padded.
    assert SIZE * SIZE * 4 <= own["c"] < 1.1 * SIZE * SIZE * 4
    assert SIZE * SIZE * 4 <= shared < 1.1 * SIZE * SIZE * 4
    assert own["a"] == own["b"] < 4096
    assert {each["shared"] for each in context["graphs"]} == {shared}
    assert binary.stat().st_size < own["c"] + shared + 80_000
    [why] = context["unshared"]
    assert (why["graph"], why["constants"], why["nbytes"]) == ("c", 1, pytest.approx(own["c"], abs=4096))
    assert why["reason"].startswith("other contents than in ")
    assert main(["plan", str(binary)]) == 0
    line = f"  c: {why['nbytes']:,} bytes in 1 constant: {why['reason']}"
    assert f"\nnot shared:\n{line}\n" in capsys.readouterr().out
    assert main(["inspect", str(binary)]) == 0
    assert capsys.readouterr().out.endswith(f"\nnot shared:\n{line}\n")
    assert main(["inspect", str(binary), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)["weights"]
    assert reported == {"own": own, "shared": shared, "total": sum(own.values()) + shared, "unshared": [why]}


def test_the_page_says_why_constants_are_not_shared(binary, capsys, tmp_path) -> None:
    page = tmp_path / "plan.html"
    _, out, _ = planned(capsys, binary, "--json", "--html", page)
    [why] = json.loads(out)["contexts"][0]["unshared"]
    drawn = json.loads(page.read_text().partition(BEGIN)[2].partition(END)[0])["sections"]
    [table] = [each for each in drawn if each.get("title") == "Not shared"]
    assert table["rows"] == [[why["graph"], why["nbytes"], 1, why["reason"], "products.bin"]]


def test_one_buffer_serves_all_graphs(folders) -> None:
    report = describe(files_of([folders["one"]]))
    graphs = report["contexts"][0]["graphs"]
    together = in_all(report, "together")
    assert together["I/O"] == cache_bytes(256, 1) + max(each["io"] - each["cache"] for each in graphs)
    assert together["scratch"] == max(each["scratch"] for each in graphs)
    # The example's runner has a piece for each name in its buffer, as large as the largest graph needs it.
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from cache import Runner; from isthmus import qnn\n"
        "with qnn.Backend('libQnnHtp.so') as backend:\n"
        "    context = backend.create_context_from_binary(sys.argv[2])\n"
        "    print(Runner(context).buffer.memory.nbytes)\n"
        "    context.free()\n"
    )
    command = [sys.executable, "-c", program, decoders.EXAMPLE, folders["one"] / "decoder.bin"]
    allocated = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert together["I/O"] <= allocated < 1.2 * together["I/O"] < in_all(report, "alone")["I/O"]


def test_layers_in_several_binaries_keep_all_their_caches(tmp_path) -> None:
    onnx = pytest.importorskip("onnx")
    files = []
    for layer in (0, 1):
        # 96 columns of a cache, to the last 32 of which the new ones are added.
        name, past, written = f"part_{layer}", f"past_key_{layer}_in", f"past_key_{layer}_out"
        widths = {past: 96, "new": 32, written: 32}
        values = [onnx.helper.make_tensor_value_info(each, 1, [1, 16, width]) for each, width in widths.items()]
        numbers = {"from": 64, "to": 96, "axis": 2}
        constants = [onnx.numpy_helper.from_array(np.array([each]), key) for key, each in numbers.items()]
        nodes = [
            onnx.helper.make_node("Slice", [past, *numbers], ["last"]),
            onnx.helper.make_node("Add", ["last", "new"], [written]),
        ]
        graph = onnx.helper.make_graph(nodes, name, values[:2], values[2:], constants)
        model = tmp_path / f"{name}.onnx"
        model.write_bytes(onnx.helper.make_model(graph).SerializeToString())
        command = ["--model", str(model), "--backend", "libQnnCpu.so", "--binary_file", name]
        assert main(["context-binary-generator", *command, "--output_dir", str(tmp_path)]) == 0
        files.append(tmp_path / f"{name}.bin")
    report = describe(files_of(files))
    cache, rest = 16 * 128 * 4, 16 * 32 * 4
    assert report["caches"] == [{"context_length": 128, "bits": 32, "bytes": 2 * cache}]
    assert in_all(report, "together")["I/O"] == 2 * cache + rest


@pytest.mark.skipif(not is_installed(), reason="needs Qualcomm's library")
def test_binaries_of_the_vendor_are_planned_too(tmp_path, capsys) -> None:
    model = tiny.convolution(tmp_path / "conv.onnx", 64, 64)
    with qnn.Backend("qnn-htp", config={"qnn-htp": {"soc": "SM8750"}}) as backend:
        context = backend.create_context()
        graph = context.add_graph(frontends.load(model))
        graph.finalize()
        (tmp_path / "vendor.bin").write_bytes(context.get_binary())
        tensors = [(each.name, each.dims, each.dtype, each.nbytes) for each in graph.info.tensors]
    [file] = files_of([tmp_path / "vendor.bin"])
    [read] = file.graphs
    assert [(each.name, each.dims, each.dtype, each.nbytes) for each in read.tensors] == tensors
    report = describe([file])
    assert report["contexts"][0]["graphs"][0]["io"] == in_all(report, "together")["I/O"] > 0
    status, out, _ = planned(capsys, tmp_path / "vendor.bin", "--json")
    assert (status, json.loads(out)["in_all"]) == (0, report["in_all"])


# -- the command -------------------------------------------------------------------------------------------------------


def test_text_has_every_graph_and_what_is_saved(folders, capsys) -> None:
    status, out, _ = planned(capsys, folders["two"] / "decoder_cl128.bin", folders["two"] / "decoder_cl256.bin")
    report = describe(files_of([folders["two"]]))
    assert status == 0
    assert out.startswith("4 graphs in 2 contexts, in bytes\ndecoder_cl128.bin: ")
    words = [line.split() for line in out.splitlines()]
    for graph in (graph for context in report["contexts"] for graph in context["graphs"]):
        assert [graph["name"], *(f"{value:,}" for value in list(graph.values())[1:])] in words
    whole = report["in_all"][-1]
    assert ["in", "all", *(f"{whole[key]:,}" for key in ("together", "alone", "saved"))] in words
    assert whole["saved"] > 0


def test_a_graph_that_is_named_is_planned_alone(folders, capsys) -> None:
    status, out, _ = planned(capsys, folders["one"] / "decoder.bin", "--graph", "ar1_cl128")
    assert status == 0
    assert "graph 'ar1_cl128' of a context binary: its plan is fixed" in out


@pytest.mark.parametrize(
    "more", [["--svg", "x.svg"], ["--tcm", "4KiB"], ["--threads", "2"], ["--scratch-limit", "50%"], ["--table"]]
)
def test_options_about_one_model_are_refused(folders, capsys, monkeypatch, tmp_path, more) -> None:
    monkeypatch.chdir(tmp_path)
    for paths in ([folders["one"] / "decoder.bin"], [folders["two"]]):
        status, out, err = planned(capsys, *paths, *more)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert more[0] in err
    assert not list(tmp_path.iterdir())


def test_what_is_no_context_binary_is_one_line(folders, capsys, tmp_path) -> None:
    model = tiny.convolution(tmp_path / "conv.onnx", 8, 8)
    for paths in (
        [folders["one"], model],
        [model, folders["one"]],
        [tmp_path],
        [folders["one"], tmp_path / "none.bin"],
    ):
        status, out, err = planned(capsys, *paths)
        assert (status, out, err.count("\n")) == (2, "", 1)


# -- the page ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("viewport", [(1440, 900), chromium.PHONE])
def test_the_page_shows_the_same(folders, capsys, tmp_path, viewport) -> None:
    page = tmp_path / "plan.html"
    _, out, _ = planned(capsys, folders["two"], "--json", "--html", page)
    report = json.loads(out)
    text = page.read_text()
    begin = text.index(BEGIN) + len(BEGIN)
    assert json.loads(text[begin : text.index(END, begin)])["reports"] == [report]
    with chromium.browser() as browser:
        browser.open(page, viewport)
        shown = browser.evaluate("document.querySelector('main').textContent")
        assert not browser.problems
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    whole = report["in_all"][-1]
    assert f"{whole['alone']:,} bytes: {whole['saved']:,} are saved" in shown
    for each in report["caches"]:
        assert f"{each['context_length']} tokens, 8 bits{each['bytes']:,}" in shown
    for graph in (graph for context in report["contexts"] for graph in context["graphs"]):
        assert graph["name"] in shown
