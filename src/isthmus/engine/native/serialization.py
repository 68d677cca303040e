"""Programs as containers: each array is a section, so that it can be mapped.

Bytes are not trusted. Every length and index is checked before it is used, and every instruction is checked against the
signature of its kernel (see `verification`). That signature must be the one with which the program was made.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from isthmus.engine.native.program import MAX_SEGMENTS, MAX_SHARES, NARROW, Program
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.verification import Unsafe
from isthmus.engine.native.verification import verify as verify_instructions
from isthmus.errors import Code
from isthmus.graph import DataType, Quantization, TensorInfo, TensorMemType
from isthmus.graph.tensor import MAX_BYTES
from isthmus.system.container import MALFORMED, ContainerFormat, as_name, as_size, as_text
from isthmus.system.contents import Contents, GraphContents, StoredContents

FORMAT = ContainerFormat(
    b"ISTHPROG", 5, 64, "program", Code.COMMON_LOADING_BINARIES, Code.COMMON_INCOMPATIBLE_BINARIES, is_hashed=True
)
"""The container format of programs. If the bytes start at a multiple of its alignment, their constants are used in
place.
"""
# The arrays of a program, each a section of the container, and the types of their elements.
_ARRAYS: dict[str, Any] = {"table": np.int64, "words": np.int64, "constants": np.uint8, "state_initial": np.uint8}
# The section with the segments of a program that is stored alone.
_SEGMENTS = "segments"
# The fields of a program that hold descriptions of tensors.
_TENSORS = ("inputs", "outputs", "states")
_SHOWN = 80  # characters shown of an unknown name
MAX_THREADS = 64
MAX_ALIGNMENT = 1 << 16


def to_bytes(program: Program, shared: GraphContents | None = None, apart: bool = False) -> bytes:
    """Return the program as one block of bytes.

    - `shared`: The section that gets its segments, for a file of several graphs. By default the block has its own.
    - `apart`: Whether segments are in no section: the reader has them by the names of their contents, `segment_name`.
    """
    own = Contents()
    contents = own.of(program.name) if shared is None else shared
    header = header_of(program)
    header["segments"] = [
        [segment_name(segment) if apart else contents.add(segment, FORMAT.alignment), segment.nbytes]
        for segment in program.segments
    ]
    arrays = {name: getattr(program, name) for name in _ARRAYS}
    return assemble(header, arrays, own.join() if shared is None and not apart else None)


def segment_name(segment: np.ndarray) -> str:
    """Return a name of a segment that only equal contents have."""
    return hashlib.sha256(segment.data).hexdigest()


def header_of(program: Program) -> dict[str, Any]:
    """Return the header of a program, without its segments and the lengths of its arrays."""
    header: dict[str, Any] = {
        name: getattr(program, name) for name in ("name", "target", "threads", "scratch_bytes", "alignment")
    }
    header |= {name: list(getattr(program, name)) for name in ("kernels", "labels", "state_offsets")}
    header["declarations"] = [KERNELS[kernel].digest for kernel in program.kernels]
    header |= {kind: [_tensor_to_json(info) for info in getattr(program, kind)] for kind in _TENSORS}
    header |= {"shareable_io": sorted(program.shareable_io), "segments": []}
    return header


def assemble(header: dict[str, Any], contents: Mapping[str, np.ndarray], segments: bytes | None = b"") -> bytes:
    """Return a program's header and arrays as bytes with a valid checksum, without checking their contents.

    `segments` is the section with its segments, None if they are elsewhere.
    """
    arrays = {name: np.ascontiguousarray(contents[name], dtype) for name, dtype in _ARRAYS.items()}
    if contents["table"].dtype == NARROW:
        arrays["table"] = np.ascontiguousarray(contents["table"])
    sections: dict[str, bytes | memoryview] = {
        name: array.reshape(-1).view(np.uint8).data for name, array in arrays.items()
    }
    if segments is not None:
        sections[_SEGMENTS] = segments
    return b"".join(FORMAT.pack(header, sections))


def from_bytes(
    content: bytes | memoryview,
    verify: bool = True,
    shared: StoredContents | None = None,
    apart: Mapping[str, np.ndarray] | None = None,
) -> Program:
    """Return the program in a block of bytes; its arrays are views of that block, or of what it refers to.

    - `verify`: Whether to check the checksum. Everything else is always checked.
    - `shared`: The section with its segments, for a file of several graphs. By default the block has its own.
    - `apart`: Segments by name that the block may refer to (see `to_bytes`).
    """
    header, sections = FORMAT.unpack(content, verify)
    try:
        stored = shared or StoredContents(sections.pop(_SEGMENTS, memoryview(b"")))
        if sections.keys() != _ARRAYS.keys():
            raise ValueError("it does not have the sections of one")
        dtypes = dict(_ARRAYS)
        # The table's size tells how wide its numbers are: it has three for each label.
        if len(sections["table"]) == 3 * NARROW.itemsize * len(header["labels"]):
            dtypes["table"] = NARROW
        arrays = {name: np.frombuffer(sections[name], dtype) for name, dtype in dtypes.items()}
        fields: dict[str, Any] = {**arrays, "table": arrays["table"].reshape(-1, 3)}
        fields |= {kind: tuple(_tensor_from_json(info) for info in header[kind]) for kind in _TENSORS}
        fields |= {name: as_text(header[name]) for name in ("name", "target")}
        fields |= {name: int(header[name]) for name in ("threads", "scratch_bytes", "alignment")}
        fields |= {name: tuple(map(str, header[name])) for name in ("kernels", "labels")}
        fields["segments"] = _segments(header["segments"], stored, apart or {})
        fields["shareable_io"] = frozenset((int(source), int(goal)) for source, goal in header["shareable_io"])
        program = Program(state_offsets=tuple(map(int, header["state_offsets"])), **fields)
        # The digests of the kernels' signatures when the program was made.
        declarations = [str(digest) for digest in header["declarations"]]
    except MALFORMED as problem:
        raise FORMAT.malformed(problem) from None
    _check(program)
    _check_kernels(program, declarations)
    try:
        verify_instructions(program)
    except Unsafe as problem:
        raise FORMAT.refusal(str(problem)) from None
    return program


def _segments(entries: Any, stored: StoredContents, apart: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return the segments of a header's entries: an offset or a name, and the size in bytes."""
    if len(entries) > MAX_SEGMENTS:
        raise ValueError(f"it has {len(entries)} segments")
    segments = []
    for place, nbytes in entries:
        if not isinstance(place, str):
            segments.append(stored.array(place, np.uint8, as_size(nbytes, MAX_BYTES), FORMAT.alignment))
        elif place in apart and apart[place].nbytes == nbytes:
            segments.append(apart[place])
        else:
            raise ValueError("a segment is not there")
    return tuple(segments)


def _check_kernels(program: Program, declarations: list[str]) -> None:
    """Raise an error for kernels that do not exist, are not used, or have changed since the program was made."""
    kernels = program.kernels
    if len(declarations) != len(kernels):
        raise FORMAT.refusal("its tables differ in length")
    if len(set(kernels)) != len(kernels):
        raise FORMAT.refusal("two of its kernels have the same name")
    unused = set(range(len(kernels))) - set(program.table[:, 0].tolist())
    if unused:
        # Every named kernel is compiled when the program is loaded.
        raise FORMAT.refusal(f"no instruction uses its kernel '{kernels[min(unused)][:_SHOWN]}'")
    for kernel, digest in zip(kernels, declarations, strict=True):
        if kernel not in KERNELS:
            raise FORMAT.refusal(f"there is no kernel '{kernel[:_SHOWN]}'")
        if digest != KERNELS[kernel].digest:
            raise FORMAT.outdated(f"the words of kernel '{kernel}' are not what they were when it was made")


def _check(program: Program) -> None:
    """Raise an error unless indices, sizes, lengths and names are valid; instructions are checked by `verify`."""
    kernels, starts, shares = program.table.T
    if len(program.table) and (kernels.min() < 0 or kernels.max() >= len(program.kernels)):
        raise FORMAT.refusal("an instruction names a missing kernel")
    if len(program.table) and (starts.min() < 0 or starts.max() > len(program.words)):
        raise FORMAT.refusal("an instruction's words are outside the program")
    most = np.full(len(program.table), program.threads)
    most[program.branches] = MAX_SHARES
    if (shares < 1).any() or (shares > most).any():
        raise FORMAT.refusal("an instruction is split into more shares than there are threads")
    if len(program.labels) != len(program.table) or len(program.state_offsets) != len(program.states):
        raise FORMAT.refusal("its tables differ in length")
    if program.threads < 1 or program.threads > MAX_THREADS or not 0 <= program.scratch_bytes <= MAX_BYTES:
        raise FORMAT.refusal("a size is out of bounds")
    if not 1 <= program.alignment <= MAX_ALIGNMENT or program.alignment & (program.alignment - 1):
        raise FORMAT.refusal(f"alignment {program.alignment} is not a power of two up to {MAX_ALIGNMENT}")
    tensors = (*program.inputs, *program.outputs, *program.states)
    if len({info.name for info in tensors}) != len(tensors):
        raise FORMAT.refusal("two of its tensors have the same name")
    for info, offset in zip(program.states, program.state_offsets, strict=True):
        if offset < 0 or offset + info.nbytes > program.state_bytes:
            raise FORMAT.refusal(f"state '{info.name}' is outside state memory")


def _tensor_to_json(info: TensorInfo) -> dict[str, Any]:
    """Return a tensor's description for the header."""
    q = info.quantization
    quantization = None if q is None else [list(q.scales), list(q.offsets), q.axis]
    return {
        "name": info.name, "dtype": info.dtype.name, "dims": list(info.dims), "mem_type": info.mem_type.name,
        "quantization": quantization,
    }  # fmt: skip


def _tensor_from_json(fields: dict[str, Any]) -> TensorInfo:
    """Return a tensor's description, the reverse of `_tensor_to_json`; a bad size is an error."""
    dtype, quantization = DataType[fields["dtype"]], None
    if fields["quantization"] is not None:
        scales, offsets, axis = fields["quantization"]
        quantization = Quantization(tuple(map(float, scales)), tuple(map(int, offsets)), axis)
    dims = tuple(as_size(d, MAX_BYTES) for d in fields["dims"])
    elements = math.prod(dims)
    if elements * dtype.itemsize > MAX_BYTES:
        raise ValueError(f"tensor '{fields['name']}' has {elements} elements")
    name, mem_type = as_name(fields["name"]), TensorMemType[fields["mem_type"]]
    return TensorInfo(name, dtype, dims, quantization, elements * dtype.itemsize, mem_type)
