"""Context binaries whose names and tensors contradict each other, with right checksums: one code, by every function."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from capi.served import F32, Served
from isthmus import qnn
from isthmus.backends.gpu import binary as gpu_binary
from isthmus.backends.seam import binary
from isthmus.engine.native import serialization as programs
from isthmus.errors import Code
from isthmus.prepare import serialization as schedules
from isthmus.system.container import ContainerFormat

LIBRARIES = {"cpu": "QnnCpu", "gpu": "QnnGpu", "htp": "QnnHtp", "lpai": "QnnLpai"}
SYSTEMS_CODE = 30010
_Header = dict[str, Any]


def formats(backend: str) -> tuple[ContainerFormat, ContainerFormat]:
    """The containers of a binary and of a graph in it."""
    if backend == "gpu":
        return gpu_binary.FORMAT, gpu_binary.serialization.FORMAT
    return binary.FORMAT, programs.FORMAT if backend == "cpu" else schedules.FORMAT


@cache
def honest(name: str) -> bytes:
    """A binary with two graphs, each with two inputs, a state and two outputs."""
    with qnn.Backend(name) as backend:
        context = backend.create_context()
        for graph_name in ("first", "second"):
            graph = context.create_graph(graph_name)
            kinds = {"a": "APP_WRITE", "b": "APP_WRITE", "s": "APP_READWRITE", "y": "APP_READ", "z": "APP_READ"}
            a, b, s, y, z = (
                graph.create_tensor(name, qnn.TensorType[kind], F32, (1, 8)) for name, kind in kinds.items()
            )
            graph.add_node("sum", "ElementWiseAdd", [a, b], [y])
            graph.add_node("sums", "ElementWiseAdd", [y, s], [z])
        return bytes(context.prepare_offline())


def tensors(header: _Header) -> list[_Header]:
    """The entries of tensors that have names."""
    if "tensors" in header:
        return [entry for entry in header["tensors"] if "name" in entry]
    return [*header["inputs"], *header["outputs"], *header["states"]]


def contradictions(backend: str) -> Iterator[tuple[str, Callable[[_Header], object]]]:
    """Yield what is changed in the header of a graph, in words and as a function."""
    _, form = formats(backend)
    header, _ = form.unpack(formats(backend)[0].unpack(honest(backend))[1]["first"])
    count = len(tensors(header))
    assert count == 5

    def change(place: int, **fields: Any) -> Callable[[_Header], object]:
        return lambda header: tensors(header)[place].update(fields)

    for place in range(count):
        for other in range(count):
            if other != place:
                named = tensors(header)[other]["name"]
                yield f"tensor {place} is called like tensor {other}", change(place, name=named)
        for name in ("", None, 0, 1.5, True, [], {}, ["a"], "a\0", "\ud800"):
            yield f"tensor {place} is called {name!r}", change(place, name=name)
        yield f"tensor {place} has no name", lambda header, place=place: tensors(header)[place].pop("name")
        for dtype in ("", "FLOAT_31", "UNDEFINED", None, 0, []):
            yield f"tensor {place} is of type {dtype!r}", change(place, dtype=dtype)
        # What a program's instructions leave untouched may be of any size: they know addresses, not shapes.
        other_sizes = [] if backend == "cpu" else [[1, 9], [0, 8]]
        for dims in (None, 8, "18", [1, -8], [1.0, 8], [True, 8], [None], [[1, 8]], [1 << 62, 4], *other_sizes):
            yield f"tensor {place} has the shape {dims!r}", change(place, dims=dims)
        yield f"tensor {place} has other memory", change(place, mem_type="NO_MEMORY")
    for name in ("second", "", None, 0, "first\0"):
        yield f"the graph is called {name!r}", lambda header, name=name: header.update(name=name)
    for kind in ("inputs", "outputs", "states"):
        yield f"no {kind}", lambda header, kind=kind: header.pop(kind)
        yield f"{kind} are missing", lambda header, kind=kind: header.update({kind: []})
        yield f"{kind} twice", lambda header, kind=kind: header.update({kind: header[kind] * 2})
        yield f"{kind} are null", lambda header, kind=kind: header.update({kind: None})
    for kind, other in (("inputs", "outputs"), ("inputs", "states"), ("states", "outputs")):
        yield f"{kind} are {other} too", lambda header, kind=kind, other=other: header.update({kind: header[other]})


def forged(backend: str, change: Callable[[_Header], object]) -> bytes:
    outer, form = formats(backend)
    header, sections = outer.unpack(honest(backend))
    graph, arrays = form.unpack(sections["first"])
    graph = copy.deepcopy(graph)
    change(graph)
    section = memoryview(b"".join(form.pack(graph, arrays)))
    return b"".join(outer.pack(header, {**sections, "first": section}))


@pytest.mark.parametrize("backend", LIBRARIES)
def test_every_function_answers_alike_if_names_and_tensors_contradict_each_other(backend: str) -> None:
    """Never by the code of a function for tensors, such as 7003 or 7004: the client called none."""
    served, system = Served(LIBRARIES[backend]), Served("QnnSystem")
    handle, describer = served.make("backendCreate", 0, 0), system.make("systemContextCreate")

    def answers(content: bytes) -> tuple[int, int, int]:
        buffer = ctypes.create_string_buffer(content, len(content))
        made, info, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
        loading = served.call("contextCreateFromBinary", handle, 0, 0, buffer, len(content), made, 0)
        validating = served.call("contextValidateBinary", handle, 0, 0, buffer, len(content))
        describing = system.call("systemContextGetBinaryInfo", describer, buffer, len(content), info, size)
        assert bool(made.value) == (loading == 0)
        if made.value:
            served.do("contextFree", made.value, 0)
        for each in (served, system):
            each.client._kept.clear()
        return loading, validating, describing

    assert answers(forged(backend, lambda header: None)) == (0, 0, 0)
    refused = (Code.CONTEXT_CREATE_FROM_BINARY, Code.CONTEXT_CREATE_FROM_BINARY, SYSTEMS_CODE)
    wrong = {what: answers(forged(backend, change)) for what, change in contradictions(backend)}
    assert {what: found for what, found in wrong.items() if found != refused} == {}
    assert len(wrong) > 150
    assert answers(honest(backend)) == (0, 0, 0)
