"""Options of contexts, graphs and devices of HTP: the codes and words of the vendor's library, and of ours.

Each case is an option at a place with one value. The table has the vendor's code; `DEVIATIONS` has ours where it is
another, with the reason. What an option without effect logs is in test_custom_configs.py and test_context_configs.py.
"""

from __future__ import annotations

import csv
import ctypes
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.alone import alone
from support.suites import LONG

from capi.qnn_calls import Client
from capi.test_binary_information import configs, graph_config, on_chip
from isthmus.backends.htp.headers import CONTEXT_CONFIG, DEVICE_CONFIG, GRAPH_CONFIG
from isthmus.backends.htp.options import HtpContextOption, HtpGraphOption, HtpOptimization
from isthmus.cabi import objects
from isthmus.graph import DataType, TensorType

SM8750 = 69
NOT_HTP = "HTP Config option: {} not supported"
UNKNOWN = "Unsupported Qnn Context config option type: {}"
Answer = tuple[int, str]
"""A code, and the words of the vendor's library where it refuses."""
OK: Answer = (0, "")
NAMES = (5, 10)
"""The core options whose value is a list of names."""
PLACES = ("create", "from", "set")
"""contextCreate, contextCreateFromBinary, and contextSetConfig of a composed context."""
NOT_SET = "Setting {} is not supported"


def core() -> Iterator[tuple[str, Answer]]:
    """Core options, by place."""
    yield from ((f"core {number} {place}", OK) for number in (1, 2) for place in PLACES)
    yield from (
        (f"core {number} {place}", (1000, UNKNOWN.format(number))) for number in (3, 11, 12) for place in PLACES
    )
    yield from (("core 4 create", OK), ("core 4 from", OK))
    yield from ((f"core {number} from", OK) for number in (5, 9))
    yield "core 4 set", (1000, NOT_SET.format("async execution queue depth"))
    words = {5: "enabled graphs", 6: "memory limit hint", 7: "persistent binary", 8: "binary compatibility"}
    for number, name in words.items():
        yield from ((f"core {number} {place}", (1000, NOT_SET.format(name))) for place in ("create", "set"))
    # The vendor's library says so of option 9 too.
    yield "core 9 create", (1000, NOT_SET.format("enabled graphs"))
    yield "core 9 set", (1000, NOT_SET.format("defer graph init"))
    yield "core 6 from", (1000, "Memory Limit Hint is not supported")
    yield "core 7 from", (1000, "Persistent Binary is not supported")
    for name in ("core 8 from", "core 8 strict from", "core 8 permissive from", "core 8 value 7 from"):
        yield name, (1000, "QNN_CONTEXT_CONFIG_BINARY_COMPATIBILITY is not supported")
    yield "core 10 create", OK
    yield "core 10 from", (1000, "Graph Retention Order is not supported")
    rule = "Invalid or duplicate graph names provided in graph switching config list. Provide valid graph names."
    yield from ((f"core 10 set{names}", (5010, rule)) for names in ("", " nope", " A,A"))
    yield from ((name, OK) for name in ("core 10 set empty", "core 5 from A,nope", "core 5 from empty"))
    yield from (("core 4 depth 0", OK), ("core 4 depth 301", OK))
    yield from ((f"xset core {number}", OK) for number in (1, 5, 6, 7, 8))
    yield "xset core 4", (1000, NOT_SET.format("async execution queue depth"))
    yield "xset core 9", (1000, NOT_SET.format("defer graph init"))
    warning = "Graph retention order set without memory limit hint. Disabling graph switching mode."
    yield from (("xset core 10", OK), ("xset core 10 empty", OK))
    yield from ((f"xset core 10 {names}", (5010, warning)) for names in ("nope", "A,A"))


def custom() -> Iterator[tuple[str, Answer]]:
    """HTP's options of contexts, by place."""
    numbers = {*range(31)}
    words = {
        4: "Dsp memory profiling is not supported", 12: "Concurrent resource sharing config is not supported",
        25: "Parallel weight loading context config is not supported on this platform.",
    }  # fmt: skip
    taken = {1, 3, 7, 11, 13, 18, 20, 22, 23, 26}
    for number in numbers:
        refused = (1000, words[number]) if number in words else (5010, NOT_HTP.format(number))
        yield from ((f"htp {number} {place}", OK if number in taken else refused) for place in PLACES)
    yield "htp 12 set", (5010, NOT_HTP.format(12))
    udma = "Failed to enable extended UDMA which is only available for DSP architectures >= 81"
    yield "htp 11 create", (6000, udma)
    yield "htp 18 create", (1000, "")
    yield "htp 2 founder size 0", (5010, NOT_HTP.format(2))


def of_graphs() -> Iterator[tuple[str, Answer]]:
    """HTP's options of graphs."""
    yield from ((f"graph {number}", OK) for number in range(31) if number not in (2, 3, 10))
    yield "graph 7", (6000, "Invalid scalar data type passed: 0")
    removed = "QNN_HTP_GRAPH_CONFIG_OPTION_PARALLEL_GRAPH_EXECUTION_CONFIG is deprecated and no longer supported"
    yield "graph 9", (1000, removed)
    bounding = "HMX Op bounding configs are not supported. HMX Op Bounding requires deferred preemption."
    yield "graph 11", (1000, bounding)
    for kind in range(14):
        refused = kind in (0, 2, *range(10, 14))
        yield f"graph opt type {kind}", (6000, f"Failed to set option {kind} with value 1.000000") if refused else OK
    yield from ((f"graph {what}", OK) for what in ("O 0", "O 1", "O 2", "O 3", "O 4", "hvx 4", "hvx 99"))
    yield from ((f"graph vtcm {size}", OK) for size in (0, 64, 3))
    yield "graph cores 2", (1002, "RouterX86 graph prepare failed 99")


def of_devices() -> Iterator[tuple[str, Answer]]:
    """HTP's options of devices."""
    yield from ((f"device {number}", OK) for number in (0, 1, 2))
    yield from ((f"device {number}", (14001, f"Unsupported config option {number}")) for number in (3, 4, 5, 7, 8))
    yield "device 6", (1000, "UID is not supported for this device")
    yield "device arch 79", OK
    yield "device soc 999", (14001, "Unknown config socModel 0")


VENDOR = {name: answer for part in (core(), custom(), of_graphs(), of_devices()) for name, answer in part}
ON_DEVICE = "a device has it by QNN's documents, and so does the device that is simulated"
LOGGED = "a device has it by QNN's documents; it is logged as without effect, since clients for devices set it"
DEVIATIONS: dict[str, tuple[set[int], str]] = {
    r"core 1 .*|xset core 1": ({5010}, "1 is no priority"),
    r"core [678] from|core 8 (strict|permissive) from|core 10 from": ({0, 5010}, ON_DEVICE),
    r"core 8 value 7 from": ({5010}, "there is no type 7"),
    r"core 4 depth 301": ({5010}, "a queue has at most 300 places by QNN's documents"),
    r"core 5 from A,nope": ({5010}, "an unknown name is an error by QNN's header"),
    r"core 5 from empty": ({0}, "nothing is loaded"),
    r"htp (2|5|6|10|12|17) .*": ({0, 5010, 1000, 5005}, ON_DEVICE),
    r"htp (4|8|9|16|19|21|25) .*": ({0}, LOGGED),
}
"""Patterns of cases in which our code is one of these, and the reason."""
OWN_WORDS: dict[str, str] = {
    r"core (3|11|12) .*|htp \d+ .*|graph opt type .*|device (soc 999|[78])": "ours names the option and what there is",
    r"core [5-9] (create|set)|core (9|4) set|xset core [49]": "ours says where the option may be set",
    r"(xset )?core 10 .*": "ours names the graph and those that there are",
    r"graph (9|11)": "ours says it shorter",
}
"""Patterns of cases that both refuse by one code, ours in words of its own."""


def reason(name: str, patterns: dict[str, Any]) -> Any:
    """Return what the first pattern says that matches a case; None if none does."""
    return next((each for pattern, each in patterns.items() if re.fullmatch(pattern, name)), None)


class Asked:
    """A client that has a backend, a chip and a binary of the graphs A and B."""

    def __init__(self, library: Path) -> None:
        self.client = Client(library)
        self.backend = self.client.make("backendCreate", None, None)
        self.device = on_chip(self.client, SM8750)
        # Keeps the accelerator's process.
        self.first = self.client.make("contextCreate", self.backend, self.device, None)
        assert [self.compose(self.first, name) for name in ("A", "B")] == [0, 0]
        self.binary = self.client.binary(self.first)

    def compose(self, context: int, name: str, listed: Any = None) -> int:
        """Compose and finalize a graph; the first code that is not 0."""
        graph, client = ctypes.c_void_p(), self.client
        code = client.graphCreate(context, name.encode(), listed, ctypes.byref(graph))
        if code:
            return int(code)
        x, y = (
            client.tensor(key, kind, DataType.FLOAT_32, (1, 8))
            for key, kind in (("x", TensorType.APP_WRITE), ("y", TensorType.APP_READ))
        )
        for each in (x, y):
            client.do("tensorCreateGraphTensor", graph, ctypes.byref(each))
        client.do("graphAddNode", graph, client.operation("twice", "ElementWiseAdd", [x, x], [y]))
        return int(client.graphFinalize(graph, None, None))

    def at(self, place: str, listed: Any) -> int:
        """Use a list of configs of a context at a place; the first code that is not 0."""
        client, context = self.client, ctypes.c_void_p()
        given = None if place in ("set", "xset") else listed
        if place in ("from", "xset"):
            arguments = (self.backend, self.device, given, self.binary, len(self.binary), ctypes.byref(context), None)
            code = client.contextCreateFromBinary(*arguments)
        else:
            code = client.contextCreate(self.backend, self.device, given, ctypes.byref(context))
        if code:
            self.words = client.reason(code)
            return int(code)
        if place in ("set", "xset"):
            code = client.contextSetConfig(context, listed)
        elif place == "create":
            code = self.compose(context, "A")
            code = code or client.contextGetBinarySize(context, ctypes.byref(ctypes.c_uint64()))
        self.words = client.reason(code) if code else ""
        client.do("contextFree", context, None)
        return int(code)

    def core(self, place: str, number: int, value: int = 1, names: tuple[str, ...] = ("A", "B")) -> int:
        config = self.client.keep(objects.ContextConfig(number))
        if number in NAMES:
            held = self.client.keep((ctypes.c_char_p * (len(names) + 1))(*map(str.encode, names), None))
            value = ctypes.addressof(held)
        ctypes.c_uint64.from_address(ctypes.addressof(config) + 8).value = value
        return self.at(place, (ctypes.POINTER(objects.ContextConfig) * 2)(ctypes.pointer(config)))

    def custom(self, place: str, number: int, size: int = 4096) -> int:
        config = CONTEXT_CONFIG(number)
        if number in (HtpContextOption.REGISTER_MULTI_CONTEXTS, HtpContextOption.REGISTER_CONCURRENT_RESOURCE_SHARING):
            config.groupRegistration.maxSpillFillBuffer = size
        else:
            ctypes.c_uint64.from_address(ctypes.addressof(config) + 8).value = 1
        return self.at(place, configs(self.client, objects.ContextConfig, [config]))

    def graph(self, config: Any) -> int:
        listed = configs(self.client, objects.GraphConfig, [config])
        context = self.client.make("contextCreate", self.backend, self.device, None)
        code = self.compose(context, "A", listed)
        self.words = self.client.reason(code) if code else ""
        self.client.do("contextFree", context, None)
        return code

    def on_device(self, number: int, value: int) -> int:
        config = DEVICE_CONFIG(number)
        config.socModel = value
        if number in (1, 2):
            config.arch.deviceId, config.arch.arch = 0, value
        out, client = ctypes.c_void_p(), self.client
        code = client.deviceCreate(None, configs(client, objects.DeviceConfig, [config]), ctypes.byref(out))
        if not code:
            client.do("deviceFree", out)
        return int(code)


def call(name: str, asked: Asked) -> int:
    """Make the calls of a case; the first code that is not 0."""
    kind, *rest = name.split()
    if kind == "xset":
        names = rest[2].replace("empty", "").split(",") if len(rest) > 2 else ["A", "B"]
        return asked.core("xset", int(rest[1]), names=tuple(filter(None, names)))
    if kind == "core" and rest[1] == "depth":
        return asked.core("create", 4, int(rest[2]))
    if kind == "core" and int(rest[0]) in NAMES and len(rest) > 2:
        return asked.core(rest[1], int(rest[0]), names=tuple(filter(None, rest[2].replace("empty", "").split(","))))
    if kind == "core":
        value = {"strict": 1, "permissive": 0, "value": 7}.get(rest[1], 1)
        return asked.core(rest[-1], int(rest[0]), value)
    if kind == "htp":
        return asked.custom("create", 2, 0) if rest[1] == "founder" else asked.custom(rest[1], int(rest[0]))
    if kind == "graph":
        return asked.graph(_graph_config(rest))
    number, value = {"arch": (1, 79), "soc": (0, 999)}.get(rest[0], (-1, 0))
    if number < 0:
        number = int(rest[0])
        value = {0: SM8750, 1: 79}.get(number, 1)
    return asked.on_device(number, value)


def _graph_config(words: list[str]) -> Any:
    made: dict[str, Callable[[int], Any]] = {
        "O": lambda value: graph_config(
            HtpGraphOption.OPTIMIZATION, (HtpOptimization.FINALIZE_OPTIMIZATION_FLAG, value)
        ),
        "hvx": lambda value: graph_config(HtpGraphOption.NUM_HVX_THREADS, value),
        "vtcm": lambda value: graph_config(HtpGraphOption.VTCM_SIZE_IN_MB, value),
        "cores": lambda value: graph_config(HtpGraphOption.NUM_CORES, value),
        "opt": lambda value: graph_config(HtpGraphOption.OPTIMIZATION, (value, 1)),
    }
    if words[0] in made:
        return made[words[0]](int(words[-1]))
    number = int(words[0])
    config = GRAPH_CONFIG(number)
    if number == HtpGraphOption.OPTIMIZATION:
        config.optimizationOption.type, config.optimizationOption.floatValue = HtpOptimization.ENABLE_DLBC, 1
    elif number != HtpGraphOption.FINALIZE_CONFIG:
        ctypes.c_uint64.from_address(ctypes.addressof(config) + 8).value = 1
    return config


def outcomes(library: str) -> dict[str, Answer]:
    """Make the calls of all cases; in a process of its own, which the vendor's library may end."""
    asked, found = Asked(Path(library)), {}
    for name in VENDOR:
        asked.words = ""
        code = call(name, asked)
        found[name] = (code, asked.words or (asked.client.reason(code) if code else ""))
    return found


@functools.cache
def outcomes_of(library: Path) -> dict[str, Answer]:
    """Ask once for each library."""
    answer: dict[str, Answer] = alone(__file__, "outcomes", str(library), seconds=600)
    return answer


@pytest.mark.parametrize("name", VENDOR)
def test_an_option_is_answered_as_by_the_vendors_library_or_for_a_reason(name: str, libraries: Path) -> None:
    (code, words), (theirs, said) = outcomes_of(libraries / "libQnnHtp.so")[name], VENDOR[name]
    if code != theirs:
        codes, _ = reason(name, DEVIATIONS) or (set(), "")
        assert code in codes, words
    elif code and reason(name, OWN_WORDS) is None:
        assert said in words


MEASURED = Path(__file__).parents[2].parent / "shared" / "data" / "contexts" / "options.csv"
"""What was measured of the vendor's library, where a copy is at hand."""
ELSEWHERE = {
    r"base|core 5\+6\+7 from|core 6\+7\+10 from|core 6,10 set|xset core 6\+10": "combinations of options above",
    r"core 10 create twice same name": "a list without graphs that are there",
    r"core 9 deferred (props|shared)|not deferred props": "test_context_configs.py: properties of deferred graphs",
    r"htp (2|12) group|htp 17 from 64|htp 3 budget 25 from|list .*": "groups, lists and budgets have own tests",
    r"htp 1[12] create v81|htp 11 from v81|yudma.*": "test_custom_configs.py and test_sharing_rules.py: extended UDMA",
    r"htp 1 create soc .*|yfrom shared plain": "test_sharing_rules.py: weight sharing by chip",
    r"graph prio core|xpri graph core 1|x?graph 14 .*|xgraph 14|ybare .*|device none": "what binaries state",
}
"""Patterns of measured cases that are not in the table, and where they are."""


def test_the_table_is_what_was_measured() -> None:
    if not MEASURED.exists():
        pytest.skip("needs the measured table")
    with MEASURED.open() as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    measured = {
        name: (int(row["vendor_code"].split()[0]), row["vendor_line"].partition("> ")[2])
        for name, row in rows.items()
        if reason(name, ELSEWHERE) is None
    }
    assert VENDOR.keys() == measured.keys()
    for name, (code, words) in VENDOR.items():
        assert (code, words if code else "") == (measured[name][0], measured[name][1] if code else ""), name


def test_every_exception_is_of_a_case() -> None:
    for patterns in (DEVIATIONS, OWN_WORDS):
        for pattern in patterns:
            assert any(re.fullmatch(pattern, name) for name in VENDOR), pattern


@LONG
def test_the_vendors_library_answers_as_the_table_says() -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    from capi import ort_provider

    found = outcomes_of(ort_provider.vendor_library("QnnHtp"))
    assert {name: code for name, (code, _) in found.items()} == {name: code for name, (code, _) in VENDOR.items()}
