"""Numbers of QNN that Python has too are those of the headers: capabilities, data types, what is undefined."""

from __future__ import annotations

import ctypes
import inspect
import re
import shutil
import subprocess
from enum import IntEnum
from pathlib import Path

import pytest

from cabi.test_layouts import run_c
from isthmus.backends.htp import c as htp_c
from isthmus.cabi import notation, objects, other_backends, tables, types, writer
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType

SCALARS = {
    "int8Value": "INT_8", "int16Value": "INT_16", "int32Value": "INT_32", "int64Value": "INT_64",
    "uint8Value": "UINT_8", "uint16Value": "UINT_16", "uint32Value": "UINT_32", "uint64Value": "UINT_64",
    "floatValue": "FLOAT_32", "doubleValue": "FLOAT_64", "bool8Value": "BOOL_8", "stringValue": "STRING",
}  # fmt: skip
WRITER = {
    "_BOOL": "BOOL_8", "_FLOAT": "FLOAT_32", "_UINT": "UINT_32", "_INT": "INT_32", "_UINT_64": "UINT_64",
    "_INT_64": "INT_64",
}  # fmt: skip


def test_numbers_without_an_enumeration_are_those_of_the_header(tmp_path: Path) -> None:
    expected = {f"QNN_PROPERTY_GROUP_{name.upper()}": number for name, number in objects.PROPERTY_GROUPS.items()}
    expected |= {f"QNN_SAVER_CONFIG_OPTION_{each.name}": int(each) for each in other_backends.SaverOption}
    expected |= {f"QNN_DATATYPE_{SCALARS[field]}": number for number, field in types.SCALAR_FIELDS.items()}
    assert len(types.SCALAR_FIELDS) == len(SCALARS)
    expected |= {
        "QNN_UNDEFINED": types.UNDEFINED,
        "QNN_DATATYPE_SFIXED_POINT_4": types.DATATYPE_SFIXED_POINT_4,
        "QNN_DATATYPE_UFIXED_POINT_4": types.DATATYPE_UFIXED_POINT_4,
        "QNN_PROPERTY_TENSOR_SUPPORT_RETRIEVE_RAW": objects.PROPERTY_TENSOR_SUPPORT_RETRIEVE_RAW,
        "QNN_API_VERSION_MAJOR": tables.CORE_VERSION[0], "QNN_API_VERSION_MINOR": tables.CORE_VERSION[1],
        "QNN_API_VERSION_PATCH": tables.CORE_VERSION[2],
        "QNN_BACKEND_ID_IR": other_backends.IR[0], "QNN_BACKEND_ID_SAVER": other_backends.SAVER[0],
        "QNN_BACKEND_ID_DSP": other_backends.DSP[0],
    }  # fmt: skip
    for name, (_, version) in (("IR", other_backends.IR), ("SAVER", other_backends.SAVER)):
        expected |= {
            f"QNN_{name}_API_VERSION_{part}": number
            for part, number in zip(("MAJOR", "MINOR", "PATCH"), version, strict=True)
        }
    body = "".join(f'  printf("{name} %d\\n", (int)({name}));\n' for name in expected)
    found = run_c(tmp_path, body)
    assert found == [f"{name} {number}" for name, number in expected.items()]


QNN = {
    types.Definition: {"IMPL_GENERATED": 0, "DEFINED": 1},
    types.ParamType: {"SCALAR": 0, "TENSOR": 1},
    types.QuantizationEncoding: {
        "SCALE_OFFSET": 0, "AXIS_SCALE_OFFSET": 1, "BW_SCALE_OFFSET": 2, "BW_AXIS_SCALE_OFFSET": 3, "BLOCK": 4,
        "BLOCKWISE_EXPANSION": 5, "VECTOR": 6,
    },
    types.TensorKind: {
        "APP_WRITE": 0, "APP_READ": 1, "APP_READWRITE": 2, "NATIVE": 3, "STATIC": 4, "NULL": 5,
        "UPDATEABLE_STATIC": 6, "UPDATEABLE_NATIVE": 7, "UPDATEABLE_APP_WRITE": 8, "UPDATEABLE_APP_READ": 9,
        "UPDATEABLE_APP_READWRITE": 10, "OPTIONAL_APP_WRITE": 11, "OPTIONAL_APP_READ": 12,
        "OPTIONAL_APP_READWRITE": 13,
    },
    types.TensorMemType: {"RAW": 0, "MEMHANDLE": 1, "RETRIEVE_RAW": 2},
    DataType: {
        "INT_8": 0x8, "INT_16": 0x16, "INT_32": 0x32, "INT_64": 0x64, "UINT_8": 0x108, "UINT_16": 0x116,
        "UINT_32": 0x132, "UINT_64": 0x164, "FLOAT_16": 0x216, "BFLOAT_16": 0x226, "FLOAT_32": 0x232, "FLOAT_64": 0x264,
        "SFIXED_POINT_8": 0x308, "SFIXED_POINT_16": 0x316, "SFIXED_POINT_32": 0x332, "UFIXED_POINT_8": 0x408,
        "UFIXED_POINT_16": 0x416, "UFIXED_POINT_32": 0x432, "BOOL_8": 0x508,
    },
    objects.BackendOption: {"CUSTOM": 0, "ERROR_REPORTING": 1, "PLATFORM": 2},
    objects.GraphOption: {
        "CUSTOM": 0, "PRIORITY": 3, "PROFILE_HANDLE": 4, "SET_PROFILING_STATE": 5, "SET_PROFILING_NUM_EXECUTIONS": 6,
    },
    objects.ErrorReportingLevel: {"BRIEF": 0, "DETAILED": 1},
    objects.DeviceOption: {"CUSTOM": 0, "PLATFORM_INFO": 1},
    objects.ProfileOption: {"CUSTOM": 0, "MAX_EVENTS": 1, "ENABLE_OPTRACE": 2},
    objects.SignalOption: {"CUSTOM": 0, "ABORT": 1, "TIMEOUT": 2},
    objects.EnvironmentOption: {"BIND_MEM_HANDLES": 0, "POPULATE_CLIENT_BUFS": 1},
    other_backends.SaverOption: {"OUTPUT_DIRECTORY": 0, "APPEND_TIMESTAMP": 1, "BACKEND_ID": 2, "FILE_CONFIG": 3},
}  # fmt: skip
"""The numbers of QNN's own headers, in full: ours are printed from these enumerations, and would repeat a mistake."""


@pytest.mark.parametrize("kind", QNN, ids=[kind.__name__ for kind in QNN])
def test_enumerations_that_our_headers_are_printed_from_have_the_numbers_of_qnns(kind: type[IntEnum]) -> None:
    assert {name: int(each) for name, each in kind.__members__.items() if name != "UNDEFINED"} == QNN[kind]


def test_the_numbers_of_every_printed_enumeration_are_known_here() -> None:
    printed = set(re.findall(r"@(\w+)", Path(notation.__file__).with_name("headers.txt").read_text())) - {"Code"}
    assert {kind.__name__ for kind in QNN} >= printed


def test_the_data_types_of_scalars_are_those_of_their_fields() -> None:
    assert {name: types.SCALAR_FIELDS[getattr(writer, name)] for name in WRITER} == {
        name: next(field for field, dtype in SCALARS.items() if dtype == WRITER[name]) for name in WRITER
    }
    assert types.SCALAR_FIELDS[types.DATATYPE_STRING] == "stringValue"


def test_what_is_undefined_is_the_same_number_everywhere() -> None:
    kinds = [
        kind
        for module in (types, objects, htp_c)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, IntEnum)
    ]
    undefined = {kind.__name__: int(kind["UNDEFINED"]) for kind in kinds if "UNDEFINED" in kind.__members__}
    assert {"Definition", "QuantizationEncoding", "TensorKind", "TensorMemType"} <= undefined.keys()
    assert set(undefined.values()) == {0x7FFFFFFF}


def test_a_version_is_written_with_dots() -> None:
    assert str(types.Version(2, 40, 1)) == "2.40.1"


def test_a_table_for_composing_is_longer_than_any_table() -> None:
    """What a library of any version reads after its table is zero."""
    assert ctypes.sizeof(tables.ComposingTable) == (25 + 150) * 8
    assert ctypes.sizeof(tables.ComposingTable) > ctypes.sizeof(tables.Interface) + 64


def test_numbers_from_20001_to_29999_are_this_projects_own() -> None:
    numbers = {"A": 20000, "B": 20001, "C": 29999, "D": 30000, "NONE": 5}
    listed = dict(notation._numbers("OWN", "@Numbers", {"Numbers": numbers}))
    assert listed == {"OWN_A": "20000", "OWN_D": "30000", "OWN_NONE": "5"}


@pytest.mark.parametrize("width", [119, 120, 121])
def test_a_declaration_is_broken_where_it_is_wider_than_a_line(width: int) -> None:
    """A line has 120 characters."""
    name = "n" * (width - len("typedef enum { A = 1 } ;"))
    assert (len(list(notation.block("typedef enum", ["A = 1"], name))) == 1) == (width <= 120)
    name = "N" * (width - len("#define _INIT {0}"))
    entry = f"struct {name}: uint32_t a;"
    [[_, entry]] = notation._read(f"header S.h a.h: A sample.\n{entry}", {}, is_plain=False)
    *_, macro = notation._lines(entry, {})
    assert macro == (f"#define {name}_INIT {{0}}" if width <= 120 else f"#define {name}_INIT \\\n  {{0}}")


def test_a_library_without_providers_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "provider.c"
    source.write_text(
        "int answer, number; void *list[1]; int null;\n"
        "unsigned long QnnInterface_getProviders(void ***out, unsigned *count) {\n"
        "  *out = null ? 0 : list, *count = number; return answer; }\n"
    )
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", tmp_path / "libother.so"], check=True)
    library = ctypes.CDLL(str(tmp_path / "libother.so"))
    for answer, number, null, rule in (
        (7, 1, 0, "it answers 7 when it is asked for its providers"), (0, 0, 0, "provider"), (0, 1, 1, "provider"),
    ):  # fmt: skip
        for name, value in (("answer", answer), ("number", number), ("null", null)):
            ctypes.c_int.in_dll(library, name).value = value
        with pytest.raises(QnnError, match=rule) as refused:
            tables.providers(library)
        assert refused.value.code is Code.COMMON_LOADING_BINARIES
    with pytest.raises(QnnError) as refused:
        tables.system_providers(library)
    assert refused.value.code is Code.COMMON_LOADING_BINARIES
