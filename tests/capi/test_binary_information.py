"""Descriptions of HTP's context binaries in C: versions, blobs, chips, and what clients read of them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.suites import sampled

from capi.qnn_calls import Client
from isthmus import qnn
from isthmus.backends.htp.headers import DEVICE_CONFIG, DEVICE_INFO, GRAPH_CONFIG
from isthmus.backends.htp.options import HtpDeviceConfigOption, HtpGraphOption, HtpOptimization
from isthmus.backends.seam.program_binary import FORMAT
from isthmus.backends.vendor.structures import describe
from isthmus.cabi import objects, system
from isthmus.capi import inspection
from isthmus.errors import Code
from isthmus.graph import DataType, TensorType
from isthmus.tools.cli import main

WEIGHTS = np.random.default_rng(0).standard_normal((1, 1024)).astype(np.float32)
MB = 1 << 20


class Described:
    """The description that the system library returns for a binary; it lasts as long as the system context."""

    def __init__(self, libraries: Path, binary: Any) -> None:
        self.system = Client(libraries / "libQnnSystem.so")
        self.context = self.system.make("systemContextCreate")
        out, size = ctypes.POINTER(system.BinaryInfo)(), ctypes.c_uint64()
        self.code = self.system.systemContextGetBinaryInfo(
            self.context, binary, len(binary), ctypes.byref(out), ctypes.byref(size)
        )
        self.info = out.contents if not self.code else None

    @property
    def fields(self) -> Any:
        """The members of its version."""
        return getattr(self.info, f"contextBinaryInfoV{self.info.version}")

    def free(self) -> None:
        self.system.do("systemContextFree", self.context)


def configs(client: Client, kind: Any, customs: list[Any]) -> Any:
    """A null-terminated list of configs that point to custom ones."""
    listed = (ctypes.POINTER(kind) * (len(customs) + 1))()
    for index, custom in enumerate(customs):
        config = client.keep(kind(0))
        config.customConfig = ctypes.addressof(client.keep(custom))
        listed[index] = ctypes.pointer(config)
    return client.keep(listed)


def graph_config(option: HtpGraphOption, value: Any) -> Any:
    made = GRAPH_CONFIG(option)
    if isinstance(value, tuple):
        made.optimizationOption.type, made.optimizationOption.floatValue = value
    else:
        setattr(made, option.field, value)
    return made


def on_chip(client: Client, soc: int = 0, arch: int = 0) -> int:
    """A device with these configs."""
    customs = [DEVICE_CONFIG(HtpDeviceConfigOption.SOC)] * bool(soc)
    for custom in customs:
        custom.socModel = soc
    if arch:
        customs.append(DEVICE_CONFIG(HtpDeviceConfigOption.ARCH))
        customs[-1].arch.arch = arch
    return client.make("deviceCreate", None, configs(client, objects.DeviceConfig, customs))


def adding(client: Client, context: int, name: str, customs: list[Any] | None = None) -> int:
    """A finalized graph that adds weights to its input."""
    listed = configs(client, objects.GraphConfig, customs or [])
    graph = client.make("graphCreate", context, name.encode(), listed)
    shape = (1, WEIGHTS.size)
    x = client.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, shape)
    w = client.tensor("w", TensorType.STATIC, DataType.FLOAT_32, shape, data=WEIGHTS)
    y = client.tensor("y", TensorType.APP_READ, DataType.FLOAT_32, shape)
    for tensor in (x, w, y):
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    client.do("graphAddNode", graph, client.operation("add", "ElementWiseAdd", [x, w], [y]))
    client.do("graphFinalize", graph, None, None)
    return graph


@pytest.fixture
def backend(htp: Client) -> Iterator[int]:
    handle = htp.make("backendCreate", None, None)
    yield handle
    htp.do("backendFree", handle)


def compose_binary(client: Client, backend: int, device: int | None, *graphs: tuple[str, list[Any]]) -> Any:
    """The binary of a context on a device with these graphs, each with its custom configs."""
    context = client.make("contextCreate", backend, device, None)
    for name, customs in graphs:
        adding(client, context, name, customs)
    binary = client.binary(context)
    client.do("contextFree", context, None)
    return binary


OPTIONS = [
    graph_config(HtpGraphOption.VTCM_SIZE_IN_MB, 2),
    graph_config(HtpGraphOption.OPTIMIZATION, (HtpOptimization.FINALIZE_OPTIMIZATION_FLAG, 3)),
    graph_config(HtpGraphOption.OPTIMIZATION, (HtpOptimization.ENABLE_DLBC, 1)),
    graph_config(HtpGraphOption.NUM_HVX_THREADS, 4),
    graph_config(HtpGraphOption.SHARE_IO_BUFFER, True),
]


def test_a_description_in_version_3_has_a_blob_of_each_graph(htp: Client, backend: int, libraries: Path) -> None:
    binary = compose_binary(htp, backend, on_chip(htp, 69), ("chosen", OPTIONS), ("plain", []))
    described = Described(libraries, binary)
    fields = described.fields
    assert (described.info.version, fields.socModel, fields.contextMetadataSize) == (3, 69, 8)
    assert ctypes.string_at(fields.contextMetadata, 8).hex() == "010000004f000000"
    assert fields.contextBlobSize == len(binary)
    chosen = fields.graphs[0]
    assert (chosen.version, chosen.graphInfoV3.graphBlobInfoSize) == (3, 112)
    # Numbers of 32 bits at the offsets of QNN's structure, and those of 64 bits.
    words = np.frombuffer(ctypes.string_at(chosen.graphInfoV3.graphBlobInfo, 112), np.uint32)
    longs = words.view(np.uint64)
    assert (words[0], longs[1], words[4], words[5], words[6], longs[4]) == (1, 0, 2 * MB, 3, 1, 4)
    assert (words[10], longs[6], longs[7], words[16]) == (2, 256, 64, 1)
    [read, other] = describe(described.info)["graphs"]
    assert read["figures"]["io"] == 2 * WEIGHTS.nbytes
    assert WEIGHTS.nbytes <= read["figures"]["constants"] < 2 * WEIGHTS.nbytes
    assert 0 < read["figures"]["op_data"] < len(binary)
    assert {name: other["figures"][name] for name in ("vtcm", "level", "dlbc", "hvx_threads", "share_io")} == {
        "vtcm": 4 * MB, "level": 0, "dlbc": 0, "hvx_threads": 0, "share_io": 0,
    }  # fmt: skip
    platform = fields.platformInfo.contents.v1.hwDevices[0].v1
    chip = DEVICE_INFO.from_address(platform.deviceInfoExtension).onChipDevice
    assert (chip.vtcmSize, chip.socModel, chip.arch) == (8, 69, 79)
    described.free()


@pytest.mark.parametrize("version", [1, 2])
def test_descriptions_in_versions_1_and_2_have_the_spill_fill_memory_of_each_graph(
    htp: Client, backend: int, libraries: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    binary = compose_binary(htp, backend, None, ("one", []), ("two", []))
    monkeypatch.setenv("ISTHMUS_BINARY_INFO", str(version))
    described = Described(libraries, binary)
    fields = described.fields
    assert (described.info.version, fields.graphs[1].version) == (version, version)
    assert fields.graphs[1].graphInfoV3.graphName == b"two"
    assert (fields.hwInfoBlobVersion.major, fields.hwInfoBlobVersion.patch, fields.hwInfoBlobSize) == (0, 1, 48)
    words = np.frombuffer(ctypes.string_at(fields.hwInfoBlob, 48), np.uint32).reshape(2, 6)
    assert words[:, 0].tolist() == [1, 1]
    assert words[:, 2].tolist() == [0, 1]
    assert words.view(np.uint64)[:, 2].tolist() == [0, 0]
    assert version == 1 or fields.platformInfo
    described.free()


def test_a_version_that_there_is_not_is_named(
    htp: Client, backend: int, libraries: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    binary = compose_binary(htp, backend, None, ("one", []))
    monkeypatch.setenv("ISTHMUS_BINARY_INFO", "4")
    described = Described(libraries, binary)
    assert described.code == 1004
    assert "ISTHMUS_BINARY_INFO is '4'; it may be a number from 1 to 3" in caplog.text
    described.free()


@pytest.mark.parametrize(
    ("device", "options", "stated"),
    [
        ((69, 0), [], (79, 4 * MB)),
        ((69, 0), [(HtpGraphOption.VTCM_SIZE_IN_MB, 0)], (79, 8 * MB)),
        ((30, 73), [(HtpGraphOption.VTCM_SIZE_IN_MB, 0)], (68, 4 * MB)),
        ((0, 0), [(HtpGraphOption.VTCM_SIZE_IN_MB, 0)], (73, 4 * MB)),
        ((69, 0), [(HtpGraphOption.VTCM_SIZE_IN_MB, 64)], (79, 64 * MB)),
        ((69, 0), [(HtpGraphOption.VTCM_SIZE_IN_BYTES, 2 * MB)], (79, 4 * MB)),
        ((87, 0), [(HtpGraphOption.VTCM_SIZE_IN_BYTES, 2 * MB)], (81, 2 * MB)),
        ((0, 81), [(HtpGraphOption.VTCM_SIZE_IN_BYTES, 2 * MB)], (81, 2 * MB)),
        ((69, 0), [(HtpGraphOption.VTCM_SIZE_IN_MB, 2), (HtpGraphOption.VTCM_SIZE_IN_BYTES, 4 * MB)], (79, 2 * MB)),
    ],
)
def test_on_chip_memory_is_stated_in_bytes_as_by_the_vendors_library(
    htp: Client, libraries: Path, device: tuple[int, int], options: Any, stated: tuple[int, int]
) -> None:
    backend = htp.make("backendCreate", None, None)
    customs = [graph_config(*each) for each in options]
    described = Described(libraries, compose_binary(htp, backend, on_chip(htp, *device), ("one", customs)))
    reported = describe(described.info)
    assert (reported["soc"], reported["arch"], reported["graphs"][0]["figures"]["vtcm"]) == (device[0], *stated)
    described.free()
    htp.do("backendFree", backend)


def test_a_priority_beside_the_size_of_on_chip_memory_is_no_size(htp: Client, backend: int, libraries: Path) -> None:
    """Both options have the number 3, in lists of their own."""
    context = htp.make("contextCreate", backend, None, None)
    priority = htp.keep(objects.GraphConfig(objects.GraphOption.PRIORITY))
    priority.priority = 200
    sized = configs(htp, objects.GraphConfig, [graph_config(HtpGraphOption.VTCM_SIZE_IN_MB, 2)])
    listed = (ctypes.POINTER(objects.GraphConfig) * 3)(sized[0], ctypes.pointer(priority))
    graph = htp.make("graphCreate", context, b"one", listed)
    x = htp.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
    y = htp.tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))
    for tensor in (x, y):
        htp.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    htp.do("graphAddNode", graph, htp.operation("relu", "Relu", [x], [y]))
    htp.do("graphFinalize", graph, None, None)
    described = Described(libraries, htp.binary(context))
    assert describe(described.info)["graphs"][0]["figures"]["vtcm"] == 2 * MB
    assert [each.driver.priority for each in inspection.graphs() if each.name == "one"] == [200]
    described.free()
    htp.do("contextFree", context, None)


def test_levels_that_do_not_exist_are_stated_as_2(htp: Client, backend: int, libraries: Path) -> None:
    for level, stated in ((0, 2), (1, 1), (2, 2), (3, 3), (4, 2)):
        option = graph_config(HtpGraphOption.OPTIMIZATION, (HtpOptimization.FINALIZE_OPTIMIZATION_FLAG, level))
        described = Described(libraries, compose_binary(htp, backend, None, ("one", [option])))
        assert describe(described.info)["graphs"][0]["figures"]["level"] == stated
        described.free()


@pytest.mark.parametrize("case", [(69, 99, 6), (69, 6, 6), (30, 99, 4), (0, 99, 99)])
def test_a_graph_has_at_most_the_vector_threads_of_its_chip(
    htp: Client, backend: int, libraries: Path, caplog: pytest.LogCaptureFixture, case: tuple[int, int, int]
) -> None:
    soc, asked, stated = case
    option = graph_config(HtpGraphOption.NUM_HVX_THREADS, asked)
    described = Described(libraries, compose_binary(htp, backend, on_chip(htp, soc), ("one", [option])))
    assert describe(described.info)["graphs"][0]["figures"]["hvx_threads"] == stated
    described.free()
    warning = f"Invalid number of HVX thread configuration ({asked}) for this SoC. It should be less than or equal to"
    assert caplog.text.count(warning) == (stated < asked)


def test_a_chip_that_there_is_not_is_refused(htp: Client) -> None:
    chip, processor = DEVICE_CONFIG(HtpDeviceConfigOption.SOC), DEVICE_CONFIG(HtpDeviceConfigOption.ARCH)
    chip.socModel, processor.arch.arch = 999, 12
    for custom in (chip, processor):
        listed = configs(htp, objects.DeviceConfig, [custom])
        assert htp.deviceCreate(None, listed, ctypes.byref(ctypes.c_void_p())) == 14001


def test_a_restored_context_keeps_what_its_binary_states(htp: Client, backend: int, libraries: Path) -> None:
    binary = compose_binary(htp, backend, on_chip(htp, 69), ("chosen", OPTIONS))
    with qnn.Backend("htp") as ours:
        again = bytes(ours.create_context_from_binary(bytes(binary)).get_binary())
    first, second = Described(libraries, binary), Described(libraries, again)
    assert describe(first.info)["graphs"] == describe(second.info)["graphs"]
    assert first.fields.socModel == second.fields.socModel == 69
    first.free()
    second.free()


def test_inspect_prints_what_a_binary_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "graphs": [{"graph_names": ["g"], "vtcm_mb": 2, "O": 3, "hvx_threads": 4, "dlbc": 1}],
        "devices": [{"soc_model": 69}],
    }
    with qnn.Backend("htp", config) as backend:
        graph = backend.create_context().create_graph("g")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))
        graph.add_node("relu", "Relu", [x], [y])
        (tmp_path / "g.bin").write_bytes(graph.context.prepare_offline())
    assert main(["inspect", str(tmp_path / "g.bin")]) == 0
    text = capsys.readouterr().out
    assert "for SM8750 (v79), total RAM 2," in text
    assert "  on chip  spill_fill 0  vtcm 2,097,152  op_data " in text
    assert "level 3  hvx_threads 4  dlbc 1  share_io 0" in text


# -- forged binaries ---------------------------------------------------------------------------------------------------

FORGERIES = 100
"""How many forgeries a test makes."""
WRONG = (None, -1, 1 << 32, 1 << 63, 0.5, "1", [], {}, True)
"""Values that are no number of 32 bits."""


def forged(content: bytes, random: np.random.Generator) -> bytes:
    """A binary with a cut end, flipped bits, or another record of the device under a right checksum."""
    kind = random.integers(8)
    if kind == 0:
        return content[: random.integers(1, len(content))]
    if kind == 1:
        changed = bytearray(content)
        for place in random.integers(0, len(content) * 8, random.integers(1, 9)):
            changed[place // 8] ^= 1 << place % 8
        return bytes(changed) if changed != content else content[:-1]
    header, sections = FORMAT.unpack(content)
    record = header["device"]
    graphs = record["graphs"]
    part = random.choice([record, graphs, graphs["one"]])
    name = str(random.choice(list(part)))
    wrong = WRONG[random.integers(len(WRONG))]
    if kind == 2:
        del part[name]
    elif kind == 3:
        part[f"{name} more"] = part[name]
    elif kind == 4:
        header["device"] = wrong
    elif kind == 5:
        graphs[random.choice(["one", "two"])] = wrong
    else:
        part[name] = wrong
    return b"".join(FORMAT.pack(header, sections))


@pytest.mark.parametrize("seed", sampled(range(30), 30))
def test_forged_binaries_are_an_error_of_every_function(
    htp: Client, backend: int, libraries: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    random = np.random.default_rng(seed)
    content = bytes(compose_binary(htp, backend, on_chip(htp, 69), ("one", OPTIONS), ("two", [])))
    with caplog.at_level("CRITICAL", "isthmus"):
        for _ in range(FORGERIES):
            binary = forged(content, random)
            described = Described(libraries, binary)
            assert described.code == 30010
            described.free()
            arguments = (backend, None, None, binary, len(binary))
            loading = htp.contextCreateFromBinary(*arguments, ctypes.byref(ctypes.c_void_p()), None)
            assert loading in (Code.CONTEXT_CREATE_FROM_BINARY, Code.CONTEXT_BINARY_VERSION)
            assert htp.contextValidateBinary(*arguments) == loading
