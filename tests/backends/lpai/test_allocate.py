"""A graph on LPAI can be given all its memory in one call: pools, and IO where the configuration wants it."""

import gc

import pytest
from support.processes import held, holds_since
from support.suites import long

from backends.lpai.harness import IN_TCM, OUT_OF_SCRATCH, WIDTH, counter
from isthmus import Code, QnnError, memory, qnn
from isthmus.memory import rpcmem
from isthmus.qnn import lpai

BYTES = 2 * 4 * WIDTH
CONFIGS = {
    "default": None,
    "excluded": OUT_OF_SCRATCH,
    "arm": {"lpai_backend": {"target_env": "arm"}},
    "arm, excluded": {"lpai_backend": {"target_env": "arm"}, **OUT_OF_SCRATCH},
    "tcm": IN_TCM,
    "tcm, excluded": {**IN_TCM, "lpai_graph": {"prepare": {"exclude_io": True}, "execute": {"mem_type": "tcm"}}},
    "page": {"lpai_backend": {"start_addr_alignment": 1 << 16, "size_alignment": 512}},
}
WHERE = {
    ("default", None): "scratch",
    ("page", None): "scratch",
    ("excluded", None): "raw",
    ("arm", None): "scratch",
    ("arm, excluded", None): "shared",
    ("arm", "raw"): None,
    ("arm, excluded", "raw"): None,
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("io", [None, long("raw"), "memhandle"])
def test_every_configuration_gets_memory_of_its_kind(name, io, fresh_tcm) -> None:
    with qnn.Backend("lpai", CONFIGS[name]) as backend:
        graph = counter(backend.create_context())
        if name.startswith("tcm") and io == "memhandle":
            with pytest.raises(QnnError, match="has no file descriptor") as refusal:
                graph.allocate(io)
            assert refusal.value.code is Code.GRAPH_INVALID_TENSOR
            return
        made = graph.allocate(io)
        for expected in (4, 6):
            made.inputs["x"][...] = 1
            made.binding.execute()
            assert (made.outputs["y"] == expected).all()
        usual = "tcm" if name.startswith("tcm") else "shared" if io == "memhandle" else "raw"
        where = WHERE.get((name, io), usual)
        assert graph.stats.in_place_bytes == ({where: 2 * BYTES} if where else {})
        assert graph.stats.copied_bytes == (0 if where else 2 * BYTES)
        assert made.inputs_survive is (where != "scratch")
    made.close()
    made.close()


@pytest.mark.parametrize(("name", "room"), [("default", 0), ("page", 1 << 16)])
def test_shared_memory_has_extra_room_only_for_an_alignment_above_the_page_size(name, room, monkeypatch) -> None:
    asked, share = [], rpcmem.share
    monkeypatch.setattr(rpcmem, "share", lambda nbytes: asked.append(nbytes) or share(nbytes))
    with qnn.Backend("lpai", CONFIGS[name]) as backend:
        graph = counter(backend.create_context())
        made = graph.allocate("memhandle")
        alignment = graph.driver.alignment
        assert asked == [alignment.padded(4 * WIDTH) + room] * 2
        assert all(array.ctypes.data % alignment.start_addr_alignment == 0 for array in made.inputs.values())
    made.close()


@pytest.mark.parametrize("name", CONFIGS)
def test_all_memory_of_a_graph_ends_with_the_context(name, fresh_tcm) -> None:
    with qnn.Backend("lpai", CONFIGS[name]) as backend, memory.statistics() as counted:
        before = held()
        context = backend.create_context()
        made = counter(context).allocate()
        assert counted.live_bytes > 0
        context.free()
        made.close()
        del made, context
        gc.collect()
        assert counted.live_bytes == 0
        assert not holds_since(before)


@pytest.mark.parametrize("name", CONFIGS)
def test_closing_memory_frees_it_while_the_graph_and_the_context_are_referenced(name, fresh_tcm) -> None:
    with qnn.Backend("lpai", CONFIGS[name]) as backend, memory.statistics() as counted:
        context = backend.create_context()
        graph = counter(context)
        made = graph.allocate()
        context.free()
        made.close()
        assert counted.live_bytes == 0
        assert not graph.alive


def test_a_kind_of_memory_that_lpai_does_not_have_is_refused() -> None:
    with qnn.Backend("lpai") as backend:
        graph = counter(backend.create_context())
        with pytest.raises(QnnError, match="backend 'lpai' has 'raw' and 'memhandle'"):
            graph.allocate("opencl")
        assert not graph.finalized


def test_a_finalized_graph_keeps_the_pools_it_has() -> None:
    with qnn.Backend("lpai") as backend:
        graph = counter(backend.create_context())
        first = graph.allocate()
        scratch = graph.get_property(lpai.SCRATCH_MEM)
        second = graph.allocate("raw")
        assert graph.get_property(lpai.SCRATCH_MEM) is scratch
        second.inputs["x"][...] = 1
        second.binding.execute()
        assert (second.outputs["y"] == 4).all()
    second.close()
    first.close()
