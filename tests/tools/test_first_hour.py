"""What a new user tries in the first hour: completion, help, habits from other tools, usual model files, documents."""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import tiny

import isthmus
from isthmus import QnnError, Session, memory, qnn
from isthmus.capi.installation import INCLUDE
from isthmus.tools import cli

ROOT = Path(__file__).parents[2]
USUAL_NAMES = """
#include "QnnInterface.h"
#include "QnnOpDef.h"
#include "HTP/QnnHtpDevice.h"
#include "HTP/QnnHtpGraph.h"
#include "HTP/QnnHtpPerfInfrastructure.h"
#include "HTP/QnnHtpProperty.h"
#include "LPAI/QnnLpaiMem.h"
QnnDevice_Config_t device = QNN_DEVICE_CONFIG_INIT;
Qnn_MemDescriptor_t memory = QNN_MEM_DESCRIPTOR_INIT;
QnnGraph_Config_t graph = QNN_GRAPH_CONFIG_INIT;
QnnContext_Config_t context = QNN_CONTEXT_CONFIG_INIT;
Qnn_OpConfig_t operation = QNN_OPCONFIG_INIT;
Qnn_Param_t param = QNN_PARAM_INIT;
Qnn_Scalar_t scalar = QNN_SCALAR_INIT;
Qnn_QuantizeParams_t quantization = QNN_QUANTIZE_PARAMS_INIT;
Qnn_ClientBuffer_t buffer = QNN_CLIENT_BUFFER_INIT;
Qnn_TensorV1_t tensor = QNN_TENSOR_V1_INIT;
const char *package = QNN_OP_PACKAGE_NAME_QTI_AISW, *relu = QNN_OP_RELU;
int codes = QNN_GET_ERROR_CODE(QNN_BACKEND_NO_ERROR + QNN_CONTEXT_NO_ERROR + QNN_GRAPH_NO_ERROR + QNN_DEVICE_NO_ERROR);
int numbers = QNN_HTP_DEVICE_ARCH_V73 + DCVS_VOLTAGE_VCORNER_TURBO +
              QNN_HTP_PERF_INFRASTRUCTURE_POWERMODE_PERFORMANCE_MODE +
              QNN_HTP_GRAPH_OPTIMIZATION_TYPE_FINALIZE_OPTIMIZATION_FLAG;
"""
"""A source in C with names that programs for the SDK use."""


def small(folder):
    """Return the file of a Relu with two elements."""
    return tiny.save(folder / "small.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 2]}, {"y": [1, 2]})


def test_completion_offers_the_public_names_before_they_are_imported() -> None:
    code = "import isthmus, sys; print(*dir(isthmus)); print('isthmus.session' in sys.modules)"
    names, imported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"Session", "qnn", "memory", "QnnError", "Code"} <= set(names.split())
    assert not {"annotations", "TYPE_CHECKING"} & set(names.split())
    code = "import isthmus; isthmus.Session; print(*dir(isthmus))"
    after = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert [name for name in after.split() if name[0] != "_"] == [name for name in names.split() if name[0] != "_"]
    assert imported == "False"


def test_help_names_what_a_session_has() -> None:
    for name in ("inputs", "outputs", "info", "plan", "stats"):
        assert name in Session.__doc__
    for name in ("Session", "qnn", "memory", "QnnError"):
        assert name in isthmus.__doc__


def test_objects_say_what_they_are(tmp_path) -> None:
    with Session(small(tmp_path)) as session:
        assert repr(session) == "<Session 'small.onnx' on cpu: 'x' float32[1, 2] -> 'y' float32[1, 2]>"
        assert repr(session.graph) == "<QnnGraph: graph 'small'>"
    assert repr(session).endswith(", closed>")
    assert repr(memory.current("host")) == "<Host: memory of kind 'host'>"
    backend = qnn.Backend("cpu")
    assert repr(backend) == "<Backend: backend 'cpu'>"
    graph = backend.create_context().compose(small(tmp_path))
    graph.finalize()
    x = np.ones((1, 2), np.float32)
    binding = graph.bind([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", x.copy())])
    assert repr(binding) == "<Binding: graph 'small'>"
    binding.close()
    assert repr(binding) == "<Binding: graph 'small', closed>"
    backend.free()
    assert repr(backend) == "<Backend: backend 'cpu', freed>"


def test_the_arguments_of_onnx_runtime_are_refused_in_one_line(tmp_path) -> None:
    with Session(small(tmp_path)) as session:
        with pytest.raises(QnnError, match="takes feeds only"):
            session.run(None, {"x": np.ones((1, 2), np.float32)})
        assert session.stats.runs == 0


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["rum", "small.onnx"], "run"),
        (["run", "small.onnx", "--bakend", "cpu"], "--backend"),
        (["plan", "small.onnx", "--scratch-limt=3"], "--scratch-limit"),
        (["run", "small.onnx", "--backend", "hpt"], "htp"),
        (["run", "small.onnx", "--backend", "libQnnHtpp.so"], "htp"),
    ],
)
def test_a_misspelt_command_option_or_backend_gets_the_nearest(
    tmp_path, monkeypatch, capsys, arguments, nearest
) -> None:
    small(tmp_path)
    monkeypatch.chdir(tmp_path)
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert f"Did you mean '{nearest}'?" in capsys.readouterr().err


def test_a_misspelt_operation_graph_tensor_or_key_gets_the_nearest(tmp_path) -> None:
    with qnn.Backend("cpu") as backend:
        graph = backend.create_context().compose(small(tmp_path))
        with pytest.raises(QnnError, match="Did you mean 'small'"):
            graph.context.retrieve("smal")
        with pytest.raises(QnnError, match="Did you mean 'ElementWiseMultiply'"):
            graph.context.create_graph("sums").add_node("sum", "ElementWiseMultipy", [], [])
        with pytest.raises(QnnError, match="Did you mean 'ElementWiseMultiply'"):
            backend.validate_op_config("sum", "elementwise_multiply", [], [])
    with pytest.raises(QnnError, match="Did you mean 'lpai_graph'"):
        qnn.Backend("lpai", {"lpai_grap": {}})


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_a_source_for_the_sdk_finds_its_headers_and_names(tmp_path, compiler) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    source = tmp_path / ("app.c" if compiler == "gcc" else "app.cpp")
    source.write_text(USUAL_NAMES)
    done = subprocess.run(
        [compiler, "-fsyntax-only", "-Wall", "-Werror", f"-I{INCLUDE / 'QNN'}", str(source)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def float16_in_any_order(path):
    """Save a model as ONNX Runtime's float16 converter writes it: the Cast of the input is the last node."""
    nodes = [
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
    ]
    return saved(path, nodes, [])


def activations_of_16_bits(path):
    """Save a Relu between quantizers to uint16, as ONNX Runtime's quantizer writes it for QNN."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Relu", ["d"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["p"]),
        helper.make_node("DequantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.float32(2**-12), "s"), numpy_helper.from_array(np.uint16(1 << 15), "z")]
    return saved(path, nodes, constants)


def saved(path, nodes, constants):
    """Save a model with eight floats as input and as output."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy")
    graph = helper.make_graph(nodes, "model", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


@pytest.mark.parametrize("make", [float16_in_any_order, activations_of_16_bits])
def test_the_usual_formats_of_htp_are_planned_run_and_made_a_binary(tmp_path, monkeypatch, capsys, make) -> None:
    make(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plan", "model.onnx", "--backend", "htp"]) == 0
    assert cli.context_binary_generator(["--model", "model.onnx", "--backend", "libQnnHtp.so"]) == 0
    assert (tmp_path / "output" / "model.bin").is_file()
    x = np.linspace(-2, 2, 8, dtype=np.float32).reshape(1, 8)
    with Session("model.onnx") as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], np.maximum(x, 0), atol=2**-10)
    capsys.readouterr()


def test_no_document_says_the_same_line_twice() -> None:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        prose = [line.strip() for line in path.read_text().splitlines() if line[:1].isalpha() and len(line) > 60]
        twice = [line for line, count in Counter(prose).items() if count > 1]
        assert not twice, f"{path.name}: {twice}"
