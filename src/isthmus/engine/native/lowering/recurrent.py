"""Lstm and Gru in float32: one product for the input's part of all gates, then the steps.

Gates are padded to whole panels of units.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.matmul import MatrixProduct, emit_product
from isthmus.engine.native.lowering.panels import pack_panels
from isthmus.engine.native.program import ABSENT, Operand
from isthmus.engine.native.target import Target
from isthmus.prepare.geometry import recurrent as geometry
from isthmus.prepare.geometry.matrices import Matrices
from isthmus.prepare.schedule import Step

# The size of recurrent weights, in bytes, from which several threads gain more than they lose by synchronising at
# every step.
_WORTH_DIVIDING = 128 << 10


@dataclass(frozen=True)
class PanelledLayer(geometry.RecurrentLayer):
    """A recurrent layer whose units are divided into panels.

    Parameters
    ----------
    vectors, lanes
        The vectors of a panel, and the units of a vector.
    """

    vectors: int
    lanes: int

    @staticmethod
    def of(step: Step, target: Target) -> PanelledLayer:
        """Divide the layer of a step into the widest panels that add at most a sixteenth of padding."""
        layer = geometry.recurrent_layer(step)
        blocks = -(-layer.units // target.lanes)
        vectors = next(v for v in (4, 2, 1) if -(-blocks // v) * v * 16 <= blocks * 17)
        return PanelledLayer(**asdict(layer), vectors=vectors, lanes=target.lanes)

    @property
    def width(self) -> int:
        """The number of units of a panel."""
        return self.vectors * self.lanes

    @property
    def padded(self) -> int:
        """The number of units with padding."""
        return -(-self.units // self.width) * self.width

    @property
    def gate_bytes(self) -> int:
        """The size in bytes of all gates of one batch element."""
        return self.gates * self.padded * 4

    def input_product(self, target: Target) -> MatrixProduct:
        """Return the product that computes the input's part of all gates."""
        one = np.zeros(1, np.int64)
        columns = self.gates * self.padded
        left = Matrices(one, self.steps * self.batch, self.inputs, self.inputs, 1)
        return MatrixProduct.of(left, Matrices(one, self.inputs, columns, columns, 1), target)

    def places(self) -> dict[str, int]:
        """Return the offsets of buffers in the work space by name; "end" is its size."""
        sizes = {
            "input_gates": self.steps * self.batch * self.gate_bytes,
            "gates": self.batch * self.gate_bytes,
            "cell": self.batch * self.units * 4,
            "hidden": self.batch * self.units * 4,
        }
        return geometry.offsets(sizes, 64)


def _refuses_lstm(step: Step) -> str | None:
    """Return why an Lstm cannot be executed, or None."""
    # Both weights of its input gate, in[16] and in[17], are optional, but only together.
    missing = [index for index in (16, 17) if geometry.optional(step, index) is None]
    return geometry.refuses_recurrent(step) or (f"in[{missing[0]}] is missing" if len(missing) == 1 else None)


def _emit_inputs(step: Step, e: Emitter, layer: PanelledLayer) -> None:
    """Emit the product that computes the input's part of all gates, for all steps at once, into work space."""
    product = layer.input_product(e.target)
    matrix, bias = geometry.input_weights(step, layer.padded), geometry.input_biases(step, layer.padded)
    panels = e.packed(pack_panels, matrix, bias, product.tile.width(e.target))
    emit_product(e, product, e.at(step.inputs[0]), panels, e.work(layer.places()["input_gates"]), None)


def _emit_steps(e: Emitter, kernel: str, words: dict[str, int | float], layer: PanelledLayer, phases: int) -> None:
    """Emit all time steps as one instruction, or one for each step and phase if threads share them.

    Parameters
    ----------
    words
        The words that all instructions have in common.
    phases
        A bit mask of the phases of a step. Phase 2 needs all results of phase 1: an LSTM's projection, or a GRU's new
        state if the reset comes before the product.
    """

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
    """Return the operands of `count` outputs; those that the step does not have are absent."""
    return [e.at(step.outputs[i]) if i < len(step.outputs) else ABSENT for i in range(count)]


def _initial(step: Step, e: Emitter, index: int, elements: int) -> Operand:
    """Return the operand of an initial state, which is zero if that input is missing."""
    tensor = geometry.optional(step, index)
    return e.constant(np.zeros(elements, np.float32)) if tensor is None else e.at(tensor)


def _common_words(step: Step, e: Emitter, layer: PanelledLayer) -> dict[str, int | float]:
    """Return the words that follow from the layer alone."""
    places, reverse = layer.places(), int(step.params["direction"])
    gates = {name: e.work(places[name]) for name in ("input_gates", "gates")}
    return {**gates, "steps": layer.steps, "batch": layer.batch, "units": layer.units, "reverse": reverse}


def _emit_lstm(step: Step, e: Emitter) -> None:
    """Emit an Lstm. The numbers are indices of its inputs in QNN's definition."""
    layer = PanelledLayer.of(step, e.target)
    width, places = layer.width, layer.places()
    recurrent = geometry.gate_matrix(step, (4, 5, 6, 17)[: layer.gates], layer.padded)
    peepholes = [geometry.constant(step, index) for index in (18, 19, 20)]
    none = np.zeros(layer.units, np.float32)
    projection = geometry.constant(step, 22)
    _emit_inputs(step, e, layer)
    out, last_cell, last = _outputs(step, e, 3)
    words: dict[str, int | float] = {
        **_common_words(step, e, layer), "panels": e.packed(pack_panels, recurrent, None, width),
        "initial": _initial(step, e, 10, layer.batch * layer.hidden), "out": out, "last": last,
        "initial_cell": _initial(step, e, 11, layer.batch * layer.units), "cell": e.work(places["cell"]),
        "last_cell": last_cell, "peepholes": ABSENT, "coupled": int(layer.is_coupled),
        "cell_clip": geometry.clip(step, "cell_clip_threshold"), "hidden": e.work(places["hidden"]), "projected": 0,
        "projection": ABSENT, "out_clip": geometry.clip(step, "output_clip_threshold"),
    }  # fmt: skip
    if any(p is not None for p in peepholes):
        words["peepholes"] = e.constant(np.concatenate([none if p is None else p for p in peepholes]))
    if projection is not None:
        words["projected"] = layer.hidden
        words["projection"] = e.packed(pack_panels, projection.T, geometry.constant(step, 23), width)
    _emit_steps(e, f"recurrent:lstm.{layer.vectors}", words, layer, 1 if projection is None else 3)


def _emit_gru(step: Step, e: Emitter) -> None:
    """Emit a Gru. If its reset gate is applied before the product, the new state needs a product of its own."""
    layer = PanelledLayer.of(step, e.target)
    padded, width = layer.padded, layer.width
    linear = bool(step.params["linear_before_reset"])
    _emit_inputs(step, e, layer)
    if linear:
        biases = geometry.gate_biases(step, ((), (), (12,)), padded)
        panels = e.packed(pack_panels, geometry.gate_matrix(step, (4, 5, 6), padded), biases, width)
        new_panels = ABSENT
    else:
        panels = e.packed(pack_panels, geometry.gate_matrix(step, (4, 5), padded), None, width)
        new_panels = e.packed(pack_panels, geometry.gate_matrix(step, (6,), padded), None, width)
    out, last = _outputs(step, e, 2)
    words: dict[str, int | float] = {
        **_common_words(step, e, layer), "panels": panels, "out": out, "last": last,
        "initial": _initial(step, e, 13, layer.batch * layer.units),
        "reset_hidden": e.work(layer.places()["hidden"]), "new_panels": new_panels,
    }  # fmt: skip
    _emit_steps(e, f"recurrent:gru.{'l' if linear else ''}{layer.vectors}", words, layer, 1 if linear else 3)


def _work(step: Step, target: Target, threads: int) -> int:
    return PanelledLayer.of(step, target).places()["end"]


LOWERINGS: dict[str, Lowering] = {
    "Lstm": Lowering(_emit_lstm, _work, _refuses_lstm),
    "Gru": Lowering(_emit_gru, _work, geometry.refuses_recurrent),
}
