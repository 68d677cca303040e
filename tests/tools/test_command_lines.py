"""The command lines of QNN's own documents run to the letter, under the names that its tools have."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import model_libraries, oracles, tiny

import isthmus
from isthmus import memory, qnn

ROOT = Path(__file__).parents[2]
GENERATE = (
    "./qnn-context-binary-generator --model libqnn_model.so --backend libQnnHtp.so --binary_file qnngraph.serialized "
    "--output_dir output --input_output_tensor_mem_type memhandle"
)
RUN_IN_TCM = r"""
./qnn-net-run \
        --input_list model/input_list.txt \
        --backend /data/local/tmp/libQnnLpai.so \
        --direct_mode adsp \
        --config_file model/eaiParams_direct.json \
        --retrieve_context model/tmp.bin
"""
IN_TCM = """
{
      "lpai_graph": {
        "execute": {
          "mem_type": "tcm"
        }
      }
    }
"""
EXTENSIONS = """
{
      "backend_extensions": {
        "shared_library_path": "/data/local/tmp/libQnnLpaiNetRunExtensions.so",
        "config_file_path": "%s"
      },
      "context_configs": {
        "is_persistent_binary": true
      }
    }
"""


def scripts() -> dict[str, str]:
    """The commands that the package installs, each with the function that it is."""
    section = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]\n")[2].partition("\n[")[0]
    return dict(re.findall(r'^([\w-]+) = "([\w.:]+)"$', section, re.MULTILINE))


@pytest.fixture
def folder(tmp_path):
    """A folder with the tools as they would be installed, a model, inputs and a list of them."""
    for name, target in scripts().items():
        module, _, function = target.partition(":")
        tool = tmp_path / name
        tool.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        tool.chmod(0o755)
    tiny.convolution(tmp_path / "libqnn_model.so")
    (tmp_path / "model").mkdir()
    generator = np.random.default_rng(0)
    for n in range(2):
        generator.standard_normal((1, 3, 8, 8)).astype(np.float32).tofile(tmp_path / "model" / f"in{n}.raw")
    (tmp_path / "model" / "input_list.txt").write_text("in0.raw\nmodel/in1.raw\n")
    return tmp_path


def shell(folder, line, status=0):
    """Return what a shell prints for a line, on standard output and standard error."""
    environment = {**os.environ, "PYTHONPATH": str(Path(isthmus.__file__).parents[1])}
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def check_results(folder):
    content = (folder / "libqnn_model.so").read_bytes()
    session = oracles.onnx_session(content)
    for n in range(2):
        x = np.fromfile(folder / "model" / f"in{n}.raw", np.float32).reshape(1, 3, 8, 8)
        expected = session.run(None, {"x": x})[0]
        got = np.fromfile(folder / "output" / f"Result_{n}" / "y.raw", np.float32).reshape(expected.shape)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_the_tools_of_qnn_are_installed_under_their_own_names(folder) -> None:
    names = [name for name in scripts() if name.startswith("qnn-")]
    for name in names:
        assert shell(folder, f"./{name} --version")[0].startswith(f"{name} of isthmus ")
    # Their functions have one way to print the rest.
    assert shell(folder, f"./{names[0]} --help")[0].startswith(f"usage: {names[0]} ")
    assert shell(folder, f"./{names[0]}", status=2)[1].splitlines()[-1].startswith(f"{names[0]}: error: ")


def test_qmem_a_binary_for_memory_handles_is_generated_and_run_without_copies(folder) -> None:
    shell(folder, GENERATE)
    [graph] = qnn.SystemContext().get_binary_info(folder / "output" / "qnngraph.serialized.bin").graphs
    assert {tensor.mem_type.name for tensor in graph.tensors} == {"MEMHANDLE"}
    out, _ = shell(
        folder,
        "./qnn-net-run --backend libQnnHtp.so --retrieve_context output/qnngraph.serialized.bin "
        "--input_list model/input_list.txt --shared_buffer --output_dir output",
    )
    assert " 0 bytes copied" in out
    check_results(folder)


def test_qmem_the_same_line_takes_a_compiled_model_library_with_raw_tensors(folder) -> None:
    (folder / "libqnn_model.so").unlink()
    model_libraries.build(folder, IO_MEMORY="QNN_TENSORMEMTYPE_RAW")
    assert (folder / "libqnn_model.so").read_bytes()[:4] == b"\x7fELF"
    shell(folder, GENERATE)
    binary = folder / "output" / "qnngraph.serialized.bin"
    graphs = qnn.SystemContext().get_binary_info(binary).graphs
    assert [graph.name for graph in graphs] == ["image", "bytes"]
    assert {tensor.mem_type.name for graph in graphs for tensor in graph.tensors} == {"MEMHANDLE"}
    with memory.statistics("rpcmem") as reserved, qnn.Backend("htp") as backend:
        image = backend.create_context_from_binary(binary).retrieve("image")
        assert reserved.live_bytes == 0
        y = np.empty((1, 5), np.float32)
        image.execute([qnn.ClientTensor("x", model_libraries.IMAGE)], [qnn.ClientTensor("probabilities", y)])
        np.testing.assert_allclose(y, model_libraries.image_result(), atol=1e-6)
        assert reserved.live_bytes > 0, "raw memory at execution has it reserved then"


def test_tcm_a_binary_runs_in_direct_mode_and_reports_its_buffers(folder) -> None:
    (folder / "eaiParams_direct.conf").write_text(IN_TCM)
    (folder / "model" / "eaiParams_direct.json").write_text(EXTENSIONS % (folder / "eaiParams_direct.conf"))
    shell(
        folder,
        "./qnn-context-binary-generator --model libqnn_model.so --backend libQnnLpai.so --binary_file tmp "
        "--output_dir model",
    )
    _, quiet = shell(folder, RUN_IN_TCM)
    assert quiet == ""
    check_results(folder)
    _, reported = shell(folder, f"{RUN_IN_TCM.rstrip()} --log_level debug")
    assert reported.count("TCM pool current size: ") == 1
    assert "max_size: 2035712" in reported
    assert re.search(r"Allocate size \d+ from tcm pool 0", reported)


def test_tcm_an_unknown_type_of_memory_is_an_error_that_is_seen_once(folder) -> None:
    (folder / "eaiParams_direct.conf").write_text(IN_TCM.replace("tcm", "core"))
    (folder / "model" / "eaiParams_direct.json").write_text(EXTENSIONS % (folder / "eaiParams_direct.conf"))
    shell(folder, "./qnn-context-binary-generator --model libqnn_model.so --backend libQnnLpai.so --binary_file tmp "
                  "--output_dir model")  # fmt: skip
    _, reported = shell(folder, RUN_IN_TCM, status=2)
    assert reported.count("Invalid memory type") == 1
    assert reported.count("Memory type only supports DDR & TCM") == 1


def test_the_file_of_backend_extensions_is_for_htp_too(folder) -> None:
    (folder / "htp.conf").write_text('{"htp": {"threads": 2}}')
    (folder / "htp.json").write_text(EXTENSIONS % "htp.conf")
    shell(folder, f"{GENERATE} --config_file htp.json")
    shell(
        folder,
        "./qnn-net-run --backend libQnnHtp.so --retrieve_context output/qnngraph.serialized.bin "
        "--input_list model/input_list.txt --config_file htp.json --log_level info",
    )
    check_results(folder)


def test_the_cpu_library_is_generated_for_and_run_on(folder) -> None:
    shell(folder, "./qnn-context-binary-generator --model libqnn_model.so --backend libQnnCpu.so --binary_file cpu")
    assert qnn.SystemContext().get_binary_info(folder / "output" / "cpu.bin").backend == "cpu"
    for source in ("--retrieve_context output/cpu.bin", "--model libqnn_model.so"):
        shell(folder, f"./qnn-net-run --backend libQnnCpu.so {source} --input_list model/input_list.txt")
        check_results(folder)
        for n in range(2):
            (folder / "output" / f"Result_{n}" / "y.raw").unlink()
