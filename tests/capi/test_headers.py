"""The headers for C: under the SDK's names, each complete by itself, with initialisers, and as Python's tables say."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from capi.host_programs import PROGRAMS
from isthmus.cabi.declarations import BACKEND, SYSTEM
from isthmus.cabi.notation import header_files
from isthmus.cabi.tables import ARGUMENTS, CORE_VERSION, SYSTEM_VERSION
from isthmus.capi import headers
from isthmus.capi.building import HANDWRITTEN, HERE
from isthmus.capi.installation import INCLUDE
from isthmus.graph.ops import OPERATIONS
from isthmus.system import writing

QNN = INCLUDE / "QNN"
HEADERS = sorted(str(file.relative_to(QNN)) for file in QNN.rglob("*.h"))
# Sources for the DSP and sources for HTP share names, as in the SDK; no source includes the headers of both.
FAMILIES = [[each for each in HEADERS if not each.startswith(other)] for other in ("DSP/", "HTP/")]
SDK = [
    "QnnBackend", "QnnCommon", "QnnContext", "QnnDevice", "QnnError", "QnnGraph", "QnnInterface", "QnnLog", "QnnMem",
    "QnnOpDef", "QnnOpPackage", "QnnProfile", "QnnProperty", "QnnSdkBuildId", "QnnSignal", "QnnTensor", "QnnTypes",
    "CPU/QnnCpuCommon", "CPU/QnnCpuOpPackage",
    "DSP/QnnDspCommon", "DSP/QnnDspDevice", "DSP/QnnDspPerfInfrastructure", "GPU/QnnGpuBackend",
    "GPU/QnnGpuCommon", "GPU/QnnGpuContext", "GPU/QnnGpuGraph", "GPU/QnnGpuMem", "HTP/QnnHtpCommon",
    "HTP/QnnHtpContext", "HTP/QnnHtpDevice", "HTP/QnnHtpDeviceConfigShared", "HTP/QnnHtpGraph", "HTP/QnnHtpMem",
    "HTP/QnnHtpPerfInfrastructure", "HTP/QnnHtpProfile", "HTP/QnnHtpProperty", "HTP/QnnHtpSystemContext",
    "IR/QnnIrCommon", "IR/QnnIrGraph", "LPAI/QnnLpaiBackend", "LPAI/QnnLpaiCommon", "LPAI/QnnLpaiContext",
    "LPAI/QnnLpaiGraph", "LPAI/QnnLpaiGraphPrepare", "LPAI/QnnLpaiMem", "Saver/QnnSaver", "Saver/QnnSaverCommon",
    "System/QnnSystemCommon", "System/QnnSystemContext", "System/QnnSystemDlc", "System/QnnSystemInterface",
    "System/QnnSystemLog", "System/QnnSystemProfile", "System/QnnSystemTensor", "TFLiteDelegate/QnnTFLiteDelegate",
]  # fmt: skip
STANDARDS = {"gcc": "-std=c11", "g++": "-std=c++17"}


def accept(compiler: str, sources: list[Path], *flags: str) -> None:
    """Have a compiler check sources, with every warning an error."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    command = [compiler, STANDARDS[compiler], "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *flags, *sources]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


def test_the_headers_have_the_sdks_names_and_folders() -> None:
    assert {f"{name}.h" for name in SDK} <= set(HEADERS)


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_every_header_is_complete_by_itself(tmp_path: Path, compiler: str) -> None:
    sources = []
    for number, header in enumerate(HEADERS):
        # A program may look for headers in `include` or, as the SDK's samples do, in `include/QNN`.
        for prefix in ("QNN/", ""):
            sources.append(tmp_path / f"{number}{prefix[:-1]}.{'c' if compiler == 'gcc' else 'cpp'}")
            sources[-1].write_text(f'#include "{prefix}{header}"\n')
    accept(compiler, sources, f"-I{INCLUDE}", f"-I{QNN}")


def test_former_places_of_headers_lead_to_the_new_ones(tmp_path: Path) -> None:
    source = tmp_path / "former.c"
    former = [file.relative_to(INCLUDE) for file in INCLUDE.rglob("*.h") if QNN not in file.parents]
    source.write_text("".join(f'#include "{file}"\n' for file in former))
    assert len(former) == 8
    accept("gcc", [source], f"-I{INCLUDE}")


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_every_initialiser_makes_a_value_of_its_type(tmp_path: Path, compiler: str) -> None:
    text = "".join((QNN / header).read_text() for header in HEADERS)
    types = {name.replace("_", "").lower(): name for name in re.findall(r"\}\s*(\w+)_t;", text)}
    types |= {"qnnlpaibackendalignmentreq": "QnnLpaiBackend_BufferAlignmentReq"}
    for noun in ("Data", "DataV1", "EventV1"):
        types[f"qnnsystemprofile{noun.lower()}"] = f"QnnSystemProfile_Profile{noun}"
    for kind, (major, minor, _) in (("QnnInterface", CORE_VERSION), ("QnnSystemInterface", SYSTEM_VERSION)):
        types[f"{kind.lower()}vertype"] = f"{kind}_ImplementationV{major}_{minor}"
    made = []
    for macro in sorted(set(re.findall(r"#define (\w+)_INIT [^0-9]", text))):
        plain = re.sub("^qnn[a-z]+apiversion$", "qnnapiversion", macro.replace("_", "").lower())
        made.append(f"{types[plain]}_t value{len(made)} = {macro}_INIT;")
    assert len(made) > 80
    for number, family in enumerate(FAMILIES):
        source = tmp_path / f"initialisers{number}.{'c' if compiler == 'gcc' else 'cpp'}"
        includes = "".join(f'#include "{header}"\n' for header in family)
        own = "".join((QNN / header).read_text() for header in family)
        values = [line for line in made if f"#define {line.split(' = ')[1][:-1]} " in own]
        source.write_text(f"{includes}\n" + "\n".join(values) + "\n")
        # A pointer begins as NULL, not as 0: programs in C++ are often compiled with this warning.
        accept(compiler, [source], f"-I{QNN}", *(["-Wzero-as-null-pointer-constant"] * (compiler == "g++")))


def test_accessors_take_the_arguments_that_sources_for_the_sdk_give_them(tmp_path: Path) -> None:
    """A list is set with its length; what version 1 of a tensor has not is neither read from it nor written to it."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    source, program = tmp_path / "accessors.cpp", tmp_path / "accessors"
    source.write_text("""
#include <vector>
#include "QnnTypeMacros.hpp"
#define EXPECT(condition) if (!(condition)) return __LINE__
int main() {
  std::vector<Qnn_Tensor_t> tensors{QNN_TENSOR_CREATE(QNN_TENSOR_VERSION_1), QNN_TENSOR_CREATE(QNN_TENSOR_VERSION_2)};
  Qnn_Param_t params[3] = {};
  Qnn_OpConfig_t op = QNN_OP_CFG_CREATE(QNN_OPCONFIG_VERSION_1), *pointer = &op;
  EXPECT(QNN_OP_CFG_VALID(op) && validateOpConfigVersion(op) && validateTensorVersion(tensors[1]));
  QNN_OP_CFG_SET_PARAMS(op, 3, params);
  QNN_OP_CFG_SET_INPUTS(pointer, tensors.size(), tensors.data());
  QNN_OP_CFG_SET_OUTPUTS(op, 1, &tensors[1]);
  EXPECT(QNN_OP_CFG_GET_NUM_PARAMS(op) == 3 && QNN_OP_CFG_GET_PARAMS(pointer) == params);
  EXPECT(QNN_OP_CFG_GET_NUM_INPUTS(op) == 2 && QNN_OP_CFG_GET_INPUTS(pointer) == tensors.data());
  EXPECT(QNN_OP_CFG_GET_NUM_OUTPUTS(op) == 1 && QNN_OP_CFG_GET_OUTPUTS(op) == &tensors[1]);
  QNN_OP_CFG_SET_PARAMS(op, 0, nullptr);
  EXPECT(QNN_OP_CFG_GET_NUM_PARAMS(op) == 0 && QNN_OP_CFG_GET_PARAMS(op) == nullptr);

  uint8_t dynamic = 1;
  Qnn_SparseParams_t sparse = QNN_SPARSE_PARAMS_INIT;
  sparse.type = QNN_SPARSE_LAYOUT_HYBRID_COO;
  for (Qnn_Tensor_t &tensor : tensors) {
    const bool second = tensor.version == QNN_TENSOR_VERSION_2;
    QNN_TENSOR_SET_IS_DYNAMIC_DIMENSIONS(tensor, &dynamic);
    QNN_TENSOR_SET_SPARSE_PARAMS(&tensor, sparse);
    EXPECT(QNN_TENSOR_GET_IS_DYNAMIC_DIMENSIONS(&tensor) == (second ? &dynamic : nullptr));
    EXPECT((QNN_TENSOR_GET_SPARSE_PARAMS(tensor).type == QNN_SPARSE_LAYOUT_HYBRID_COO) == second);
    Qnn_TensorRetrieveRaw_t retrieve = QNN_TENSOR_RETRIEVE_RAW_INIT;
    QNN_TENSOR_SET_CLIENT_BUF_RETRIEVE(tensor, &retrieve);
    EXPECT(QNN_TENSOR_GET_CLIENT_BUF_RETRIEVE(tensor) == &retrieve);
  }
  tensors[0].version = static_cast<Qnn_TensorVersion_t>(9);
  op.version = static_cast<Qnn_OpConfigVersion_t>(9);
  EXPECT(!QNN_OP_CFG_VALID(op) && !validateTensorVersion(tensors[0]));
  return 0;
}
""")
    flags = ["-std=c++11", "-Wall", "-Wextra", "-Werror", f"-I{QNN}"]
    done = subprocess.run(["g++", *flags, source, "-o", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    assert subprocess.run([program]).returncode == 0, "the line that failed"


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_names_that_public_clients_use_have_their_numbers_and_places(standard: str) -> None:
    accept("g++", [PROGRAMS / "client_names.cpp"], f"-std={standard}", f"-I{QNN}")


def test_names_of_the_dsp_have_their_numbers_and_places(tmp_path: Path) -> None:
    """A source for the DSP: QNN's own headers for HTP and for the DSP cannot be included together either."""
    source = tmp_path / "dsp.cpp"
    source.write_text("""
#include "DSP/QnnDspCommon.h"
#include "DSP/QnnDspDevice.h"
#include "QnnInterface.h"
static_assert(QNN_DSP_PERF_INFRASTRUCTURE_MIN_ERROR == 13000 && QNN_DSP_PERF_INFRASTRUCTURE_MAX_ERROR == 13999, "");
static_assert(QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_HMX_TIMEOUT_INTERVAL_US == 11, "");
static_assert(offsetof(QnnDspPerfInfrastructure_PowerConfig_t, coreVoltageCornerMaxConfig) == 4, "");
static_assert(sizeof(QnnDspDevice_Infrastructure_t) == 40, "");
Qnn_ErrorHandle_t vote(QnnDevice_Infrastructure_t infrastructure, uint32_t number) {
  QnnDspPerfInfrastructure_PowerConfig_t config = QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIG_INIT;
  config.config = QNN_DSP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_DCVS_POWER_MODE;
  config.dcvsPowerModeConfig = QNN_DSP_PERF_INFRASTRUCTURE_POWERMODE_PERFORMANCE_MODE;
  const QnnDspPerfInfrastructure_PowerConfig_t *configs[] = {&config, nullptr};
  return infrastructure->setPowerConfig(number, configs);
}
""")
    accept("g++", [source], f"-I{QNN}")


def test_what_is_known_of_a_device_is_read_without_a_cast(tmp_path: Path) -> None:
    source = tmp_path / "device.cpp"
    source.write_text("""
#include "HTP/QnnHtpDevice.h"
#include "QnnDevice.h"
QnnHtpDevice_Arch_t arch(const QnnDevice_PlatformInfo_t *info) {
  return info->v1.hwDevices[0].v1.deviceInfoExtension->onChipDevice.arch;
}
""")
    accept("g++", [source], f"-I{QNN}")


def test_headers_are_written_where_they_are_missing_or_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {tmp_path / file.relative_to(HERE): text for file, text in headers.FILES.items()}
    monkeypatch.setattr(headers, "FILES", files)
    headers.write()
    missing, stale, *others = files
    before = [file.stat().st_mtime_ns for file in others]
    missing.unlink()
    stale.write_text("/* of another version */")
    headers.write()
    assert all(file.read_text() == text() for file, text in files.items())
    assert [file.stat().st_mtime_ns for file in others] == before, "what is right is left alone"


def test_a_header_is_generated_or_written_by_hand() -> None:
    """One that is both would hide what is generated."""
    generated = dict(header_files(headers._ENUMERATIONS)) | headers._DECLARED
    assert not [file for file in generated if (HANDWRITTEN / "QNN" / file).exists()]


def test_prototypes_have_the_parameters_that_are_declared() -> None:
    text = "".join((QNN / header).read_text() for header in HEADERS)
    prototypes = {
        name: " ".join(parameters.split())
        for name, parameters in re.findall(r"_API Qnn_ErrorHandle_t (\w+)\(([^;]*)\);", text)
    }
    for entry, parameters in {**BACKEND, **SYSTEM}.items():
        if parameters is not None:  # else they are not public
            declared = ", ".join(each.declaration for each in parameters)
            assert prototypes[headers.function_name(entry)] == declared


def test_every_function_of_the_tables_has_a_prototype() -> None:
    text = "".join((QNN / header).read_text() for header in HEADERS)
    declared = re.findall(r"_API Qnn_ErrorHandle_t (\w+)\(", text)
    assert set(map(headers.function_name, ARGUMENTS)) <= set(declared)


def test_parameters_that_qnn_does_not_have_are_not_among_its_names() -> None:
    text = (QNN / "QnnOpDef.h").read_text()
    own = {param.name for operation in OPERATIONS.values() for param in operation.params if param.is_own}
    assert own == {"from_end", "ties_away_from_zero", "largest_sample", "random_stream"}
    assert not [name for name in own if name in text]


def test_every_operation_and_parameter_has_a_name_in_c() -> None:
    text = (QNN / "QnnOpDef.h").read_text()
    for name, operation in OPERATIONS.items():
        if operation.package == "qti.aisw":
            (macro,) = re.findall(rf'#define (\w+) "{name}"\n', text)
            for param in operation.params:
                if param.is_own:
                    continue
                assert f'#define {macro}_PARAM_{param.name.upper()} "{param.name}"\n' in text
    for line in (
        'QNN_OP_CONV_2D "Conv2d"', 'QNN_OP_DEPTH_WISE_CONV_2D_PARAM_PAD_AMOUNT "pad_amount"', 'QNN_OP_L2_NORM "L2Norm"',
        'QNN_OP_RELU6 "Relu6"', 'QNN_OP_NV12_TO_RGB "Nv12ToRgb"', 'QNN_OP_TOP_K "TopK"', 'QNN_OP_UN_PACK "UnPack"',
        "QNN_OP_ELEMENT_WISE_UNARY_OPERATION_SQRT 15", "QNN_OP_PAD_SCHEME_EDGE 3",
        'QNN_OP_CORRELATION_1D "Correlation1D"',
    ):  # fmt: skip
        assert f"#define {line}\n" in text


def test_the_module_writes_every_file_when_it_is_started_and_none_when_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if none was there."""
    written: list[Path] = []
    monkeypatch.setattr(Path, "exists", lambda file: False)
    monkeypatch.setattr(Path, "mkdir", lambda folder, **how: None)
    monkeypatch.setattr(Path, "write_text", lambda file, text: written.append(file))
    monkeypatch.setattr(writing, "write_whole", lambda file, content, mode: written.append(file))
    runpy.run_path(headers.__file__, run_name="imported")
    assert written == []
    runpy.run_path(headers.__file__, run_name="__main__")
    assert written == list(headers.FILES)
