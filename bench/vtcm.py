"""Plans VTCM for sixteen models, and prints what a run moves, beside the simple rule and the vendor's compiler.

    python bench/vtcm.py [--vtcm MB ...] [--compiler] [NAME ...]

Five models are those of the test suite; the others are made here: chains of convolutions, U-Nets and transformer
blocks with random weights. Names end in how activations are stored: f16, or a8 and a16 for quantized models. Floats are
planned in 16 bits. With --compiler, each model is compiled for an SM8750 at level 2 too, which takes minutes; results
are kept.

The exit status is 1 if a plan moves more than the simple rule, or one of at most 60 steps is not proved.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import zoo

from isthmus.backends.htp.vtcm import VtcmReport
from isthmus.backends.seam import registry
from isthmus.backends.seam.entry import PlanRequest
from isthmus.frontends import load
from isthmus.graph import Graph
from isthmus.log import Log

SIZES = (1, 2, 4, 8)
EXACT = 60
"""Plans of at most so many steps must be proved."""
ZOO = ("deeplabv3", "efficientnet_lite0", "pose_landmark_full", "ppocr_rec", "selfie_segmentation")


class Network:
    """A model under construction. With bits, every result is quantized to so many."""

    def __init__(self, dims: Sequence[int], bits: int = 0) -> None:
        self.rng = np.random.default_rng(0)
        self.bits = bits
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.dims = list(dims)
        self.last = self.stored("x")

    def constant(self, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(value, f"c{len(self.constants)}"))
        return str(self.constants[-1].name)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [f"t{len(self.nodes)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def stored(self, name: str, scale: float = 0.01) -> str:
        """Quantize a result and back, if the model is quantized."""
        if not self.bits:
            return name
        kind = np.uint8 if self.bits == 8 else np.uint16
        step = self.constant(np.float32(scale * 256 / 2**self.bits))
        zero = self.constant(kind(2 ** (self.bits - 1)))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", name, step, zero), step, zero)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.last = self.stored(self.node(op, *(inputs or (self.last,)), **attributes))
        return self.last

    def weights(self, *dims: int) -> str:
        if not self.bits:
            return self.constant((self.rng.standard_normal(dims) / np.sqrt(np.prod(dims[1:]))).astype(np.float32))
        values = self.constant(self.rng.integers(-127, 128, dims).astype(np.int8))
        return self.node("DequantizeLinear", values, self.constant(np.float32(0.002)), self.constant(np.int8(0)))

    def conv(self, inputs: int, outputs: int) -> str:
        """A convolution with an activation, of which only the result is stored."""
        weights = self.weights(outputs, inputs, 3, 3)
        made = self.node("Conv", self.last, weights, pads=[1] * 4, kernel_shape=[3, 3])
        self.last = self.stored(self.node("Relu", made))
        return self.last

    def save(self, path: Path) -> Path:
        source = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.dims)
        self.nodes.append(helper.make_node("Identity", [self.last], ["y"]))
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, path.stem, [source], [result], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.save(onnx.shape_inference.infer_shapes(model), str(path))
        return path


def chain(channels: int, size: int, layers: int, bits: int = 0) -> Network:
    """Convolutions at one size."""
    net = Network((1, channels, size, size), bits)
    for _ in range(layers):
        net.conv(channels, channels)
    return net


def unet(channels: int, size: int, bits: int = 0) -> Network:
    """Three sizes, with results of the way down joined on the way up."""
    net = Network((1, channels, size, size), bits)
    kept = []
    for level in (1, 2):
        kept.append(net.conv(channels * max(level // 2, 1), channels * level))
        net.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    net.conv(channels * 2, channels * 4)
    for level, before in zip((2, 1), reversed(kept), strict=True):
        scales = net.constant(np.array([1, 1, 2, 2], np.float32))
        wide = net.add("Resize", net.last, "", scales, mode="nearest")
        net.add("Concat", wide, before, axis=1)
        net.conv(channels * level * 3, channels * level)
    return net


def block(tokens: int, width: int, bits: int = 0) -> Network:
    """A transformer block with eight heads."""
    net = Network((1, tokens, width), bits)
    heads, inside = 8, width // 8
    source = net.last
    shapes = [1, tokens, heads, inside], [1, tokens, width]
    split, joined = (net.constant(np.array(dims, np.int64)) for dims in shapes)
    rows = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        net.add("MatMul", source, net.weights(width, width))
        net.add("Reshape", net.last, split)
        rows.append(net.add("Transpose", perm=perm))
    net.add("MatMul", rows[0], rows[1])
    net.add("Softmax", axis=-1)
    net.add("MatMul", net.last, rows[2])
    net.add("Transpose", perm=[0, 2, 1, 3])
    net.add("Reshape", net.last, joined)
    net.add("MatMul", net.last, net.weights(width, width))
    middle = net.add("Add", net.last, source)
    net.add("MatMul", middle, net.weights(width, 4 * width))
    net.add("Relu")
    net.add("MatMul", net.last, net.weights(4 * width, width))
    net.add("Add", net.last, middle)
    return net


MADE: dict[str, Callable[[], Network]] = {
    "chain_c16_h96_f16": lambda: chain(16, 96, 8),
    "chain_c32_h256_f16": lambda: chain(32, 256, 6),
    "chain_c32_h256_a8": lambda: chain(32, 256, 6, 8),
    "chain_c32_h256_a16": lambda: chain(32, 256, 6, 16),
    "chain_c64_h192_f16": lambda: chain(64, 192, 4),
    "unet_c16_h256_f16": lambda: unet(16, 256),
    "unet_c16_h256_a8": lambda: unet(16, 256, 8),
    "unet_c32_h128_f16": lambda: unet(32, 128),
    "block_s128_d512_f16": lambda: block(128, 512),
    "block_s512_d512_f16": lambda: block(512, 512),
    "block_s512_d512_a16": lambda: block(512, 512, 16),
}
NAMES = (*MADE, *ZOO)


def graph_of(name: str, folder: Path) -> Graph:
    """Load a model of the test suite, or one that is made here."""
    if name in MADE:
        return load(MADE[name]().save(folder / f"{name}.onnx"))
    model = zoo.MODELS[name]
    return load(zoo.path(name), model.shapes, {key: np.int64(value) for key, value in model.constants.items()})


def planned(graph: Graph, vtcm_mb: int) -> tuple[VtcmReport, float]:
    """Plan a graph for a size of VTCM; return our figures and the seconds of planning VTCM."""
    entry = registry.entry("htp")
    assert entry.prepare is not None
    config = entry.read_config({"htp": {"precision": "float16", "vtcm_mb": vtcm_mb}}, Log())
    section = entry.prepare(graph, config, PlanRequest()).section
    assert isinstance(section, VtcmReport)
    began = time.perf_counter()
    assert section.spill_fill.vtcm == vtcm_mb << 20
    return section, time.perf_counter() - began


def compiled(graph: Graph, sizes: Sequence[int]) -> list[str]:
    """Return the compiler's spill-fill and what it spills and fills, for each size."""
    from isthmus.backends.vendor.library import find
    from isthmus.backends.vendor.measurement import Compilation, build_of, measure_all, prepared
    from isthmus.backends.vendor.target import ChipTarget
    from isthmus.tools.device import compose_all, measurement_cache

    compositions, problem = compose_all([graph])
    if problem:
        return [problem] * len(sizes)
    content, library = prepared(compositions), find()
    jobs = [Compilation(graph.name, content, ChipTarget(69, size, 2)) for size in sizes]
    found = measure_all(jobs, library, build_of(library), measurement_cache())
    return [
        each.problem
        or f"{each.spill_fill:>12,}{0 if each.traffic is None else each.traffic.spilled + each.traffic.filled:>14,}"
        for each in found
    ]


def main() -> int:
    """Print the table; the exit status tells whether every plan is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *NAMES], help="models; all without any")
    parser.add_argument("--vtcm", type=int, nargs="+", default=SIZES, metavar="MB")
    parser.add_argument("--compiler", action="store_true", help="compile for an SM8750 too")
    options = parser.parse_args()
    theirs = f"{'its spill-fill':>15}{'spilled+filled':>15}" if options.compiler else ""
    ours = f"{'spill-fill':>12}{'spilled+filled':>16}{'all traffic':>14}{'simple rule':>14}{'proof':>9}{'s':>6}"
    print(f"{'model':22}{'steps':>6}{'MB':>3}{ours}{theirs}")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or NAMES:
            try:
                graph = graph_of(name, Path(folder))
            except zoo.Unavailable as reason:
                print(f"{name:22}{reason}")
                continue
            others = compiled(graph, options.vtcm) if options.compiler else [""] * len(options.vtcm)
            for size, other in zip(options.vtcm, others, strict=True):
                section, seconds = planned(graph, size)
                found, steps = section.spill_fill, len(section.schedule.steps)
                wrong += found.traffic > found.largest_first or (steps <= EXACT and found.status != "optimal")
                line = (
                    f"{name:22}{steps:>6}{size:>3}{found.spill_fill:>12,}{found.spilled + found.filled:>16,}"
                    f"{found.traffic:>14,}{found.largest_first:>14,}{found.status:>9}{seconds:>6.2f}   {other}"
                )
                print(line.rstrip(), flush=True)
    print(f"{wrong} plans fall short" if wrong else "no plan moves more than the simple rule; short ones are proved")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
