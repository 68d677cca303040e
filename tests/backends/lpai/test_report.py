"""The report says what the workflow later asks for: pools to the byte, padding, and the fit in TCM."""

import json
import re

import numpy as np
import pytest

from backends.lpai.harness import IN_TCM, counter, pools, ready
from isthmus import QnnError, qnn
from isthmus.backends.lpai import report as lpai_report
from isthmus.backends.lpai.config import read
from isthmus.backends.seam import registry
from isthmus.backends.seam.entry import PlanRequest
from isthmus.graph import DataType, Graph, TensorType
from isthmus.log import Log
from isthmus.prepare.tiling import ScratchLimit
from isthmus.qnn import lpai


def describe_pools(graph, config=None):
    return lpai_report.describe_pools(graph, read(config, Log()))


def dense(width, inputs=1, weight=0.1):
    """Matrix products with `width` x `width` float weights of `weight`, one for each input."""
    graph = Graph("dense")
    weights = graph.constant("w", np.full((width, width), weight, np.float32))
    for i in range(inputs):
        x = graph.create_tensor(f"x{i}", TensorType.APP_WRITE, DataType.FLOAT_32, (1, width))
        y = graph.create_tensor(f"y{i}", TensorType.APP_READ, DataType.FLOAT_32, (1, width))
        graph.add_node(f"n{i}", "FullyConnected", [x, weights], [y])
    graph.finalize()
    return graph


@pytest.mark.parametrize("config", [None, {"lpai_backend": {"enable_hw_ver": "v4"}}])
def test_a_report_has_the_pool_sizes_of_its_graph(config) -> None:
    with qnn.Backend("lpai", config) as backend:
        graph = counter(backend.create_context())
        scratch, persistent = pools(backend, graph)
        report = describe_pools(graph.driver.graph, config)
        assert (report.scratch.bytes, report.persistent.bytes) == (scratch.nbytes, persistent.nbytes)
        assert report.io_in_scratch
        assert report.persistent.padding == persistent.nbytes - 160
        assert report.io.bytes - report.io.padding == 2 * 160


def test_the_fit_in_tcm_is_what_the_allocator_finds(fresh_tcm) -> None:
    pool = fresh_tcm
    with qnn.Backend("lpai", IN_TCM) as backend:
        graph = counter(backend.create_context())
        ready(backend, graph)
        fit = describe_pools(graph.driver.graph, IN_TCM).tcm
        assert fit.fits
        assert (fit.spare, fit.buffers) == (pool.free_bytes, pool.allocations)
        assert fit.remedies == ()


@pytest.mark.parametrize(("start", "size"), [(1, 1), (4, 4), (32, 8), (64, 4), (128, 128), (256, 4)])
def test_a_model_fits_the_bytes_of_the_report_and_no_fewer(fresh_tcm, start, size) -> None:
    own = {"target_env": "adsp", "start_addr_alignment": start, "size_alignment": size}
    config = {**IN_TCM, "lpai_backend": own}
    with qnn.Backend("lpai", config) as backend:
        graph = counter(backend.create_context(), width=41)
        pools(backend, graph)
        need = describe_pools(graph.driver.graph, config).tcm.bytes
        for missing in (1, 0):
            hole = fresh_tcm.allocate(need - missing, 1)
            with fresh_tcm.allocate(fresh_tcm.free_bytes, 1):
                hole.close()
                if missing:
                    with pytest.raises(QnnError, match="bytes of TCM are needed in one piece"):
                        ready(backend, graph)
                else:
                    ready(backend, graph)


@pytest.mark.parametrize(("mem_type", "fits"), [("ddr", True), ("tcm", False), (None, False)])
def test_a_report_says_by_how_much_a_model_exceeds_tcm_and_what_would_help(mem_type, fits) -> None:
    report = describe_pools(dense(800), mem_type and {"lpai_graph": {"execute": {"mem_type": mem_type}}})
    fit = report.tcm
    assert not fit.fits
    assert report.fits is fits
    assert fit.bytes - 2_035_712 == -fit.spare > 0
    assert "quantize the weights to 8 bits, which saves about 1,920,000 bytes" in fit.remedies
    text = "\n".join(report.lines())
    # If DDR is asked for, that is a remark, and DDR is no remedy.
    assert f": {'would not' if fits else 'does not'} fit: {-fit.spare:,} bytes too many" in text
    assert ('set mem_type to "ddr"' in text) is (mem_type == "tcm")
    assert ("mem_type=ddr makes this a remark" in text) is (mem_type is None)
    [limit] = report.to_json()["limits"]
    assert (limit["fits"], limit["applies"]) == (False, not fits)


def test_weights_that_take_16_bits_in_a_binary_save_no_more_than_half_of_them() -> None:
    fit = describe_pools(dense(800, weight=0.5), {"lpai_backend": {"tcm_size": 1 << 20}}).tcm
    assert fit.binary_bytes < 800 * 800 * 3
    assert "quantize the weights to 8 bits, which saves about 640,000 bytes" in fit.remedies


def test_a_remedy_that_is_the_only_one_is_no_alternative() -> None:
    fit = describe_pools(dense(800), {"lpai_backend": {"tcm_size": 64}}).tcm
    assert fit.remedies == ("leave it in DDR: --set lpai_graph.execute.mem_type=ddr makes this a remark",)


def test_more_buffers_than_the_allocator_has_do_not_fit_either() -> None:
    fit = describe_pools(dense(4, inputs=16)).tcm
    assert (fit.fits, fit.buffers) == (False, 33)
    assert "at most 31 inputs and outputs" in fit.remedies[0]


@pytest.mark.parametrize(("mem_type", "fits"), [("ddr", True), ("tcm", False), (None, True)])
def test_hardware_without_tcm_fits_what_is_in_ddr_only(mem_type, fits) -> None:
    graph = {"lpai_graph": {"execute": {"mem_type": mem_type}}} if mem_type else {}
    report = describe_pools(dense(8), {"lpai_backend": {"enable_hw_ver": "v5"}} | graph)
    assert (report.fits, report.tcm.fits) == (fits, False)
    assert "fit: v5 has no TCM" in report.lines()[5]


def terms(line):
    """Return the total of a line of the report and the terms of its sum, which end at a colon or semicolon."""
    total, _, rest = line.partition(" bytes")
    summed = re.split(": ", rest, maxsplit=1)[1]
    shown = re.split("[;:]|, [a-z]", summed)[0]
    return number(total), [number(term) for term in shown.split(" + ")]


def number(text):
    [found] = re.findall(r"\d[\d,]*", text)
    return int(found.replace(",", ""))


@pytest.mark.parametrize("hw_ver", ["v4", "v5", "v6"])
@pytest.mark.parametrize("mem_type", ["ddr", "tcm"])
@pytest.mark.parametrize("exclude_io", [False, True])
@pytest.mark.parametrize("model", ["dense", "many", "large", "state"])
def test_all_sums_of_a_report_add_up(hw_ver, mem_type, exclude_io, model) -> None:
    config = {
        "lpai_backend": {"enable_hw_ver": hw_ver},
        "lpai_graph": {"prepare": {"exclude_io": exclude_io}, "execute": {"mem_type": mem_type}},
    }
    graphs = {"dense": lambda: dense(41), "many": lambda: dense(5, inputs=16), "large": lambda: dense(801)}
    with qnn.Backend("lpai") as backend:
        state = counter(backend.create_context(), width=41)
        state.get_property(lpai.SCRATCH_MEM_SIZE)  # completes the graph
        report = describe_pools(graphs[model]() if model in graphs else state.driver.graph, config)
    _, *lines = report.lines()
    found = {line.split()[0]: terms(line) for line in lines[:5]}
    assert found.keys() == {"scratch", "persistent", "io", "ddr", "tcm"}
    for name, (total, summed) in found.items():
        assert total == sum(summed), name
    assert found["ddr"][0] == report.ddr_bytes
    # What is in DDR is in its sum: IO too, if it is neither in scratch nor in TCM.
    in_ddr = ["scratch", "persistent", *["io"] * (exclude_io and mem_type == "ddr")]
    assert found["ddr"][1] == [found[name][0] for name in in_ddr]
    tcm, spare = report.tcm, re.search(r"([\d,]+) bytes (to spare|too many)", lines[4])
    if spare is not None:
        assert number(spare[1]) * (1 if spare[2] == "to spare" else -1) == 2_035_712 - tcm.bytes
    else:
        assert tcm.hw_ver or tcm.buffers > 32


@pytest.mark.parametrize("config", [None, IN_TCM, {"lpai_graph": {"prepare": {"exclude_io": True}}}])
def test_the_plan_of_a_command_is_that_of_the_graph(config) -> None:
    entry = registry.entry("lpai")
    with qnn.Backend("lpai", config) as backend:
        graph = counter(backend.create_context())
        expected = graph.get_property(lpai.SCRATCH_MEM_SIZE)
        planned = entry.prepare(graph.driver.graph, entry.read_config(config, Log()), PlanRequest())
    assert planned.section.scratch.bytes == expected
    assert planned.plan.io_inside is (config is None)


@pytest.mark.parametrize(("start", "size"), [(1, 1), (64, 8), (64, 128), (128, 128), (4, 4096)])
def test_scratch_and_state_have_one_size_each(start, size) -> None:
    config = {"lpai_backend": {"start_addr_alignment": start, "size_alignment": size}}
    entry = registry.entry("lpai")
    with qnn.Backend("lpai", config) as backend:
        context = backend.create_context()
        graph = counter(context, width=41)
        asked = graph.get_property(lpai.SCRATCH_MEM_SIZE), graph.get_property(lpai.PERSISTENT_MEM_SIZE)
        planned = entry.prepare(graph.driver.graph, entry.read_config(config, Log()), PlanRequest())
        ready(backend, graph)
        composed = graph.info
        [stored] = qnn.SystemContext().get_binary_info(context.get_binary()).graphs
    section = planned.section
    assert (section.scratch.bytes, section.persistent.bytes) == asked
    assert planned.plan.bytes == asked[0]
    for info in (composed, planned.info, stored):
        assert (info.memory.scratch_bytes, info.memory.state_bytes) == asked
    assert planned.plan.lower_bound <= planned.plan.bytes <= planned.plan.greedy_bytes <= planned.plan.unshared_bytes


def test_a_limit_on_scratch_limits_the_pool() -> None:
    graph = dense(41)
    entry = registry.entry("lpai")
    config = entry.read_config(None, Log())
    needed = entry.prepare(graph, config, PlanRequest()).plan.bytes
    assert entry.prepare(graph, config, PlanRequest(limit=ScratchLimit(needed))).section.scratch.bytes == needed
    with pytest.raises(QnnError, match=f"{needed:,} bytes are needed, 1 more"):
        entry.prepare(graph, config, PlanRequest(limit=ScratchLimit(needed - 1)))


# -- the size of TCM ---------------------------------------------------------------------------------------------------


def test_the_verdict_is_for_the_size_of_tcm_that_the_configuration_states() -> None:
    need = describe_pools(dense(41)).tcm.bytes
    for size, fits in ((need, True), (need - 1, False)):
        report = describe_pools(dense(41), {"lpai_backend": {"tcm_size": size}})
        assert (report.fits, report.tcm.fits, report.tcm.spare) == (fits, fits, size - need)
        [limit] = report.to_json()["limits"]
        assert (limit["limit"], limit["stated"]) == (size, True)
        assert f"bytes of {size:,}: binary" in report.lines()[5]
        assert not any("--tcm" in line for line in report.lines())
    assert "--tcm SIZE states that of your device" in describe_pools(dense(41)).lines()[6]


@pytest.mark.parametrize(("more", "fits"), [({"mem_type": "ddr"}, True), ({"mem_type": "tcm"}, False), ({}, False)])
def test_a_stated_size_of_tcm_counts_unless_the_model_is_in_ddr(more, fits) -> None:
    graph = {"lpai_graph": {"execute": more}}
    for hw_ver in ("v5", "v6"):
        report = describe_pools(dense(41), {"lpai_backend": {"tcm_size": "1KiB", "enable_hw_ver": hw_ver}} | graph)
        assert report.fits is fits


@pytest.mark.parametrize("wrong", [0, 2_035_713, "much", "25%", 1.5, True, None])
def test_a_size_that_no_tcm_has_is_refused(wrong) -> None:
    with pytest.raises(QnnError, match=r"tcm_size': must be a size such as 65536 or '64KiB', 1 to 2035712 bytes"):
        read({"lpai_backend": {"tcm_size": wrong}}, Log())


def test_a_model_runs_in_the_tcm_that_the_configuration_states_and_no_more(fresh_tcm) -> None:
    need = describe_pools(counter_graph(), IN_TCM).tcm.bytes
    for size in (need, need - 1):
        config = {**IN_TCM, "lpai_backend": {"target_env": "adsp", "tcm_size": size}}
        with qnn.Backend("lpai", config) as backend:
            graph = counter(backend.create_context())
            if size == need:
                ready(backend, graph)
            else:
                with pytest.raises(QnnError, match=f"of TCM are needed in one piece, .* of {size} are left"):
                    ready(backend, graph)
    assert fresh_tcm.allocations == 0


def counter_graph():
    with qnn.Backend("lpai") as backend:
        graph = counter(backend.create_context())
        graph.get_property(lpai.SCRATCH_MEM_SIZE)  # completes the graph
        return graph.driver.graph


def test_memory_of_an_unknown_type_is_refused_as_by_the_allocator() -> None:
    entry = registry.entry("lpai")
    config = entry.read_config({"lpai_graph": {"execute": {"mem_type": "sram"}}}, Log())
    with pytest.raises(QnnError, match="cannot be allocated: the memory type in configuration is unknown"):
        entry.prepare(dense(8), config, PlanRequest())


def test_a_report_is_plain_data_too() -> None:
    report = json.loads(json.dumps(describe_pools(dense(8)).to_json()))
    assert report["tcm"]["fits"] is report["fits"] is True
    assert (report["mem_type"], report["ddr_bytes"]) == ("ddr", report["scratch"]["bytes"])
    assert report["tcm"]["pool_bytes"] == 2_035_712
    assert report["alignment"] == {"start_addr_alignment": 128, "size_alignment": 128}


def test_a_wrong_configuration_is_refused() -> None:
    with pytest.raises(QnnError, match=r"lpai_graph\.execute\.fps"):
        describe_pools(dense(8), {"lpai_graph": {"execute": {"fps": 0}}})


def test_no_remedy_saves_more_than_the_binary_has() -> None:
    graph = Graph("folded")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (2_100_000,))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (2_100_000,))
    graph.constant("unused", np.ones(8_000_000, np.float32))
    graph.add_node("relu", "Relu", [x], [y])
    graph.finalize()
    fit = describe_pools(graph).tcm
    assert not fit.fits
    assert not any("quantize" in remedy for remedy in fit.remedies), fit.remedies
