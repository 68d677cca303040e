"""A program as bytes and back: a checked header, then each array at an aligned offset, so that it can be mapped.

Layout: 8 bytes magic, u32 version, u32 header length, 32 bytes SHA-256 of all that follows, header (JSON), arrays.
Bytes are not trusted: every length and index is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from typing import Any

import numpy as np

from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, MemType, Quantization, TensorInfo
from isthmus.graph.tensor import MAX_BYTES

MAGIC = b"ISTHPROG"
VERSION = 1
_PREFIX = struct.Struct("<8sII32s")
ALIGNMENT = 64
"""What a program's bytes must start at a multiple of for its constants to be used in place."""
_ARRAYS = {"table": np.int64, "words": np.int64, "constants": np.uint8, "state_initial": np.uint8}
_TENSORS = ("inputs", "outputs", "states")
_KERNEL = re.compile(r"(?!executor|doorbell)[a-z][a-z0-9_]*:[a-z][a-z0-9_]*(\.[A-Za-z0-9_.,=+-]*)?")
"""Names that a program may call kernels by; what drives programs is not for them."""
MAX_THREADS = 64
MAX_ALIGNMENT = 1 << 16


def to_bytes(program: Program) -> bytes:
    """The program as one block of bytes."""
    header: dict[str, Any] = {
        name: getattr(program, name) for name in ("name", "target", "threads", "scratch_bytes", "alignment")
    }
    header |= {name: list(getattr(program, name)) for name in ("kernels", "labels", "state_offsets")}
    header |= {kind: [_tensor_to_json(info) for info in getattr(program, kind)] for kind in _TENSORS}
    arrays = {name: np.ascontiguousarray(getattr(program, name), dtype) for name, dtype in _ARRAYS.items()}
    offsets: dict[str, list[int]] = {}
    position = 0
    for name, array in arrays.items():
        offsets[name] = [position, array.nbytes]
        position += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    header["arrays"] = offsets
    text = json.dumps(header).encode()
    body_start = -(-(_PREFIX.size + len(text)) // ALIGNMENT) * ALIGNMENT
    body = bytearray(body_start - _PREFIX.size + position)
    body[: len(text)] = text
    for name, array in arrays.items():
        start = body_start - _PREFIX.size + offsets[name][0]
        body[start : start + array.nbytes] = array.tobytes()
    return _PREFIX.pack(MAGIC, VERSION, len(text), hashlib.sha256(body).digest()) + bytes(body)


def from_bytes(content: bytes | memoryview, verify: bool = True) -> Program:
    """The program in a block of bytes; its arrays are views of that block.

    Parameters
    ----------
    verify
        Whether to compute the checksum. Everything else is checked in any case.
    """

    def refuse(rule: str, code: Code = Code.COMMON_LOADING_BINARIES) -> QnnError:
        return QnnError(code, "program", rule)

    view = memoryview(content).cast("B")
    if len(view) < _PREFIX.size:
        raise refuse(f"{len(view)} bytes are too few for a program")
    magic, version, length, digest = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise refuse("it does not begin as a program does")
    if version != VERSION:
        raise refuse(f"version {version} is not {VERSION}", Code.COMMON_INCOMPATIBLE_BINARIES)
    if verify and hashlib.sha256(view[_PREFIX.size :]).digest() != digest:
        raise refuse("its checksum is wrong: it is damaged or cut short")
    if length > len(view) - _PREFIX.size:
        raise refuse("its header is longer than the file")
    try:
        header = json.loads(bytes(view[_PREFIX.size : _PREFIX.size + length]))
        body_start = -(-(_PREFIX.size + length) // ALIGNMENT) * ALIGNMENT
        arrays = {}
        for name, dtype in _ARRAYS.items():
            offset, nbytes = (int(n) for n in header["arrays"][name])
            if offset < 0 or nbytes < 0 or offset % 8 or body_start + offset + nbytes > len(view):
                raise refuse(f"array '{name}' lies outside the file")
            arrays[name] = np.frombuffer(view[body_start + offset : body_start + offset + nbytes], dtype)
        parts: dict[str, Any] = {**arrays, "table": arrays["table"].reshape(-1, 3)}
        parts |= {kind: tuple(_tensor_from_json(info) for info in header[kind]) for kind in _TENSORS}
        parts |= {name: str(header[name]) for name in ("name", "target")}
        parts |= {name: int(header[name]) for name in ("threads", "scratch_bytes", "alignment")}
        parts |= {name: tuple(map(str, header[name])) for name in ("kernels", "labels")}
        program = Program(state_offsets=tuple(map(int, header["state_offsets"])), **parts)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as problem:
        raise refuse(f"its header is not well-formed: {problem}") from None
    _check(program, refuse)
    return program


def _check(program: Program, refuse: Any) -> None:
    kernels, starts, shares = program.table.T
    if len(program.table) and (kernels.min() < 0 or kernels.max() >= len(program.kernels)):
        raise refuse("an instruction names a kernel that is not there")
    if len(program.table) and (starts.min() < 0 or starts.max() > len(program.words)):
        raise refuse("an instruction's words lie outside the program")
    if len(program.table) and (shares.min() < 1 or shares.max() > program.threads):
        raise refuse("an instruction is split into more shares than there are threads")
    if len(program.labels) != len(program.table) or len(program.state_offsets) != len(program.states):
        raise refuse("its tables differ in length")
    if program.threads < 1 or program.threads > MAX_THREADS or not 0 <= program.scratch_bytes <= MAX_BYTES:
        raise refuse("a size is out of bounds")
    if not 1 <= program.alignment <= MAX_ALIGNMENT or program.alignment & (program.alignment - 1):
        raise refuse(f"alignment {program.alignment} is no power of two up to {MAX_ALIGNMENT}")
    if not all(_KERNEL.fullmatch(kernel) for kernel in program.kernels):
        raise refuse("a kernel's name is not well-formed")
    for tensors in (program.inputs, program.outputs, program.states):
        if len({info.name for info in tensors}) != len(tensors):
            raise refuse("two of its tensors have the same name")
    for info, offset in zip(program.states, program.state_offsets, strict=True):
        if offset < 0 or offset + info.nbytes > program.state_bytes:
            raise refuse(f"state '{info.name}' lies outside state memory")


def _tensor_to_json(info: TensorInfo) -> dict[str, Any]:
    quantization = info.quantization
    return {
        "name": info.name,
        "dtype": info.dtype.name,
        "dims": list(info.dims),
        "mem_type": info.mem_type.name,
        "quantization": None
        if quantization is None
        else [list(quantization.scales), list(quantization.offsets), quantization.axis],
    }


def _tensor_from_json(fields: dict[str, Any]) -> TensorInfo:
    quantization = fields["quantization"]
    dtype = DataType[fields["dtype"]]
    dims = tuple(int(d) for d in fields["dims"])
    if any(d < 0 for d in dims):
        raise ValueError(f"tensor '{fields['name']}' has a negative dimension")
    elements = math.prod(dims)
    if elements * dtype.itemsize > MAX_BYTES:
        raise ValueError(f"tensor '{fields['name']}' has {elements} elements")
    return TensorInfo(
        str(fields["name"]),
        dtype,
        dims,
        None
        if quantization is None
        else Quantization(tuple(map(float, quantization[0])), tuple(map(int, quantization[1])), quantization[2]),
        elements * dtype.itemsize,
        MemType[fields["mem_type"]],
    )
