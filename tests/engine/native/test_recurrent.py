"""Lstm and Gru agree with the step-by-step reference, and threads do not change a bit of the result."""

from __future__ import annotations

import numpy as np
import pytest
from support.suites import long

from engine.native import harness
from engine.native.harness import Operand, Result, check, static
from isthmus.errors import QnnError

pytestmark = harness.ON_TARGETS
_generator = np.random.default_rng(13)
_CLOSE = {"rtol": 1e-5, "atol": 2e-6}


def _random(*dims: int, scale: float = 1.0) -> np.ndarray:
    return (_generator.standard_normal(dims) * scale).astype(np.float32)


def _weights(*dims: int) -> Operand:
    return static(_random(*dims, scale=0.3))


def _lstm(
    steps: int, batch: int, features: int, units: int, own_input_gate: bool = True, peepholes: bool = False,
    projected: int = 0,
) -> list[np.ndarray | Operand | None]:  # fmt: skip
    hidden = projected or units
    inputs: list[np.ndarray | Operand | None] = [_random(steps, batch, features)]
    inputs += [_weights(units, features) for _ in range(3)]
    inputs += [_weights(units, hidden) for _ in range(3)]
    inputs += [_weights(units) for _ in range(3)]
    inputs += [_random(batch, hidden), _random(batch, units), None, None, None, None]
    inputs += [_weights(units, features), _weights(units, hidden)] if own_input_gate else [None, None]
    inputs += [_weights(units) if peepholes and (i or own_input_gate) else None for i in range(3)]
    inputs += [_weights(units) if own_input_gate else None]
    inputs += [_weights(hidden, units), _weights(hidden)] if projected else [None, None]
    return inputs


LSTMS = {
    "plain": ((5, 1, 7, 20), {}, {}),
    "batch with peepholes": ((4, 3, 7, 33), {"peepholes": True}, {}),
    "coupled gates, clipped cells": ((3, 2, 5, 40), {"own_input_gate": False}, {"cell_clip_threshold": 0.5}),
    "reversed with projection": ((4, 1, 5, 70), {"projected": 24}, {"direction": 1, "output_clip_threshold": 0.4}),
    "large enough to be divided": ((3, 1, 8, 128), {}, {}),
    "divided, with projection and batch": ((2, 2, 8, 128), {"projected": 100}, {}),
    "one step": ((1, 1, 9, 64), {}, {}),
}


@pytest.mark.parametrize("case", LSTMS)
def test_an_lstm_matches_the_reference(case: str) -> None:
    sizes, options, params = LSTMS[case]
    check("Lstm", _lstm(*sizes, **options), params, [Result()] * 3, **_CLOSE)


def test_an_lstm_may_yield_only_its_sequence_or_take_a_single_step() -> None:
    check("Lstm", _lstm(3, 1, 5, 12), {}, [Result()], **_CLOSE)
    inputs = _lstm(1, 2, 5, 12)
    assert isinstance(inputs[0], np.ndarray)
    inputs[0] = inputs[0][0]
    check("Lstm", inputs, {}, [Result()] * 3, **_CLOSE)


def _gru(steps: int, batch: int, features: int, units: int, initial: bool) -> list[np.ndarray | Operand | None]:
    inputs: list[np.ndarray | Operand | None] = [_random(steps, batch, features)]
    inputs += [_weights(units, features) for _ in range(3)]
    inputs += [_weights(units, units) for _ in range(3)]
    inputs += [_weights(units) for _ in range(6)]
    return [*inputs, _random(1, batch, units) if initial else None]


GRUS = {
    "plain": ((5, 1, 7, 20), True, 0),
    "reversed batch": ((4, 3, 6, 37), True, 1),
    "from zero": ((4, 5, 6, 37), False, 0),
    "large enough to be divided": ((3, 1, 6, 150), True, 0),
}


@pytest.mark.parametrize("linear", [0, long(1)])
@pytest.mark.parametrize("case", GRUS)
def test_a_gru_matches_the_reference(case: str, linear: int) -> None:
    sizes, initial, direction = GRUS[case]
    params = {"direction": direction, "linear_before_reset": linear}
    check("Gru", _gru(*sizes, initial), params, [Result()] * 2, **_CLOSE)


def test_weights_known_only_at_run_time_are_refused_by_name() -> None:
    inputs = _gru(2, 1, 3, 4, True)
    inputs[1] = _random(4, 3)
    step, _ = harness.make_step("Gru", inputs, {}, [Result()] * 2)
    with pytest.raises(QnnError, match=r"'tested' \(Gru\).*in\[1\]"):
        harness.bind(step)
