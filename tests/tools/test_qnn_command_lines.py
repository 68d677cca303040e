"""Command lines in the forms of QNN's documents, under the names of its tools: each runs, and its results are right."""

import json
import shlex

import numpy as np
import pytest
from onnx import helper
from support import model_libraries, tiny
from support.processes import work_with_links
from support.suites import sampled

from isthmus import qnn
from isthmus.tools import cli

INPUTS = 3
CONFIG = {
    "backend_extensions": {"shared_library_path": "libQnnHtpNetRunExtensions.so", "config_file_path": "htp.json"},
    "context_configs": {"context_priority": "high"},
}
HTP = {
    "graphs": [{"graph_names": ["model"], "vtcm_mb": 8, "O": 3}],
    "devices": [{"soc_id": 57, "dsp_arch": "v75", "cores": [{"perf_profile": "burst", "rpc_control_latency": 100}]}],
}
LPAI = {"lpai_backend": {"target_env": "x86", "enable_hw_ver": "v6"}, "lpai_graph": {"execute": {"fps": 30}}}
TOOLS = {
    "qnn-net-run": cli.net_run,
    "qnn-context-binary-generator": cli.context_binary_generator,
    "qnn-profile-viewer": cli.profile_viewer,
}


def model(path, added):
    """Save y = 2 (x + added), with the sum as an intermediate tensor, which is not called like its node."""
    nodes = [helper.make_node("Add", ["x", "k"], ["sum"], name="add_1"), helper.make_node("Mul", ["sum", "two"], ["y"])]
    constants = {"k": np.float32([added]), "two": np.float32([2])}
    return tiny.save(path, nodes, {"x": [1, 4]}, {"y": [1, 4]}, constants)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with two models under several names, binaries of them, inputs, lists and configurations."""
    folder = tmp_path_factory.mktemp("prepared")
    model(folder / "model.onnx", 1)
    model(folder / "other.onnx", 5)
    for name in ("libqnn_model.so", "libmodel_8bit_quantized.so"):
        (folder / name).write_bytes((folder / "model.onnx").read_bytes())
    for n in range(INPUTS):
        np.full((1, 4), n, np.float32).tofile(folder / f"in{n}.raw")
    lines = [f"in{n}.raw" for n in range(INPUTS)]
    lists = {
        "input_list.txt": lines,
        "named.txt": [f"x:={line}" for line in lines],
        "chosen.txt": ["#y", *lines],
        "percent.txt": ["%y", *lines],
        "one.txt": lines[:1],
    }
    for name, content in lists.items():
        (folder / name).write_text("".join(f"{line}\n" for line in content))
    for name, content in {"config.json": CONFIG, "htp.json": HTP, "lpai.json": LPAI}.items():
        (folder / name).write_text(json.dumps(content))
    for backend in ("cpu", "htp", "lpai"):
        for name, models in (("one", "model.onnx"), ("two", "model.onnx,other.onnx")):
            arguments = ["--model", str(folder / "model.onnx"), "--backend", backend, "--output_dir", str(folder)]
            arguments[1] = ",".join(str(folder / each) for each in models.split(","))
            assert cli.context_binary_generator([*arguments, "--binary_file", f"{name}.{backend}"]) == 0
    return folder


@pytest.fixture
def folder(prepared, tmp_path, monkeypatch):
    """A working folder that shows all prepared files."""
    work_with_links(prepared, tmp_path, monkeypatch)
    return tmp_path


def execute(line):
    tool, *arguments = shlex.split(line)
    return TOOLS[tool](arguments)


def check(folder, added, results):
    """Check that a folder has this many results, each with y of one input after the other."""
    assert sorted(path.name for path in folder.glob("Result_*")) == sorted(f"Result_{n}" for n in range(results))
    for n in range(results):
        got = np.fromfile(folder / f"Result_{n}" / "y.raw", np.float32)
        np.testing.assert_array_equal(got, np.full(4, 2 * (n % INPUTS + added), np.float32))


CPU, HTP_LIBRARY, LPAI_LIBRARY = "--backend libQnnCpu.so", "--backend libQnnHtp.so", "--backend libQnnLpai.so"
RUN = f"--model libqnn_model.so {CPU} --input_list input_list.txt"
ONE_GRAPH = [
    RUN,
    "--model ./libqnn_model.so --backend /opt/qcom/aistack/lib/x86_64-linux-clang/libQnnCpu.so "
    "--input_list input_list.txt",
    f"--model libmodel_8bit_quantized.so {HTP_LIBRARY} --input_list input_list.txt",
    f"--model libqnn_model.so {LPAI_LIBRARY} --input_list input_list.txt",
    f"--model libqnn_model.so {CPU} --input_list named.txt",
    f"--model libqnn_model.so {CPU} --input_list chosen.txt",
    f"--model libqnn_model.so {CPU} --input_list percent.txt",
    "--model=libqnn_model.so --backend=libQnnCpu.so --input_list=input_list.txt --output_dir=output",
    f"{RUN} --output_dir output",
    f"{RUN} --model_prefix QnnModel",
    f"{RUN} --log_level verbose",
    f"{RUN} --log_level error",
    f"{RUN} --log_level warn",
    f"{RUN} --log_level info",
    f"{RUN} --log_level debug",
    f"{RUN} --profiling_level basic",
    f"{RUN} --profiling_level detailed",
    f"{RUN} --profiling_level client",
    f"{RUN} --profiling_level backend",
    f"{RUN} --profiling_level detailed --profiling_option optrace",
    f"{RUN} --perf_profile burst",
    f"{RUN} --perf_profile HIGH_PERFORMANCE",
    f"{RUN} --perf_profile sustained_high_performance",
    f"{RUN} --perf_profile low_power_saver",
    f"{RUN} --perf_profile system_settings",
    f"{RUN} --synchronous",
    f"{RUN} --timeout 600000000",
    f"{RUN} --input_data_type float",
    f"{RUN} --input_data_type native",
    f"{RUN} --output_data_type float_only",
    f"{RUN} --output_data_type float_and_native",
    f"{RUN} --use_native_input_files",
    f"{RUN} --use_native_output_files",
    f"{RUN} --use_native_input_files --use_native_output_files",
    f"{RUN} --native_input_tensor_names libqnn_model:x",
    f"{RUN} --native_input_tensor_names x",
    f"{RUN} --batch_multiplier 2",
    f"{RUN} --max_input_cache_tensor_sets -1",
    f"{RUN} --max_input_cache_tensor_sets 2 --max_input_cache_size_mb 16",
    f"{RUN} --platform_options key0:value0;key1:value1".replace(";", r"\;"),
    f"{RUN} --num_inferences 3",
    f"{RUN} --keep_num_outputs 3",
    f"{RUN} --num_inferences 100 --keep_num_outputs 3 --perf_profile burst --profiling_level basic",
    f"--retrieve_context one.cpu.bin {CPU} --input_list input_list.txt",
    f"--retrieve_context one.htp.bin {HTP_LIBRARY} --input_list input_list.txt",
    "--retrieve_context=one.htp.bin --backend=libQnnHtp.so --input_list=input_list.txt --shared_buffer "
    "--profiling_level=basic --config_file=config.json --perf_profile=burst --num_inferences=100 --keep_num_outputs=3",
    f"--retrieve_context one.htp.bin {HTP_LIBRARY} --input_list input_list.txt --config_file htp.json",
    f"--retrieve_context one.htp.bin {HTP_LIBRARY} --input_list input_list.txt --use_mmap",
    f"--retrieve_context one.htp.bin {HTP_LIBRARY} --input_list input_list.txt --validate_binary --log_level warn",
    f"--retrieve_context one.lpai.bin {LPAI_LIBRARY} --input_list input_list.txt --config_file lpai.json",
    f"--retrieve_context one.lpai.bin {LPAI_LIBRARY} --input_list input_list.txt --direct_mode adsp",
]
"""Arguments of qnn-net-run for one graph, which write one result for each line of the list."""


@pytest.mark.parametrize("arguments", ONE_GRAPH)
def test_net_run_writes_a_result_for_each_line(folder, arguments) -> None:
    assert execute(f"qnn-net-run {arguments}") == 0
    check(folder / "output", 1, INPUTS)


@pytest.mark.parametrize(
    ("arguments", "results"),
    [
        (f"{RUN} --num_inferences 7", 7),
        (f"{RUN} --num_inferences 2", 2),
        (f"{RUN} --num_inferences 7 --keep_num_outputs 2", 2),
        (f"{RUN} --keep_num_outputs 0", 0),
        (f"{RUN} --duration 0.01 --keep_num_outputs 1", 1),
        (f"{RUN} --duration 1000 --num_inferences 4", 4),
    ],
)
def test_net_run_repeats_the_list_and_keeps_so_many_results(folder, arguments, results) -> None:
    assert execute(f"qnn-net-run {arguments}") == 0
    check(folder / "output", 1, results)


@pytest.mark.parametrize(
    ("arguments", "graphs"),
    [
        (f"--model model.onnx,other.onnx {CPU} --input_list input_list.txt,one.txt",
         {"model": (1, 3), "other": (5, 1)}),
        (f"--retrieve_context two.htp.bin {HTP_LIBRARY} --input_list one.txt,input_list.txt",
         {"model": (1, 1), "other": (5, 3)}),
        (f"--model model.onnx,other.onnx {CPU} --input_list __,input_list.txt", {"other": (5, 3)}),
        (f"--retrieve_context two.cpu.bin {CPU} --input_list input_list.txt,__", {"model": (1, 3)}),
    ],
)  # fmt: skip
def test_each_of_several_graphs_has_a_folder(folder, arguments, graphs) -> None:
    assert execute(f"qnn-net-run {arguments}") == 0
    assert {path.name for path in (folder / "output").iterdir()} == set(graphs)
    for name, (added, results) in graphs.items():
        check(folder / "output" / name, added, results)


@pytest.mark.parametrize("arguments", ["--debug", "--set_output_tensors sum", "--set_output_tensors libqnn_model:sum"])
def test_intermediate_tensors_are_written_too(folder, arguments) -> None:
    assert execute(f"qnn-net-run {RUN} {arguments}") == 0
    check(folder / "output", 1, INPUTS)
    np.testing.assert_array_equal(np.fromfile("output/Result_2/sum.raw", np.float32), np.full(4, 3, np.float32))


@pytest.mark.parametrize("tool", ["qnn-net-run --input_list list.txt,list.txt", "qnn-context-binary-generator"])
def test_a_library_whose_functions_have_another_prefix_is_composed(folder, capsys, tool) -> None:
    library = model_libraries.build(folder / "mine", QnnModel_composeGraphs="Mine_composeGraphs")
    model_libraries.IMAGE.tofile(folder / "image.raw")
    np.zeros((1, 16), np.float32).tofile(folder / "bytes.raw")
    (folder / "image.txt").write_text("image.raw\n")
    (folder / "bytes.txt").write_text("bytes.raw\n")
    line = tool.replace("list.txt,list.txt", "image.txt,bytes.txt") + f" --model {library} {CPU}"
    assert execute(f"{line} --model_prefix Mine") == 0
    assert (folder / "output").exists()
    capsys.readouterr()
    assert execute(line) == 2
    assert "it does not export QnnModel_composeGraphs" in capsys.readouterr().err


MAKE = f"--model libqnn_model.so {HTP_LIBRARY}"


GENERATED = [
    (f"{MAKE} --binary_file qnngraph.serialized", "qnngraph.serialized", ["libqnn_model"], ["y"]),
    (MAKE, "libqnn_model", ["libqnn_model"], ["y"]),
    (f"{MAKE} --binary_file a --output_dir output --log_level error", "a", ["libqnn_model"], ["y"]),
    (f"{MAKE} --binary_file a --config_file config.json", "a", ["libqnn_model"], ["y"]),
    (f"{MAKE} --binary_file a --config_file htp.json --profiling_level basic", "a", ["libqnn_model"], ["y"]),
    (f"{MAKE} --binary_file a --input_output_tensor_mem_type memhandle", "a", ["libqnn_model"], ["y"]),
    (f"{MAKE} --binary_file a --input_output_tensor_mem_type raw", "a", ["libqnn_model"], ["y"]),
    (f"{MAKE} --binary_file a --model_prefix QnnModel", "a", ["libqnn_model"], ["y"]),
    (f"{MAKE} --binary_file a --backend_binary b", "b", ["libqnn_model"], ["y"]),
    (f"{MAKE} --binary_file a --enable_intermediate_outputs", "a", ["libqnn_model"], ["sum", "y"]),
    (f"{MAKE} --binary_file a --set_output_tensors libqnn_model:sum", "a", ["libqnn_model"], ["sum", "y"]),
    (f"{MAKE} --binary_file a --platform_options k:v", "a", ["libqnn_model"], ["y"]),
    (f"{MAKE} --binary_file a --profiling_level detailed --profiling_option optrace", "a", ["libqnn_model"], ["y"]),
    (f"--model model.onnx,other.onnx {CPU} --binary_file a", "a", ["model", "other"], ["y"]),
    (f"--model model.onnx,other.onnx {CPU} --binary_file a --enable_graphs other", "a", ["other"], ["y"]),
    (f"--model model.onnx {LPAI_LIBRARY} --binary_file a --config_file lpai.json", "a", ["model"], ["y"]),
]
"""Arguments of the generator, the name of the file that it writes, its graphs, and the outputs of the first."""


@pytest.mark.parametrize(
    ("arguments", "file", "graphs", "outputs"), sampled([pytest.param(*case) for case in GENERATED], 4)
)
def test_the_generator_writes_a_binary(folder, arguments, file, graphs, outputs) -> None:
    assert execute(f"qnn-context-binary-generator {arguments}") == 0
    info = qnn.SystemContext().get_binary_info(folder / "output" / f"{file}.bin")
    assert [graph.name for graph in info.graphs] == graphs
    assert {tensor.name for tensor in info.graphs[0].outputs} == set(outputs)


def test_a_profile_log_is_shown_as_text_and_csv(folder, capsys) -> None:
    assert execute(f"qnn-net-run {RUN} --profiling_level detailed") == 0
    capsys.readouterr()
    assert execute("qnn-profile-viewer --input_log output/qnn-profiling-data_0.log --output profile.csv") == 0
    shown = capsys.readouterr().out
    assert "execute of graph 'libqnn_model'" in shown
    assert f", {INPUTS} times" in shown
    rows = (folder / "profile.csv").read_text().splitlines()
    assert rows[0] == "call,number,graph,event,value,unit"
    assert sum(",execute," in row and row.endswith(",us") for row in rows) == INPUTS


def test_a_profile_log_takes_each_event_from_the_profile_once(folder, monkeypatch) -> None:
    taken = []
    get_events = qnn.Profile.get_events

    def counted(*arguments):
        taken.extend(found := get_events(*arguments))
        return found

    monkeypatch.setattr(qnn.Profile, "get_events", counted)
    assert execute(f"qnn-net-run {RUN} --num_inferences 9 --profiling_level basic") == 0
    log = json.loads((folder / "output" / "qnn-profiling-data_0.log").read_text())
    assert [bool(call["events"]) for call in log["calls"] if call["call"] == "execute"] == [True] * 9
    assert len({id(event) for event in taken}) == len(taken)


@pytest.mark.parametrize("content", ["", "{}", '{"format": "isthmus profile log 1"}', "[1]", "\x00", None])
def test_what_is_no_profile_log_is_refused_in_one_line(folder, capsys, content) -> None:
    if content is not None:
        (folder / "log").write_text(content)
    assert execute("qnn-profile-viewer --input_log log") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("qnn-profile-viewer: [1004 COMMON_INVALID_ARGUMENT] profile log 'log': ")


@pytest.mark.parametrize(
    ("option", "name"),
    [("--perf_profile burst", "perf_profile"), ("--synchronous", "synchronous"),
     ("--batch_multiplier 2", "batch_multiplier"), ("--platform_options a:b", "platform_options"),
     ("--max_input_cache_tensor_sets 1", "max_input_cache_tensor_sets")],
)  # fmt: skip
def test_an_option_without_effect_is_logged_once_by_name(folder, capsys, option, name) -> None:
    assert execute(f"qnn-net-run {RUN} {option}") == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"[WARN] --{name}: accepted, but without effect here: ")


@pytest.mark.parametrize(("multiple", "executions"), [(1, 3), (2, 2), (3, 1), (5, 1)])
def test_a_multiple_of_the_batch_computes_several_inferences_at_once(folder, capsys, multiple, executions) -> None:
    line = f"--model libqnn_model.so {HTP_LIBRARY} --input_list input_list.txt --profiling_level basic"
    assert execute(f"qnn-net-run {line} --batch_multiplier {multiple}") == 0
    assert "without effect" not in capsys.readouterr().err
    check(folder / "output", 1, INPUTS)
    log = json.loads((folder / "output" / "qnn-profiling-data_0.log").read_text())
    assert sum(call["call"] == "execute" for call in log["calls"]) == executions


@pytest.mark.parametrize(
    ("option", "name"),
    [("--extract_opaque_objects", "extract_opaque_objects"), ("--reader r.so", "reader"),
     ("--schematic s", "schematic"), ("--config c", "config")],
)  # fmt: skip
def test_an_option_of_the_viewer_without_effect_is_logged_once_by_name(folder, capsys, option, name) -> None:
    assert execute(f"qnn-net-run {RUN} --profiling_level basic") == 0
    capsys.readouterr()
    assert execute(f"qnn-profile-viewer --input_log output/qnn-profiling-data_0.log {option}") == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"[WARN] --{name}: accepted, but without effect here: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"{RUN} --op_packages libOps.so:Provider", "op package 'libOps.so': it cannot be loaded"),
        (f"{RUN} --op_packages libOps.so", "--op_packages libOps.so: it must be PATH:PROVIDER or PATH:PROVIDER:TARGET"),
        (f"{RUN} --binary_updates u.txt", "no sections"),
        (f"{RUN} --model_prefix 3-4", "--model_prefix 3-4: must be the beginning of a function's name"),
        (f"{RUN} --set_output_tensors add_1", "graph 'libqnn_model' has no such tensor"),
        (f"{RUN} --debug --set_output_tensors sum", "--debug and --set_output_tensors: exclude each other"),
        (f"--retrieve_context one.cpu.bin {CPU} --input_list one.txt --debug", "exclude each other"),
        (f"{RUN} --use_native_input_files --native_input_tensor_names x", "exclude each other"),
        (f"{RUN} --set_output_tensors sun", "Did you mean 'sum'?"),
        (f"{RUN} --native_input_tensor_names libqnn_model:z", "graph 'libqnn_model' has no such tensor"),
        (f"--model model.onnx,other.onnx {CPU} --input_list one.txt", "__ skips one"),
        (f"--model model.onnx,other.onnx {CPU} --input_list __,__", "every graph is skipped"),
        (f"--model model.onnx,other.onnx {CPU} --input_list one.txt,one.txt --set_output_tensors sum",
         "it names no graph"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_one_line_and_nothing_is_written(folder, capsys, arguments, words) -> None:
    assert execute(f"qnn-net-run {arguments}") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (folder / "output").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--perf_profile bursts", "Did you mean 'burst'?"),
        ("--num_inferences 0", "must be an integer of at least 1"),
        ("--duration -1", "must be a positive number of seconds"),
        ("--output_data_type native", "must be one of float_only, native_only, float_and_native"),
        ("--num_inference_s 3", "Did you mean '--num_inferences'?"),
    ],
)
def test_a_wrong_value_or_a_misspelt_option_is_refused_with_the_rule(folder, capsys, arguments, words) -> None:
    with pytest.raises(SystemExit) as end:
        execute(f"qnn-net-run {RUN} {arguments}")
    assert end.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
