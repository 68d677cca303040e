"""Instructions are written by the names of their words, and nothing else passes."""

from dataclasses import replace

import numpy as np
import pytest

from isthmus import QnnError
from isthmus.engine.native.lowering.emitter import Emitter
from isthmus.engine.native.program import ABSENT, Operand
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.target import portable
from isthmus.engine.native.words import Count, Number, Numbers, OffsetTable, ReadOperand, Real, Signature, Write
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.prepare.schedule import Place, Pool

SCRATCH, CONSTANT = Operand.at(Pool.SCRATCH, 64), Operand.at(Pool.CONSTANT, 128)
SCALED = Signature(
    "tests:scaled",
    (
        Write("y", "4 * count"),
        ReadOperand("x", "4 * count"),
        Number("count", 1, 99),
        Real("factor"),
        Count("rank"),
        Numbers("dims", "rank", 1),
        Numbers("strides", "rank"),
        OffsetTable("table", "count", absent="True"),
    ),
)
GIVEN = {
    "y": SCRATCH, "x": CONSTANT, "count": 7, "factor": 0.5, "dims": [2, 3], "strides": [4, 8], "table": ABSENT,
}  # fmt: skip


def test_words_are_in_the_declared_order_whatever_the_order_of_the_call() -> None:
    words = SCALED.encode(dict(reversed(GIVEN.items())))
    half = int(np.float64(0.5).view(np.int64))
    assert words == [SCRATCH, CONSTANT, 7, half, 2, 2, 3, 4, 8, 0]
    values, end = SCALED.decode([-1, *words], 1)
    assert values == GIVEN | {"rank": 2}
    assert end == len(words) + 1


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"x": None}, "word 'x' is missing"),
        ({"z": 1}, "no word 'z'"),
        ({"x": 7}, "'x' is 7, not an operand"),
        ({"x": ABSENT}, "'x' is absent"),
        ({"y": CONSTANT}, "'y' is written, but is among the constants"),
        ({"count": SCRATCH}, "not an integer"),
        ({"count": 1.0}, "not an integer"),
        ({"count": 100}, "'count' is 100, not from 1 to 99"),
        ({"factor": 1}, "'factor' is 1, not a float"),
        ({"dims": [2]}, "list 'strides' has 2 numbers"),
        ({"dims": [0, 3]}, "not all from 1"),
        ({"table": SCRATCH}, "names memory, but is not a constant"),
    ],
)
def test_a_word_that_is_missing_unknown_or_of_another_kind_is_refused(change, reported) -> None:
    given = {name: value for name, value in (GIVEN | change).items() if value is not None}
    with pytest.raises(QnnError, match=reported):
        SCALED.encode(given)


def test_an_operand_is_at_an_offset_in_bytes_into_its_tensor() -> None:
    def tensor(kind: TensorType, data: np.ndarray | None = None) -> Tensor:
        return Tensor(kind.name, kind, DataType.FLOAT_32, (8,), None, data)

    x, held = tensor(TensorType.NATIVE), tensor(TensorType.STATIC, np.arange(8, dtype=np.float32))
    emitter = Emitter(portable(), 1, {x: Place(Pool.SCRATCH, 64)})
    emitter.constant(np.zeros(3, np.float32))
    first = emitter.at(held)
    assert first > Operand.at(Pool.CONSTANT, 0), "behind another"
    assert (emitter.at(held, 12), emitter.at(held, 12).pool) == (first + 12, Pool.CONSTANT)
    assert (emitter.at(x), emitter.at(x, 12)) == (Operand.at(Pool.SCRATCH, 64), Operand.at(Pool.SCRATCH, 76))
    assert emitter.at(None, 12) == ABSENT


def test_an_emitter_writes_only_declared_kernels() -> None:
    emitter = Emitter(portable(), 1, {})
    emitter.emit("movement:fill.4", value=1, elements=2, destination=SCRATCH)
    assert emitter.words == [SCRATCH, 2, 1]
    with pytest.raises(QnnError, match="no such kernel is declared"):
        emitter.emit("movement:fill.3", value=1, elements=2, destination=SCRATCH)


@pytest.mark.parametrize(
    "words",
    [
        (SCALED.words[1], SCALED.words[0], *SCALED.words[2:]),
        (Write("x", "4 * count"), ReadOperand("y", "4 * count"), *SCALED.words[2:]),
        (Write("y", "8 * count"), *SCALED.words[1:]),
        SCALED.words[:-1],
    ],
    ids=["exchanged", "renamed", "another extent", "one less"],
)
def test_another_order_name_or_extent_is_another_declaration(words) -> None:
    assert replace(SCALED, words=words).digest != SCALED.digest


def test_limits_may_change_while_the_declaration_stays() -> None:
    words = tuple(Number("count", 1, 50) if word.name == "count" else word for word in SCALED.words)
    assert replace(SCALED, words=words, rules=("count < 9",)).digest == SCALED.digest


def test_each_declaration_has_a_hash_of_its_own() -> None:
    signatures = set(KERNELS.values())
    assert len({signature.digest for signature in signatures}) == len(signatures)


def test_numbers_with_the_same_limits_are_declared_together() -> None:
    assert Number.each("height width", 1, 9) == (Number("height", 1, 9), Number("width", 1, 9))
