"""Process domains as Qualcomm documents them and as users measured them on devices, to the byte."""

from dataclasses import replace

import pytest

from isthmus.domains import ContextSizes, DomainMapping, Domains, GraphNeeds, Placement, Refusal, SpillGroup, profile
from isthmus.domains.sizes import spill_fill_property, weights_property
from isthmus.errors import Code, QnnError

GIB, MIB, MB = 1 << 30, 1 << 20, 10**6


def file(name, nbytes, **more):
    return ContextSizes(name, file_bytes=int(nbytes), **more)


def used(domains):
    return [each.used for each in domains.domains]


# -- documented --------------------------------------------------------------------------------------------------------


def test_the_documents_five_models_are_placed_as_its_table_says() -> None:
    domains = Domains(profile())
    table = [(1.5, 0, 1.5, 0), (1.5, 0, 3, 0), (1, 1, 3, 1), (1, 1, 3, 2), (0.25, 0, 3.25, 2)]
    for number, (size, lands, first, second) in enumerate(table, 1):
        placement = domains.load(file(f"model {number}", size * GIB))
        assert isinstance(placement, Placement)
        assert placement.domain == lands
        assert used(domains) == [first * GIB, second * GIB]


def test_a_context_is_refused_with_gigabytes_free_since_it_is_never_divided() -> None:
    domains = Domains(profile())
    for number in range(2):
        domains.load(file(f"model {number}", 2 * GIB))
    refusal = domains.load(file("third", 2 * GIB))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.COMMON_MEM_ALLOC
    assert refusal.lines == (
        "Failed to find available PD for contextId 3 on deviceId 0 coreId 0with context size estimate 2147483648",
        "context create from binary failed on contextId 3",
        "Fail to create context from binary with err 1002",
        "Size Calculation encounter error! Doing Hard reset of reserved mem to 0.",
        "Failed to create context from binary with err 0x3ea",
    )
    assert "needs 2,147,483,648 bytes in one process domain" in refusal.sentence
    assert "domain 0 has 1,879,048,192 of 4,026,531,840 bytes free" in refusal.sentence
    assert "isthmus fit --contexts" in str(refusal.error())


def test_io_must_be_in_the_domain_of_its_context_though_another_has_room() -> None:
    domains = Domains(profile())
    placements = [domains.load(file(f"context {number}", 0.9 * GIB)) for number in range(1, 6)]
    assert [each.domain for each in placements] == [0, 0, 0, 0, 1]
    refusal = domains.register(placements[0], 256 * MIB, fd=428)
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.MEM_MAPPING
    assert refusal.lines == (
        "Mod 4 failed for fd: 428, size: 268435456, pd: 0, with error 8003",
        "Failed to register memHandles for conext 1 on pdId 0, coreId 0, device 0. Current PD has ~3686.40 MB in use",
        "Failed to register mem with error 0x1f43",
    )
    assert "though domain 1 has room" in refusal.sentence
    assert isinstance(domains.register(placements[4], 256 * MIB), DomainMapping)
    # Had the fourth gone elsewhere, it would fit.
    domains.free(placements[3])
    assert isinstance(domains.register(placements[0], 256 * MIB), DomainMapping)


def test_the_estimate_has_the_io_only_if_it_is_asked_for() -> None:
    context = ContextSizes("a", (GraphNeeds("g", constants=3 * GIB, io=GIB),))
    plain = Domains(profile()).load(context)
    assert isinstance(plain, Placement)
    refusal = Domains(profile(), io_estimation=True).load(context)
    assert isinstance(refusal, Refusal)
    assert refusal.lines[0].endswith(f"context size estimate {4 * GIB}")


def test_a_limit_of_reused_io_takes_the_place_of_the_io_of_all_graphs() -> None:
    graphs = tuple(GraphNeeds(f"g{number}", constants=GIB, io=GIB // 2) for number in range(2))
    whole, reused = ContextSizes("a", graphs), ContextSizes("a", graphs, reused_io=True)
    assert (whole.io, reused.io) == ((GIB,), (GIB // 2,))
    assert (whole.charge, reused.charge) == (3 * GIB, 5 * GIB // 2)


def test_only_enabled_graphs_count() -> None:
    graphs = tuple(GraphNeeds(f"g{number}", constants=GIB // 2) for number in range(5))
    binaries = [ContextSizes(name, graphs) for name in "ab"]
    one = profile("SM8750").domains[:1]
    domains = Domains(type(profile())("one domain", one))
    assert isinstance(domains.load(binaries[0]), Placement)
    assert isinstance(domains.load(binaries[1]), Refusal)
    domains = Domains(type(profile())("one domain", one))
    assert all(isinstance(domains.load(each.enabled(["g0"])), Placement) for each in binaries)
    with pytest.raises(QnnError, match="no graph 'nope'") as caught:
        binaries[0].enabled(["nope"])
    assert caught.value.code is Code.GRAPH_INVALID_NAME


def test_shared_weights_count_once_and_spill_fill_is_the_largest_of_the_graphs() -> None:
    graphs = (GraphNeeds("a", 10, 1000, 5, 300, 7), GraphNeeds("b", 20, 1000, 6, 400, 8))
    context = ContextSizes("both", graphs)
    assert dict(context.pieces) == {"shared weights": 1000, "weights": 30, "spill-fill": 400, "op data": 11}
    assert (context.io, context.charge) == ((15,), 1456)


def test_with_switching_one_graph_is_loaded_at_a_time() -> None:
    graphs = tuple(GraphNeeds(name, constants=size, op_data=5) for name, size in (("a", 10), ("b", 30)))
    assert dict(ContextSizes("both", graphs, loaded=()).pieces) == {"weights": 30, "op data": 5}


# -- measured ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("megabytes", [2829, 1853, 1887, 1927, 3506])
def test_what_users_loaded_on_sm8750_loads(megabytes) -> None:
    assert isinstance(Domains(profile("SM8750")).load(file("binary", megabytes * MB)), Placement)


@pytest.mark.parametrize("nbytes", [3535 * MB, 3_652_345_600, 4_025_634_048])
def test_what_users_could_not_load_is_refused(nbytes) -> None:
    refusal = Domains(profile("SM8750")).load(file("binary", nbytes))
    assert isinstance(refusal, Refusal)
    assert f"with context size estimate {nbytes}" in refusal.lines[0]


def test_the_documented_limit_alone_would_take_what_users_could_not_load() -> None:
    assert 15 * GIB // 4 - 4_025_634_048 == 897_792
    assert isinstance(Domains(profile()).load(file("binary", 4_025_634_048)), Placement)


def test_on_sa8255p_a_mapping_begins_at_a_multiple_of_its_largest_power_of_two() -> None:
    domains = Domains(profile("SA8255P"))
    addresses = []
    for name, size in (("a", MIB), ("b", 298 * MIB), ("c", 732 * MIB), ("d", 100 * MIB)):
        placement = domains.load(file(name, size))
        assert isinstance(placement, Placement)
        addresses.append(placement.mappings[0].address // MIB)
    # 298 MiB at a multiple of 256 MiB, 732 MiB at one of 512 MiB, 100 MiB at one of 64 MiB.
    assert addresses == [0, 256, 1024, 64]


def test_732_mib_can_fail_with_1347_mib_free() -> None:
    chip = profile("SA8255P")
    domains = Domains(type(chip)("one domain", chip.domains[:1], power_of_two=True))
    for number in range(6):
        assert isinstance(domains.load(file(f"part {number}", 298 * MIB)), Placement)
    assert isinstance(domains.load(file("rest", 110 * MIB)), Placement)
    assert domains.domains[0].free // MIB == 1347
    refusal = domains.load(file("large", 732 * MIB))
    assert isinstance(refusal, Refusal)
    assert refusal.lines[:6] == (
        "Failed to map buffer of size 767557632",
        "Failed to map weights buffer to device!",
        "Could not allocate persistent weights buffer!",
        "Failed to initialize graph memory",
        "Context create from binary failed for deviceId 0 coreId 0 pdId 0 for context 8, err 1002",
        "Context 8 failed on pd 0",
    )
    assert "but in no aligned place for that" in refusal.sentence


def test_domains_are_tried_in_the_order_of_the_profile() -> None:
    domains = Domains(profile("SA8255P"))
    placements = [domains.load(file(f"c{number}", 3 * GIB)) for number in range(3)]
    assert [each.domain for each in placements] == [0, 2, 4]


def test_with_the_estimate_of_io_one_buffer_of_all_io_must_have_a_place_while_loading() -> None:
    chip = profile("SA8255P")
    one = type(chip)("one domain", chip.domains[:1], power_of_two=True)
    graphs = tuple(GraphNeeds(f"g{number}", 400 * MIB, io=700 * MIB) for number in range(2))
    context = ContextSizes("a", graphs, buffers=(700 * MIB, 700 * MIB))
    for io_estimation, kind in ((False, Placement), (True, Placement)):
        domains = Domains(one, io_estimation=io_estimation)
        assert isinstance(domains.load(context), kind)
    # 2200 MiB in use leave 1045 MiB, and no multiple of 1024 MiB with 1400 MiB behind it.
    domains = Domains(one, io_estimation=True)
    domains.load(file("before", 1100 * MIB))
    assert isinstance(domains.load(context), Refusal)


def test_shared_weights_without_a_place_have_a_line_of_their_own() -> None:
    chip = profile("SA8255P")
    domains = Domains(type(chip)("one domain", chip.domains[:1], power_of_two=True))
    domains.load(file("first", 1100 * MIB))
    refusal = domains.load(ContextSizes("second", (GraphNeeds("g", shared_weights=2100 * MIB),)))
    assert isinstance(refusal, Refusal)
    line = "Failed to map shared weights for contextId 2 on deviceId 0, coreId 0, pdId 0, err: 1002"
    assert refusal.lines[1] == line


# -- freeing, groups, properties ---------------------------------------------------------------------------------------


SESSION = (
    "DspTransport.openSession qnn_open failed, 0x00000200, prio 100",
    "Failed to create a new transport session for deviceId 0, coreId 0, pdId 1: err: 1002",
    "Error in creating transport session for deviceId 0, coreId 0, pdId 1, err: 1002",
)


def test_no_session_is_opened_without_memory_for_it_though_it_has_addresses() -> None:
    domains = Domains(replace(profile(), free_ram=5 * GIB))
    assert isinstance(domains.load(file("first", 3 * GIB)), Placement)
    refusal = domains.load(file("second", 3 * GIB))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.COMMON_MEM_ALLOC
    assert refusal.lines[:3] == SESSION
    assert refusal.lines[3].startswith("Failed to find available PD for contextId 2")
    assert "2,147,483,648 of 5,368,709,120 bytes of memory are free" in refusal.sentence
    last = domains.load(file("third", 2 * GIB))
    assert isinstance(last, Placement)
    assert last.domain == 1
    # In a session that is open, a mapping fails.
    lines = domains.load(file("fourth", 1)).lines
    assert "Failed to map buffer of size 1" in lines
    assert SESSION[0] not in lines
    # Buffers need memory too.
    assert isinstance(domains.register(last, MIB), Refusal)
    domains.free(last)
    assert isinstance(domains.load(file("fifth", GIB)), Placement)


def test_the_buffer_of_a_group_takes_memory_once_and_addresses_in_each_domain() -> None:
    group = SpillGroup("g", GIB)
    domains = Domains(replace(profile(), free_ram=5 * GIB))
    for name in "ab":
        placement = domains.load(ContextSizes(name, (GraphNeeds("g", 2 * GIB, spill_fill=1),), group=group))
        assert isinstance(placement, Placement)
    assert used(domains) == [3 * GIB, 3 * GIB]


def test_a_chip_with_one_session_opens_no_second_one() -> None:
    chip = replace(profile(), domains=profile().domains[:1])
    line = "Cannot establish more than one connection to QNN skel: 1009"
    domains = Domains(chip)
    assert line not in domains.load(file("too large", 4 * GIB)).lines
    assert isinstance(domains.load(file("first", 2 * GIB)), Placement)
    assert domains.load(file("second", 2 * GIB)).lines[0] == line


def test_a_context_that_grows_needs_memory_too() -> None:
    domains = Domains(replace(profile(), free_ram=2 * GIB))
    placement = domains.load(file("a", GIB))
    assert isinstance(placement, Placement)
    assert isinstance(domains.resize(placement, file("a", 3 * GIB)), Refusal)
    assert used(domains) == [GIB, 0]
    assert isinstance(domains.resize(placement, file("a", 2 * GIB)), Placement)


def test_a_freed_context_leaves_a_hole_that_the_next_one_takes() -> None:
    domains = Domains(profile())
    placements = [domains.load(file(f"c{number}", GIB)) for number in range(3)]
    buffer = domains.register(placements[1], 4096)
    assert isinstance(buffer, DomainMapping)
    domains.free(placements[1])
    assert used(domains) == [2 * GIB, 0]
    # Scattered room is not enough: 1.75 GiB are free, the largest hole has 1 GiB.
    large = domains.load(file("large", 1.5 * GIB))
    assert isinstance(large, Placement)
    assert large.domain == 1
    small = domains.load(file("small", GIB))
    assert isinstance(small, Placement)
    assert (small.domain, small.mappings[0].address) == (0, GIB)


def test_a_deregistered_buffer_leaves_its_room() -> None:
    domains = Domains(profile())
    placement = domains.load(file("a", GIB))
    buffer = domains.register(placement, 2 * GIB)
    assert used(domains) == [3 * GIB, 0]
    domains.deregister(placement, buffer)
    assert used(domains) == [GIB, 0]
    domains.free(placement)
    assert used(domains) == [0, 0]


def test_a_group_has_one_buffer_in_each_domain_until_its_last_member_there_is_freed() -> None:
    domains = Domains(profile())
    group = SpillGroup("g", GIB)
    parts = [ContextSizes(f"p{k}", (GraphNeeds("g", 700 * MIB, spill_fill=GIB),), group=group) for k in range(6)]
    placements = [domains.load(each) for each in parts]
    assert [each.domain for each in placements] == [0, 0, 0, 0, 1, 1]
    assert used(domains) == [GIB + 4 * 700 * MIB, GIB + 2 * 700 * MIB]
    domains.free(placements[4])
    assert used(domains)[1] == GIB + 700 * MIB
    domains.free(placements[5])
    assert used(domains)[1] == 0


def test_a_context_that_its_group_cannot_hold_is_refused_with_the_vendors_line() -> None:
    context = ContextSizes("a", (GraphNeeds("g", spill_fill=1_104_281_600),), group=SpillGroup("g", 964_689_920))
    line = "Shared spill-fill size 964689920 is smaller than required spill-fill size 1104281600"
    with pytest.raises(QnnError, match=line):
        Domains(profile()).load(context)


@pytest.mark.parametrize(
    ("spill", "constants", "shared", "second", "third"),
    [
        ([18_874_368], [69_632], 0, 18_874_368, 2_097_152),
        ([5_177_344], [3_141_632], 0, 6_291_456, 4_194_304),
        ([14_811_136], [3_141_632], 0, 16_777_216, 4_194_304),
        ([0, 0, 0], [8192] * 3, 0, 0, 6_291_456),
        ([0, 0], [2304, 2304], 3_149_824, 0, 8_388_608),
        ([0, 0], [768, 15_872], 27_799_552, 0, 33_554_432),
        ([0, 0], [24_576, 24_576], 0, 0, 4_194_304),
        ([0, 0], [0, 0], 20_480, 0, 2_097_152),
    ],
)
def test_the_properties_of_deferred_contexts(spill, constants, shared, second, third) -> None:
    graphs = [GraphNeeds("g", size, shared, spill_fill=need) for need, size in zip(spill, constants, strict=True)]
    assert (spill_fill_property(graphs), weights_property(graphs)) == (second, third)


@pytest.mark.parametrize("nbytes", [-1, 1 << 41])
def test_a_size_that_no_memory_has_is_refused(nbytes) -> None:
    with pytest.raises(QnnError, match="not from 0 to"):
        Domains(profile()).load(file("a", nbytes))
