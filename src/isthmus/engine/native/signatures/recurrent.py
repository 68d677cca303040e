"""Signatures of the kernels in `kernels.recurrent`. Gates follow one another, each padded to whole panels of units."""

from __future__ import annotations

from isthmus.engine.native.words import Number, ReadOperand, Real, Signature, Word, Write, flag

_WIDTH = {"width": "vectors * lanes", "padded_units": "padded(units, width)"}


def _common(gates: str, recurrent_gates: str, features: str) -> tuple[Word, ...]:
    """Return the words that LSTM and GRU have in common; the parameters are expressions.

    Parameters
    ----------
    gates, recurrent_gates
        The number of gates, and of those that `panels` multiplies by the state of the step before.
    features
        The number of features that a step passes on to the next one.
    """
    return (
        ReadOperand("input_gates", f"steps * batch * {gates} * padded_units * 4"),
        ReadOperand("panels", f"{recurrent_gates} * padded_units * ({features} + 1) * 4"),
        ReadOperand("initial", f"batch * {features} * 4"),
        Write("gates", f"batch * {gates} * padded_units * 4"),
        Write("out", f"steps * batch * {features} * 4"),
        Write("last", f"batch * {features} * 4", absent="True"),
        *Number.each("steps batch units", 1),
        *Number.each("first count"),
        flag("reverse"),
        Number("phases", 1, 3),
    )


LSTM = Signature(
    "recurrent:lstm",
    (
        *_common("gate_count", "gate_count", "features"),
        ReadOperand("initial_cell", "batch * units * 4"),
        Write("cell", "batch * units * 4"),
        Write("last_cell", "batch * units * 4", absent="True"),
        # For the input, the forget and the output gate.
        ReadOperand("peepholes", "3 * units * 4", absent="True"),
        flag("coupled"),
        Real("cell_clip"),
        Write("hidden", "batch * units * 4 if projected else 0"),
        Number("projected"),
        ReadOperand("projection", "ceil(projected, width) * (units + 1) * width * 4", absent="projected == 0"),
        Real("out_clip"),
    ),
    variants={str(vectors): {"vectors": vectors} for vectors in (1, 2, 4)},
    where={**_WIDTH, "features": "projected or units", "gate_count": "3 if coupled else 4"},
    rules=("first + count <= steps",),
)
GRU = Signature(
    "recurrent:gru",
    (
        *_common("3", "(3 if linear else 2)", "units"),
        Write("reset_hidden", "0 if linear else batch * units * 4"),
        ReadOperand("new_panels", "padded_units * (units + 1) * 4", absent="linear"),
    ),
    variants={
        f"{'l' * linear}{vectors}": {"vectors": vectors, "linear": linear} for vectors in (1, 2, 4) for linear in (0, 1)
    },
    where=_WIDTH,
    rules=("first + count <= steps",),
)
