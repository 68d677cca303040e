"""Validation names what excludes what, what graphs must have in common, and which graphs may not execute at once."""

from __future__ import annotations

import ctypes

import pytest

from capi.seen_calls import (
    CONCURRENT,
    CREATE,
    DEFERRED,
    FROM_BINARY,
    GROUP,
    LIST,
    RESOURCES,
    RETENTION,
    SWITCHING,
    WEIGHTS,
    WITH_CALLBACK,
    Calls,
    buffer,
    callbacks_of,
    graph_config,
    under_way,
)
from isthmus.backends.htp import exclusions as htp
from isthmus.backends.htp.options import HtpContextOption, HtpGraphOption, HtpMemType, HtpOptimization
from isthmus.backends.seam.facets import Feature
from isthmus.cabi import objects
from isthmus.cabi.objects import ContextOption, GraphOption

UDMA = (HtpContextOption.USE_EXTENDED_UDMA, True)
HIGH = (ContextOption.PRIORITY, 200)


def share(kind: int) -> tuple[HtpContextOption, int]:
    return HtpContextOption.SHARE_RESOURCES_OPTIMIZATION_TYPE, kind


def excluded(one: str, other: str) -> str:
    return f"{getattr(one, 'value', one)} and {getattr(other, 'value', other)} exclude each other"


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.mark.parametrize(
    ("how", "settings", "pair"),
    [
        (CREATE, (GROUP,), (htp.GROUP, Feature.COMPOSED)),
        (CREATE, (RESOURCES,), (htp.RESOURCES, Feature.COMPOSED)),
        (FROM_BINARY, (RESOURCES,), (htp.RESOURCES, Feature.SINGLE)),
        (FROM_BINARY, ((HtpContextOption.IO_MEM_ESTIMATION, True), (HtpContextOption.PARALLEL_WEIGHT_LOADING, 1)),
         (htp.ESTIMATION, htp.PARALLEL_LOADING)),
        (WITH_CALLBACK, (DEFERRED,), (Feature.CALLBACKS, Feature.DEFERRED)),
        (WITH_CALLBACK, SWITCHING, (Feature.CALLBACKS, Feature.SWITCHING)),
        (WITH_CALLBACK, (UDMA,), (Feature.CALLBACKS, htp.UDMA)),
    ],
)  # fmt: skip
def test_features_that_exclude_each_other_are_named(calls: Calls, how, settings, pair) -> None:
    calls.context(how, *settings)
    assert calls.broken == [excluded(*pair)]


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        (CREATE, (WEIGHTS,)),
        (CREATE, ((HtpContextOption.SHARE_RESOURCES, False),)),
        (FROM_BINARY, (GROUP,)),
        (FROM_BINARY, (*SWITCHING, RETENTION)),
        (FROM_BINARY, ((ContextOption.ENABLE_GRAPHS, "names"), DEFERRED)),
        (FROM_BINARY, ((HtpContextOption.IO_MEM_ESTIMATION, True), (HtpContextOption.PARALLEL_WEIGHT_LOADING, 2))),
    ],
)
def test_features_that_go_together_are_not_reported(calls: Calls, how, settings) -> None:
    calls.context(how, *settings)
    assert calls.broken == []


@pytest.mark.parametrize("common", [(RESOURCES,), ()])
@pytest.mark.parametrize(
    ("own", "other"),
    [((GROUP,), htp.GROUP), ((CONCURRENT,), htp.CONCURRENT), (SWITCHING, Feature.SWITCHING.value)],
)
def test_a_list_of_binaries_excludes_groups_and_switching(calls: Calls, common, own, other) -> None:
    rules = calls.call(LIST, calls.backend, 0, calls.params(*own), calls.configs(common), 0)
    expected = [f"{htp.RESOURCES} and {other} exclude each other"] * len(common)
    assert sorted(rules) == sorted([*expected, f"{Feature.LIST.value} and {other} exclude each other"])


FIRST_TYPE, SECOND_TYPE = ((HtpContextOption.SHARE_RESOURCES_OPTIMIZATION_TYPE, number) for number in (0, 1))


@pytest.mark.parametrize(
    ("settings", "other"),
    [
        ((DEFERRED,), Feature.DEFERRED.value), (SWITCHING, Feature.SWITCHING.value), ((UDMA,), htp.UDMA),
        ((SWITCHING[0],), None), ((), None),
    ],
)  # fmt: skip
def test_data_callbacks_exclude_what_loads_otherwise(calls: Calls, settings, other) -> None:
    expected = [] if other is None else [f"{Feature.CALLBACKS.value} and {other} exclude each other"]
    place = ctypes.addressof(calls.binary)
    made = ctypes.addressof(callbacks_of(calls))
    calls.create(
        "contextCreateFromBinaryWithCallback",
        lambda out: (calls.backend, 0, calls.configs(settings), made, place, len(calls.binary), out, 0, 0),
    )
    assert calls.broken == expected


@pytest.mark.parametrize(
    ("common", "is_sequential"),
    [((RESOURCES,), True), ((RESOURCES, FIRST_TYPE), True), ((RESOURCES, SECOND_TYPE), False), ((FIRST_TYPE,), False)],
)
def test_data_callbacks_exclude_shared_resources_of_type_0(calls: Calls, common, is_sequential) -> None:
    """Type 0 is that of a list that names none, and none without shared resources."""
    second = calls.keep(objects.ContextParamsV2())
    second.notifyFunc, second.callbacks = 1, ctypes.pointer(callbacks_of(calls))
    second.binaryBuffer, second.binaryBufferSize = ctypes.addressof(calls.binary), len(calls.binary)
    params = calls.keep(objects.ContextParams(2))
    params.v2 = ctypes.pointer(second)
    listed = calls.keep((ctypes.c_uint64 * 2)(ctypes.addressof(params), 0))
    rules = calls.call(LIST, calls.backend, 0, ctypes.addressof(listed), calls.configs(common), 0)
    assert rules == [f"{Feature.CALLBACKS.value} and {htp.SEQUENTIAL} exclude each other"] * is_sequential


@pytest.mark.parametrize(
    ("how", "of_context", "of_graph", "pair"),
    [
        (CREATE, WEIGHTS, (HtpGraphOption.OPTIMIZATION, HtpOptimization.ENABLE_DLBC_WEIGHTS),
         (htp.SHARED_WEIGHTS, htp.DLBC_WEIGHTS)),
        (FROM_BINARY, CONCURRENT, (HtpGraphOption.OPTIMIZATION, HtpOptimization.ENABLE_DLBC),
         (htp.CONCURRENT, htp.DLBC)),
        (FROM_BINARY, GROUP, (HtpGraphOption.PARALLEL_GRAPH_EXECUTION_CONFIG, 1), (htp.PARALLEL_GRAPHS, htp.GROUP)),
        (CREATE, WEIGHTS, (HtpGraphOption.NUM_CORES, 2), (htp.SHARED_WEIGHTS, htp.CORES)),
        (CREATE, WEIGHTS, (HtpGraphOption.NUM_CORES, 1), None),
        (CREATE, WEIGHTS, (HtpGraphOption.OPTIMIZATION, HtpOptimization.ENABLE_DLBC), None),
        (FROM_BINARY, GROUP, (HtpGraphOption.OPTIMIZATION, HtpOptimization.ENABLE_DLBC), (htp.GROUP, htp.DLBC)),
    ],
)  # fmt: skip
def test_options_of_a_graph_are_checked_with_those_of_its_context(
    calls: Calls, how, of_context, of_graph, pair
) -> None:
    context = calls.context(how, of_context)
    calls.graph(context, b"graph", of_graph)
    assert calls.broken == ([] if pair is None else [f"{pair[0]} and {pair[1]} exclude each other"])


def test_a_retention_order_needs_switching_also_if_it_is_set_later(calls: Calls) -> None:
    calls.context(FROM_BINARY, RETENTION)
    assert calls.broken == [f"{Feature.RETENTION.value} has no effect without {Feature.SWITCHING.value}"]
    context = calls.context(FROM_BINARY, GROUP)
    rules = calls.call("contextSetConfig", context, calls.configs(SWITCHING))
    assert rules == []


def test_buffers_of_the_clients_are_for_deferred_contexts_before_they_are_finalized(calls: Calls) -> None:
    with buffer() as one, buffer() as other:
        deferred = calls.context(FROM_BINARY, DEFERRED)
        assert calls.register(deferred, HtpMemType.WEIGHTS_BUFFER, one) == []
        calls.call("contextFinalize", deferred, 0)
        [rule] = calls.register(deferred, HtpMemType.SHARED_SPILLFILL_BUFFER, one)
        assert "are registered between the creation of a deferred context and its end by contextFinalize" in rule
        assert calls.register(deferred, HtpMemType.SHARED_BUFFER, one) == []
        for setting, name in ((GROUP, htp.GROUP), (UDMA, htp.UDMA)):
            mixed = calls.context(FROM_BINARY, DEFERRED, setting)
            assert calls.register(mixed, HtpMemType.SHARED_SPILLFILL_BUFFER, other) == [excluded(Feature.BUFFERS, name)]


def test_a_weights_buffer_serves_one_context(calls: Calls) -> None:
    with buffer() as fd, buffer() as other:
        first, second, third = (calls.context(FROM_BINARY, DEFERRED) for _ in range(3))
        assert calls.register(first, HtpMemType.WEIGHTS_BUFFER, fd) == []
        [rule] = calls.register(second, HtpMemType.WEIGHTS_BUFFER, fd)
        assert rule == f"{htp.WEIGHTS_BUFFER} serves one context, and this one is that of context {first:#x}"
        assert calls.register(third, HtpMemType.WEIGHTS_BUFFER, other) == []


def at_once(calls: Calls, first: int, second: int) -> list[str]:
    """Let two graphs execute at once, in two threads; return the rules that this breaks."""
    with under_way(calls, "graphExecute", first, 0, 0, 0, 0, 0, 0):
        return calls.execute(second)


def test_graphs_that_share_a_buffer_do_not_execute_at_once(calls: Calls) -> None:
    founder = calls.context(FROM_BINARY, GROUP)
    member = calls.context(FROM_BINARY, (HtpContextOption.REGISTER_MULTI_CONTEXTS, founder))
    other = calls.context(FROM_BINARY, GROUP)
    graphs = [calls.graph(context, b"g") for context in (founder, member, other)]
    [rule] = at_once(calls, graphs[0], graphs[1])
    assert rule.startswith(f"{htp.GROUP} {founder:#x}: call ")
    assert at_once(calls, graphs[0], graphs[2]) == []


def test_graphs_of_a_switching_context_do_not_execute_at_once(calls: Calls) -> None:
    switching, plain = calls.context(FROM_BINARY, *SWITCHING), calls.context(FROM_BINARY)
    [rule] = at_once(calls, calls.graph(switching, b"a"), calls.graph(switching, b"b"))
    assert rule.startswith(f"{Feature.SWITCHING.value} {switching:#x}: call ")
    assert at_once(calls, calls.graph(plain, b"a"), calls.graph(plain, b"b")) == []


@pytest.mark.parametrize("kind", [HtpMemType.SHARED_SPILLFILL_BUFFER, HtpMemType.WEIGHTS_BUFFER])
def test_graphs_with_one_buffer_of_the_clients_do_not_execute_at_once(calls: Calls, kind: HtpMemType) -> None:
    """The file tells the buffer, whatever descriptor it is registered by."""
    with buffer() as fd, buffer() as other:
        is_shared = kind is HtpMemType.SHARED_SPILLFILL_BUFFER
        contexts = [calls.context(FROM_BINARY, DEFERRED) for _ in range(2 + is_shared)]
        for context, place in zip(contexts, (fd, other, fd), strict=False):
            assert calls.register(context, kind, place) == []
            calls.call("contextFinalize", context, 0)
        graphs = [calls.retrieved(context) for context in contexts]
        [rule] = at_once(calls, graphs[0], graphs[2] if is_shared else calls.retrieved(contexts[0]))
        name = htp.SPILL_FILL_BUFFER if is_shared else htp.WEIGHTS_BUFFER
        assert rule.startswith(name)
        assert rule.endswith("(graphExecute) uses it now")
        assert at_once(calls, graphs[0], graphs[1]) == []


def test_graphs_that_share_memory_for_vtcm_may_execute_at_once(calls: Calls) -> None:
    with buffer() as fd:
        contexts = [calls.context(FROM_BINARY, DEFERRED) for _ in range(2)]
        for context in contexts:
            assert calls.register(context, HtpMemType.SHARED_VTCMBACKUP_BUFFER, fd) == []
        assert at_once(calls, *map(calls.retrieved, contexts)) == []


@pytest.mark.parametrize(
    ("settings", "takes_turns"),
    [
        ((RESOURCES,), True),
        ((RESOURCES, share(0)), True),
        ((share(1), RESOURCES), True),
        ((RESOURCES, share(2)), False),
        ((share(1),), False),
        ((), False),
    ],
)  # fmt: skip
def test_graphs_of_a_list_with_shared_resources_take_turns(calls: Calls, settings, takes_turns) -> None:
    """By the types 0, which is the default, and 1; a type without sharing means nothing."""
    first, second = calls.from_list(*settings)
    rules = at_once(calls, calls.retrieved(first), calls.retrieved(second))
    assert [rule.partition(" 0x")[0] for rule in rules] == [htp.IN_TURN] * takes_turns
    # Of which of two lists these are, the calls do not show.
    first, second = calls.from_list(*settings)
    assert at_once(calls, calls.retrieved(first), calls.retrieved(second)) == []


def test_data_callbacks_exclude_the_type_that_optimizes_addresses(calls: Calls) -> None:
    for settings, expected in (((RESOURCES,), True), ((RESOURCES, share(0)), True), ((RESOURCES, share(1)), False)):
        calls.context(WITH_CALLBACK, *settings)
        assert (excluded(Feature.CALLBACKS, htp.SEQUENTIAL) in calls.broken) == expected


def test_graphs_of_a_list_keep_their_batch(calls: Calls) -> None:
    context, _ = calls.from_list(RESOURCES)
    graph, plain = calls.retrieved(context), calls.retrieved(calls.context(FROM_BINARY))
    for how in ("graphExecute", "graphExecuteAsync"):
        for each in (graph, plain):
            assert calls.execute(each, calls.input(2, 8), how=how) == []
        assert calls.execute(plain, calls.input(4, 8), how=how) == []
        assert calls.execute(graph, calls.input(4, 8), how=how) == [
            excluded(each, Feature.BATCH) for each in (htp.RESOURCES, Feature.LIST)
        ]


@pytest.mark.parametrize(("own", "is_other"), [((), False), ((HIGH,), True), (((ContextOption.PRIORITY, 100),), False)])
def test_contexts_of_a_concurrent_group_have_one_priority(calls: Calls, own, is_other) -> None:
    founder = calls.context(FROM_BINARY, CONCURRENT)
    calls.context(FROM_BINARY, (HtpContextOption.REGISTER_CONCURRENT_RESOURCE_SHARING, founder), *own)
    assert calls.broken == [excluded(htp.CONCURRENT, Feature.OTHER_PRIORITY)] * is_other
    calls.context(FROM_BINARY, (HtpContextOption.REGISTER_MULTI_CONTEXTS, founder), *own)
    assert calls.broken == []


def test_priorities_are_not_changed_in_a_concurrent_group(calls: Calls) -> None:
    for setting, expected in ((CONCURRENT, [excluded(htp.CONCURRENT, Feature.OTHER_PRIORITY)]), (GROUP, [])):
        context = calls.context(FROM_BINARY, setting)
        graph = calls.retrieved(context)
        assert calls.call("contextSetConfig", context, calls.configs((HIGH,))) == expected
        config = calls.keep(graph_config(calls, GraphOption.PRIORITY, 200))
        listed = calls.keep((ctypes.c_uint64 * 2)(ctypes.addressof(config), 0))
        assert calls.call("graphSetConfig", graph, ctypes.addressof(listed)) == expected
        assert calls.call("graphSetConfig", graph, ctypes.addressof(calls.keep((ctypes.c_uint64 * 1)()))) == []


def test_nothing_executes_beside_a_graph_of_several_cores(calls: Calls) -> None:
    cores, plain, other = (
        calls.graph(calls.context(CREATE), b"g", *settings) for settings in (((HtpGraphOption.NUM_CORES, 2),), (), ())
    )
    for first, second in ((cores, plain), (plain, cores), (cores, cores)):
        rules = [rule for rule in at_once(calls, first, second) if "no other graph executes beside" in rule]
        assert len(rules) == 1
        assert rules[0].startswith(htp.CORES)
    assert at_once(calls, plain, other) == []
    assert calls.execute(cores) == []


def test_a_graph_of_several_cores_has_no_signal_at_its_creation_and_no_linting(calls: Calls) -> None:
    cores, plain = (
        calls.graph(calls.context(CREATE), b"g", *settings) for settings in (((HtpGraphOption.NUM_CORES, 2),), ())
    )
    signal = calls.create("signalCreate", lambda out: (calls.backend, 0, out))
    linting, basic = calls.profile(7001), calls.profile(1)
    for profile, given, broken in ((linting, 0, [htp.LINTING]), (basic, signal, [Feature.SIGNAL]), (basic, 0, [])):
        rules = calls.call("graphFinalize", cores, profile, given)
        assert [rule for rule in rules if "exclude" in rule] == [excluded(htp.CORES, each) for each in broken]
        assert not any("exclude" in rule for rule in calls.call("graphFinalize", plain, profile, given))
    assert calls.execute(cores, profile=linting) == [excluded(htp.CORES, htp.LINTING)]


def test_graphs_that_share_weights_have_one_size_of_vtcm(calls: Calls) -> None:
    def sizes(how: HtpGraphOption, *found: int) -> list[list[str]]:
        context, answers = calls.context(CREATE, setting), []
        for size in found:
            calls.graph(context, b"g%d" % len(answers), *([] if size < 0 else [(how, size)]))
            answers.append(calls.broken)
        return answers

    setting = WEIGHTS
    wrong = f"{htp.SHARED_WEIGHTS} needs graphs of one {htp.VTCM}: 4194304 and 8388608"
    # 4 MB are the default, and 0 leaves the size to the chip.
    assert sizes(HtpGraphOption.VTCM_SIZE_IN_MB, -1, 4, 8, 0) == [[], [], [wrong], []]
    assert sizes(HtpGraphOption.VTCM_SIZE_IN_BYTES, 4 << 20, 8 << 20) == [[], [wrong]]
    setting = (HtpContextOption.WEIGHT_SHARING_ENABLED, False)
    assert sizes(HtpGraphOption.VTCM_SIZE_IN_MB, 4, 8) == [[], []]


def test_graphs_that_share_weights_are_for_one_chip(calls: Calls) -> None:
    for setting, count in ((WEIGHTS, 1), ((HtpContextOption.WEIGHT_SHARING_ENABLED, False), 0)):
        device = calls.device(69)
        context = calls.context(CREATE, setting, device=device)
        for name in (b"a", b"b"):
            calls.graph(context, name)
            assert calls.broken == []
        calls.device(57, device)
        calls.graph(context, b"c")
        assert calls.broken == [f"{htp.SHARED_WEIGHTS} needs graphs of one {htp.CHIP}: 69 and 57"] * count


@pytest.mark.parametrize(
    ("kinds", "count"),
    [
        ((HtpOptimization.ENABLE_DLBC,), 32),
        ((HtpOptimization.ENABLE_DLBC_WEIGHTS,), 32),
        ((HtpOptimization.ENABLE_DLBC, HtpOptimization.ENABLE_DLBC_WEIGHTS), 16),
    ],
)
def test_a_context_has_32_graphs_with_dlbc_or_16_with_both_kinds(calls: Calls, kinds, count) -> None:
    context = calls.context(CREATE)
    for number in range(count):
        calls.graph(context, b"%d" % number, *((HtpGraphOption.OPTIMIZATION, kind) for kind in kinds))
        assert calls.broken == []
    calls.graph(context, b"plain")
    assert calls.broken == []
    calls.graph(context, b"last", *((HtpGraphOption.OPTIMIZATION, kind) for kind in kinds))
    [rule] = calls.broken
    assert rule.startswith(f"graphs of a context have {htp.DLBC} or {htp.DLBC_WEIGHTS} 32 times at most, and not 3")


def test_no_more_is_registered_than_the_limit_of_reused_io(calls: Calls) -> None:
    limited = calls.context(FROM_BINARY, (HtpContextOption.REUSED_IO_LIMIT, 1))
    free = calls.context(FROM_BINARY, (HtpContextOption.REUSED_IO_LIMIT, 0))
    with buffer(1 << 20) as fd, buffer(4096) as small:
        assert calls.register(limited, HtpMemType.SHARED_BUFFER, fd) == []
        assert calls.register(limited, HtpMemType.SHARED_BUFFER, small) == [
            f"context {limited:#x}: 1,052,672 bytes are registered with it, more than its limit of I/O, 1,048,576"
        ]
        calls.deregister()
        for each in (fd, small):
            assert calls.register(free, HtpMemType.SHARED_BUFFER, each) == []
