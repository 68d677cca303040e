"""Contexts and registered buffers in the process domains of a chip, at run time: what is charged, refused and freed.

Capacities and sizes are those of Qualcomm's documents and of users' measurements, with KiB or KB for their MiB or MB.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from backends.htp.harness import Doubler, alloc, doubler, ion, shared
from backends.htp.sized import binary_of, charge_of, chip, sizes_of, table_graph
from isthmus import qnn
from isthmus.domains import Domains, Placement, profile
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType
from isthmus.log import Log, LogLevel
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, htp

KIB, MIB = 1 << 10, 1 << 20


class OnChip:
    """A backend on a chip, and what it has logged."""

    def __init__(self, backend: qnn.Backend, logged: list[str]) -> None:
        self.backend, self.logged = backend, logged

    @property
    def used(self) -> list[int]:
        return [used for _, used, _ in self.backend.get_property(htp.PROCESS_DOMAINS)]

    def load(self, content: bytes, **settings: Any) -> qnn.Context:
        return self.backend.create_context_from_binary(
            content, {getattr(htp, name): value for name, value in settings.items()}
        )

    def refused(self, content: bytes, **settings: Any) -> QnnError:
        """Load what has no room, which changes nothing; the error."""
        before, graphs = self.used, self.backend.driver.device.accelerator().counts()["graphs"]
        self.logged.clear()
        with pytest.raises(QnnError) as caught:
            self.load(content, **settings)
        assert (self.used, self.backend.driver.device.accelerator().counts()["graphs"]) == (before, graphs)
        return caught.value


@contextmanager
def on_chip(folder, **figures: Any) -> Iterator[OnChip]:
    logged: list[str] = []
    log = Log(lambda level, text: logged.append(text), LogLevel.INFO)
    with qnn.Backend("htp", {"htp": {"chip": chip(folder, **figures)}}, log) as backend:
        yield OnChip(backend, logged)


def test_the_documents_five_models_are_placed_as_its_table_says(tmp_path) -> None:
    table = [(1.5, 1.5, 0), (1.5, 3, 0), (1, 3, 1), (1, 3, 2), (0.25, 3.25, 2)]
    with on_chip(tmp_path, domains=[0, 1], capacity=15 * MIB // 4) as it:
        contexts = []
        for size, first, second in table:
            contexts.append(it.load(binary_of(int(size * MIB))))
            assert it.used == [first * MIB, second * MIB]
        for context in contexts:
            context.free()
        assert it.used == [0, 0]


@pytest.mark.parametrize("kilobytes", [2829, 1853, 1887, 1927, 3506])
def test_what_users_loaded_on_sm8750_loads_and_runs(tmp_path, kilobytes) -> None:
    capacity = profile("SM8750").domains[0].capacity // 1000
    with on_chip(tmp_path, capacity=capacity) as it:
        context = it.load(binary_of(kilobytes * 1000))
        y = np.zeros((4, 1), np.uint8)
        context.retrieve("a").execute([ClientTensor("x", np.zeros(4, np.int32))], [ClientTensor("y", y)])
        assert y.tolist() == [[1]] * 4
        assert it.used == [kilobytes * 1000, 0]


@pytest.mark.parametrize("nbytes", [3_535_000, 3_652_345, 4_025_634])
def test_what_users_could_not_load_is_refused_with_the_vendors_lines_and_a_sentence(tmp_path, nbytes) -> None:
    with on_chip(tmp_path, capacity=profile("SM8750").domains[0].capacity // 1000) as it:
        error = it.refused(binary_of(nbytes))
        assert error.code is Code.COMMON_MEM_ALLOC
        assert it.logged == [
            f"Failed to find available PD for contextId 1 on deviceId 0 coreId 0with context size estimate {nbytes}",
            "context create from binary failed on contextId 1",
            "Fail to create context from binary with err 1002",
            "Size Calculation encounter error! Doing Hard reset of reserved mem to 0.",
            "Failed to create context from binary with err 0x3ea",
        ]
        assert f"needs {nbytes:,} bytes in one process domain" in str(error)
        assert "domain 0 has 3,506,000 of 3,506,000 bytes free" in str(error)
        assert "isthmus fit --contexts" in str(error)


def test_a_domain_is_full_to_the_byte(tmp_path) -> None:
    content = binary_of(100_000)
    with on_chip(tmp_path, domains=[0], capacity=charge_of(content) - 1) as it:
        it.refused(content)
    with on_chip(tmp_path, domains=[0], capacity=charge_of(content)) as it, it.load(content):
        assert it.used == [100_000]
        it.refused(content)


def test_on_sa8255p_732_can_fail_with_1347_free_and_the_model_places_it_alike(tmp_path) -> None:
    capacity = profile("SA8255P").domains[0].capacity >> 10
    with on_chip(tmp_path, domains=[0], capacity=capacity, alignment="power of two") as it:
        model = Domains(profile(tmp_path / "chip.json"))
        parts = [binary_of(298 * KIB)] * 6 + [binary_of(110 * KIB)]
        contexts = [it.load(each) for each in parts]
        assert all(isinstance(model.load(sizes_of(each)), Placement) for each in parts)
        assert it.used == [each.used for each in model.domains] == [1898 * KIB]
        assert (capacity - it.used[0]) // KIB == 1347 - 1024 + 1101 - 77
        error = it.refused(binary_of(732 * KIB))
        assert it.logged[0].startswith("Failed to map buffer of size 7")
        assert it.logged[1:3] == [
            "Failed to map weights buffer to device!",
            "Could not allocate persistent weights buffer!",
        ]
        assert "but in no aligned place for that" in str(error)
        for context in contexts:
            context.free()


def test_domains_are_tried_in_the_order_of_the_profile(tmp_path) -> None:
    with on_chip(tmp_path, domains=[0, 2, 4], capacity=100_000) as it:
        contexts = [it.load(binary_of(60_000)) for _ in range(3)]
        assert it.logged[-3:] == [f"HTP context {k} is in process domain {2 * (k - 1)}" for k in (1, 2, 3)]
        contexts[1].free()
        with it.load(binary_of(60_000)):
            assert it.logged[-1] == "HTP context 4 is in process domain 2"


def test_io_must_be_in_the_domain_of_its_context_though_another_has_room(tmp_path) -> None:
    with on_chip(tmp_path, domains=[0, 1], capacity=100_000) as it:
        contexts = [it.load(binary_of(24_000)) for _ in range(5)]
        assert it.used == [96_000, 24_000]
        buffer = alloc(8192)
        descriptor = MemDescriptor((8192,), DataType.UINT_8, DescriptorType.ION, fd=buffer.fd)
        it.logged.clear()
        with pytest.raises(QnnError) as caught:
            contexts[0].mem_register([descriptor])
        assert caught.value.code is Code.MEM_MAPPING
        assert it.logged == [
            f"Mod 4 failed for fd: {buffer.fd}, size: 8192, pd: 0, with error 8003",
            "Failed to register memHandles for conext 1 on pdId 0, coreId 0, device 0. Current PD has ~0.09 MB in use",
            "Failed to register mem with error 0x1f43",
        ]
        assert "though domain 1 has room" in str(caught.value)
        assert it.used == [96_000, 24_000]
        handles = contexts[4].mem_register([descriptor])
        assert it.used == [96_000, 32_192]
        contexts[4].mem_deregister(handles)
        assert it.used == [96_000, 24_000]
        # Had the fourth gone elsewhere, it would fit.
        contexts[3].free()
        contexts[0].mem_register([descriptor])
        assert it.used == [72_000 + 8192, 24_000]
        contexts[0].free()
        assert it.used == [48_000, 24_000]
        buffer.close()


def test_a_buffer_of_several_tensors_is_charged_once_until_its_last_handle(tmp_path) -> None:
    with on_chip(tmp_path, domains=[0], capacity=100_000) as it, it.load(binary_of(10_000)) as context:
        buffer = alloc(4096)
        handles = context.mem_register([shared(buffer, offset) for offset in (0, 1024, 2048)])
        assert it.used == [14_096]
        context.mem_deregister(handles[:2])
        assert it.used == [14_096]
        context.mem_deregister(handles[2:])
        assert it.used == [10_000]
        buffer.close()


def test_a_registration_that_is_refused_in_part_is_refused_whole(tmp_path) -> None:
    with on_chip(tmp_path, domains=[0], capacity=20_000) as it, it.load(binary_of(10_000)) as context:
        buffers = [alloc(4096) for _ in range(3)]
        with pytest.raises(QnnError, match="must be in the domain of its context"):
            context.mem_register([ion(each) for each in buffers])
        assert it.used == [10_000]
        assert len(context.mem_register([ion(each) for each in buffers[:2]])) == 2
        context.free()
        for each in buffers:
            each.close()


def test_with_the_estimate_of_io_a_domain_needs_room_for_it(tmp_path) -> None:
    content = binary_of(50_000)
    with on_chip(tmp_path, domains=[0], capacity=50_010) as it:
        it.load(content).free()
        error = it.refused(content, IO_MEM_ESTIMATION=True)
        assert it.logged[0].endswith("with context size estimate 50020")
        assert "I/O 20" in str(error)
        # A limit of reused I/O takes the place of that of the graphs.
        it.refused(content, IO_MEM_ESTIMATION=True, REUSED_IO_LIMIT=1)
        assert it.logged[0].endswith(f"with context size estimate {50_000 + MIB}")


def test_the_estimate_is_set_by_a_configuration_too(tmp_path) -> None:
    settings = {"htp": {"chip": chip(tmp_path, domains=[0], capacity=60_000)}}
    settings["context"] = {"io_memory_estimation": True, "reused_io_limit_mb": 1}
    with qnn.Backend("htp", settings) as backend, pytest.raises(QnnError, match=f"I/O {MIB:,}"):
        backend.create_context_from_binary(binary_of(50_000))


def test_only_enabled_graphs_are_charged(tmp_path) -> None:
    content = binary_of(*[20_000] * 5)
    with on_chip(tmp_path, domains=[0], capacity=110_000) as it:
        with it.load(content):
            assert it.used == [100_000]
            it.refused(content)
        contexts = [it.backend.create_context_from_binary(content, graphs=[name]) for name in "abcab"]
        assert it.used == [100_000]
        for context in contexts:
            context.free()


def test_a_deferred_context_gets_its_domain_when_it_is_finalized(tmp_path) -> None:
    with on_chip(tmp_path, domains=[0], capacity=100_000) as it:
        deferred = it.backend.create_context_from_binary(binary_of(120_000), deferred=True)
        buffer = alloc(4096)
        deferred.mem_register([ion(buffer)])
        assert it.used == [0]
        with pytest.raises(QnnError) as caught:
            deferred.finalize()
        assert caught.value.code is Code.COMMON_MEM_ALLOC
        deferred.free()
        fits = it.backend.create_context_from_binary(binary_of(90_000), deferred=True)
        fits.mem_register([ion(buffer)])
        fits.finalize()
        assert it.used == [94_096]
        fits.free()
        buffer.close()


def test_composed_graphs_are_charged_as_they_are_finalized(tmp_path) -> None:
    with on_chip(tmp_path, domains=[0], capacity=100_000) as it, it.backend.create_context() as context:
        graph = table_graph(context, "a", 60_000)
        assert it.used == [0]
        graph.finalize()
        first = it.used
        assert 60_000 < first[0] < 61_000
        second = table_graph(context, "b", 50_000)
        with pytest.raises(QnnError, match=r"needs 111,\d+ bytes in its process domain") as caught:
            second.finalize()
        assert (caught.value.code, it.used) == (Code.COMMON_MEM_ALLOC, first)
        context.release_graph(graph)
        second.finalize()
        assert 50_000 < it.used[0] < 51_000


def test_a_composed_context_and_its_binary_are_charged_alike(tmp_path) -> None:
    with on_chip(tmp_path, domains=[0], capacity=MIB) as it:
        with it.backend.create_context({htp.WEIGHT_SHARING_ENABLED: True}) as context:
            for name in "ab":
                table_graph(context, name, 50_000).finalize()
            composed, content = it.used, context.get_binary()
        with it.load(content):
            assert it.used == composed
        assert composed[0] < 60_000


def test_contexts_of_all_backends_of_a_process_share_a_chips_domains(tmp_path) -> None:
    content = binary_of(60_000)
    with (
        on_chip(tmp_path, domains=[0], capacity=100_000) as one,
        on_chip(tmp_path, domains=[0], capacity=100_000) as two,
    ):
        with one.load(content):
            assert two.used == [60_000]
            assert two.refused(content).code is Code.COMMON_MEM_ALLOC
        two.load(content).free()


def test_a_context_that_is_dropped_releases_its_memory(tmp_path) -> None:
    with on_chip(tmp_path, domains=[0], capacity=100_000) as it:
        backend = qnn.Backend("htp", {"htp": {"chip": str(tmp_path / "chip.json")}})
        backend.create_context_from_binary(binary_of(60_000))
        assert it.used == [60_000]
        del backend
        with pytest.warns(ResourceWarning):
            gc.collect()
        assert it.used == [0]


def test_without_a_chip_nothing_is_charged() -> None:
    with qnn.Backend("htp") as backend, backend.create_context() as context:
        doubler(context)
        assert backend.get_property(htp.PROCESS_DOMAINS) == ()


@pytest.mark.parametrize(
    ("device", "capacities"),
    [
        ({"soc_model": 69}, [3_506_000_000] * 2),
        ({"soc_model": 52}, [3_403_453_184] * 3),
        ({"dsp_arch": "v75"}, [15 << 28] * 2),
    ],
)
def test_a_device_names_the_chip(device, capacities) -> None:
    with qnn.Backend("htp", {"devices": [device]}) as backend:
        assert [capacity for _, _, capacity in backend.get_property(htp.PROCESS_DOMAINS)] == capacities
        with backend.create_context() as context:
            Doubler(context).run()
            assert backend.get_property(htp.PROCESS_DOMAINS)[0][1] > 0


def test_a_device_can_be_set_to_a_chip_for_later_contexts() -> None:
    with qnn.Backend("htp") as backend:
        device = backend.create_device()
        device.set_config(htp.SOC, 69)
        log_before = backend.get_property(htp.PROCESS_DOMAINS)
        with backend.create_context(device=device) as context:
            doubler(context)
            assert context.driver.charge.use.domain == 0
        assert log_before == ()


@pytest.mark.parametrize("value", ["", 5, "SM0", "missing.json"])
def test_a_chip_that_there_is_not_is_refused(value) -> None:
    with pytest.raises(QnnError, match=r"htp\.chip"):
        qnn.Backend("htp", {"htp": {"chip": value}})
