"""Operators with a state, and kernels in integers: the bits of LiteRT and LiteRT Micro."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import isthmus
from frontends.tflite.build import Op, Subgraph, T, model, options, single
from frontends.tflite.runners import GraphRunner, LiteRtRunner
from isthmus.errors import QnnError
from isthmus.frontends.tflite import load
from isthmus.frontends.tflite.integer_arithmetic import sigmoid_table, tanh_table

RNG = np.random.default_rng(11)
TANH = 4


def weights(*dims: int, scale: float, low: int = -127, high: int = 128, type: str = "i8") -> T:
    return T(type, dims, RNG.integers(low, high, dims), scale)


def svdf(is_float: bool, state: str = "i16") -> bytes:
    """Three outputs, each of two filters over six features and four steps."""
    batch, features, memory, rank = 2, 6, 4, 2
    filters = 3 * rank
    if is_float:
        shapes = ((filters, features), (filters, memory), (3,))
        constants = [T("f32", dims, RNG.standard_normal(dims).astype(np.float32)) for dims in shapes]
        ends = T("f32", (batch, features)), T("f32", (batch, filters * memory), variable=True), T("f32", (batch, 3))
    else:
        state_scale, time_scale = (2e-4, 3e-5) if state == "i16" else (0.05, 8e-3)
        limit = 20000 if state == "i16" else 127
        constants = [
            weights(filters, features, scale=0.01),
            weights(filters, memory, scale=time_scale, low=-limit, high=limit, type=state),
            T("i32", (3,), RNG.integers(-9000, 9000, 3), state_scale * time_scale),
        ]
        ends = (
            T("i8", (batch, features), None, 0.02, 4),
            T(state, (batch, filters * memory), None, state_scale, variable=True),
            T("i8", (batch, 3), None, 0.03, -7),
        )
    made = options("SVDF", rank=rank, fusedActivationFunction=1)
    tensors = [ends[0], *constants, ends[1], ends[2]]
    return model(Subgraph(tensors, [Op("SVDF", range(5), [5], made)], [0], [5]))


@pytest.mark.parametrize("is_float", [True, False])
def test_filters_over_time_keep_their_features_from_run_to_run(is_float: bool) -> None:
    content = svdf(is_float)
    ours, theirs = GraphRunner(load(content, "svdf")), LiteRtRunner(content)
    for _ in range(6):
        x = (RNG.standard_normal((2, 6)) * 40).astype(np.float32 if is_float else np.int8)
        (answer,), (reference,) = ours(x), theirs(x)
        if is_float:
            np.testing.assert_allclose(answer, reference, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(answer, reference)


def test_the_state_of_filters_is_state_memory(tmp_path: Path) -> None:
    file = tmp_path / "svdf.tflite"
    file.write_bytes(svdf(False))
    ours = GraphRunner(load(file.read_bytes(), "svdf"))
    with isthmus.Session(file) as session:
        assert session.info.memory.state_bytes >= 2 * 2 * 6 * 4
        for _ in range(3):
            x = RNG.integers(-128, 128, (2, 6)).astype(np.int8)
            (view,), (result,) = session.inputs.values(), session.outputs.values()
            view[...] = x
            session.run()
            np.testing.assert_array_equal(result, ours(x)[0])


def test_filters_with_an_8_bit_state() -> None:
    runner = GraphRunner(load(svdf(False, "i8"), "svdf"))
    assert {t.dtype.itemsize for t in runner.graph.states} == {1}
    assert runner(RNG.integers(-128, 128, (2, 6)).astype(np.int8))[0].dtype == np.int8


class Lstm:
    """An LSTM in integers, and what LiteRT Micro computes for it, in Python's integers."""

    def __init__(self, bits: int, time_major: bool = False, clip: float = 0.0) -> None:
        self.bits, self.time_major, self.clip = bits, time_major, clip
        self.batch, self.steps, self.features, self.units = 2, 5, 6, 4
        self.kind = "i8" if bits == 8 else "i16"
        self.scale, self.zero = (0.03, 3) if bits == 8 else (1.2e-4, 0)
        self.hidden_scale, self.hidden_zero = (1 / 128, -5) if bits == 8 else (1 / 32768, 0)
        self.cell_scale = 2.0**-11
        self.inputs = [weights(4, 6, scale=float(RNG.uniform(0.004, 0.012))) for _ in range(4)]
        self.recurrent = [weights(4, 4, scale=float(RNG.uniform(0.004, 0.012))) for _ in range(4)]
        self.biases = [RNG.integers(-3000, 3000, 4) for _ in range(4)]
        self.hidden = np.full((2, 4), self.hidden_zero)
        self.cell = np.zeros((2, 4), int)

    @property
    def dims(self) -> tuple[int, ...]:
        return (5, 2, 6) if self.time_major else (2, 5, 6)

    def model(self) -> bytes:
        tensors = [T(self.kind, self.dims, None, self.scale, self.zero), *self.inputs, *self.recurrent]
        bias_type = "i32" if self.bits == 8 else "i64"
        tensors += [T(bias_type, (4,), bias, 1e-4) for bias in self.biases]
        hidden = {"scale": self.hidden_scale, "zero": self.hidden_zero}
        tensors += [
            T(self.kind, (2, 4), **hidden, variable=True), T("i16", (2, 4), scale=self.cell_scale, variable=True),
            T(self.kind, (*self.dims[:2], 4), **hidden),
        ]  # fmt: skip
        operands = [*range(9), -1, -1, -1, *range(9, 13), -1, -1, 13, 14, -1, -1, -1, -1]
        made = options("UnidirectionalSequenceLSTM", fusedActivationFunction=TANH, cellClip=self.clip,
                       timeMajor=self.time_major)  # fmt: skip
        return model(Subgraph(tensors, [Op("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, [15], made)], [0], [15]))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        sequence = x if self.time_major else x.transpose(1, 0, 2)
        results = np.stack([self._step(row.astype(int)) for row in sequence])
        return (results if self.time_major else results.transpose(1, 0, 2)).astype(x.dtype)

    def _step(self, x: np.ndarray) -> np.ndarray:
        gates = []
        for of_input, of_hidden, bias in zip(self.inputs, self.recurrent, self.biases, strict=True):
            sums = (x - self.zero) @ of_input.data.T + bias, (self.hidden - self.hidden_zero) @ of_hidden.data.T
            scales = (
                np.float32(of_input.scale) * float(np.float32(self.scale)),
                np.float32(of_hidden.scale) * float(np.float32(self.hidden_scale)),
            )
            parts = [limit(self._rescaled(s, scale * 4096.0), 16) for s, scale in zip(sums, scales, strict=True)]
            gates.append(limit(parts[0] + parts[1], 16))
        enter, forget, leave = (sigmoid_table().astype(int)[gates[g] + 32768] for g in (0, 1, 3))
        new = tanh_table(-12).astype(int)[gates[2] + 32768]
        kept = limit(rescale(forget * self.cell, 2.0**-15), 16)
        added = limit(rescale(enter * new, 2.0**-30 / self.cell_scale), 16)
        self.cell = limit(kept + added, 16)
        if self.clip:
            self.cell = np.clip(self.cell, -int(self.clip / self.cell_scale), int(self.clip / self.cell_scale))
        shown = tanh_table(-11).astype(int)[self.cell + 32768]
        scale = 2.0**-30 / float(np.float32(self.hidden_scale))
        self.hidden = limit(rescale(leave * shown, scale) + self.hidden_zero, self.bits)
        return self.hidden

    def _rescaled(self, x: np.ndarray, scale: float) -> np.ndarray:
        return rescale(x, scale) if self.bits == 8 else rescale_wide(x, scale)


def limit(x: np.ndarray, bits: int) -> np.ndarray:
    return np.clip(x, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def quantized_scale(scale: float) -> tuple[int, int]:
    fraction, power = np.frexp(scale)
    return int(np.floor(fraction * 2.0**31 + 0.5)), int(power)


def rescale(x: np.ndarray, scale: float) -> np.ndarray:
    """Multiply by a 31-bit factor with rounding, then shift with rounding away from zero."""
    factor, power = quantized_scale(scale)
    high = (x.astype(object) * (1 << max(power, 0)) * factor + (1 << 30)) // (1 << 31)
    shift = max(-power, 0)
    half = (1 << shift) >> 1
    return np.where(high < 0, -((-high + half) >> shift), (high + half) >> shift).astype(int)


def rescale_wide(x: np.ndarray, scale: float) -> np.ndarray:
    """Multiply by a 15-bit factor and shift, with one rounding."""
    factor, power = quantized_scale(scale)
    reduced = (factor + (1 << 15)) >> 16
    return ((x.astype(object) * reduced + (1 << (14 - power))) >> (15 - power)).astype(int)


@pytest.mark.parametrize(("bits", "time_major", "clip"), [(8, False, 0.0), (8, True, 1.5), (16, False, 0.0)])
def test_an_lstm_in_integers(bits: int, time_major: bool, clip: float) -> None:
    reference = Lstm(bits, time_major, clip)
    ours = GraphRunner(load(reference.model(), "lstm"))
    info = np.iinfo(np.int8 if bits == 8 else np.int16)
    for _ in range(3):
        x = RNG.integers(info.min, info.max, reference.dims, info.dtype, endpoint=True)
        np.testing.assert_array_equal(ours(x)[0], reference(x))


def test_an_lstm_in_integers_keeps_its_states_in_the_engine(tmp_path: Path) -> None:
    reference = Lstm(8)
    file = tmp_path / "lstm.tflite"
    file.write_bytes(reference.model())
    with isthmus.Session(file) as session:
        (view,), (result,) = session.inputs.values(), session.outputs.values()
        for _ in range(3):
            x = RNG.integers(-128, 128, reference.dims).astype(np.int8)
            view[...] = x
            session.run()
            np.testing.assert_array_equal(result, reference(x))


def test_sigmoid_and_tanh_of_16_bits_are_close_to_the_functions() -> None:
    x = np.arange(-32768, 32768)
    for table, function in (
        (sigmoid_table(), lambda v: 1 / (1 + np.exp(-v))),
        (tanh_table(-12), np.tanh),
    ):
        assert np.abs(table / 32768 - function(x / 4096)).max() < 2**-13
    assert np.abs(tanh_table(-11) / 32768 - np.tanh(x / 2048)).max() < 2**-13
    assert np.abs(tanh_table(-14) / 32768 - np.tanh(x / 16384)).max() < 2**-12


def test_an_lstm_with_a_cell_scale_that_is_no_power_of_two_is_refused() -> None:
    lstm = Lstm(8)
    lstm.cell_scale = 0.001
    with pytest.raises(QnnError, match="power of two"):
        load(lstm.model(), "lstm")


@pytest.mark.parametrize(("source", "goal"), [("i16", "i32"), ("i32", "i16"), ("i32", "i8")])
def test_scales_change_to_and_from_32_bits_without_losing_any(source: str, goal: str) -> None:
    scales = {"i8": (0.05, -4), "i16": (1.7e-4, 0), "i32": (1e-7, 0)}
    dtype, divisor = (np.int16, 1) if source == "i16" else (np.int32, 300)
    content = single("QUANTIZE", [T(source, (1, 500), None, *scales[source])], [T(goal, (1, 500), None, *scales[goal])])
    x = (RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (1, 500)) // divisor).astype(dtype)
    np.testing.assert_array_equal(GraphRunner(load(content, "q"))(x)[0], LiteRtRunner(content)(x)[0])


def test_a_transposed_convolution_of_16_bits_takes_its_shape_at_run_time() -> None:
    dims = (1, 11, 11, 4)
    operands = [
        T("i32", (4,)), weights(4, 3, 3, 6, scale=0.01), T("i16", (1, 5, 5, 6), None, 1e-3),
        T("i64", (4,), RNG.integers(-50000, 50000, 4), 1e-5),
    ]  # fmt: skip
    made = options("TransposeConv", padding=1, strideW=2, strideH=2)
    content = single("TRANSPOSE_CONV", operands, [T("i16", dims, None, 2e-3)], made)
    x = RNG.integers(-32768, 32767, (1, 5, 5, 6)).astype(np.int16)
    shape = np.array(dims, np.int32)
    graph = load(content, "t")
    (answer,) = GraphRunner(graph)(*(x if t.dims == x.shape else shape for t in graph.inputs))
    (reference,) = LiteRtRunner(content)(shape, x)
    assert np.abs(answer.astype(int) - reference).max() <= 1


@pytest.mark.parametrize("backend", ["cpu", "htp", "lpai"])
@pytest.mark.parametrize(("type", "zero"), [("i8", -3), ("u8", 130)])
@pytest.mark.parametrize(
    ("scale", "result_zero"), [(1 / 32768, 0), (1 / 65536, -32768), (1 / 30000, 7)], ids=["half", "whole", "other"]
)
def test_softmax_of_bytes_with_a_result_of_16_bits_has_the_bits_of_litert(
    tmp_path: Path, backend: str, type: str, zero: int, scale: float, result_zero: int
) -> None:
    dtype = np.int8 if type == "i8" else np.uint8
    limits = np.iinfo(dtype)
    for beta, shape in ((1.0, (7, 113)), (0.5, (1, 2, 3, 10)), (2.0, (256,)), (1.0, (5, 1))):
        ends = T(type, shape, None, 0.07, zero), T("i16", shape, None, scale, result_zero)
        content = single("SOFTMAX", [ends[0]], [ends[1]], options("Softmax", beta=beta))
        (tmp_path / "softmax.tflite").write_bytes(content)
        theirs, random = LiteRtRunner(content), np.random.default_rng(len(shape))
        with isthmus.Session(tmp_path / "softmax.tflite", backend=backend) as session:
            (name,) = session.inputs
            for part in (limits.max, 20):
                # Equal elements make quotients that are exactly halfway between two results.
                x = random.integers(limits.min, limits.min + part, shape).astype(dtype)
                (answer,), (reference,) = session.run({name: x}).values(), theirs(x)
                assert answer.dtype == np.int16
                np.testing.assert_array_equal(answer, reference)


@pytest.mark.parametrize("backend", ["cpu", "htp"])
@pytest.mark.parametrize(("adj_x", "adj_y"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_product_of_bytes_with_a_result_of_32_bits_has_the_bits_of_litert(
    tmp_path: Path, backend: str, adj_x: bool, adj_y: bool
) -> None:
    shapes = (2, 5, 4) if adj_x else (2, 4, 5), (2, 3, 5) if adj_y else (2, 5, 3)
    operands = [T("i8", shape, None, 0.05, zero) for shape, zero in zip(shapes, (3, -4), strict=True)]
    made = options("BatchMatMul", adjX=adj_x, adjY=adj_y)
    content = single("BATCH_MATMUL", operands, [T("i32", (2, 4, 3), None, 0.0025)], made)
    (tmp_path / "product.tflite").write_bytes(content)
    inputs = [RNG.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    with isthmus.Session(tmp_path / "product.tflite", backend=backend) as session:
        (answer,) = session.run(dict(zip(session.inputs, inputs, strict=True))).values()
    np.testing.assert_array_equal(answer, LiteRtRunner(content)(*inputs)[0])
