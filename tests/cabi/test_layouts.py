"""Structures, tables and numbers in Python are those that a C compiler makes of our header."""

from __future__ import annotations

import ctypes
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from enum import IntEnum
from importlib import import_module
from pathlib import Path

import pytest

from isthmus.backends.cpu import c as cpu_c
from isthmus.backends.gpu import c as gpu_c
from isthmus.backends.htp import c as htp_c
from isthmus.backends.htp import headers as htp_headers
from isthmus.backends.lpai import c as lpai_c
from isthmus.cabi import delegate, notation, objects, op_package, system, tables, types
from isthmus.cabi import tables as interface
from isthmus.capi.messages import name_of
from isthmus.errors import Code

INCLUDE = Path(interface.__file__).parents[1] / "capi" / "include"
ALL_HEADERS = sorted(str(file.relative_to(INCLUDE)) for file in INCLUDE.glob("QNN/**/*.h"))
# A source includes one of the two: they share names.
FAMILIES = {"HTP": [each for each in ALL_HEADERS if "/DSP/" not in each],
            "DSP": [each for each in ALL_HEADERS if "/HTP/" not in each]}  # fmt: skip
HEADERS = FAMILIES["HTP"]
INIT_MACROS = set(re.findall(r"#define (\w+_INIT)\b", "".join((INCLUDE / file).read_text() for file in ALL_HEADERS)))
BACKENDS = {each: Path(each.__file__).with_name("headers.txt").read_text() for each in (gpu_c, htp_c, lpai_c)}
"""The declarations of single backends."""
C_NAMES = {
    objects.Property: ["QnnBackend_Property_t", "QnnGraph_Property_t"],
    objects.ContextProperty: ["QnnContext_Property_t"],
    tables.FunctionTable: ["QNN_INTERFACE_VER_TYPE"],
    tables.SystemFunctionTable: ["QNN_SYSTEM_INTERFACE_VER_TYPE"],
}
"""Structures whose description does not begin with their name in C."""
OTHER_FIELDS = {
    "QnnInterface_t.coreApiVersion": "apiVersion.coreApiVersion",
    "QnnInterface_t.backendApiVersion": "apiVersion.backendApiVersion",
    "QnnOpPackage_Interface_t.functions": "v1_4",
    "QnnInterface_t.table": "QNN_INTERFACE_VER_NAME",
    "QnnSystemInterface_t.table": "QNN_SYSTEM_INTERFACE_VER_NAME",
}
NOT_IN_C = {
    system.ModelGraphInfo, tables.ComposingTable,
}  # fmt: skip
"""What model libraries and no header of ours declare, and what is laid over tables of any size."""
ENUMERATIONS = {
    "QNN_BACKEND_CONFIG_OPTION_": objects.BackendOption,
    "QNN_CONTEXT_CONFIG_OPTION_": objects.ContextOption,
    "QNN_SIGNAL_CONFIG_OPTION_": objects.SignalOption,
    "QNN_GRAPH_CONFIG_OPTION_": objects.GraphOption,
    "QNN_ERROR_REPORTING_LEVEL_": objects.ErrorReportingLevel,
    "QNN_CONTEXT_BINARY_COMPATIBILITY_": objects.BinaryCompatibility,
    "QNN_DEVICE_CONFIG_OPTION_": objects.DeviceOption,
    "QNN_PROFILE_CONFIG_OPTION_": objects.ProfileOption,
    "QNN_QUANTIZATION_ENCODING_": types.QuantizationEncoding,
    "QNN_TENSOR_TYPE_": types.TensorKind,
    "QNN_TENSORMEMTYPE_": types.TensorMemType,
    "QNN_DEFINITION_": types.Definition,
    "QNN_PARAMTYPE_": types.ParamType,
    "QNN_GRAPH_EXECUTE_ENVIRONMENT_OPTION_": objects.EnvironmentOption,
    "QNN_HTP_GRAPH_CONFIG_OPTION_": htp_c.HtpGraphOption,
    "QNN_HTP_CONTEXT_CONFIG_OPTION_": htp_c.HtpContextOption,
    "QNN_HTP_DEVICE_CONFIG_OPTION_": htp_c.HtpDeviceOption,
    "QNN_CPU_PARAMTYPE_": cpu_c.CpuParamType,
}
OTHER_NUMBERS = {
    f"QNN_CONTEXT_CONFIG_OPTION_{name}": f"QNN_CONTEXT_CONFIG_{name}"
    for name in ("ASYNC_EXECUTION_QUEUE_DEPTH", "ENABLE_GRAPHS", "MEMORY_LIMIT_HINT", "PERSISTENT_BINARY",
                 "BINARY_COMPATIBILITY")
}  # fmt: skip
"""What has no OPTION in its name."""


def structures() -> Iterator[tuple[type[ctypes.Structure], str]]:
    for module in (types, objects, op_package, cpu_c, gpu_c, htp_c, system, tables, delegate):
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ != module.__name__ or not issubclass(kind, ctypes.Structure) or kind in NOT_IN_C:
                continue
            names = C_NAMES.get(kind) or re.findall(r"\b\w+_t\b|\bTfLite\w+", (kind.__doc__ or "").split("\n")[0])[:1]
            assert names, f"{kind.__name__} does not say which structure of C it is"
            for name in names:
                yield kind, name
    yield from declared("HTP")


def declared(family: str) -> Iterator[tuple[type[ctypes.Structure], str]]:
    """The structures that headers of single backends declare, if a family has these headers."""
    for text in BACKENDS.values():
        for header in text.split("header ")[1:]:
            if f"QNN/{header.split()[0]}" in FAMILIES[family]:
                yield from ((notation.type_named(name), name) for name in re.findall(r"(?m)^struct!? (\w+)", header))


def fields(kind: type) -> Iterator[str]:
    anonymous = getattr(kind, "_anonymous_", ())
    for base in reversed(kind.__mro__):
        for name, member, *_ in base.__dict__.get("_fields_", ()):
            if name in anonymous:
                yield from fields(member)
            else:
                yield name


def run_c(tmp_path: Path, body: str, compiler: str = "gcc", family: str = "HTP") -> list[str]:
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    includes = "".join(f'#include "{header}"\n' for header in FAMILIES[family])
    source = tmp_path / ("layouts.c" if compiler == "gcc" else "layouts.cpp")
    source.write_text(f"{includes}#include <stdio.h>\nint main(void) {{\n{body}  return 0;\n}}\n")
    program = tmp_path / "layouts"
    standard = "-std=c11" if compiler == "gcc" else "-std=c++17"
    subprocess.run(
        [compiler, standard, "-Wall", "-Wextra", "-Werror", "-I", INCLUDE, source, "-o", program], check=True
    )
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize(("compiler", "family"), [("gcc", "HTP"), ("g++", "HTP"), ("gcc", "DSP"), ("g++", "DSP")])
def test_sizes_and_offsets_are_those_of_the_header(tmp_path: Path, compiler: str, family: str) -> None:
    body, expected = "", []
    for kind, c_name in structures() if family == "HTP" else declared(family):
        body += f'  printf("{c_name} %zu\\n", sizeof({c_name}));\n'
        expected.append(f"{c_name} {ctypes.sizeof(kind)}")
        for name in fields(kind):
            c_field = OTHER_FIELDS.get(f"{c_name}.{name}", name)
            body += f'  printf("{c_name}.{name} %zu\\n", offsetof({c_name}, {c_field}));\n'
            expected.append(f"{c_name}.{name} {getattr(kind, name).offset}")
    found = run_c(tmp_path, body, compiler, family)
    assert len(found) > (500 if family == "HTP" else 40)
    assert found == expected


def test_functions_of_op_packages_are_in_the_order_of_the_header(tmp_path: Path) -> None:
    body, expected = "", []
    for (major, minor), functions in op_package.VERSIONS.items():
        for index, name in enumerate(functions):
            c_name = f"QnnOpPackage_ImplementationV{major}_{minor}_t"
            body += f'  printf("{c_name}.{name} %zu\\n", offsetof({c_name}, {name}) / sizeof(void *));\n'
            expected.append(f"{c_name}.{name} {index}")
    assert run_c(tmp_path, body) == expected


def test_parameters_have_the_types_of_the_header(tmp_path: Path) -> None:
    body = "".join(f'  printf("{name} %zu\\n", sizeof({name}));\n' for name in tables.TYPES)
    assert run_c(tmp_path, body) == [f"{name} {ctypes.sizeof(kind)}" for name, kind in tables.TYPES.items()]
    named = {name: kind for kind, name in structures()}
    for name, kind in tables.TYPES.items():
        assert not (isinstance(kind, type) and issubclass(kind, ctypes.Structure)) or named.get(name, kind) is kind


def test_numbers_are_those_of_the_header(tmp_path: Path) -> None:
    body, expected = "", []
    for prefix, kind in ENUMERATIONS.items():
        for member in kind:
            if member.name in {"UNDEFINED", "BACKEND"}:
                continue
            name = f"{prefix}{member.name}"
            body += f'  printf("{name} %d\\n", (int){OTHER_NUMBERS.get(name, name)});\n'
            expected.append(f"{name} {int(member)}")
    assert run_c(tmp_path, body) == expected


def test_numbers_of_backends_are_those_of_their_headers(tmp_path: Path) -> None:
    expected, kinds = {}, []
    for module, text in BACKENDS.items():
        options = {**vars(import_module(module.__name__.replace(".c", ".options"))), **vars(module)}
        for name, prefix, members in re.findall(r"(?m)^enum!? (\w+) (\w+): @(\w+)", text):
            kinds.append(name)
            for key, number in getattr(options.get(members), "__members__", {}).items():
                expected |= {f"{prefix}_{key}": int(number)} if number < 20001 else {}
    body = "".join(f'  printf("{name} %d\\n", (int){name});\n' for name in expected)
    body += "".join(f'  printf("%zu\\n", sizeof({kind}));\n' for kind in kinds)
    assert len(expected) > 100
    assert run_c(tmp_path, body) == [*(f"{name} {number}" for name, number in expected.items()), *["4"] * len(kinds)]


def test_declarations_of_a_backend_become_c_and_ctypes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("known_types", "_members", "_undefined"):
        monkeypatch.setattr(notation, name, dict(getattr(notation, name)))
    (tmp_path / "headers.txt").write_text(
        "struct! Sample_Hidden_t: uint64_t number;\n"
        "header X/SampleSome.h ../QnnCommon.h <stdbool.h>: A sample.\n"
        "enum! Sample_Kind_t SAMPLE_KIND: @Kinds UNKNOWN=QNN_UNDEFINED\n"
        "enum! Sample_Bare_t: @Bare\n"
        "@Values\n"
        "struct! Sample_SomeConfig_t _Sample: Sample_Kind_t kind; union { @Members };\n"
        "    uint32_t first, rest[3];\n"
    )
    named = {"Kinds": {"FIRST": 1, "OURS": 20001}, "Bare": {"SAMPLE_BARE": 3}}
    texts = {"Values": "struct Sample_Value_t: bool is_on;", "Members": "uint8_t flag; const char *text;"}
    headers = notation.declare_headers(tmp_path, named | texts)
    text = headers["X/SampleSome.h"]()
    assert text.splitlines()[2:7] == [
        "#ifndef SAMPLE_SOME_H", "#define SAMPLE_SOME_H", "", '#include "../QnnCommon.h"', "#include <stdbool.h>",
    ]  # fmt: skip
    assert (
        """
typedef enum { SAMPLE_KIND_FIRST = 1, SAMPLE_KIND_UNKNOWN = QNN_UNDEFINED } Sample_Kind_t;
typedef enum { SAMPLE_BARE = 3 } Sample_Bare_t;
typedef struct { bool is_on; } Sample_Value_t;
QNN_LAYOUT(Sample_Value_t, 1);
#define SAMPLE_VALUE_INIT {0}
typedef struct _Sample {
  Sample_Kind_t kind;
  union { uint8_t flag; const char *text; };
  uint32_t first, rest[3];
} Sample_SomeConfig_t;
QNN_LAYOUT(Sample_SomeConfig_t, 32);
"""
        in text
    )
    assert "Hidden" not in text
    assert ctypes.sizeof(notation.type_named("Sample_Hidden_t")) == 8
    value = notation.type_named("Sample_SomeConfig_t")
    places = {name: getattr(value, name).offset for name in fields(value)}
    assert places == {"kind": 0, "flag": 8, "text": 8, "first": 16, "rest": 20}
    assert value(text=4096).text == 4096, "a pointer is a plain address"


ENTRIES = """\
header Sample/QnnSample.h ../QnnCommon.h <stdint.h>: What a sample of each kind of entry is printed as, with a comment
  that is longer than a line may be, so that it goes on in the next.
enum Sample_Kind_t SAMPLE_KIND: @Sample NEXT AFTER=9
enum! Sample_Other_t SAMPLE_OTHER: FIRST SECOND=4 THIRD NONE=QNN_UNDEFINED
enum Sample_Hex_t SAMPLE_HEX: @Sample=hex
macros SAMPLE: ONE=1 TWO=0x20 THREE=QNN_SUCCESS
struct Sample_Short_t: uint32_t number; const char *text;
struct! Sample_Pair_t: +Sample_Short_t double value;
struct Sample_Long_t: Sample_Kind_t kind; Sample_Other_t other; union { Sample_Short_t short_one; uint64_t number; };
  uint32_t first, second, third[3]; const struct Sample_Long_t *next; Sample_Short_t one_with_a_long_name;
functions QnnSignal
/* a comment */"""
PRINTED = """\
/* What a sample of each kind of entry is printed as, with a comment that is longer than a line may be, so that it goes
 * on in the next.
 * Generated by `isthmus.capi.headers`. */
#ifndef QNN_SAMPLE_H
#define QNN_SAMPLE_H

#include "../QnnCommon.h"
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  SAMPLE_KIND_FIRST = 1, SAMPLE_KIND_LAST = 7, SAMPLE_KIND_NEXT = 0, SAMPLE_KIND_AFTER = 9,
  SAMPLE_KIND_UNDEFINED = QNN_UNDEFINED
} Sample_Kind_t;
typedef enum {
  SAMPLE_OTHER_FIRST = 0, SAMPLE_OTHER_SECOND = 4, SAMPLE_OTHER_THIRD = 5, SAMPLE_OTHER_NONE = QNN_UNDEFINED
} Sample_Other_t;
typedef enum { SAMPLE_HEX_FIRST = 0x0001, SAMPLE_HEX_LAST = 0x0007, SAMPLE_HEX_UNDEFINED = QNN_UNDEFINED } Sample_Hex_t;
#define SAMPLE_ONE 1
#define SAMPLE_TWO 0x20
#define SAMPLE_THREE QNN_SUCCESS
typedef struct { uint32_t number; const char *text; } Sample_Short_t;
QNN_LAYOUT(Sample_Short_t, 16);
#define SAMPLE_SHORT_INIT {0, NULL}
typedef struct { uint32_t number; const char *text; double value; } Sample_Pair_t;
QNN_LAYOUT(Sample_Pair_t, 24);
typedef struct Sample_Long_t {
  Sample_Kind_t kind; Sample_Other_t other;
  union { Sample_Short_t short_one; uint64_t number; };
  uint32_t first, second, third[3]; const struct Sample_Long_t *next; Sample_Short_t one_with_a_long_name;
} Sample_Long_t;
QNN_LAYOUT(Sample_Long_t, 72);
#define SAMPLE_LONG_INIT \\
  {SAMPLE_KIND_UNDEFINED, SAMPLE_OTHER_NONE, {SAMPLE_SHORT_INIT}, 0, 0, 0, NULL, SAMPLE_SHORT_INIT}
QNN_API Qnn_ErrorHandle_t QnnSignal_create(
    Qnn_BackendHandle_t backend, const QnnSignal_Config_t **config, Qnn_SignalHandle_t *signal);
QNN_API Qnn_ErrorHandle_t QnnSignal_setConfig(Qnn_SignalHandle_t signal, const QnnSignal_Config_t **config);
QNN_API Qnn_ErrorHandle_t QnnSignal_trigger(Qnn_SignalHandle_t signal);
QNN_API Qnn_ErrorHandle_t QnnSignal_free(Qnn_SignalHandle_t signal);
/* a comment */

#ifdef __cplusplus
}
#endif
#endif
"""


def test_entries_are_printed_to_the_last_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where lines are broken: headers are read by people, and compared from version to version."""

    class Sample(IntEnum):
        FIRST = 1
        LAST = 7
        UNDEFINED = types.UNDEFINED

    for name in ("known_types", "_members", "_undefined"):
        monkeypatch.setattr(notation, name, dict(getattr(notation, name)))
    monkeypatch.setattr(notation, "_HEADERS", notation._read(ENTRIES, {}, is_plain=False))
    assert dict(notation.header_files({"Sample": Sample})) == {"Sample/QnnSample.h": PRINTED}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_structure_that_the_headers_declare_has_cs_size_and_an_initial_value(tmp_path: Path, family: str) -> None:
    entries = [
        each for first, *entries in notation._HEADERS for each in entries if family == "DSP" or " DSP/" not in first
    ]
    names = [match[1] for match in map(re.compile(r"struct!? (\w+)").match, entries) if match]
    assert len(names) > 70
    sizes = run_c(tmp_path, "".join(f'  printf("%zu\\n", sizeof({name}));\n' for name in names), family=family)
    assert [ctypes.sizeof(notation.type_named(name)) for name in names] == list(map(int, sizes))
    macros = {name: notation.init_macro(name) for name in names if notation.init_macro(name) in INIT_MACROS}
    assert len(macros) > 40
    values = "".join(f"  {{ {name} value = {macro}; (void)value; }}\n" for name, macro in macros.items())
    run_c(tmp_path, values, family=family)


def test_numbers_that_the_graph_has_too_are_the_same(tmp_path: Path) -> None:
    from isthmus.graph import DataType, TensorMemType, TensorType

    pairs: list[tuple[str, type[IntEnum]]] = [
        ("QNN_DATATYPE_", DataType), ("QNN_TENSOR_TYPE_", TensorType), ("QNN_TENSORMEMTYPE_", TensorMemType),
    ]  # fmt: skip
    body = "".join(
        f'  printf("%d\\n", (int){prefix}{member.name} == {int(member)});\n'
        for prefix, kind in pairs
        for member in kind
    )
    assert set(run_c(tmp_path, body)) == {"1"}


def test_every_code_has_its_name_and_number_in_c() -> None:
    text = "".join((INCLUDE / header).read_text() for header in HEADERS)
    numbers = {
        f"{group}_{name}": int(number)
        for group, name, number in re.findall(r"QNN_([A-Z_]+?)_ERROR_(?:GRAPH_)?(\w+) = (\d+)", text)
    }
    # The names of two codes begin with QNN_ERROR_, which the pattern above does not take.
    codes = {code.name: int(code) for code in Code if code and not code.name.startswith("ERROR_")}
    assert {name: numbers.get(name) for name in codes} == codes
    assert not [code for code in Code if code and not re.search(rf"\b{name_of(code)} = {code:d}\b", text)]


def test_the_tables_have_the_entries_of_their_versions() -> None:
    assert len(interface.BACKEND_FUNCTIONS) == len(set(interface.BACKEND_FUNCTIONS)) == 75
    assert len(interface.SYSTEM_FUNCTIONS) == len(set(interface.SYSTEM_FUNCTIONS)) == 90
    assert interface.BACKEND_FUNCTIONS.index("tensorCreateGraphTensor") == tables.COMPOSING_ENTRIES - 1
    assert set(interface.ARGUMENTS) <= {*interface.BACKEND_FUNCTIONS, *interface.SYSTEM_FUNCTIONS}


def test_a_table_for_composing_is_the_beginning_of_the_whole_and_nothing_behind() -> None:
    whole = interface.FunctionTable()
    for number, name in enumerate(interface.BACKEND_FUNCTIONS, 1):
        setattr(whole, name, number)
    short = interface.ComposingTable.of(whole)
    assert list(short.entries) == list(range(1, 26))
    assert not any(short.zeros)


def test_the_real_libraries_answer_by_these_layouts() -> None:
    package = pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    folder = Path(package.get_library_path()).parent
    code = (
        "import ctypes, sys; from isthmus.cabi import tables as interface\n"
        "one = interface.providers(ctypes.CDLL(sys.argv[1] + '/libQnnHtp.so'))[0]\n"
        "two = interface.system_providers(ctypes.CDLL(sys.argv[1] + '/libQnnSystem.so'))[0]\n"
        "build = ctypes.c_char_p(); error = interface.function(one.table, 'backendGetBuildId')(ctypes.byref(build))\n"
        "print(one.backendId, one.providerName, one.coreApiVersion.major, two.providerName, error, build.value[:1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    # The library prints a line of its own, before ours or after it.
    assert "6 b'HTP_QTI_AISW' 2 b'SYSTEM_QTI_AISW' 0 b'v'" in done.stdout.splitlines()


def test_profile_events_have_their_numbers() -> None:
    assert {event.name: int(event) for event in objects.EventType} == {
        "INIT": 100, "FINALIZE": 300, "EXECUTE": 400, "NODE": 404, "EXECUTE_QUEUE_WAIT": 405,
        "EXECUTE_PREPROCESS": 406, "EXECUTE_DEVICE": 407, "EXECUTE_POSTPROCESS": 408, "DEINIT": 500, "TRACE": 600,
        "BACKEND": 1000,
    }  # fmt: skip


def test_units_of_events_and_answers_on_properties_have_their_numbers() -> None:
    units = {unit.name: int(unit) for unit in objects.EventUnit}
    answers = {answer.name: int(answer) for answer in objects.PropertyAnswer}
    assert units == {"MICROSEC": 1, "BYTES": 2, "CYCLES": 3, "COUNT": 4, "OBJECT": 5}
    assert answers == {"SUPPORTED": 0, "NOT_SUPPORTED": 1000, "UNKNOWN_KEY": 2000}


def test_ways_to_set_power_have_their_numbers() -> None:
    assert [int(option) for option in htp_c.HtpPowerOption] == [1, 2, 3, 4]


def test_the_value_of_a_devices_config_is_where_the_vendors_library_reads_it() -> None:
    assert {name: getattr(htp_headers.DEVICE_CONFIG, name).offset for name in fields(htp_headers.DEVICE_CONFIG)} == {
        "option": 0, "socModel": 8, "arch": 8, "useSignedProcessDomain": 8, "useSecureProcessDomain": 8,
        "asyncExecute": 8, "htpExtension": 8,
    }  # fmt: skip
    assert ctypes.sizeof(htp_headers.DEVICE_CONFIG) == 16
    earlier = htp_headers.EARLIER_DEVICE_CONFIG
    assert {name: getattr(earlier, name).offset for name in fields(earlier)} == {
        "option": 0, "socModel": 4, "arch": 4, "useSignedProcessDomain": 4,
    }  # fmt: skip
    assert ctypes.sizeof(earlier) == 12
