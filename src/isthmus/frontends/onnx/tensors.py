"""Conversion of ONNX tensors and attributes to numpy arrays and Python values. Every length is checked first."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.errors import QnnError
from isthmus.frontends.formats import malformed
from isthmus.frontends.unsupported import unsupported
from isthmus.graph import DataType
from isthmus.graph.nibbles import pack as nibble_bytes
from isthmus.graph.nibbles import unpack
from isthmus.system import reading

FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, STRING, BOOL, FLOAT16, DOUBLE, UINT32, UINT64 = range(1, 14)
BFLOAT16, UINT4, INT4 = 16, 21, 22
"""ONNX's numbers of element types."""
BFLOAT16_BITS = np.dtype([("bfloat16", "<u2")])
"""The numpy type of arrays of BFLOAT16 in this folder: their bits, but not a type of integers."""

NUMPY: dict[int, np.dtype] = {
    FLOAT: np.dtype("<f4"), UINT8: np.dtype("u1"), INT8: np.dtype("i1"), UINT16: np.dtype("<u2"),
    INT16: np.dtype("<i2"), INT32: np.dtype("<i4"), INT64: np.dtype("<i8"), BOOL: np.dtype("?"),
    FLOAT16: np.dtype("<f2"), DOUBLE: np.dtype("<f8"), UINT32: np.dtype("<u4"), UINT64: np.dtype("<u8"),
    BFLOAT16: BFLOAT16_BITS, UINT4: np.dtype("u1"), INT4: np.dtype("i1"),
}  # fmt: skip
"""The numpy types of the ONNX element types that can be read. Arrays hold a 4-bit element in a byte."""
QUANTIZED = (INT8, UINT8, INT16, UINT16, INT32)
"""Element types of integers that can represent quantized reals."""
FOUR_BITS = (UINT4, INT4)
"""Element types of which a file stores two in a byte."""

# The fields of a TensorProto that hold elements of these types; other types use int32_data.
_FIELDS: dict[int, str] = {
    FLOAT: "float_data", INT64: "int64_data", DOUBLE: "double_data", UINT32: "uint64_data", UINT64: "uint64_data",
}  # fmt: skip
# The data_location of a tensor in a file of its own.
_EXTERNAL = 1
# The limit of a tensor's elements; no file holds that many.
_MAX_ELEMENTS = 1 << 33


def element_type(number: int, what: str) -> np.dtype:
    """Return the numpy type of an ONNX element type."""
    dtype = NUMPY.get(number)
    if dtype is None:
        raise unsupported(what, f"element type {_type_name(number)} is not supported")
    return dtype


def data_type(dtype: np.dtype) -> DataType:
    """Return the data type of a tensor with elements of a numpy type."""
    return DataType.BFLOAT_16 if dtype == BFLOAT16_BITS else DataType.of(dtype)


def _type_name(number: int) -> str:
    """Return ONNX's name of an element type that cannot be read."""
    return {0: "UNDEFINED", STRING: "STRING", 14: "COMPLEX64", 15: "COMPLEX128"}.get(number, f"number {number}")


@dataclass
class ExternalData:
    """The data that a model has in other files.

    - `folder`: the folder of the model, which has these files.
    - `cache`: the data that has been read and is not read again, by file, offset and length; None if none is kept.
    """

    folder: Path
    cache: dict[tuple[str, int, int], bytes] | None = None


def to_array(tensor: Any, external: ExternalData | None) -> np.ndarray:
    """Return the contents of a TensorProto; `external` gives access to data in other files (None: not allowed)."""
    what = f"tensor '{tensor.name}'"

    def refuse(rule: str) -> QnnError:
        return malformed(what, rule, "The file is damaged or was not written as ONNX asks.")

    dtype = element_type(tensor.data_type, what)
    dims = tuple(tensor.dims)
    if any(d < 0 for d in dims) or len(dims) > 32 or math.prod(dims) > _MAX_ELEMENTS:
        raise refuse(f"dimensions {dims[:8]} are not those of a tensor that fits a file")
    if tensor.HasField("segment"):
        raise unsupported(what, "segmented tensors are not supported")
    elements = math.prod(dims)
    packed = tensor.data_type in FOUR_BITS
    # The number of stored entries; 4-bit elements are packed in pairs.
    stored = -(-elements // 2) if packed else elements
    if tensor.data_location == _EXTERNAL:
        raw = _external(tensor, external, what, stored * dtype.itemsize)
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data
    else:
        values = getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))
        if len(values) != stored:
            raise refuse(f"it holds {len(values)} values, its dimensions {dims} ask for {stored}")
        if packed:
            return unpack(np.array(values, np.int64).astype(np.uint8), elements, dtype).reshape(dims)
        if tensor.data_type in (FLOAT16, BFLOAT16):
            # The field holds the bits of each float as an integer.
            return np.array(values, np.int64).astype("<u2").view(dtype).reshape(dims)
        numbers = np.array(values, np.uint64 if "uint64" in _FIELDS.get(tensor.data_type, "") else None)
        return numbers.astype(dtype).reshape(dims)
    if len(raw) != stored * dtype.itemsize:
        raise refuse(f"it holds {len(raw)} bytes, {dtype} {dims} takes {stored * dtype.itemsize}")
    if packed:
        return unpack(np.frombuffer(raw, np.uint8), elements, dtype).reshape(dims)
    if dtype.kind == "b":
        return (np.frombuffer(raw, np.uint8) != 0).reshape(dims)
    array = np.frombuffer(raw, dtype).reshape(dims)
    return array if dtype == BFLOAT16_BITS else array.astype(dtype.newbyteorder("="), copy=False)


def _external(tensor: Any, external: ExternalData | None, what: str, nbytes: int) -> bytes:
    """Read external data, which must be inside the model's folder."""

    def refuse(rule: str, hint: str = "") -> QnnError:
        return malformed(what, rule, hint)

    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if external is None:
        raise refuse(f"its data is in an external file '{location}'", "Load the model by its path, not from bytes.")
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", nbytes))
        if length != nbytes:
            raise refuse(f"external data of {length} bytes, its dimensions ask for {nbytes}")
        key = location, offset, length
        if external.cache is not None and key in external.cache:
            return external.cache[key]
        base = external.folder.resolve()
        path = (base / location).resolve()
        if not location or "\0" in location or not path.is_relative_to(base):
            raise refuse(f"external data '{location}' is outside the model's folder")
        with reading.open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if offset < 0 or offset + length > size:
                raise refuse(f"external data at {offset}..{offset + length} is outside '{location}' of {size} bytes")
            file.seek(offset)
            raw = file.read(length)
        if external.cache is not None:
            external.cache[key] = raw
        return raw
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise refuse(f"external data '{location}' cannot be read: {why}") from error


def embed_data(tensor: Any, external: ExternalData | None) -> None:
    """Store the external data of a TensorProto, if it has any, in the message itself."""
    if tensor.data_location == _EXTERNAL:
        array = to_array(tensor, external)
        is_packed = tensor.data_type in FOUR_BITS
        tensor.raw_data = (nibble_bytes(array) if is_packed else array.astype(NUMPY[tensor.data_type])).tobytes()
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")


# The field that has the value of an attribute, by the number of its type in ONNX's AttributeProto.
_ATTRIBUTES = {1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings"}
# The first of the types that are lists.
_LISTS = 6
# How numbers and texts become values of Python, by the beginning of the field.
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "f": float,
    "i": int,
    "s": lambda text: text.decode("utf-8", "replace"),
}


def attribute_value(attribute: Any, external: ExternalData | None) -> Any:
    """Return an attribute as a Python value: number, str, tuple, numpy array, or GraphProto."""
    kind = attribute.type or _guess(attribute)
    if kind not in _ATTRIBUTES:
        raise unsupported(f"attribute '{attribute.name}'", f"attribute type {kind} is not supported")
    field = _ATTRIBUTES[kind]
    value = getattr(attribute, field)
    if field == "t":
        return to_array(value, external)
    if field == "g":
        return value
    convert = _CONVERSIONS[field[0]]
    return tuple(map(convert, value)) if kind >= _LISTS else convert(value)


def _guess(attribute: Any) -> int:
    """Guess the type of an attribute that does not state it (files older than ONNX IR 2)."""
    for kind, field in _ATTRIBUTES.items():
        if len(getattr(attribute, field)) if kind >= _LISTS else attribute.HasField(field):
            return kind
    return 7


def stored_tensors(message: Any) -> Iterator[Any]:
    """Yield the tensors, at any depth, that a message of ONNX has."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            # A field holds one message or several.
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from stored_tensors(inner)


def has_external_data(message: Any) -> bool:
    """Return whether a message of ONNX has a tensor, at any depth, whose contents are in another file."""
    return any(tensor.data_location == _EXTERNAL for tensor in stored_tensors(message))


def keep_all_data(model: Any, external: ExternalData) -> None:
    """Read all external data of a model and keep it. Tensors that cannot be read stay: they may not be needed.

    It is kept beside the message: protobuf cannot serialize a message of 2 GB or more, nor tell its size.
    """
    external.cache = external.cache or {}
    for tensor in stored_tensors(model):
        if tensor.data_location == _EXTERNAL and tensor.data_type in NUMPY:
            to_array(tensor, external)


def embed_all_data(model: Any, external: ExternalData | None) -> None:
    """Store all external data of a model in its message. Tensors that cannot be read stay: they may not be needed."""
    for tensor in stored_tensors(model):
        if tensor.data_type in NUMPY:
            embed_data(tensor, external)
