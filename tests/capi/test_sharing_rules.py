"""How much of their weights the graphs of a context share: rules that were measured of the vendor's library.

Each case is a pair of small graphs, composed in C in the same way on our library and on the vendor's.
"""

from __future__ import annotations

import csv
import ctypes
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.alone import alone
from support.suites import LONG

from capi.qnn_calls import Client
from capi.test_binary_information import Described, configs, graph_config, on_chip
from isthmus.backends.htp.headers import CONTEXT_CONFIG
from isthmus.backends.htp.options import HtpContextOption, HtpGraphOption, HtpOptimization
from isthmus.backends.vendor.structures import describe
from isthmus.cabi import objects, types
from isthmus.graph import DataType, TensorType

SIZE = 512
FLOAT_16 = 1
"""Qnn_Precision_t's number."""


@dataclass(frozen=True)
class Product:
    """A graph of a product with constant weights.

    - `rows`, `columns`, `depth`: Its sizes.
    - `act`: Bits of activations: 32 for floats, 16 or 8 for fixed point.
    - `bits`: Bits of the weights of fixed-point graphs.
    - `seed`, `scale`: Weights are random numbers of this seed; the scale of fixed-point ones is multiplied by this.
    - `per_axis`: Whether each column has a scale of its own, and its elements as many of the numbers as they can.
    - `repeats`: Whether the scales of all columns are that of the whole, so that the numbers are those without an axis.
    - `prefix`: What the names of its nodes and tensors begin with.
    - `cached`: Rows of another input, by which the result is multiplied: a cache of this length.
    - `settings`: The graph's configs.
    """

    rows: int = 128
    op: str = "MatMul"
    act: int = 32
    bits: int = 8
    seed: int = 0
    scale: float = 1
    per_axis: bool = False
    repeats: bool = False
    prefix: str = ""
    cached: int = 0
    depth: int = SIZE
    columns: int = SIZE
    settings: tuple[tuple[HtpGraphOption, Any], ...] = ((HtpGraphOption.PRECISION, FLOAT_16),)

    @property
    def dtype(self) -> DataType:
        """The type of its inputs and outputs."""
        return {32: DataType.FLOAT_32, 16: DataType.UFIXED_POINT_16, 8: DataType.UFIXED_POINT_8}[self.act]

    def weights(self) -> tuple[np.ndarray, list[float]]:
        """Return the weights, [depth, columns], and the scales of fixed-point ones."""
        reals = (np.random.default_rng(self.seed).standard_normal((self.depth, self.columns)) * 0.05).astype(np.float32)
        if self.act == 32:
            return reals, []
        most = 2 ** (self.bits - 1) - 1
        scales = np.abs(reals).max(0 if self.per_axis and not self.repeats else None, keepdims=True) / most
        listed = np.broadcast_to(scales, (1, self.columns if self.per_axis else 1)).reshape(-1)
        return np.rint(reals / scales).astype(np.int8), [float(each) * self.scale for each in listed]

    def compose(self, client: Client, context: int, name: str) -> int:
        """Compose it as a graph and finalize it; the code, which is 0 unless the graph is refused."""
        listed = configs(client, objects.GraphConfig, [graph_config(*each) for each in self.settings])
        graph = ctypes.c_void_p()
        code = client.graphCreate(context, name.encode(), listed, ctypes.byref(graph))
        if code:
            return int(code)
        weights, scales = self.weights()
        shaped = {"MatMul": weights, "FullyConnected": weights.T, "Conv2d": weights[None, None]}[self.op]
        axis = {"MatMul": 1, "FullyConnected": 0, "Conv2d": 3}[self.op]
        leading = (1, 1) if self.op == "Conv2d" else ()
        io = None if self.act == 32 else client.quantize(0.01, -(1 << (self.act - 1)))
        encoding = None
        if scales and self.bits == 8:
            encoding = client.quantize_axis(axis, scales) if self.per_axis else client.quantize(scales[0], 0)
        elif scales:
            encoding = client.quantize_bits(self.bits, axis if self.per_axis else None, scales)

        def tensor(key: str, kind: TensorType, dims: tuple[int, ...]) -> types.Tensor:
            made = client.tensor(f"{self.prefix}{key}", kind, self.dtype, dims, io)
            client.do("tensorCreateGraphTensor", graph, ctypes.byref(made))
            return made

        x = tensor("x", TensorType.APP_WRITE, (*leading, self.rows, self.depth))
        kind = TensorType.NATIVE if self.cached else TensorType.APP_READ
        y = tensor("y", kind, (*leading, self.rows, self.columns))
        stored = DataType.FLOAT_32 if self.act == 32 else DataType.SFIXED_POINT_8
        w = client.tensor(f"{self.prefix}w", TensorType.STATIC, stored, shaped.shape, encoding, shaped)
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(w))
        params = {"stride": np.ones(2, np.uint32), "pad_amount": np.zeros((2, 2), np.uint32)}
        node = client.operation(f"{self.prefix}product", self.op, [x, w], [y], None, params if leading else None)
        for number in range(node.v1.numOfParams):
            client.do("tensorCreateGraphTensor", graph, ctypes.byref(node.v1.params[number].tensorParam))
        client.do("graphAddNode", graph, node)
        if self.cached:
            cache = tensor("cache", TensorType.APP_WRITE, (self.cached, self.columns))
            scores = tensor("scores", TensorType.APP_READ, (self.rows, self.cached))
            turned = {"transpose_in1": (int(DataType.BOOL_8), 1)}
            client.do(
                "graphAddNode",
                graph,
                client.operation(f"{self.prefix}attention", "MatMul", [y, cache], [scores], turned),
            )
        return int(client.graphFinalize(graph, None, None))


@dataclass(frozen=True)
class Case:
    """Graphs of one context.

    - `shared`: How much of the weights the vendor's library shares: all, part, none, or "refused" with a code.
    - `ours`: The same of ours, where that differs.
    - `decoder`: The same of a whole decoder on the vendor's library, where that differs.
    - `asked`: Whether the context is created with weight sharing.
    - `soc`: The number of the chip.
    - `udma`: Whether the context is created with extended UDMA.
    """

    shared: str
    graphs: tuple[Product, ...]
    ours: str = ""
    decoder: str = ""
    asked: bool = True
    soc: int = 69
    udma: bool = False

    def sizes(self, client: Client, backend: int, libraries: Path) -> Any:
        """Return what the description of its binary says of the constants, or the code of a refusal."""
        options = [client.keep(CONTEXT_CONFIG(HtpContextOption.WEIGHT_SHARING_ENABLED))] * self.asked
        for each in options:
            each.weightSharingEnabled = True
        if self.udma:
            options.append(CONTEXT_CONFIG(HtpContextOption.USE_EXTENDED_UDMA))
            options[-1].useExtendedUdma = True
        listed = configs(client, objects.ContextConfig, options)
        context = client.make("contextCreate", backend, on_chip(client, self.soc), listed)
        codes = [product.compose(client, context, f"g{number}") for number, product in enumerate(self.graphs)]
        answer: Any = max(codes)
        if not answer:
            described = Described(libraries, client.binary(context))
            figures = [graph["figures"] for graph in describe(described.info)["graphs"]]
            answer = [[each["constants"], each["shared_weights"]] for each in figures]
            described.free()
        client.do("contextFree", context, None)
        return answer


TABLES = 4096
"""Constants of so many bytes are not weights: a graph has its own tables."""


def verdict(sizes: Any) -> str:
    """Say how much of the constants are shared."""
    if isinstance(sizes, int):
        return f"refused {sizes}"
    shared, own = sizes[0][1], max(alone for alone, _ in sizes) - TABLES
    part = shared / max(shared + own, 1)
    return "all" if part > 0.9 else "none" if part < 0.1 else "part"


OPTION = HtpGraphOption
F16, A16W8, A8W8 = Product(), Product(act=16), Product(act=8)
A16W4 = Product(act=16, bits=4)
CHANNELS = replace(A16W4, op="Conv2d", per_axis=True)
PRECISIONS = {"f16": F16, "a16w8": A16W8, "a8w8": A8W8, "a16w4": CHANNELS}
LENGTHS = (128, 1, 32, 64)


def second(first: Product = F16, **other: Any) -> tuple[Product, Product]:
    """A graph of many rows, and one of a single row that differs in this."""
    return first, replace(first, **{"rows": 1, **other})


def with_settings(product: Product, *settings: tuple[HtpGraphOption, Any]) -> Product:
    """The graph with further configs."""
    return replace(product, settings=(*product.settings, *settings))


def optimized(kind: HtpOptimization, value: float) -> tuple[HtpGraphOption, Any]:
    return OPTION.OPTIMIZATION, (kind, value)


def cases() -> Iterator[tuple[str, Case]]:
    """Cases by the names that they have where they were measured."""
    for name, product in PRECISIONS.items():
        for asked in (False, True):
            yield (
                f"decoder {name} ar128+ar1 ws{asked:d}",
                Case("all" if asked else "none", second(product), asked=asked),
            )
    for name, counts in (("f16", (1, 2, 3, 4)), ("a16w8", (1, 4))):
        for count in counts:
            graphs = tuple(replace(PRECISIONS[name], rows=rows) for rows in LENGTHS[:count])
            for asked in (False, True):
                shared = "all" if asked and count > 1 else "none"
                yield f"n={count} ws{asked:d} {name}", Case(shared, graphs, asked=asked)
    yield "order 1,128", Case("all", second()[::-1])
    yield "other seed", Case("none", second(seed=1))
    for name, ops in (
        ("f16", ("FullyConnected/MatMul", "FullyConnected/Conv2d", "MatMul/Conv2d", "MatMul/MatMul", "Conv2d/Conv2d")),
        ("a16w8", ("FullyConnected/MatMul", "FullyConnected/Conv2d", "Conv2d/Conv2d")),
    ):
        for both in ops:
            one, other = both.split("/")
            yield f"ops {both} {name}", Case("all", second(replace(PRECISIONS[name], op=one), op=other))
    convolution = replace(A16W8, op="Conv2d")
    yield "a16w8 axis/axis conv", Case("all", second(replace(convolution, per_axis=True)))
    yield "a16w4 axis/axis conv", Case("all", second(CHANNELS))
    yield "a16w8 weight scale x2 in one", Case("all", second(A16W8, scale=2))
    yield "a16w8 tensor / axis", Case("none", second(convolution, per_axis=True))
    yield "a16w8 / a8w8", Case("all", second(A16W8, act=8))
    yield "f16 / a16w8", Case("none", second(act=16))
    vtcm = {size: (OPTION.VTCM_SIZE_IN_MB, size) for size in (2, 4)}
    level = HtpOptimization.FINALIZE_OPTIMIZATION_FLAG
    for name, setting in {
        "vtcm 2": vtcm[2], "vtcm 4": vtcm[4], "O2": optimized(level, 2), "hvx 2": (OPTION.NUM_HVX_THREADS, 2),
        "dlbc": optimized(HtpOptimization.ENABLE_DLBC, 1), "packing": (OPTION.WEIGHTS_PACKING, True),
    }.items():  # fmt: skip
        yield f"second has {name} f16", Case("all", (F16, with_settings(replace(F16, rows=1), setting)))
    high = with_settings(F16, optimized(level, 3))
    low = with_settings(replace(F16, rows=1), optimized(level, 1))
    yield "second has O1 f16", Case("all", (high, low), decoder="part")
    yield "second has no fp16 f16", Case("all", second(settings=()), ours="none")
    yield "second vtcm 2 a16w8", Case("all", (A16W8, with_settings(replace(A16W8, rows=1), vtcm[2])))
    for asked in (True, False):
        name = "both vtcm 2 f16" + (" ws0" if not asked else "")
        yield name, Case("all" if asked else "none", second(with_settings(F16, vtcm[2])), asked=asked)
        name = "udma v81" + (" ws0" if not asked else "")
        yield name, Case("all" if asked else "none", second(), asked=asked, soc=87, udma=True)
    for soc in (30, 36, 43, 57, 87):
        yield f"soc {soc} a8w8", Case("all", second(A8W8), soc=soc)
    yield "context 512/1024", Case("all", (replace(F16, rows=1, cached=512), replace(F16, rows=1, cached=1024)))
    yield "names differ", Case("all", second(prefix="other_"))
    yield "dlbcw", Case("refused 1000", second(with_settings(F16, optimized(HtpOptimization.ENABLE_DLBC_WEIGHTS, 1))))
    for name, product in (("f16", F16), ("a8w8", A8W8)):
        for size in (8, 16, 32, 64, 128, 256, 512) if name == "f16" else (32, 64, 256, 512):
            yield (
                f"mlp {size}x{size} {name}",
                Case("all", second(replace(product, op="FullyConnected", depth=size, columns=size))),
            )
    yield "mlp 512->1000 odd", Case("all", second(replace(F16, op="FullyConnected", columns=1000)))


CASES = dict(cases())
ALIKE = replace(A16W8, op="Conv2d", repeats=True)
OTHERS = {
    "equal numbers, one scale / one for each column": Case("all", second(ALIKE, per_axis=True)),
    "equal numbers, a scale for each column, other scales": Case(
        "all", second(replace(ALIKE, per_axis=True), scale=1.5)
    ),
    "4-bit / 8-bit weights": Case("none", second(replace(A16W4, op="Conv2d"), bits=8)),
}
"""Cases of which there is no measured table: the vendor's library is asked for them only here."""
MEASURED = Path(__file__).parents[2].parent / "shared" / "data" / "contexts" / "weight_sharing.csv"
"""What the vendor's library shares of decoders and small products, where a copy is at hand."""


def outcomes(folder: str) -> dict[str, Any]:
    """Compose all cases on the libraries of a folder; in a process of its own, which the vendor's may end."""
    client = Client(Path(folder) / "libQnnHtp.so")
    backend = client.make("backendCreate", None, None)
    client.make("contextCreate", backend, None, None)  # Keeps the accelerator's process.
    return {name: case.sizes(client, backend, Path(folder)) for name, case in (CASES | OTHERS).items()}


@functools.cache
def outcomes_of(folder: Path) -> dict[str, Any]:
    """Ask once for each library."""
    answer: dict[str, Any] = alone(__file__, "outcomes", str(folder), seconds=600)
    return answer


@pytest.mark.parametrize("name", CASES | OTHERS)
def test_graphs_share_as_much_as_with_the_vendors_library(name: str, libraries: Path) -> None:
    case = (CASES | OTHERS)[name]
    assert verdict(outcomes_of(libraries)[name]) == (case.ours or case.shared)


def test_the_cases_are_all_that_were_measured() -> None:
    if not MEASURED.exists():
        pytest.skip("needs the measured table")
    found: dict[str, Any] = {}
    with MEASURED.open() as file:
        for row in csv.DictReader(file):
            sizes = found.setdefault(row["case"], [])
            sizes.append(row["error"] or [int(row["const"]), int(row["shared"])])
    refused = {name: "refused 1000" for name, rows in found.items() if '"graphCreate", 1000' in rows[0]}
    measured = {name: refused.get(name) or verdict(rows) for name, rows in found.items()}
    assert {name: case.decoder or case.shared for name, case in CASES.items()} == measured


@LONG
@pytest.mark.parametrize("name", CASES | OTHERS)
def test_the_vendors_library_shares_by_the_same_rules(name: str) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    from capi import ort_provider

    assert verdict(outcomes_of(ort_provider.vendor_library("QnnHtp").parent)[name]) == (CASES | OTHERS)[name].shared
