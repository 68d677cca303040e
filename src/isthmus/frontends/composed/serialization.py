"""Serialization of composed graphs, to pass them between processes. The bytes of each tensor are a section.

Nothing that is read is trusted, because the other process may have run foreign code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry, NodeEntry, Scalar
from isthmus.system.container import MALFORMED, ContainerFormat, as_size, as_text

FORMAT = ContainerFormat(
    b"ISTHMCMP", 1, 64, "composed graphs", Code.COMMON_LOADING_BINARIES, Code.COMMON_INCOMPATIBLE_BINARIES,
    is_hashed=False,
)  # fmt: skip
"""The container format of composed graphs. They are never stored, so the checksum covers only the header."""
# The arrays of an encoding, with the numpy types in which they are written.
_ENCODED = {"scales": "<f4", "offsets": "<i4", "blocks": "<u4", "factors": "<u2"}


def write(graphs: Sequence[GraphEntry], stream: BinaryIO) -> None:
    """Write graphs to a stream."""
    sections: dict[str, bytes | memoryview] = {}

    def section(data: bytes | memoryview) -> str:
        """Add a section for bytes and return its name."""
        name = str(len(sections))
        sections[name] = data
        return name

    def encoding(entry: EncodingEntry | None) -> dict[str, Any] | None:
        if entry is None:
            return None
        arrays = {name: section(getattr(entry, name).astype(kind).tobytes()) for name, kind in _ENCODED.items()}
        return {**arrays, "axis": entry.axis, "bits": entry.bits, "kind": entry.kind}

    def tensor(entry: ComposedTensor) -> dict[str, Any]:
        return {"name": entry.name, "type": entry.type, "dtype": entry.dtype, "dims": list(entry.dims),
                "mem_type": entry.mem_type, "encoding": encoding(entry.encoding),
                "data": None if entry.data is None else section(entry.data)}  # fmt: skip

    def node(entry: NodeEntry) -> dict[str, Any]:
        params = {
            name: {"tensor": tensor(value)} if isinstance(value, ComposedTensor) else {"scalar": value}
            for name, value in entry.params.items()
        }
        return {"name": entry.name, "type": entry.type, "package": entry.package, "inputs": entry.inputs,
                "outputs": entry.outputs, "params": params, "kinds": dict(entry.kinds)}  # fmt: skip

    described = [
        {"name": graph.name, "tensors": [tensor(t) for t in graph.tensors], "nodes": [node(n) for n in graph.nodes]}
        for graph in graphs
    ]
    stream.writelines(FORMAT.pack({"graphs": described}, sections))


def read(data: memoryview, what: str) -> list[GraphEntry]:
    """Return the graphs that were written; their bytes are views of `data`. `what` names the sender in errors."""
    try:
        header, sections = FORMAT.unpack(data)
        return [_graph(graph, sections) for graph in header["graphs"]]
    except (*MALFORMED, QnnError) as problem:
        rule = f"the graphs that it returned are not well-formed: {getattr(problem, 'rule', problem)}"
        raise QnnError(FORMAT.damaged, what, rule) from None


def _take(sections: dict[str, memoryview], name: Any) -> memoryview:
    """Remove and return a tensor's bytes. No two tensors share a section, so a small file describes no large graph."""
    if name not in sections:
        raise ValueError(f"section {name!r} is missing or belongs to another tensor")
    return sections.pop(name)


def _graph(fields: dict[str, Any], sections: dict[str, memoryview]) -> GraphEntry:
    """Return a graph from the fields of its header entry and the sections of all tensors."""
    return GraphEntry(
        as_text(fields["name"]),
        tuple(_tensor(tensor, sections) for tensor in fields["tensors"]),
        tuple(_node(node, sections) for node in fields["nodes"]),
    )


def _node(fields: dict[str, Any], sections: dict[str, memoryview]) -> NodeEntry:
    params: dict[str, Scalar | ComposedTensor] = {
        name: _tensor(value["tensor"], sections) if "tensor" in value else _scalar(value["scalar"])
        for name, value in fields["params"].items()
    }
    inputs, outputs = (tuple(as_text(name) for name in fields[side]) for side in ("inputs", "outputs"))
    name, kind, package = (as_text(fields[key]) for key in ("name", "type", "package"))
    kinds = {as_text(key): as_size(value) for key, value in fields["kinds"].items()}
    return NodeEntry(name, kind, inputs, outputs, params, {}, package, kinds)


def _tensor(fields: dict[str, Any], sections: dict[str, memoryview]) -> ComposedTensor:
    data = None if fields["data"] is None else _take(sections, fields["data"])
    kind, dtype, mem_type = (as_size(fields[key]) for key in ("type", "dtype", "mem_type"))
    name, dims = as_text(fields["name"]), tuple(as_size(d) for d in fields["dims"])
    return ComposedTensor(name, kind, dtype, dims, _encoding(fields["encoding"], sections), data, mem_type)


def _encoding(fields: dict[str, Any] | None, sections: dict[str, memoryview]) -> EncodingEntry | None:
    if fields is None:
        return None
    scales, offsets, blocks, factors = (
        np.frombuffer(_take(sections, fields[name]), kind) for name, kind in _ENCODED.items()
    )
    if len(scales) != len(offsets):
        raise ValueError("as many offsets as scales")
    axis = None if fields["axis"] is None else int(fields["axis"])
    return EncodingEntry(scales, offsets, axis, as_size(fields["bits"]), as_size(fields["kind"]), blocks, factors)


def _scalar(value: object) -> Scalar:
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"{value!r} is not a scalar")
    return value
