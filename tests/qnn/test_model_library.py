"""Compiled model libraries compose their graphs in a process of their own, and come back as graphs or as an error."""

import _ctypes
import contextlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support import interruption, model_libraries
from support.model_libraries import BYTES, IMAGE, build, bytes_result, image_result
from support.processes import descriptors, opened_since
from support.suites import long
from support.waiting import eventually, interrupted_when

from isthmus import Session, qnn
from isthmus.errors import Code, QnnError
from isthmus.frontends import ModelSource
from isthmus.graph import TensorMemType
from isthmus.qnn import model_library, model_process
from isthmus.qnn.recorder import Recorder
from isthmus.tools.cli import main


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("library"))


def refused(path) -> QnnError:
    with pytest.raises(QnnError) as caught:
        model_library.load_all(ModelSource(path))
    assert str(path) in caught.value.what
    return caught.value


def test_both_graphs_of_a_library_compute_what_they_compose(library) -> None:
    with Session(library, graph="image") as session:
        got = session.run({"x": IMAGE})["probabilities"]
        np.testing.assert_allclose(got, image_result(), rtol=1e-5)
    with Session(library, graph="bytes") as session:
        np.testing.assert_allclose(session.run({"x": BYTES})["y"], bytes_result(), atol=1)


def test_a_context_takes_all_graphs_of_a_library(library) -> None:
    with qnn.Backend("htp") as backend:
        context = backend.create_context()
        assert [graph.name for graph in context.compose_all(library)] == ["image", "bytes"]
    with pytest.raises(QnnError, match="it holds 2 graphs: 'image', 'bytes'"):
        Session(library)


@pytest.mark.parametrize("entries", [48, 71, 90])
def test_a_library_built_for_any_table_sees_no_debugging_and_no_callback(tmp_path, entries) -> None:
    """Both arguments follow the table; the library refuses to compose if either is not 0."""
    graphs = model_library.load_all(ModelSource(build(tmp_path, ENTRIES=entries)))
    assert [graph.name for graph in graphs] == ["image", "bytes"]


def test_the_library_is_loaded_by_another_process(library) -> None:
    before = descriptors()
    model_library.compose(library)
    assert not opened_since(before)
    assert not any(str(library) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_weights_of_a_library_are_read_only_views(library) -> None:
    image, _ = model_library.load_all(ModelSource(library))
    weights = image.tensors["conv_w"].data
    np.testing.assert_array_equal(weights, model_libraries.CONV_W)
    assert not weights.flags.owndata
    assert not weights.flags.writeable


@pytest.mark.parametrize(("hint", "kind"), [("RAW", TensorMemType.RAW), ("MEMHANDLE", TensorMemType.MEMHANDLE)])
def test_the_memory_type_that_a_library_embeds_is_what_graphs_are_prepared_for(tmp_path, hint, kind) -> None:
    path = build(tmp_path, IO_MEMORY=f"QNN_TENSORMEMTYPE_{hint}")
    with qnn.Backend("htp") as backend:
        graph = backend.create_context().compose(path, graph="bytes")
        assert {info.mem_type for info in graph.info.tensors} == {kind}
        graph.finalize()
        assert (graph.stats.staging_bytes == 0) == (kind is TensorMemType.MEMHANDLE)


def test_the_memory_type_that_a_library_gives_with_its_nodes_counts_too(tmp_path) -> None:
    path = build(tmp_path, NODE_MEMORY="QNN_TENSORMEMTYPE_MEMHANDLE")
    with qnn.Backend("htp") as backend:
        for graph in backend.create_context().compose_all(path):
            assert {info.mem_type for info in graph.info.tensors} == {TensorMemType.MEMHANDLE}


def test_requested_options_override_those_that_a_library_embeds(tmp_path) -> None:
    path = build(tmp_path, IO_MEMORY="QNN_TENSORMEMTYPE_MEMHANDLE")
    with qnn.Backend("htp") as backend:
        graph = backend.create_context().compose(path, graph="bytes", mem_type=qnn.TensorMemType.RAW)
        assert {info.mem_type for info in graph.info.tensors} == {TensorMemType.RAW}


def test_a_session_runs_a_library_whose_tensors_are_memory_handles(tmp_path) -> None:
    path = build(tmp_path, IO_MEMORY="QNN_TENSORMEMTYPE_MEMHANDLE")
    for backend, io, kind in (("htp", None, "MEMHANDLE"), ("htp", "raw", "RAW"), ("cpu", None, "MEMHANDLE")):
        with Session(path, backend, io=io, graph="bytes") as session:
            assert {info.mem_type.name for info in session.info.tensors} == {kind}
            np.testing.assert_allclose(session.run({"x": BYTES})["y"], bytes_result(), atol=1)


@pytest.mark.parametrize(("asked", "kind"), [([], "memhandle"), (["--input_output_tensor_mem_type", "raw"], "raw")])
def test_a_binary_is_prepared_for_what_is_asked_or_else_for_what_a_library_embeds(
    tmp_path, capsys, asked, kind
) -> None:
    path = build(tmp_path, IO_MEMORY="QNN_TENSORMEMTYPE_MEMHANDLE")
    assert main(["context-binary-generator", "--model", str(path), "--backend", "libQnnHtp.so",
                 "--output_dir", str(tmp_path), *asked]) == 0  # fmt: skip
    assert f"2 graphs for htp, {kind}\n" in capsys.readouterr().out


def test_a_library_that_crashes_is_an_error_with_its_name(tmp_path) -> None:
    error = refused(build(tmp_path, DEED=1))
    assert error.code is Code.COMMON_LOADING_BINARIES
    assert "ended its process by SIGSEGV" in error.rule


def test_a_library_that_hangs_is_ended_in_time(tmp_path, monkeypatch) -> None:
    path = build(tmp_path, DEED=2)
    monkeypatch.setenv("ISTHMUS_MODEL_SECONDS", "2")
    assert "did not compose its graphs within 2 s" in refused(path).rule


def test_a_time_limit_that_is_no_number_is_refused(library, monkeypatch) -> None:
    monkeypatch.setenv("ISTHMUS_MODEL_SECONDS", "soon")
    with pytest.raises(QnnError, match="ISTHMUS_MODEL_SECONDS 'soon'"):
        model_library.compose(library)


def test_the_error_of_a_library_that_refuses_says_where_it_failed(tmp_path) -> None:
    assert "QnnModel_composeGraphs answers 2, an error in parameters" in refused(build(tmp_path, DEED=3)).rule


@pytest.mark.parametrize(
    ("answer", "where"),
    [*enumerate(("a tensor", "parameters", "nodes", "a graph", "the context", "generation", "set-up", "an argument",
                 "a file", "memory"), 1), (11, "something")],
)  # fmt: skip
def test_each_error_code_of_a_library_is_explained(monkeypatch, answer, where) -> None:
    library = SimpleNamespace(QnnModel_composeGraphs=lambda *arguments: answer)
    monkeypatch.setattr(model_process.ctypes, "CDLL", lambda path: library)
    said = model_process.compose("model.so", "QnnModel", Recorder())
    assert said == f"QnnModel_composeGraphs answers {answer}, an error in {where}"


def test_a_node_of_a_tensor_that_was_not_created_is_refused_by_name(tmp_path) -> None:
    rule = refused(build(tmp_path, DEED=4)).rule
    assert "answers 3, an error in nodes" in rule
    assert "node 'conv': its tensor 4711 was not created in graph 'image'" in rule


def test_what_a_library_starts_ends_with_it(tmp_path) -> None:
    path = build(tmp_path, DEED=5)
    model_library.compose(path)
    assert eventually(lambda: not processes_of(path))


def processes_of(path):
    """The processes whose command line names a file."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                found += [folder.name] if str(path).encode() in (folder / "cmdline").read_bytes() else []
    return found


def test_what_is_no_model_library_is_refused() -> None:
    assert "it does not export QnnModel_composeGraphs" in refused(_ctypes.__file__).rule


def test_functions_of_a_library_may_have_another_prefix(library, tmp_path) -> None:
    other = build(tmp_path, QnnModel_composeGraphs="Mine_composeGraphs")
    assert [graph.name for graph in model_library.compose(other, "Mine")] == [
        graph.name for graph in model_library.compose(library)
    ]
    assert "it does not export QnnModel_composeGraphs" in refused(other).rule


def test_a_damaged_library_is_refused(library, tmp_path) -> None:
    path = tmp_path / "libqnn_model.so"
    path.write_bytes(library.read_bytes()[:200])
    assert refused(path).rule.startswith(f"it cannot be loaded: {path}: ")


def test_shapes_are_what_a_library_was_compiled_for(library) -> None:
    with pytest.raises(QnnError, match="what it was compiled for"):
        Session(library, graph="image", shapes={"x": (2, 8, 8, 3)})
    with pytest.raises(QnnError, match=r"'third'.*has 'image', 'bytes'"):
        Session(library, graph="third")


@pytest.mark.parametrize(
    "command", [pytest.param(["/bin/true"], id="at-once"), long(["/bin/sleep", "0.05"], id="later")]
)
def test_an_interrupt_anywhere_leaves_no_process_and_no_descriptor(library, monkeypatch, command) -> None:
    # The process itself is of no concern here, and another starts faster.
    monkeypatch.setattr(model_library.isolated, "command", lambda *arguments: command)

    def action():
        with contextlib.suppress(QnnError):
            model_library.compose(library)

    assert interruption.check_every_interrupt(action, outside=("threading.py", "subprocess.py")) > 10


def test_a_composition_whose_caller_is_interrupted_ends(tmp_path) -> None:
    path = build(tmp_path, DEED=2)
    with interrupted_when(lambda: processes_of(path)), pytest.raises(KeyboardInterrupt):
        model_library.compose(path)
    assert not processes_of(path)


def test_a_library_that_takes_all_memory_is_an_error_with_its_name(tmp_path) -> None:
    assert "QnnModel_composeGraphs answers 1, an error in a tensor" in refused(build(tmp_path, DEED=6)).rule


def test_graphs_larger_than_any_are_refused_before_they_fill_the_memory(library, monkeypatch) -> None:
    monkeypatch.setattr(model_library, "MAX_COMPOSED", 1000)
    assert refused(library).rule == "the graphs that it composes take more than 1,000 bytes"


def test_a_process_has_limits_that_it_cannot_raise(tmp_path) -> None:
    code = (
        "import resource; from isthmus.system import isolated; isolated.limit(1 << 34)\n"
        "kinds = resource.RLIMIT_CORE, resource.RLIMIT_AS, resource.RLIMIT_FSIZE\n"
        "most = max(isolated.memory(), isolated.MIN_MEMORY)\n"
        "assert all(len(set(resource.getrlimit(kind))) == 1 for kind in kinds)\n"
        "print([0 <= resource.getrlimit(kind)[1] <= limit for kind, limit in zip(kinds, (0, most, 1 << 34))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == ("[True, True, True]\n", "")


def test_the_tools_take_a_library(library, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    IMAGE.tofile("image.raw")
    BYTES.tofile("bytes.raw")
    for name in ("image", "bytes"):
        Path(f"{name}.txt").write_text(f"x:={name}.raw\n")
    both = ["--input_list", "image.txt,bytes.txt", "--use_native_input_files", "--use_native_output_files"]
    assert main(["net-run", "--model", str(library), "--backend", "libQnnCpu.so", *both]) == 0
    probabilities = np.fromfile("output/image/Result_0/probabilities.raw", np.float32)
    np.testing.assert_allclose(probabilities, image_result()[0], rtol=1e-5)
    np.testing.assert_allclose(np.fromfile("output/bytes/Result_0/y_native.raw", np.uint8), bytes_result()[0], atol=1)
    assert main(["context-binary-generator", "--model", str(library), "--backend", "libQnnHtp.so"]) == 0
    assert "2 graphs for htp, raw" in capsys.readouterr().out
    assert main(["inspect", str(library)]) == 0
    reported = capsys.readouterr().out
    assert "model library, 2 graphs" in reported
    assert "output  y: UFIXED_POINT_8[1, 4], scale 0.5, offset -128" in reported
    assert main(["plan", str(library), "--graph", "image"]) == 0
    assert main(["run", str(library), "--graph", "bytes"]) == 0


@pytest.mark.parametrize(("action", "answer"), [(7, "QnnModel_composeGraphs answers 2"), (8, "SIGABRT")])
def test_a_library_reaches_no_network_program_process_or_file_to_write(action, answer, tmp_path) -> None:
    target = tmp_path / "written"
    # The library ends with this answer only if all of its attempts were refused; the error names the calls.
    rule = refused(build(tmp_path, DEED=action, TARGET=f'"{target}"')).rule
    assert answer in rule
    for call in ("socket", "execve", "ptrace", "open", "unlink", "kill"):
        assert f"it called {call}" in rule
    assert not target.exists()
