"""The interpreter's operator options: C structures, read under the names used in model files.

LiteRT reads a file's options into one structure per kind of operator (`TfLiteConvParams` and so on). Conversions look
up options by name, so this module declares each option's offset and format.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from isthmus.frontends.tflite.schema import OPTIONS

MAX_DIMENSIONS = 8
"""How many dimensions the structures of RESHAPE and SQUEEZE hold; their count follows."""


@dataclass(frozen=True)
class Field:
    """One option in a structure.

    - `kind`: "i32", "f32", "bool", "text" (a pointer) or "dims" (eight integers, then how many of them are used).
    - `counts_from`: By how much LiteRT's number is larger than the file's.
    """

    offset: int
    kind: str = "i32"
    counts_from: int = 0


def _integers(*names: str, start: int = 0) -> dict[str, Field]:
    """Return fields for consecutive 32-bit integers, the first at `start`."""
    return {name: Field(start + 4 * index) for index, name in enumerate(names)}


# TfLitePadding counts from 1, with 0 for none; files count from 0.
_PADDING = {"padding": Field(0, counts_from=1)}
_WINDOW = _PADDING | _integers("stride_w", "stride_h", start=4)
_ACTIVATION = _integers("activation")
_CORNERS = {"align_corners": Field(0, "bool"), "half_pixel_centers": Field(1, "bool")}

PARAMETERS: dict[str, dict[str, Field]] = {
    "CONV_2D": _WINDOW | _integers("activation", "dilation_w", "dilation_h", start=12),
    "DEPTHWISE_CONV_2D": _WINDOW | _integers("activation", "dilation_w", "dilation_h", start=16),
    "AVERAGE_POOL_2D": _WINDOW | _integers("filter_w", "filter_h", "activation", start=12),
    "FULLY_CONNECTED": _integers("activation", "weights_format") | {"keep_num_dims": Field(8, "bool")},
    "SOFTMAX": {"beta": Field(0, "f32")},
    "CONCATENATION": _integers("axis", "activation"),
    "ADD": _ACTIVATION,
    "L2_NORMALIZATION": _ACTIVATION,
    "LOCAL_RESPONSE_NORMALIZATION": {
        "radius": Field(0), "bias": Field(4, "f32"), "alpha": Field(8, "f32"), "beta": Field(12, "f32"),
    },
    "RESIZE_BILINEAR": _CORNERS,
    "RESHAPE": {"new_shape": Field(0, "dims")},
    "SPACE_TO_DEPTH": _integers("block_size"),
    "MUL": _ACTIVATION,
    "GATHER": _integers("axis", "batch_dims"),
    "SUB": _ACTIVATION,
    "DIV": _ACTIVATION,
    "SQUEEZE": {"squeeze_dims": Field(0, "dims")},
    "STRIDED_SLICE": {
        **_integers("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"),
        "offset": Field(20, "bool"),
    },
    "SPLIT": _integers("num_splits"),
    "TRANSPOSE_CONV": _WINDOW | _integers("activation", start=12),
    "PACK": _integers("axis", start=4),
    "ONE_HOT": _integers("axis"),
    "UNPACK": _integers("num", "axis"),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": {
        "activation": Field(0), "cell_clip": Field(4, "f32"), "proj_clip": Field(8, "f32"),
        "time_major": Field(12, "bool"), "diagonal": Field(14, "bool"),
    },
    "RESIZE_NEAREST_NEIGHBOR": _CORNERS,
    "LEAKY_RELU": {"alpha": Field(0, "f32")},
    "MIRROR_PAD": {"mode": Field(0, counts_from=1)},
    "SPLIT_V": _integers("num_splits"),
    "REVERSE_SEQUENCE": _integers("seq_dim", "batch_dim"),
    "DEPTH_TO_SPACE": _integers("block_size"),
    "BATCH_MATMUL": {"adj_x": Field(0, "bool"), "adj_y": Field(1, "bool")},
    "CUMSUM": {"exclusive": Field(0, "bool"), "reverse": Field(1, "bool")},
    "CALL_ONCE": _integers("init_subgraph"),
    "CONV_3D": _PADDING | _integers(
        "stride_w", "stride_h", "stride_d", "dilation_w", "dilation_h", "dilation_d", "activation", start=4
    ),
    "VAR_HANDLE": {"container": Field(0, "text"), "shared_name": Field(8, "text")},
    "GELU": {"approximate": Field(0, "bool")},
}  # fmt: skip
"""The location of each option, for the operators that a delegate converts."""
PARAMETERS["MAX_POOL_2D"] = PARAMETERS["L2_POOL_2D"] = PARAMETERS["AVERAGE_POOL_2D"]
for _name in ("MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY", "REDUCE_ALL"):
    PARAMETERS[_name] = {"keep_dims": Field(0, "bool")}

_SCALARS: dict[str, Any] = {"i32": ctypes.c_int32, "f32": ctypes.c_float, "bool": ctypes.c_bool}


def options(code: str, address: int | None) -> dict[str, Any]:
    """Read the options of an operator from the structure at an address; return the file's defaults if there is none."""
    options = OPTIONS.get(code)
    if options is None:
        return {}
    fields = PARAMETERS.get(code)
    if not address or fields is None:
        return {name: option.default for name, option in options.fields.items()}
    return {name: _read(address, field) for name, field in fields.items()}


def _read(address: int, field: Field) -> Any:
    """Return the value of an option in the structure at an address."""
    option_address = address + field.offset
    if field.kind == "text":
        text = ctypes.c_char_p.from_address(option_address).value
        return "" if text is None else text.decode(errors="replace")
    if field.kind == "dims":
        count = ctypes.c_int32.from_address(option_address + 4 * MAX_DIMENSIONS).value
        return list((ctypes.c_int32 * MAX_DIMENSIONS).from_address(option_address))[: max(count, 0)]
    value = _SCALARS[field.kind].from_address(option_address).value
    return value - field.counts_from if field.kind == "i32" else value
