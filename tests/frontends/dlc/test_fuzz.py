"""Damaged DLCs are refused with a QnnError, quickly; nothing else ever happens."""

import random

import numpy as np
import pytest
from support.dlc_graphs import convolution, fully_connected, single
from support.dlc_write import OLD, OLDER, RAW, dlc, dlc3

from frontends.dlc.test_files import ENCODED, FAMILIES
from frontends.dlc.test_version3 import BIAS, MOVED, NET, WEIGHTS
from isthmus.errors import QnnError
from isthmus.frontends.composed.build import ComposedBuilder
from isthmus.frontends.dlc import parse
from isthmus.frontends.dlc.archive import read
from isthmus.frontends.dlc.operations import translate
from isthmus.graph import DataType

FILES = [
    *(dlc([convolution()], layout) for layout in (RAW, OLD, OLDER)),
    *(dlc([single(op, out=y.shape, dtype=DataType.of(y.dtype))]) for op, y in FAMILIES.values()),
    *(dlc([fully_connected(weights)]) for weights, _, _ in ENCODED.values()),
    dlc3(NET, {"fc": {"weights": WEIGHTS, "bias": BIAS}}),
    dlc3(MOVED),
]


def loads_or_refuses(data: bytes) -> None:
    try:
        for graph in parse(data, "damaged").graphs:
            assert ComposedBuilder(translate(graph, clean_names=True), graph.name or "net").build().finalized
    except QnnError:
        return


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A file with some bytes changed, mostly where its tables are, and at places where numbers stand."""
    changed = bytearray(data)
    tables = [content for name, content in read(memoryview(changed), "f").entries.items() if name.startswith("model")]
    for _ in range(rng.randint(1, 6)):
        content = rng.choice(tables) if rng.random() < 0.9 else memoryview(changed)
        if not len(content):
            continue
        at = rng.randrange(len(content))
        if rng.random() < 0.5 and len(content) >= 4:
            at = min(at & ~3, len(content) - 4)
            value = rng.choice((0, 1, 2, 4, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, rng.randrange(len(content))))
            content[at : at + 4] = value.to_bytes(4, "little")
        else:
            content[at] = rng.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_load_or_are_refused(seed) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        loads_or_refuses(damaged(rng.choice(FILES), rng))


def test_every_truncation_is_handled() -> None:
    data = FILES[0]
    for size in range(0, len(data), 7):
        loads_or_refuses(data[:size])


def test_infinite_nan_and_huge_numbers_load_or_are_refused() -> None:
    """Every 52nd place of a file is overwritten, and with it some parameters and scales."""
    rng = random.Random(9)
    for layout in (RAW, OLD):
        data = dlc([convolution()], layout)
        for value in (np.nan, np.inf, -np.inf, 1e38, -0.0):
            for at in range(0, len(data) - 8, 52):
                changed = bytearray(data)
                wide = rng.random() < 0.5
                changed[at : at + 8] = (np.float64(value) if wide else np.full(2, value, np.float32)).tobytes()
                loads_or_refuses(bytes(changed))
