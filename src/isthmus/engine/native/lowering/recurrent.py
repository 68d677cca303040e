"""Lstm and Gru in float32: one product for the input's share of all gates, then the steps.

Gates lie one after the other, each padded to whole panels of units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.matmul import MatrixProduct, emit_product
from isthmus.engine.native.lowering.panels import pack_panels
from isthmus.engine.native.program import ABSENT, Operand
from isthmus.engine.native.target import Target
from isthmus.graph import DataType, Tensor
from isthmus.prepare.geometry.matrices import Matrices
from isthmus.prepare.schedule import Step

_WORTH_DIVIDING = 128 << 10
"""Bytes of recurrent weights from which several threads gain more than they lose by meeting at every step."""


@dataclass(frozen=True)
class RecurrentLayer:
    """The sizes of a recurrent layer and how its units are cut."""

    steps: int
    batch: int
    inputs: int
    units: int
    hidden: int
    gates: int
    vectors: int
    lanes: int

    @staticmethod
    def of(step: Step, target: Target) -> RecurrentLayer:
        """The layer of a step."""
        source, weights, recurrent = step.inputs[0], step.inputs[1], step.inputs[4]
        assert source is not None
        assert weights is not None
        assert recurrent is not None
        steps, batch, inputs = source.dims if source.rank == 3 else (1, *source.dims)
        units = weights.dims[0]
        blocks = -(-units // target.lanes)
        # The widest panel that pads little.
        vectors = next(v for v in (4, 2, 1) if -(-blocks // v) * v * 16 <= blocks * 17)
        gates = 3 if step.op == "Gru" or _tensor(step, 16) is None else 4
        return RecurrentLayer(steps, batch, inputs, units, recurrent.dims[1], gates, vectors, target.lanes)

    @property
    def width(self) -> int:
        """Units of a panel."""
        return self.vectors * self.lanes

    @property
    def padded(self) -> int:
        """Units with padding."""
        return -(-self.units // self.width) * self.width

    @property
    def gate_bytes(self) -> int:
        """Bytes of all gates of one batch element."""
        return self.gates * self.padded * 4

    def input_product(self, target: Target) -> MatrixProduct:
        """The product that gives the input's share of all gates."""
        one = np.zeros(1, np.int64)
        columns = self.gates * self.padded
        left = Matrices(one, self.steps * self.batch, self.inputs, self.inputs, 1)
        return MatrixProduct.of(left, Matrices(one, self.inputs, columns, columns, 1), target)

    def places(self) -> dict[str, int]:
        """Offsets in the work space; "end" is its size."""
        sizes = {
            "input_gates": self.steps * self.batch * self.gate_bytes,
            "gates": self.batch * self.gate_bytes,
            "cell": self.batch * self.units * 4,
            "hidden": self.batch * self.units * 4,
        }
        offsets, end = {}, 0
        for name, size in sizes.items():
            offsets[name] = end
            end += -(-size // 64) * 64
        return {**offsets, "end": end}


def _tensor(step: Step, index: int) -> Tensor | None:
    return step.inputs[index] if index < len(step.inputs) else None


def _constant(step: Step, index: int) -> np.ndarray | None:
    tensor = _tensor(step, index)
    return None if tensor is None else tensor.data


def _gate_matrix(step: Step, indices: list[int], padded: int) -> np.ndarray:
    """Weights [units, features] of gates as one matrix [features, gates * padded]."""
    parts = []
    for index in indices:
        weights = _constant(step, index)
        assert weights is not None
        parts.append(np.pad(weights.T, ((0, 0), (0, padded - weights.shape[0]))))
    return np.concatenate(parts, axis=1)


def _gate_bias(step: Step, groups: list[tuple[int, ...]], units: int, padded: int) -> np.ndarray:
    """For each gate the sum of its biases, padded, one after the other."""
    total = np.zeros((len(groups), padded), np.float32)
    for row, indices in zip(total, groups, strict=True):
        for index in indices:
            bias = _constant(step, index)
            if bias is not None:
                row[:units] += bias
    return total.reshape(-1)


def _refuses(step: Step, initial: tuple[int, ...], together: tuple[int, ...]) -> str | None:
    """Operands are floats, all but in[0] and those in `initial` constants; `together` are all given or all absent."""
    tensors = [t for t in (*step.inputs, *step.outputs) if t is not None]
    if any(t.dtype is not DataType.FLOAT_32 for t in tensors):
        return "only FLOAT_32 operands are supported"
    if step.clamp is not None:
        return "it cannot be fused with an activation"
    if step.outputs[0].elements == 0:
        return "a sequence without steps is not supported"
    for index, tensor in enumerate(step.inputs):
        if tensor is not None and index not in (0, *initial) and not tensor.is_static:
            return f"in[{index}], weights or bias, must be a constant"
    given = [index for index in together if _tensor(step, index) is not None]
    missing = [index for index in together if index not in given]
    return f"in[{missing[0]}] is missing" if given and missing else None


def _emit_inputs(step: Step, e: Emitter, layer: RecurrentLayer, matrix: np.ndarray, bias: np.ndarray) -> None:
    product = layer.input_product(e.target)
    panels = e.constant(pack_panels(matrix, bias, product.tile.width(e.target)))
    emit_product(e, product, e.at(step.inputs[0]), panels, e.work(layer.places()["input_gates"]), None)


def _emit_steps(e: Emitter, kernel: str, words: dict[str, int | float], layer: RecurrentLayer, phases: int) -> None:
    """Emit all steps as one instruction, or one for each step and phase where threads share them."""

    def emit(first: int, count: int, phase: int) -> None:
        e.emit(kernel, **words, first=first, count=count, phases=phase)

    if e.threads == 1 or layer.gates * layer.padded * layer.hidden * 4 < _WORTH_DIVIDING:
        emit(0, layer.steps, phases)
        return
    for step in range(layer.steps):
        for phase in (1, 2):
            if phase & phases:
                emit(step, 1, phase)


def _outputs(step: Step, e: Emitter, count: int) -> list[Operand]:
    return [e.at(step.outputs[i]) if i < len(step.outputs) else ABSENT for i in range(count)]


def _initial(step: Step, e: Emitter, index: int, elements: int) -> Operand:
    tensor = _tensor(step, index)
    return e.constant(np.zeros(elements, np.float32)) if tensor is None else e.at(tensor)


def _emit_lstm(step: Step, e: Emitter) -> None:
    layer = RecurrentLayer.of(step, e.target)
    padded, width = layer.padded, layer.width
    coupled = layer.gates == 3
    matrix = _gate_matrix(step, [1, 2, 3] if coupled else [1, 2, 3, 16], padded)
    bias = _gate_bias(step, [(7,), (8,), (9,)] if coupled else [(7,), (8,), (9,), (21,)], layer.units, padded)
    recurrent = _gate_matrix(step, [4, 5, 6] if coupled else [4, 5, 6, 17], padded)
    peepholes = [_constant(step, index) for index in (18, 19, 20)]
    none = np.zeros(layer.units, np.float32)
    projection = _constant(step, 22)
    _emit_inputs(step, e, layer, matrix, bias)
    places = layer.places()
    out, last_cell, last = _outputs(step, e, 3)

    def limit(name: str) -> float:
        value = float(step.params[name])
        return value if value > 0 else np.inf

    words: dict[str, int | float] = {
        "input_gates": e.work(places["input_gates"]),
        "panels": e.constant(pack_panels(recurrent, None, width)),
        "initial": _initial(step, e, 10, layer.batch * layer.hidden),
        "gates": e.work(places["gates"]),
        "out": out,
        "last": last,
        "steps": layer.steps,
        "batch": layer.batch,
        "units": layer.units,
        "reverse": int(step.params["direction"]),
        "initial_cell": _initial(step, e, 11, layer.batch * layer.units),
        "cell": e.work(places["cell"]),
        "last_cell": last_cell,
        "peepholes": ABSENT
        if all(p is None for p in peepholes)
        else e.constant(np.concatenate([none if p is None else p for p in peepholes])),
        "coupled": int(coupled),
        "cell_clip": limit("cell_clip_threshold"),
        "hidden": e.work(places["hidden"]),
        "projected": 0 if projection is None else layer.hidden,
        "projection": ABSENT
        if projection is None
        else e.constant(pack_panels(projection.T, _constant(step, 23), width)),
        "out_clip": limit("output_clip_threshold"),
    }
    _emit_steps(e, f"recurrent:lstm.{layer.vectors}", words, layer, 1 if projection is None else 3)


def _emit_gru(step: Step, e: Emitter) -> None:
    layer = RecurrentLayer.of(step, e.target)
    padded, width, units = layer.padded, layer.width, layer.units
    linear = bool(step.params["linear_before_reset"])
    new_bias = (9,) if linear else (9, 12)
    bias = _gate_bias(step, [(7, 10), (8, 11), new_bias], units, padded)
    _emit_inputs(step, e, layer, _gate_matrix(step, [1, 2, 3], padded), bias)
    if linear:
        direct = pack_panels(
            _gate_matrix(step, [4, 5, 6], padded), _gate_bias(step, [(), (), (12,)], units, padded), width
        )
        new = ABSENT
    else:
        direct = pack_panels(_gate_matrix(step, [4, 5], padded), None, width)
        new = e.constant(pack_panels(_gate_matrix(step, [6], padded), None, width))
    places = layer.places()
    out, last = _outputs(step, e, 2)
    words: dict[str, int | float] = {
        "input_gates": e.work(places["input_gates"]),
        "panels": e.constant(direct),
        "initial": _initial(step, e, 13, layer.batch * units),
        "gates": e.work(places["gates"]),
        "out": out,
        "last": last,
        "steps": layer.steps,
        "batch": layer.batch,
        "units": units,
        "reverse": int(step.params["direction"]),
        "reset_hidden": e.work(places["hidden"]),
        "new_panels": new,
    }
    _emit_steps(e, f"recurrent:gru.{'l' if linear else ''}{layer.vectors}", words, layer, 1 if linear else 3)


def _work(step: Step, target: Target, threads: int) -> int:
    return RecurrentLayer.of(step, target).places()["end"]


LOWERINGS: dict[str, Lowering] = {
    "Lstm": Lowering(_emit_lstm, _work, lambda step: _refuses(step, (10, 11), (16, 17))),
    "Gru": Lowering(_emit_gru, _work, lambda step: _refuses(step, (13,), ())),
}
