"""Configs of contexts in C: where they may be set, deferred graphs and their properties, enabled graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capi.qnn_calls import Client, at, doubling
from capi.test_binary_information import WEIGHTS, adding, compose_binary, graph_config, on_chip
from isthmus import qnn
from isthmus.backends.htp.headers import CONTEXT_PROPERTY
from isthmus.backends.htp.options import HtpGraphOption
from isthmus.cabi import objects, types
from isthmus.cabi.objects import ContextOption
from isthmus.capi import serve
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, TensorType
from isthmus.qnn import htp as htp_names

FIELDS = {
    ContextOption.PRIORITY: ("priority", 100),
    ContextOption.OEM_STRING: ("oemString", None),
    ContextOption.MEMORY_LIMIT_HINT: ("memoryLimitHint", 64),
    ContextOption.PERSISTENT_BINARY: ("isPersistentBinary", 1),
    ContextOption.BINARY_COMPATIBILITY: ("binaryCompatibilityType", 0),
    ContextOption.DEFER_GRAPH_INIT: ("isGraphInitDeferred", 1),
}
REFUSED = Code.COMMON_NOT_SUPPORTED


def config(client: Client, option: ContextOption, *names: str) -> Any:
    """A list of one config of a context with its usual value, or with names of graphs."""
    made = client.keep(objects.ContextConfig(option))
    if option in (ContextOption.ENABLE_GRAPHS, ContextOption.GRAPH_RETENTION_ORDER):
        listed = client.keep((ctypes.c_char_p * (len(names) + 1))(*map(str.encode, names), None))
        setattr(made, "enableGraphs" if option is ContextOption.ENABLE_GRAPHS else "graphRetentionOrder", listed)
    elif option in FIELDS:
        setattr(made, *FIELDS[option])
    return client.keep((ctypes.POINTER(objects.ContextConfig) * 2)(ctypes.pointer(made)))


@pytest.fixture(scope="module")
def opened(libraries: Path) -> Iterator[tuple[Client, int, Any]]:
    """A client of HTP, a backend, and the binary of a context with the graphs one and two."""
    client = Client(libraries / "libQnnHtp.so")
    backend = client.make("backendCreate", None, None)
    context = client.make("contextCreate", backend, None, None)
    doubling(client, context, "one")
    doubling(client, context, "two")
    yield client, backend, client.binary(context)
    client.do("backendFree", backend)


def restored(opened: tuple[Client, int, Any], configs: Any = None, binary: Any = None) -> int:
    """A context that is made from a binary."""
    client, backend, content = opened
    content = content if binary is None else binary
    out = ctypes.c_void_p()
    client.do("contextCreateFromBinary", backend, None, configs, content, len(content), ctypes.byref(out), None)
    assert out.value
    return out.value


def retrieval(client: Client, context: int, name: bytes) -> int:
    """The code of retrieving a graph."""
    return int(client.graphRetrieve(context, name, ctypes.byref(ctypes.c_void_p())))


# -- deferred graphs ---------------------------------------------------------------------------------------------------


def properties(client: Client, context: int) -> dict[int, tuple[int, int]]:
    """The code and the value of each property of a context."""
    found = {}
    for option in range(1, 9):
        custom = CONTEXT_PROPERTY(option, 77)
        request = objects.ContextProperty(0)
        request.customProperty = ctypes.addressof(custom)
        listed = (ctypes.POINTER(objects.ContextProperty) * 2)(ctypes.pointer(request))
        found[option] = (int(client.contextGetProperty(context, listed)), int(custom.value))
    return found


def test_deferred_graphs_are_loaded_by_contextfinalize(opened: tuple[Client, int, Any]) -> None:
    client = opened[0]
    context = restored(opened, config(client, ContextOption.DEFER_GRAPH_INIT))
    for name in (b"one", b"nope"):
        assert retrieval(client, context, name) == Code.GRAPH_NOT_FINALIZED
    assert "needs finalization. Call contextFinalize first." in client.reason(Code.GRAPH_NOT_FINALIZED)
    assert client.contextGetBinarySize(context, ctypes.byref(ctypes.c_uint64())) == Code.COMMON_OPERATION_NOT_PERMITTED
    client.do("contextFinalize", context, None)
    graph = client.make("graphRetrieve", context, b"two")
    x, y = (
        types.Tensor.from_buffer_copy(client.tensor(*each, DataType.FLOAT_32, (1, 8)))
        for each in (("x", TensorType.APP_WRITE), ("y", TensorType.APP_READ))
    )
    x.v1.id, y.v1.id = 1, 2
    given, results = np.full((1, 8), 3, np.float32), np.zeros((1, 8), np.float32)
    assert client.execute(graph, [at(x, given)], [at(y, results)]) == 0
    assert results.tolist() == [[6.0] * 8]
    # Once is enough.
    assert client.contextFinalize(context, None) == REFUSED
    client.do("contextFree", context, None)


def test_a_context_that_is_not_deferred_needs_no_finalization(opened: tuple[Client, int, Any]) -> None:
    client, backend, _ = opened
    for context in (restored(opened), client.make("contextCreate", backend, None, None)):
        assert client.contextFinalize(context, None) == REFUSED
        assert "no features indicate a need for context finalization" in client.reason(REFUSED)
        assert properties(client, context) == dict.fromkeys(range(1, 9), (REFUSED, 0))
        client.do("contextFree", context, None)


def test_a_deferred_context_loads_nothing_and_can_be_freed(opened: tuple[Client, int, Any]) -> None:
    client = opened[0]
    server = next(each for each in serve.servers() if dict(each.handles.of_kind(qnn.Backend)).get(opened[1]))
    context = restored(opened, config(client, ContextOption.DEFER_GRAPH_INIT))
    handle = dict(server.handles.of_kind(serve.context.ClientContext))[context].handle
    assert handle.graphs == {}
    assert handle.graph_names == ("one", "two")
    client.do("contextFree", context, None)


def test_the_properties_of_a_deferred_context_say_what_to_allocate(opened: tuple[Client, int, Any]) -> None:
    client, backend, _ = opened
    context = client.make("contextCreate", backend, None, None)
    for name in ("one", "two"):
        adding(client, context, name)
    binary = client.binary(context)
    assert 0 < WEIGHTS.nbytes < 2 << 20
    deferred = restored(opened, config(client, ContextOption.DEFER_GRAPH_INIT), binary)
    assert properties(client, deferred) == {
        1: (0, 4096), 2: (0, 0), 3: (0, 4 << 20), 4: (REFUSED, 0), 5: (REFUSED, 0), 6: (0, 0), 7: (REFUSED, 0),
        8: (REFUSED, 0),
    }  # fmt: skip
    client.do("contextFinalize", deferred, None)
    assert properties(client, deferred) == dict.fromkeys(range(1, 9), (REFUSED, 0))
    one = (ctypes.POINTER(objects.ContextConfig) * 3)(
        config(client, ContextOption.ENABLE_GRAPHS, "one")[0], config(client, ContextOption.DEFER_GRAPH_INIT)[0]
    )
    enabled = restored(opened, one, binary)
    assert properties(client, enabled)[3] == (0, 2 << 20), "graphs that are not loaded need nothing"
    client.do("contextFree", enabled, None)
    for each in (context, deferred):
        client.do("contextFree", each, None)


def test_a_property_of_this_projects_own_is_not_offered_in_c(opened: tuple[Client, int, Any]) -> None:
    client, backend, _ = opened
    listed = (ctypes.POINTER(objects.Property) * 2)(ctypes.pointer(objects.Property(0)))
    assert client.backendGetProperty(backend, listed) == Code.BACKEND_NOT_SUPPORTED


def test_a_deferred_context_in_python_is_finalized_by_finalize(opened: tuple[Client, int, Any]) -> None:
    binary = bytes(opened[2])
    with qnn.Backend("htp") as backend:
        context = backend.create_context_from_binary(binary, graphs=["two"], deferred=True)
        assert context.get_property(htp_names.BUFFER_START_ALIGNMENT) == 4096
        with pytest.raises(QnnError, match=r"6023 .*it needs finalization") as refusal:
            context.retrieve("two")
        assert refusal.value.hint == "Call finalize() of the context first."
        context.finalize()
        assert list(context.graphs) == ["two"]
    with qnn.Backend("cpu") as backend, pytest.raises(QnnError, match="1000"):
        backend.create_context_from_binary(backend.create_context().get_binary(), deferred=True)


# -- compatibility -----------------------------------------------------------------------------------------------------

SM8750, SM8550, SM8350 = 69, 43, 30
"""Chips with 8 MB, 8 MB and 4 MB of VTCM."""


def compatibility(client: Client, kind: int) -> Any:
    """A list of one config with a type of compatibility."""
    made = config(client, ContextOption.BINARY_COMPATIBILITY)
    made[0].contents.binaryCompatibilityType = kind
    return made


@pytest.mark.parametrize(
    ("vtcm_mb", "soc", "strict"),
    [(0, SM8750, 0), (0, SM8550, 0), (0, SM8350, 5011), (8, SM8350, 0), (None, SM8350, 0), (0, None, 0)],
)
def test_a_binary_for_all_vtcm_of_another_chip_is_refused_where_compatibility_is_strict(
    opened: tuple[Client, int, Any], vtcm_mb: int | None, soc: int | None, strict: int
) -> None:
    client, backend, _ = opened
    custom = [] if vtcm_mb is None else [graph_config(HtpGraphOption.VTCM_SIZE_IN_MB, vtcm_mb)]
    binary = compose_binary(client, backend, on_chip(client, SM8750), ("g", custom), ("other", []))
    device = None if soc is None else on_chip(client, soc)
    for kind, code in ((None, 0), (0, 0), (1, strict)):
        listed = None if kind is None else compatibility(client, kind)
        out = ctypes.c_void_p()
        arguments = (backend, device, listed, binary, len(binary))
        assert client.contextCreateFromBinary(*arguments, ctypes.byref(out), None) == code
        assert client.contextValidateBinary(*arguments) == code
        if code:
            assert "all VTCM of a chip, 8,388,608 bytes, and SM8350 has 4,194,304" in client.reason(code)
        else:
            client.do("contextFree", out, None)


def test_only_enabled_graphs_are_checked_for_compatibility_and_deferred_ones_when_they_are_loaded(
    opened: tuple[Client, int, Any],
) -> None:
    client, backend, _ = opened
    whole = [graph_config(HtpGraphOption.VTCM_SIZE_IN_MB, 0)]
    binary, device = (
        compose_binary(client, backend, on_chip(client, SM8750), ("whole", whole), ("part", [])),
        on_chip(client, 30),
    )
    strict = compatibility(client, 1)[0]
    for name, code in (("whole", 5011), ("part", 0)):
        listed = (ctypes.POINTER(objects.ContextConfig) * 4)(
            strict,
            config(client, ContextOption.ENABLE_GRAPHS, name)[0],
            config(client, ContextOption.DEFER_GRAPH_INIT)[0],
        )
        out = ctypes.c_void_p()
        client.do("contextCreateFromBinary", backend, device, listed, binary, len(binary), ctypes.byref(out), None)
        assert client.contextFinalize(out, None) == code
        client.do("contextFree", out, None)


def test_a_compatibility_that_does_not_exist_is_refused(opened: tuple[Client, int, Any]) -> None:
    client, backend, binary = opened
    context, listed = restored(opened), compatibility(client, 7)
    out = ctypes.byref(ctypes.c_void_p())
    assert client.contextCreateFromBinary(backend, None, listed, binary, len(binary), out, None) == 5010
    assert client.contextSetConfig(context, listed) == 5010
    assert "there is no type 7; types are PERMISSIVE (0), STRICT (1)" in client.reason(5010)
    client.do("contextFree", context, None)


def test_a_configuration_file_makes_compatibility_strict(opened: tuple[Client, int, Any]) -> None:
    client, backend, _ = opened
    whole = [graph_config(HtpGraphOption.VTCM_SIZE_IN_MB, 0)]
    binary = bytes(compose_binary(client, backend, on_chip(client, SM8750), ("g", whole)))
    device = {"devices": [{"soc_model": SM8350}]}
    for mode in ("permissive", "strict"):
        with qnn.Backend("htp", {**device, "context_configs": {"cache_compatibility_mode": mode}}) as made_of_file:
            if mode == "permissive":
                made_of_file.create_context_from_binary(binary)
                continue
            with pytest.raises(QnnError, match="5011"):
                made_of_file.create_context_from_binary(binary)
            assert qnn.Context(made_of_file, binary=binary, from_binary=True, strict=False).graph_names == ("g",)


# -- binaries of contexts from binaries --------------------------------------------------------------------------------


def test_a_context_from_a_binary_gives_none_in_c_and_its_binary_in_python(opened: tuple[Client, int, Any]) -> None:
    client, _, binary = opened
    context, size = restored(opened), ctypes.c_uint64(7)
    content = ctypes.create_string_buffer(len(binary))
    assert client.contextGetBinarySize(context, ctypes.byref(size)) == 1005
    assert "Querying binary size after de-serializing binary is illegal" in client.reason(1005)
    assert client.contextGetBinary(context, content, len(content), ctypes.byref(size)) == 1005
    assert "Attempting to create context binary from a de-serialized context is illegal" in client.reason(1005)
    assert not any(bytes(content))
    client.do("contextFree", context, None)
    with qnn.Backend("htp") as python:
        assert bytes(python.create_context_from_binary(bytes(binary)).get_binary()) == bytes(binary)


# -- enabled graphs ----------------------------------------------------------------------------------------------------


def test_graphs_that_are_not_enabled_are_not_loaded(opened: tuple[Client, int, Any]) -> None:
    client, backend, binary = opened
    context = restored(opened, config(client, ContextOption.ENABLE_GRAPHS, "two"))
    server = next(each for each in serve.servers() if dict(each.handles.of_kind(qnn.Backend)).get(backend))
    handle = dict(server.handles.of_kind(serve.context.ClientContext))[context].handle
    assert [driver.graph.name for driver in handle.driver._graphs] == ["two"]
    assert [retrieval(client, context, name) for name in (b"one", b"two", b"nope")] == [6003, 0, 6003]
    client.do("contextFree", context, None)
    unknown = config(client, ContextOption.ENABLE_GRAPHS, "two", "nope")
    for deferral in (False, True):
        if deferral:
            unknown = (ctypes.POINTER(objects.ContextConfig) * 3)(
                unknown[0], config(client, ContextOption.DEFER_GRAPH_INIT)[0]
            )
        arguments = (backend, None, unknown, binary, len(binary))
        assert client.contextCreateFromBinary(*arguments, ctypes.byref(ctypes.c_void_p()), None) == 5010
        assert client.contextValidateBinary(*arguments) == 5010


# -- the queue of asynchronous executions ------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "depth"), [(None, 10), (0, 10), (1, 1), (300, 300)])
def test_the_queue_of_a_context_has_the_depth_that_is_asked_for(opened: tuple[Client, int, Any], asked, depth) -> None:
    client, backend, _ = opened
    configs = None
    if asked is not None:
        configs = config(client, ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH)
        configs[0].contents.asyncExeQueueDepth.depth = asked
    server = next(each for each in serve.servers() if dict(each.handles.of_kind(qnn.Backend)).get(backend))
    for context in (client.make("contextCreate", backend, None, configs), restored(opened, configs)):
        assert dict(server.handles.of_kind(serve.context.ClientContext))[context].handle.executions.depth == depth
        client.do("contextFree", context, None)


def test_a_queue_deeper_than_300_and_a_later_depth_are_refused(opened: tuple[Client, int, Any]) -> None:
    client, backend, binary = opened
    context = client.make("contextCreate", backend, None, None)
    configs = config(client, ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH)
    assert client.contextSetConfig(context, configs) == REFUSED
    assert "setting async execution queue depth is not supported" in client.reason(REFUSED)
    configs[0].contents.asyncExeQueueDepth.depth = 301
    out = ctypes.byref(ctypes.c_void_p())
    assert client.contextCreate(backend, None, configs, out) == 5010
    assert client.contextCreateFromBinary(backend, None, configs, binary, len(binary), out, None) == 5010
    assert "the depth of its queue must be 1 to 300, is 301" in client.reason(5010)
    client.do("contextFree", context, None)


# -- where options may be set ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "codes"),
    [
        (ContextOption.PRIORITY, (0, 0, 0, 0)),
        (ContextOption.ERROR_REPORTING, (0, 0, 0, 0)),
        (ContextOption.OEM_STRING, (REFUSED,) * 4),
        (ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH, (0, 0, REFUSED, REFUSED)),
        (ContextOption.ENABLE_GRAPHS, (REFUSED, 0, REFUSED, 0)),
        (ContextOption.MEMORY_LIMIT_HINT, (REFUSED, 0, REFUSED, 0)),
        (ContextOption.PERSISTENT_BINARY, (REFUSED, 0, REFUSED, 0)),
        (ContextOption.BINARY_COMPATIBILITY, (REFUSED, 0, REFUSED, 0)),
        (ContextOption.DEFER_GRAPH_INIT, (REFUSED, 0, REFUSED, REFUSED)),
        (ContextOption.GRAPH_RETENTION_ORDER, (0, 0, 5010, 0)),
    ],
)
def test_options_are_taken_where_they_have_a_meaning(
    opened: tuple[Client, int, Any], option: ContextOption, codes: tuple[int, ...]
) -> None:
    """At contextCreate, at contextCreateFromBinary, for a composed context, for one from a binary."""
    client, backend, binary = opened
    listed = config(client, option, "one")
    composed, made = client.make("contextCreate", backend, None, None), restored(opened)
    found = [
        client.contextCreate(backend, None, listed, ctypes.byref(ctypes.c_void_p())),
        client.contextCreateFromBinary(
            backend, None, listed, binary, len(binary), ctypes.byref(ctypes.c_void_p()), None
        ),
        client.contextSetConfig(composed, listed),
        client.contextSetConfig(made, listed),
    ]
    assert tuple(found) == codes


def test_an_option_without_effect_is_logged_once_with_its_value(
    libraries: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(libraries / "libQnnHtp.so")
    for _ in range(2):
        backend = client.make("backendCreate", None, None)
        caplog.clear()
        context = client.make("contextCreate", backend, None, None)
        with caplog.at_level("INFO", "isthmus"):
            for _ in range(3):
                client.do("contextSetConfig", context, config(client, ContextOption.ERROR_REPORTING))
        assert caplog.text.count("context option ERROR_REPORTING = BRIEF: accepted, but without effect here") == 1
        client.do("backendFree", backend)


def test_capabilities_of_contexts_are_those_that_are_offered(opened: tuple[Client, int, Any]) -> None:
    answers = {key: opened[0].propertyHasCapability(key) for key in range(201, 230)}
    offered = {202, 205, 206, 207, 208, 209, 210, 211, 212, 215, 217, 220, 221}
    unknown = {201, 203, 204, *range(223, 230)}
    assert {key for key, answer in answers.items() if answer == 0} == offered
    assert {key for key, answer in answers.items() if answer == 2000} == unknown
    assert {answers[key] for key in answers.keys() - offered - unknown} == {1000}
