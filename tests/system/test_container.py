"""A container gives back what was put into it, as views; and whatever is damaged or forged is refused with a code."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.containers import START, with_header

from isthmus import Code, QnnError
from isthmus.backends.gpu import binary as gpu_binary
from isthmus.backends.seam import binary
from isthmus.engine.native import serialization
from isthmus.frontends.composed import serialization as composed_serialization
from isthmus.prepare import serialization as schedule_serialization
from isthmus.system import container
from isthmus.system.container import ContainerFormat

HASHED = ContainerFormat(
    b"TESTTEST", 7, 64, "test file", Code.COMMON_LOADING_BINARIES, Code.COMMON_INCOMPATIBLE_BINARIES, True
)
PLAIN = ContainerFormat(
    b"TESTTEST", 7, 4096, "test file", Code.COMMON_LOADING_BINARIES, Code.COMMON_INCOMPATIBLE_BINARIES, False
)
FORMATS = (
    HASHED, PLAIN, binary.FORMAT, gpu_binary.FORMAT, serialization.FORMAT, schedule_serialization.FORMAT,
    composed_serialization.FORMAT,
)  # fmt: skip
HEADER = {"name": "a", "numbers": [1, 2.5, None]}
SECTIONS = {"first": b"one", "empty": b"", "second": bytes(range(200)), "last": b"z"}


def packed(form, header=HEADER, sections=SECTIONS):
    return b"".join(form.pack(header, sections))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.magic.decode()}-{form.alignment}")
def test_header_and_sections_are_read_as_aligned_views(form) -> None:
    content = packed(form)
    header, sections = form.unpack(content)
    assert header == HEADER
    assert {name: bytes(section) for name, section in sections.items()} == SECTIONS
    start = np.frombuffer(content, np.uint8).ctypes.data
    for section in sections.values():
        assert section.obj is content
        assert section.readonly
        assert len(section) == 0 or (np.frombuffer(section, np.uint8).ctypes.data - start) % form.alignment == 0


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.magic.decode()}-{form.alignment}")
def test_another_version_is_refused_in_one_line_that_names_both(form) -> None:
    content = bytearray(packed(form))
    struct.pack_into("<I", content, 8, form.version - 1)
    rule = f"it was written by format version {form.version - 1}, this version reads {form.version}"
    with pytest.raises(QnnError, match=rule) as refusal:
        form.unpack(content)
    assert (refusal.value.code, refusal.value.hint) == (form.other_version, "Generate it again.")
    assert "\n" not in str(refusal.value)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_or_a_missing_or_longer_end_is_always_found(data) -> None:
    form = data.draw(st.sampled_from([HASHED, binary.FORMAT]))
    # Sections of formats that hash the header alone have checksums of their own.
    content = packed(form, sections=SECTIONS if form.is_hashed else dict.fromkeys(SECTIONS, b""))
    damaged = bytearray(content)
    where = data.draw(
        st.one_of(st.integers(0, 200), st.integers(0, len(content) - 1)).filter(lambda at: at < len(content))
    )
    match data.draw(st.sampled_from(["flip", "cut", "extend"])):
        case "flip":
            damaged[where] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del damaged[where:]
        case "extend":
            damaged += bytes(where + 1)
    with pytest.raises(QnnError) as refusal:
        form.unpack(damaged)
    assert refusal.value.code in (form.damaged, form.other_version)


ANYTHING = [0, 1, 3, 64, 200, 1 << 31, 1 << 62, 1 << 64, -1, 0.5, True, None, "x", [], [1], {}]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_forged_header_is_refused_or_describes_sections_inside_the_file(data) -> None:
    form = data.draw(st.sampled_from([HASHED, PLAIN]))
    body = packed(form)[START:].partition(b"}}")[2]
    sizes = st.dictionaries(st.sampled_from([*SECTIONS, "more"]), st.sampled_from(ANYTHING))
    text = json.dumps(
        data.draw(st.sampled_from(ANYTHING) | sizes | st.fixed_dictionaries({"sections": sizes}))
    ).encode()
    changed = with_header(form, text, body)
    try:
        _, sections = form.unpack(changed)
    except QnnError:
        return
    assert sum(map(len, sections.values())) < len(changed)
    assert all(section.obj is changed for section in sections.values())


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"[" * 100_000, b"\xff", b"1" * 5000, b'{"sections": [1]}'])
def test_a_header_of_another_form_is_refused(text) -> None:
    with pytest.raises(QnnError, match="its header is not well-formed"):
        PLAIN.unpack(with_header(PLAIN, text))


@pytest.mark.parametrize("size", [-1, 1.0, True, "1", None, [1], 1 << 70])
def test_a_size_that_is_no_integer_in_range_is_refused(size) -> None:
    with pytest.raises(QnnError, match="is not a number from 0 to"):
        PLAIN.unpack(with_header(PLAIN, json.dumps({"sections": {"a": size}}).encode()))


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        ({"first": 3, "last": 1 << 40}, "section 'last' is outside it"),
        ({"first": 3, "last": 2}, "section 'last' is outside it"),
        ({"first": 2, "last": 1}, "there are bytes before section 'last' that belong to nothing"),
        ({"first": 3}, "there are unused bytes at its end"),
        ({}, "there are unused bytes at its end"),
    ],
)
def test_every_byte_belongs_to_a_section_or_is_zero(sizes, rule) -> None:
    content = packed(PLAIN, {}, {"first": b"abc", "last": b"d"})
    text = json.dumps({"sections": sizes}).encode().ljust(100)
    with pytest.raises(QnnError, match=rule):
        PLAIN.unpack(with_header(PLAIN, text, bytes(PLAIN.alignment - START - len(text)) + content[PLAIN.alignment :]))


@pytest.mark.parametrize(
    ("length", "rule"), [(1 << 31, "longer than itself"), (10**4, "longer than itself"), (5, "wrong")]
)
def test_the_length_of_a_header_is_checked_before_it_is_read(length, rule) -> None:
    content = bytearray(packed(HASHED))
    struct.pack_into("<I", content, 12, length)
    with pytest.raises(QnnError, match=rule):
        HASHED.unpack(content)


def test_a_header_that_could_not_be_read_is_not_written(monkeypatch) -> None:
    monkeypatch.setattr(container, "MAX_HEADER", 100)
    with pytest.raises(QnnError, match=r"its header would take [0-9]+ bytes, more than 100"):
        HASHED.pack({"name": "x" * 100}, {})


def test_only_the_checksum_is_left_out_where_it_is_not_wanted() -> None:
    damaged = bytearray(packed(HASHED))
    damaged[-1] ^= 1
    assert bytes(HASHED.unpack(damaged, verify=False)[1]["last"]) == b"{"
    with pytest.raises(QnnError, match="checksum"):
        HASHED.unpack(damaged)
    damaged = bytearray(packed(PLAIN))
    damaged[60] ^= 1
    with pytest.raises(QnnError, match="checksum"):
        PLAIN.unpack(damaged, verify=False)


@pytest.mark.parametrize("content", [b"", b"TEST", b"OTHERTHING" * 10])
def test_something_else_is_refused_as_such(content) -> None:
    with pytest.raises(QnnError, match="it does not begin as one does"):
        HASHED.unpack(content)


def test_the_place_of_the_first_section_is_known_from_the_header_alone() -> None:
    content = packed(PLAIN)
    asked: list[tuple[int, int]] = []

    def read(offset: int, nbytes: int) -> bytes:
        asked.append((offset, nbytes))
        return content[offset : offset + nbytes]

    begin, end = PLAIN.first_section(read)
    assert (begin, content[begin:end]) == (4096, b"one")
    assert max(offset + nbytes for offset, nbytes in asked) < 4096
    for damaged in (b"", content[:50], b"X" + content[1:], content[:56] + b"?" + content[57:]):
        assert PLAIN.first_section(lambda offset, nbytes, it=damaged: it[offset : offset + nbytes]) == (0, 0)
