"""The section with the arrays of a file's graphs: equal ones are there once, and nothing outside it is read."""

import hashlib

import numpy as np
import pytest

from isthmus import Code, QnnError
from isthmus.system.container import ContainerFormat
from isthmus.system.contents import SECTION, Contents, StoredContents, pack_graphs, shared_bytes, unpack_graphs

FORM = ContainerFormat(
    b"EXAMPLES", 1, 64, "example", Code.COMMON_GENERAL, Code.COMMON_INCOMPATIBLE_BINARIES, is_hashed=False
)
WEIGHTS, OTHER = np.arange(100, dtype=np.float32), np.arange(7, dtype=np.uint8)


@pytest.mark.parametrize(("shares", "nbytes"), [(True, 400 + 7), (False, 400 + 8 + 400)])
def test_equal_arrays_are_stored_once_if_graphs_share_them(shares, nbytes) -> None:
    contents = Contents(shares)
    first, second = contents.of("a"), contents.of("b")
    begin = first.add(WEIGHTS)
    assert first.add(WEIGHTS.copy()) == begin, "twice in one graph"
    assert first.add(OTHER) == 400
    assert (second.add(WEIGHTS.view(np.uint8)) == begin) is shares, "whatever its type"
    assert len(contents.join()) == nbytes
    alone, shared = shared_bytes(contents.arrays)
    assert (alone, shared) == (({"a": 7, "b": 0}, 400) if shares else ({"a": 407, "b": 400}, 0))


def test_arrays_are_read_where_they_were_written_and_counted_for_their_graph() -> None:
    contents = Contents()
    places = [contents.of("a").add(array, 64) for array in (OTHER, WEIGHTS)]
    stored = StoredContents(memoryview(contents.join()))
    assert stored.array(places[0], np.uint8, 7, 64).tolist() == OTHER.tolist()
    assert np.array_equal(stored.array(places[1], np.float32, 100, 64), WEIGHTS)
    assert stored.arrays == {0: 7, 64: 400}


MORE = np.arange(33, dtype=np.uint8)


def added(contents: Contents, unit: int) -> list[list[int]]:
    """Add arrays of three graphs, of which the first two share one and the last two another."""
    return [
        [contents.of(graph).add(array, unit) for array in arrays]
        for graph, arrays in {"a": (OTHER, WEIGHTS), "b": (WEIGHTS, MORE), "c": (MORE, OTHER[:3], OTHER[:0])}.items()
    ]


@pytest.mark.parametrize("unit", [8, 64])
def test_arrays_that_graphs_share_may_come_first(unit) -> None:
    known = Contents(stores=False)
    added(known, unit)
    contents = Contents(first=known)
    places = added(contents, unit)
    common = 400 + -400 % unit + 33 + -33 % unit
    assert contents.common_bytes == common
    assert places[0][1] == places[1][0] == 0
    assert places[1][1] == places[2][0] == 400 + -400 % unit
    assert min(places[0][0], places[2][1]) == common
    stored = StoredContents(memoryview(contents.join()))
    for graph, arrays in zip(places, ((OTHER, WEIGHTS), (WEIGHTS, MORE), (MORE, OTHER[:3], OTHER[:0])), strict=True):
        for place, array in zip(graph, arrays, strict=True):
            assert np.array_equal(stored.array(place, array.dtype, array.size, unit), array)
    assert Contents().common_bytes == Contents(first=Contents(stores=False)).common_bytes == 0


def test_a_section_may_be_in_pieces() -> None:
    whole = memoryview(bytes(range(240)))
    stored = StoredContents(whole[:64], whole[64:64], whole[64:])
    assert [stored.array(offset, np.uint8, 8).tolist()[0] for offset in (0, 56, 64, 232)] == [0, 56, 64, 232]
    assert stored.array(240, np.uint8, 0).size == 0
    with pytest.raises(ValueError, match="smaller than requested size"):
        stored.array(56, np.uint8, 9)
    with pytest.raises(ValueError, match="outside its section"):
        stored.array(232, np.uint8, 9)


@pytest.mark.parametrize(
    ("offset", "count"),
    [
        (0, 103),
        (8, 101),
        (408, 1),
        (416, 1),
        (-8, 1),
        (4, 1),
        (1 << 62, 1),
        (0, 1 << 61),
        (None, 1),
        (True, 1),
        ("0", 1),
    ],
)
def test_what_is_outside_the_section_or_not_aligned_is_refused(offset, count) -> None:
    with pytest.raises(ValueError, match=r"outside its section|is not a number"):
        StoredContents(memoryview(bytes(408))).array(offset, np.float32, count)


def test_a_wrong_bit_of_an_array_or_a_missing_section_is_found() -> None:
    contents = Contents()
    contents.of("a").add(WEIGHTS)
    good = pack_graphs(FORM, {"unit": "m"}, contents, {"a": b"graph"})
    header, arrays, graphs = unpack_graphs(FORM, good)
    assert (header["unit"], bytes(arrays), {name: bytes(each) for name, each in graphs.items()}) == (
        "m",
        WEIGHTS.tobytes(),
        {"a": b"graph"},
    )
    bad = bytearray(good)
    bad[good.index(WEIGHTS.tobytes()) + 40] ^= 1
    with pytest.raises(QnnError, match="the checksum of its arrays is wrong"):
        unpack_graphs(FORM, bytes(bad))
    for header, sections in (
        ({"arrays": hashlib.sha256(b"").hexdigest()}, {"a": b""}),
        ({}, {SECTION: b""}),
        ({"arrays": 5}, {SECTION: b""}),
    ):
        with pytest.raises(QnnError, match=r"no section with the arrays|checksum of its arrays"):
            unpack_graphs(FORM, b"".join(FORM.pack(header, sections)))
