"""Generation of C code from Python's tables: function tables, operations, accessors, functions that call Python.

Headers of single backends are printed from ``headers.txt`` in their packages, QNN's own from ``cabi/headers.txt``
(`isthmus.cabi.notation`). Those in the folder ``handwritten`` are copied, where a line
``GENERATED(part)`` stands for a part that is generated here. A wheel contains the results; in a source tree they are
written when they are needed (`isthmus.capi.installation.include`), and by ``python -m isthmus.capi.headers``.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import EnumMeta
from functools import partial
from pathlib import Path

from isthmus.backends.seam import registry
from isthmus.cabi import objects, other_backends, types
from isthmus.cabi.declarations import BACKEND, FREED, SYSTEM, Functions, Parameter, function_name
from isthmus.cabi.notation import api_header, header_files
from isthmus.cabi.tables import CORE_VERSION, SYSTEM_VERSION, TYPES
from isthmus.cabi.types import OpConfigV1, TensorV2
from isthmus.capi.building import HANDWRITTEN, HERE, INCLUDE
from isthmus.capi.serve import TABLE
from isthmus.graph.datatypes import DataType
from isthmus.graph.operation import QTI
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.ops.elementwise import NUMBERED
from isthmus.system.writing import write_whole
from isthmus.version import PRODUCER

MORE_OPERATIONS = {
    "ArgbToRgb": "input_order reverse_output", "AxisAlignedBboxTransform": "weights", "BatchPermutation": "",
    "BboxTransform": "weights apply_scale angle_bounds angle_clip_threshold",
    "BoxWithNmsLimit": "nms_kernel_method nms_score_threshold score_threshold pre_nms_limit iou_threshold sigma",
    "Buffer": "buffer_padding", "Col2Im": "kernel_size stride pad_amount dilation",
    "CollectRpnProposals": "rpn_min_level rpn_max_level post_nms_top",
    "CombinedNms": "max_boxes_per_class max_total_boxes iou_threshold score_threshold pad_per_class clip_boxes",
    "Conv2d": "reuse_sparse_indices", "Conv3d": "reuse_sparse_indicies",
    "DistributeFpnProposals": "roi_min_level roi_max_level roi_canonical_scale roi_canonical_level",
    "ExpandDims": "axes",
    "GenerateProposals": "img_size_ratio min_size pre_nms_limit post_nms_limit iou_threshold bbox_xform_clip",
    "Gru": "time_major", "HeatMapMaxKeyPoint": "",
    "If": "then_graph else_graph", "Im2Col": "kernel_size stride pad_amount dilation",
    "ImageProjectionTransform": "interpolation_mode", "Lstm": "time_major", "MaskedSoftmax": "mode",
    "Moments": "axes keep_dims",
    "ReduceSumSquare": "axes keep_dims", "ResizeBilinear": "antialias",
    "RoiPooling": "img_size_ratio",
}  # fmt: skip
"""Operations and parameters that QNN defines but that are not implemented here; a client that uses one is refused."""

# Names of values that several parameters share.
_ROUNDING = "FLOOR CEIL"
_DEPTH = "DCR CRD"
_REDUCTION = "NONE ADD MUL"
_DIRECTION = "FORWARD REVERSE"
_ORDER = "RGB BGR"
_INTERPOLATION = "BILINEAR NEAREST_NEIGHBOR"
VALUES = {
    "ArgbToRgb.input_order": "ARGB RGBA",
    "BoxWithNmsLimit.nms_kernel_method": "HARD LINEAR GAUSSIAN",
    "Buffer.mode": "BLOCKING NON_BLOCKING_LEFT NON_BLOCKING_RIGHT",
    "CropAndResize.interpolation_mode": _INTERPOLATION,
    "DepthToSpace.mode": _DEPTH,
    "DetectionOutput.nms_type": "FAST REGULAR",
    "ExtractGlimpse.noise": "UNIFORM GAUSSIAN ZEROES",
    "ExtractPatches.padding": "VALID SAME",
    "GridSample.mode": "BILINEAR NEAREST",
    "GridSample.padding_mode": "ZEROS BORDER REFLECTION",
    "Gru.direction": _DIRECTION,
    "ImageProjectionTransform.interpolation_mode": _INTERPOLATION,
    "InstanceNorm.mode": "MU_SIGMA RMS",
    "InstanceNorm.region": "ACROSS_SPATIAL ACROSS_CHANNEL ACROSS_ALL",
    "Lrn.region": "ACROSS_CHANNEL WITHIN_CHANNEL",
    "Lstm.direction": _DIRECTION,
    "MaskedSoftmax.mode": "UNCOMPRESSED COMPRESSED",
    "Nv12ToRgb.output_order": _ORDER,
    "Nv21ToRgb.output_order": _ORDER,
    "Pad.scheme": "CONSTANT MIRROR_SYMMETRIC MIRROR_REFLECT EDGE",
    "PoolAvg2d.rounding_mode": _ROUNDING,
    "PoolAvg3d.rounding_mode": _ROUNDING,
    "PoolMax2d.rounding_mode": _ROUNDING,
    "PoolMax3d.rounding_mode": _ROUNDING,
    "Resize.transformation_mode": "HALF_PIXEL PYTORCH_HALF_PIXEL ALIGN_CORNERS ASYMMETRIC",
    "Resize.interpolation_mode": "NEAREST LINEAR CUBIC",
    "Resize.nearest_mode": "ROUND_PREFER_FLOOR ROUND_PREFER_CEIL FLOOR CEIL",
    "ScatterElements.reduction": f"{_REDUCTION} MAX",
    "ScatterNd.reduction": _REDUCTION,
    "SpaceToDepth.mode": _DEPTH,
}
"""By operation and parameter: the names of the parameter's values, numbered from 0."""


def _macro(name: str) -> str:
    """Spell an operation's name as in its macro: words and the kernel's dimension are separated (CONV_2D)."""
    words = re.sub(r"(?<=[a-z])(\d[dD])$", r"_\1", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z]|[A-Z]$)(?<!_\d)", "_", words).upper()


def _type_name(entry: str) -> str:
    """Return the C type of a pointer to the function of an entry (``QnnMem_DeRegisterFn_t``)."""
    group, method = function_name(entry).split("_")
    return f"{group}_{method[0].upper()}{method[1:]}Fn_t"


def _table(kind: str, entries: Functions, version: tuple[int, int, int]) -> Iterator[str]:
    """Yield the lines of C that define the types of a table's functions, and the table."""
    major, minor, _ = version
    macro = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).upper()
    for entry, parameters in entries.items():
        if parameters is not None:
            yield f"typedef __typeof__(&{function_name(entry)}) {_type_name(entry)};"
    yield ""
    yield "/* The order is part of the interface. What is not declared above answers 1000. */"
    yield "typedef struct {"
    for entry, parameters in entries.items():
        yield f"  {'Qnn_NotOffered_t' if parameters is None else _type_name(entry)} {entry};"
    yield f"}} {kind}_ImplementationV{major}_{minor}_t;"
    yield ""
    yield f"#define {macro}_VER_TYPE {kind}_ImplementationV{major}_{minor}_t"
    yield f"#define {macro}_VER_TYPE_INIT \\"
    nulls = textwrap.wrap(f"{{{', '.join(['NULL'] * len(entries))}}}", 112)
    yield from (f"  {line} \\" for line in nulls[:-1])
    yield f"  {nulls[-1]}"
    yield f"#define {macro}_VER_NAME v{major}_{minor}"
    yield f"#define {macro.replace('INTERFACE', 'TABLE')}_ENTRIES {len(entries)}"


def _operation(name: str, params: Sequence[str]) -> Iterator[str]:
    """Yield the macros of an operation, of its parameters, and of the numbers that it takes for other operations."""
    macro = f"QNN_OP_{_macro(name)}"
    yield f'#define {macro} "{name}"'
    for param in params:
        yield f'#define {macro}_PARAM_{param.upper()} "{param}"'
        for number, value in enumerate(VALUES.get(f"{name}.{param}", "").split()):
            yield f"#define {macro}_{param.upper()}_{value} {number}"
    for number, function in enumerate(NUMBERED.get(name, ())):
        short = _macro(function.removeprefix("ElementWise")).replace("SQUARE_ROOT", "SQRT")
        yield f"#define {macro}_OPERATION_{short} {number}"


def _operations() -> Iterator[str]:
    """Yield the names of operations, of their parameters, and of these parameters' values."""
    # They are QNN's names only: our own parameters are left out, and what we do not implement is added.
    named = {
        name: [param.name for param in op.params if not param.is_own]
        for name, op in OPERATIONS.items()
        if op.package == QTI
    }
    for name, params in MORE_OPERATIONS.items():
        named[name] = list(dict.fromkeys([*named.get(name, ()), *params.split()]))
    yield f'#define QNN_OP_PACKAGE_NAME_QTI_AISW "{QTI}"'
    for name in sorted(named, key=_macro):
        yield from ("", *_operation(name, named[name]))


ACCESSORS = {
    "numOfParams": "NUM_PARAMS", "numOfInputs": "NUM_INPUTS", "inputTensors": "INPUTS", "numOfOutputs": "NUM_OUTPUTS",
    "outputTensors": "OUTPUTS", "quantizeParams": "QUANT_PARAMS", "retrieveRaw": "CLIENT_BUF_RETRIEVE",
}  # fmt: skip
"""Fields whose accessors have an irregular name."""

COUNTED = {"params": "numOfParams", "inputTensors": "numOfInputs", "outputTensors": "numOfOutputs"}
"""Lists, and the fields with their lengths; the SDK sets both with one accessor."""


def _macro_of(field: str) -> str:
    """Spell a field's name as in its accessors."""
    return ACCESSORS.get(field) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", field).upper()


def _accessors(kind: str, struct: type, skip: Iterable[str] = ()) -> Iterator[str]:
    """Yield the macros that get and set the fields of a structure; `kind` is the prefix of their names."""
    for name, *_ in struct._fields_:  # type: ignore[attr-defined]
        for field in ("clientBuf", "memHandle", "retrieveRaw") if name.startswith("union") else (name,):
            if field in skip:
                continue
            macro = _macro_of(field)
            yield f"#define {kind}_GET_{macro}(object) (isthmus_qnn::at(object).v1.{field})"
            if field in COUNTED:
                yield f"#define {kind}_SET_{macro}(object, count, value) \\"
                yield f"  isthmus_qnn::set_{macro.lower()}(isthmus_qnn::at(object).v1, count, value)"
            elif field not in COUNTED.values():
                yield f"#define {kind}_SET_{macro}(object, value) (isthmus_qnn::at(object).v1.{field} = (value))"


def _tensor_accessors() -> Iterator[str]:
    """Yield the accessors of tensors, by value or by pointer."""
    # The fields that version 2 adds; the SDK has no accessor for the last.
    *_, dynamic, sparse, produced = (name for name, *_ in TensorV2._fields_)
    yield from _accessors("QNN_TENSOR", TensorV2, (dynamic, sparse, produced))
    for field in (dynamic, sparse):
        macro = _macro_of(field)
        yield f"#define QNN_TENSOR_GET_{macro}(object) (isthmus_qnn::second(isthmus_qnn::at(object)).{field})"
        yield f"#define QNN_TENSOR_SET_{macro}(object, value) \\"
        yield "  (isthmus_qnn::has_second(isthmus_qnn::at(object)) \\"
        yield f"       ? void(isthmus_qnn::at(object).v2.{field} = (value)) : void())"


NATIVE = ("graphExecute", "deviceGetInfrastructure")
"""Functions written by hand in ``library.c``: one has a fast path, the other returns C functions."""


def _kind(entry: str, parameters: Sequence[Parameter]) -> str:
    """Return the macro of ``library.c`` that defines a function, which depends on where it is implemented."""
    if entry in NATIVE:
        return "NATIVE"
    if entry not in TABLE:
        return "NOT_OFFERED"
    return "FREEING" if any(each.mark == FREED for each in parameters) else "SERVED"


def functions() -> str:
    """Return the input from which ``library.c`` defines functions.

    Each line has the kind of implementation (`_kind`), the names in the table and in C, the parameters as declared and
    as passed on, and the values that Python gets.
    """
    lines = ["/* The functions of the tables. Generated by `isthmus.capi.headers`. */"]
    for condition, table in (("#ifdef SERVES_BACKEND", BACKEND), ("#elif defined SERVES_SYSTEM", SYSTEM)):
        lines.append(condition)
        for entry, parameters in table.items():
            if parameters is None:
                continue
            declared = ", ".join(each.declaration for each in parameters)
            passed = ", ".join(each.name for each in parameters)
            # A structure passed by value is in the caller's memory; Python gets its address.
            values = ", ".join(
                f"V({'&' * (not each.stars and hasattr(TYPES.get(each.base), '_fields_'))}{each.name})"
                for each in parameters
            )
            kind, exported = _kind(entry, parameters), function_name(entry)
            lines.append(f"FUNCTION({kind}, {entry}, {exported}, ({declared}), ({passed}), {values})")
    return "\n".join([*lines, "#endif", ""])


def _backend_headers() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the headers of single backends that are printed from declarations: the file, and what returns its text."""
    for entry in registry.usable():
        facet = registry.c_facet(entry.name)
        if entry.driver.__module__.startswith("isthmus.") and facet.backend_id:
            file, text = api_header(entry.name.upper(), facet.backend_id, facet.version)
            yield file, partial(str, text)
            yield from facet.headers.items()
    yield from ((file, partial(str, text)) for file, text in other_backends.HEADERS)


_DECLARED = dict(_backend_headers())
_ENUMERATIONS = {
    kind.__name__: kind
    for module in (types, objects, other_backends)
    for kind in vars(module).values()
    if isinstance(kind, EnumMeta)
} | {"DataType": DataType}
# The generated parts of headers that are written by hand.
_PARTS: dict[str, Callable[[], Iterable[str]]] = {
    "backend_ids": lambda: (f'#include "{file}"' for file in sorted(_DECLARED) if file.endswith("Common.h")),
    "backend_table": lambda: _table("QnnInterface", BACKEND, CORE_VERSION),
    "build_id": lambda: [f'#define QNN_SDK_BUILD_ID "{PRODUCER}"'],
    "operation_accessors": lambda: _accessors("QNN_OP_CFG", OpConfigV1),
    "operations": _operations,
    "system_table": lambda: _table("QnnSystemInterface", SYSTEM, SYSTEM_VERSION),
    "tensor_accessors": _tensor_accessors,
}


def _complete_header(file: Path) -> str:
    """Return a header that is written by hand, with its generated parts in place of their names."""
    return re.sub(r"(?m)^GENERATED\((\w+)\)$", lambda name: "\n".join(_PARTS[name[1]]()), file.read_text())


FILES: dict[Path, Callable[[], str]] = {
    HERE / "functions.h": functions,
    **{INCLUDE / "QNN" / file: text for file, text in _DECLARED.items()},
    **{INCLUDE / "QNN" / file: partial(str, text) for file, text in header_files(_ENUMERATIONS)},
    **{INCLUDE / file.relative_to(HANDWRITTEN): partial(_complete_header, file) for file in HANDWRITTEN.rglob("*.h*")},
}
"""The functions that return the contents of each file."""


def write() -> None:
    """Write every file that does not exist or has other contents."""
    for file, text in FILES.items():
        content = text().encode()
        if not file.exists() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, content, 0o644)


if __name__ == "__main__":
    write()
