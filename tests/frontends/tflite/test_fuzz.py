"""Damaged files are refused with a QnnError, quickly; nothing else ever happens."""

import random
from pathlib import Path

import pytest

from frontends.tflite.cases import CASES
from frontends.tflite.mutations import damaged_bytes, damaged_meaning
from frontends.tflite.test_control_flow import accumulator, branch, counted_loop, lstm
from isthmus.errors import QnnError
from isthmus.frontends.tflite import load

SMALL = [*(case.model for case in CASES), counted_loop(3), branch(True), accumulator(), lstm(True)]
REAL = [
    path
    for name in ("okay_nabu", "precise_vad", "dtln_1")
    if (path := Path(__file__).parents[3] / ".models" / f"{name}.tflite").exists()
]


def loads_or_refuses(data: bytes) -> None:
    try:
        graph = load(data, "damaged")
    except QnnError:
        return
    assert graph.finalized


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\0" * 64, b"TFL3" * 9, b"\xff" * 1000], ids=range(5))
def test_what_is_no_model_is_refused(data: bytes) -> None:
    with pytest.raises(QnnError):
        load(data, "nothing")


def test_every_truncation_of_a_small_model_is_handled() -> None:
    data = counted_loop(3)
    for size in range(0, len(data), 3):
        loads_or_refuses(data[:size])


def test_random_bytes_are_refused() -> None:
    rng = random.Random(1)
    for size in (8, 100, 5000):
        with pytest.raises(QnnError):
            load(b"\x10\0\0\0TFL3" + rng.randbytes(size), "random")


@pytest.mark.parametrize("damage", [damaged_bytes, damaged_meaning])
def test_damaged_small_models_load_or_are_refused(damage) -> None:
    rng = random.Random(2)
    for _ in range(400):
        loads_or_refuses(damage(rng.choice(SMALL), rng))


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_damaged_real_models_load_or_are_refused(path: Path) -> None:
    rng, data = random.Random(3), path.read_bytes()
    for _ in range(15):
        loads_or_refuses(damaged_bytes(data, rng))
        # The end of a file holds its tables; its beginning, mostly weights.
        tables = max(len(data) - 12_000, 0)
        loads_or_refuses(data[:tables] + damaged_bytes(data[tables:], rng))
