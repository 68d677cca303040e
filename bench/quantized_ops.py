"""Single 8-bit operations beside LiteRT and ONNX Runtime, measured interleaved.

``python bench/quantized_ops.py [NAME...] [--threads N] [--rounds N]``. LiteRT and we run the same int8 file; ONNX
Runtime runs its equivalent with unsigned activations between QuantizeLinear and DequantizeLinear, in its NCHW layout.
Times are microseconds, median and least of the rounds. Where the processor makes ONNX Runtime's default arithmetic
saturate, the line says by how many steps its results are wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from ai_edge_litert.interpreter import Interpreter
from onnx import TensorProto, helper, numpy_helper
from ops import race

import isthmus

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from frontends.tflite.build import T, options, single
from support import oracles

_INPUT, _OUTPUT = (0.05, -4), (0.1, 7)
_generator = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """A convolution with "same" padding and Relu, a fully connected layer, or a sum of two images."""

    kind: str
    height: int
    width: int
    channels: int
    filters: int
    kernel: int = 1
    stride: int = 1

    @property
    def out(self) -> tuple[int, int]:
        """Output height and width."""
        return -(-self.height // self.stride), -(-self.width // self.stride)

    @property
    def pads(self) -> list[int]:
        """Zeros above, left, below and right."""
        totals = [
            max((out - 1) * self.stride + self.kernel - size, 0)
            for size, out in zip((self.height, self.width), self.out, strict=True)
        ]
        return [*(t // 2 for t in totals), *(t - t // 2 for t in totals)]


CASES = {
    "pw112_32_16": Case("conv", 112, 112, 32, 16),
    "pw112_16_96": Case("conv", 112, 112, 16, 96),
    "pw56_24_144": Case("conv", 56, 56, 24, 144),
    "pw56_144_24": Case("conv", 56, 56, 144, 24),
    "pw28_240_40": Case("conv", 28, 28, 240, 40),
    "pw14_96_576": Case("conv", 14, 14, 96, 576),
    "pw14_672_112": Case("conv", 14, 14, 672, 112),
    "pw7_320_1280": Case("conv", 7, 7, 320, 1280),
    "first224": Case("conv", 224, 224, 3, 32, 3, 2),
    "c3_28_64": Case("conv", 28, 28, 64, 64, 3),
    "c3_7_256": Case("conv", 7, 7, 256, 256, 3),
    "dw112_32": Case("depthwise", 112, 112, 32, 32, 3),
    "dw112_96_s2": Case("depthwise", 112, 112, 96, 96, 3, 2),
    "dw56_144_s2": Case("depthwise", 56, 56, 144, 144, 3, 2),
    "dw28_192": Case("depthwise", 28, 28, 192, 192, 3),
    "dw14_672_5x5": Case("depthwise", 14, 14, 672, 672, 5),
    "dw7_960": Case("depthwise", 7, 7, 960, 960, 3),
    "fc1280_1000": Case("fc", 1, 1, 1280, 1000),
    "fc64_16": Case("fc", 1, 1, 64, 16),
    "pw_1_64_64": Case("conv", 1, 1, 64, 64),
    "dw_5_64": Case("depthwise", 5, 1, 64, 64, 3),
    "add56_24": Case("add", 56, 56, 24, 24),
}


@dataclass(frozen=True)
class _Data:
    x: np.ndarray
    weights: np.ndarray
    scales: np.ndarray
    bias: np.ndarray


def _data(case: Case) -> _Data:
    k, depth = case.kernel, 1 if case.kind == "depthwise" else case.channels
    dims = (1, case.channels) if case.kind == "fc" else (1, case.height, case.width, case.channels)
    return _Data(
        _generator.integers(-128, 128, dims).astype(np.int8),
        _generator.integers(-127, 128, (k, k, depth, case.filters)).astype(np.int8),
        np.full(case.filters, 0.3 / (127 * (k * k * depth) ** 0.5), np.float32),
        _generator.integers(-500, 500, case.filters).astype(np.int32),
    )


def tflite_model(case: Case, data: _Data) -> bytes:
    """The operation as a TFLite file."""
    x = T("i8", data.x.shape, None, *_INPUT)
    if case.kind == "add":
        return single("ADD", [x, T("i8", x.shape, None, 0.03, 9)], [T("i8", x.shape, None, *_OUTPUT)],
                      options("Add", fusedActivationFunction=0))  # fmt: skip
    dims = (1, case.filters) if case.kind == "fc" else (1, *case.out, case.filters)
    y = T("i8", dims, None, *_OUTPUT)
    bias = T("i32", [case.filters], data.bias, data.scales * _INPUT[0])
    window = {"padding": 0, "strideH": case.stride, "strideW": case.stride, "dilationHFactor": 1, "dilationWFactor": 1}
    if case.kind == "fc":
        weights = T("i8", (case.filters, case.channels), data.weights[0, 0].T, data.scales[:1], 0)
        bias = T("i32", [case.filters], data.bias, data.scales[:1] * _INPUT[0])
        return single("FULLY_CONNECTED", [x, weights, bias], [y], options("FullyConnected", fusedActivationFunction=0))
    if case.kind == "depthwise":
        weights = T("i8", (1, *data.weights.shape[:2], case.filters), data.weights[:, :, 0], data.scales, 0, 3)
        made = options("DepthwiseConv2D", depthMultiplier=1, fusedActivationFunction=1, **window)
        return single("DEPTHWISE_CONV_2D", [x, weights, bias], [y], made)
    weights = T("i8", (case.filters, *data.weights.shape[:3]), data.weights.transpose(3, 0, 1, 2), data.scales, 0, 0)
    return single("CONV_2D", [x, weights, bias], [y], options("Conv2D", fusedActivationFunction=1, **window))


def _onnx_runtime(case: Case, data: _Data, threads: int) -> tuple[Callable[[], Any], int]:
    """Make a call of ONNX Runtime as its users make it; count the steps between its results and exact ones."""
    initializers: dict[str, np.ndarray] = {
        "sx": np.float32(_INPUT[0]), "zx": np.uint8(_INPUT[1] + 128),
        "sy": np.float32(_OUTPUT[0]), "zy": np.uint8(_OUTPUT[1] + 128),
    }  # fmt: skip
    image = [1, case.channels] if case.kind == "fc" else [1, case.channels, case.height, case.width]
    nodes = [helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["rx"])]
    if case.kind == "add":
        nodes += [
            helper.make_node("DequantizeLinear", ["x2", "sy", "zy"], ["rx2"]),
            helper.make_node("Add", ["rx", "rx2"], ["ry"]),
        ]
    else:
        turned = data.weights[0, 0] if case.kind == "fc" else data.weights.transpose(3, 2, 0, 1)
        scales = data.scales[:1].reshape(()) if case.kind == "fc" else data.scales
        initializers |= {"w": np.ascontiguousarray(turned), "sw": scales, "zw": np.zeros(scales.shape, np.int8)}
        initializers |= {"b": data.bias, "sb": scales * np.float32(_INPUT[0])}
        axis = {} if case.kind == "fc" else {"axis": 0}
        nodes += [
            helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["rw"], **axis),
            helper.make_node("DequantizeLinear", ["b", "sb"], ["rb"], **axis),
        ]
        if case.kind == "fc":
            nodes.append(helper.make_node("Gemm", ["rx", "rw", "rb"], ["ry"]))
        else:
            group = case.channels if case.kind == "depthwise" else 1
            nodes.append(helper.make_node("Conv", ["rx", "rw", "rb"], ["ry"], group=group, pads=case.pads,
                                          strides=[case.stride] * 2))  # fmt: skip
    nodes.append(helper.make_node("QuantizeLinear", ["ry", "sy", "zy"], ["y"]))
    out = image if case.kind == "add" else [1, case.filters] if case.kind == "fc" else [1, case.filters, *case.out]
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, image)]
    if case.kind == "add":
        inputs.append(helper.make_tensor_value_info("x2", TensorProto.UINT8, image))
    graph = helper.make_graph(
        nodes, case.kind, inputs, [helper.make_tensor_value_info("y", TensorProto.UINT8, out)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in initializers.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = oracles.onnx_session(model.SerializeToString(), threads=threads, exact=False)
    feeds = {value.name: _generator.integers(0, 256, image).astype(np.uint8) for value in inputs}
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(out, np.uint8)))
    exact = oracles.onnx_answers(model.SerializeToString(), feeds)["y"].astype(int)
    steps = int(np.abs(session.run(["y"], feeds)[0] - exact).max())
    return lambda: session.run_with_iobinding(binding), steps


def main() -> None:
    """Print a line for each operation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    for name in arguments.names or CASES:
        case = CASES[name]
        data = _data(case)
        content = tflite_model(case, data)
        peer = Interpreter(model_content=content, num_threads=arguments.threads)
        peer.allocate_tensors()
        with tempfile.NamedTemporaryFile(suffix=".tflite") as file:
            file.write(content)
            file.flush()
            session = isthmus.Session(file.name, threads=arguments.threads)
        for detail in peer.get_input_details():
            peer.set_tensor(detail["index"], data.x)
            session.inputs[detail["name"]][...] = data.x
        onnx_runtime, steps = _onnx_runtime(case, data, arguments.threads)
        calls = {
            "isthmus": session.engine_run,
            "litert": peer.invoke,
            "onnxruntime": onnx_runtime,
        }
        seconds = race(calls, arguments.rounds)
        [ours], theirs = session.outputs.values(), peer.get_tensor(peer.get_output_details()[0]["index"])
        same = "same" if np.array_equal(ours, theirs) else f"{np.mean(ours != theirs):.2%} of results differ"
        same += f", onnxruntime is {steps} steps off" if steps > 1 else ""
        best = min(np.median(s) for n, s in seconds.items() if n != "isthmus")
        figures = "  ".join(f"{n} {np.median(s) * 1e6:8.1f} ({s.min() * 1e6:8.1f})" for n, s in seconds.items())
        print(
            f"{name:14s} {np.median(seconds['isthmus']) / best:5.2f} of the best peer   {figures}   {same}", flush=True
        )
        session.close()


if __name__ == "__main__":
    main()
