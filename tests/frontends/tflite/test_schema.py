"""The facts of the file format that we write down are those of LiteRT's own schema."""

from enum import IntEnum

import pytest
from ai_edge_litert import schema_py_generated as theirs

from isthmus.frontends.tflite import schema
from isthmus.frontends.tflite.schema import OPERATORS, OPTIONS, Option

TABLES = {
    "Model": (schema.ModelField, {"SIGNATURES": "SignatureDefs"}),
    "Metadata": (schema.MetadataField, {}),
    "OperatorCode": (schema.OperatorCodeField, {}),
    "SubGraph": (schema.SubgraphField, {}),
    "Tensor": (schema.TensorField, {}),
    "Operator": (
        schema.OperatorField,
        {
            "OPTIONS_TYPE": "BuiltinOptionsType", "OPTIONS": "BuiltinOptions", "OPTIONS_2": "BuiltinOptions2",
            "OPTIONS_2_TYPE": "BuiltinOptions2Type",
        },
    ),
    "Buffer": (schema.BufferField, {}),
    "QuantizationParameters": (schema.QuantizationField, {}),
    "SparsityParameters": (schema.SparsityField, {}),
    "DimensionMetadata": (
        schema.DimensionField,
        {
            "SEGMENTS_TYPE": "ArraySegmentsType", "SEGMENTS": "ArraySegments", "INDICES_TYPE": "ArrayIndicesType",
            "INDICES": "ArrayIndices",
        },
    ),
}  # fmt: skip
"""Our tables of fields under the names of theirs, and fields that we call otherwise."""
OPTION_NAMES = {
    "activation": "FusedActivationFunction", "dilation_w": "DilationWFactor", "dilation_h": "DilationHFactor",
    "dilation_d": "DilationDFactor", "filter_w": "FilterWidth", "filter_h": "FilterHeight",
    "diagonal": "DiagonalRecurrentTensors", "then_subgraph": "ThenSubgraphIndex", "else_subgraph": "ElseSubgraphIndex",
    "cond_subgraph": "CondSubgraphIndex", "body_subgraph": "BodySubgraphIndex", "init_subgraph": "InitSubgraphIndex",
    "subgraph": "DecompositionSubgraphIndex",
}  # fmt: skip
KINDS = {"Int8": "i8", "Int32": "i32", "Float32": "f32", "Bool": "bool", "UOffsetTRelative": "text i32[]"}


class Builder:
    """Notes where a field is written instead of writing it."""

    def __getattr__(self, name: str):
        def prepend(slot: int, value: object, default: object) -> None:
            self.noted = (slot, name.removeprefix("Prepend").removesuffix("Slot"), default)

        return prepend


def field(table: str, name: str) -> tuple[int, str, object]:
    """Number, kind and default of a field of theirs."""
    builder = Builder()
    getattr(theirs, f"{table}Add{name}")(builder, 1)
    return builder.noted


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


@pytest.mark.parametrize("name", TABLES)
def test_fields_have_their_numbers(name: str) -> None:
    ours, other = TABLES[name]
    for entry in ours:
        assert entry.value == field(name, other.get(entry.name, camel(entry.name)))[0], entry


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (schema.ElementType, "TensorType"), (schema.Padding, "Padding"), (schema.Activation, "ActivationFunctionType"),
    ],
)  # fmt: skip
def test_enumerations_have_their_numbers(ours: type[IntEnum], name: str) -> None:
    known = {n: v for n, v in vars(getattr(theirs, name)).items() if isinstance(v, int)}
    assert {entry.name: entry.value for entry in ours} == known


def test_operators_have_their_numbers() -> None:
    known = {n: v for n, v in vars(theirs.BuiltinOperator).items() if isinstance(v, int)}
    assert {name: number for number, name in enumerate(OPERATORS)} == known
    assert (known["CUSTOM"], known["PLACEHOLDER_FOR_GREATER_OP_CODES"]) == (schema.CUSTOM, schema.EXTENDED)


def test_sparse_formats_have_their_numbers() -> None:
    assert (schema.DENSE, schema.SPARSE_CSR) == (theirs.DimensionType.DENSE, theirs.DimensionType.SPARSE_CSR)
    vectors = {getattr(theirs.SparseIndexVector, f"{n}Vector"): n.lower() for n in ("Int32", "Uint16", "Uint8")}
    assert {number: kind.__name__ for number, kind in schema.SPARSE_INDEX_TYPES.items()} == vectors


@pytest.mark.parametrize("code", OPTIONS)
def test_options_are_read_where_they_lie(code: str) -> None:
    table = OPTIONS[code]
    union = theirs.BuiltinOptions2 if table.second else theirs.BuiltinOptions
    [kind] = [name for name, number in vars(union).items() if number == table.union and isinstance(number, int)]
    agreed = {
        "CONV_2D": "Conv2DOptions", "ADD": "AddOptions", "AVERAGE_POOL_2D": "Pool2DOptions", "MEAN": "ReducerOptions",
        "IF": "IfOptions", "BATCH_MATMUL": "BatchMatMulOptions", "SOFTMAX": "SoftmaxOptions",
        "STABLEHLO_COMPOSITE": "StableHLOCompositeOptions", "VAR_HANDLE": "VarHandleOptions",
    }  # fmt: skip
    assert kind == agreed.get(code, kind)
    assert code.replace("_", "") in kind.upper() or kind in (
        "Pool2DOptions", "ReducerOptions", "L2NormOptions", "StableHLOCompositeOptions",
    )  # fmt: skip
    for name, option in table.fields.items():
        slot, method, default = field(kind, OPTION_NAMES.get(name, camel(name)))
        assert option.field == slot, name
        assert option.kind in KINDS[method].split(), name
        assert option.default == (default if option.kind not in ("text", "i32[]") else option.default), name


def test_options_that_are_absent_are_zero() -> None:
    assert Option(0, "i32").default == 0
    assert {o.default for t in OPTIONS.values() for o in t.fields.values() if o.kind == "text"} == {""}
    assert {o.default for t in OPTIONS.values() for o in t.fields.values() if o.kind == "i32[]"} == {None}
