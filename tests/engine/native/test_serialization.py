"""A program goes to bytes and back unchanged; bytes that are damaged or hostile are refused."""

import struct
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus import Code, QnnError
from isthmus.engine.native.program import MAX_SEGMENTS, Program
from isthmus.engine.native.serialization import FORMAT, from_bytes, segment_name, to_bytes
from isthmus.engine.native.signatures import KERNELS
from isthmus.graph import DataType, Quantization, TensorInfo
from isthmus.system.contents import Contents, StoredContents


def small_program() -> Program:
    quantization = Quantization.per_tensor(0.5, 3)
    x = TensorInfo("x", DataType.SFIXED_POINT_8, (1, 4), quantization, 4)
    y = TensorInfo("y", DataType.SFIXED_POINT_8, (1, 4), quantization, 4)
    s = TensorInfo("s", DataType.FLOAT_32, (2,), None, 8)
    return Program(
        name="g", target="portable", threads=2, kernels=("quantized_elementwise:lookup", "movement:fill.4"),
        table=np.array([[0, 0, 1], [1, 4, 2]]), words=np.array([4 << 48, 5 << 48, 4, 1 << 48, 3 << 48, 4, 1 << 62]),
        labels=("first", "second"), constants=np.arange(256, dtype=np.uint8),
        inputs=(x,), outputs=(y,), states=(s,), state_offsets=(8,), state_initial=np.arange(16, dtype=np.uint8),
        scratch_bytes=1234, alignment=64,
    )  # fmt: skip


def test_a_program_survives_the_way_to_bytes_and_back() -> None:
    program = small_program()
    copy = from_bytes(to_bytes(program))
    for field in fields(Program):
        mine, theirs = getattr(program, field.name), getattr(copy, field.name)
        assert np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs, field.name


def test_arrays_are_views_of_the_bytes() -> None:
    content = to_bytes(small_program())
    constants = from_bytes(content).constants
    assert not constants.flags.owndata


def test_another_version_is_refused_as_such() -> None:
    content = bytearray(to_bytes(small_program()))
    content[8:12] = struct.pack("<I", 99)
    with pytest.raises(QnnError) as refusal:
        from_bytes(bytes(content))
    assert refusal.value.code is Code.COMMON_INCOMPATIBLE_BINARIES


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_are_always_refused(data) -> None:
    content = bytearray(to_bytes(small_program()))
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    with pytest.raises(QnnError):
        from_bytes(bytes(content))


def forged(change) -> bytes:
    """A program whose header was changed by someone who knows how to make the checksum right."""
    header, sections = FORMAT.unpack(to_bytes(small_program()))
    change(header, sections)
    return b"".join(FORMAT.pack(header, sections))


@pytest.mark.parametrize(
    "change",
    [
        lambda h, s: s.update(words=s["words"][:9]),
        lambda h, s: s.update(words=s["words"][:8]),
        lambda h, s: s.pop("words"),
        lambda h, s: s.update(table=b""),
        lambda h, s: h.update(kernels=["movement:fill.4"]),
        lambda h, s: h.update(declarations=[]),
        lambda h, s: h.update(scratch_bytes=-1),
        lambda h, s: h.update(target="z80"),
        lambda h, s: h.update(state_offsets=[9]),
        lambda h, s: h.update(labels=[]),
        lambda h, s: h.update(threads=0),
        lambda h, s: h.update(alignment=0),
        lambda h, s: h.update(alignment=48),
        lambda h, s: h.pop("target"),
        lambda h, s: h["inputs"][0].update(dims=[-1]),
        lambda h, s: h["inputs"][0].update(dtype="NO"),
        lambda h, s: h["inputs"][0].update(quantization=[[-1.0], [3], None]),
    ],
)
def test_a_forged_header_is_refused(change) -> None:
    with pytest.raises(QnnError):
        from_bytes(forged(change))


SEGMENT = np.arange(20_000).astype(np.uint8)


def test_segments_are_stored_in_the_program_shared_or_kept_apart() -> None:
    program = replace(small_program(), segments=(SEGMENT, SEGMENT[:100].copy()))
    assert program.constant_bytes == 256 + 20_100
    [alone, other] = from_bytes(to_bytes(program)).segments
    assert np.array_equal(alone, SEGMENT)
    assert np.array_equal(other, SEGMENT[:100])
    contents = Contents()
    blocks = [to_bytes(program, contents.of(name)) for name in ("a", "b")]
    section = memoryview(contents.join())
    assert len(section) < 20_000 + 64 + 100, "both graphs have the same bytes"
    for block in blocks:
        assert np.array_equal(from_bytes(block, shared=StoredContents(section)).segments[0], SEGMENT)
    apart = {segment_name(each): each for each in program.segments}
    block = to_bytes(program, apart=True)
    assert len(block) < 4000
    assert from_bytes(block, apart=apart).segments[0] is SEGMENT
    for wrong in ({}, dict.fromkeys(apart, SEGMENT[:50])):
        with pytest.raises(QnnError, match="a segment is not there"):
            from_bytes(block, apart=wrong)


@pytest.mark.parametrize(
    "segments",
    [
        [[0, 20_001]], [[64, 20_000]], [[-64, 64]], [[32, 64]], [["00", 20_000]], [[0, -1]], [[0]], None,
        [[1 << 62, 64]], [[0, 1 << 62]], [[0, 64]] * (MAX_SEGMENTS + 1), [[0, None]], [[None, 64]], "ab",
    ],
)  # fmt: skip
def test_segments_outside_their_section_are_refused(segments) -> None:
    header, sections = FORMAT.unpack(to_bytes(replace(small_program(), segments=(SEGMENT,))))
    header["segments"] = segments
    with pytest.raises(QnnError) as refusal:
        from_bytes(b"".join(FORMAT.pack(header, sections)))
    assert refusal.value.code is Code.COMMON_LOADING_BINARIES


@pytest.mark.parametrize(
    ("word", "number", "reported"),
    [(3, 1, "in no pool"), (1, 0, "is written"), (3, 0, "takes bytes")],
    ids=["a segment that does not exist", "written", "read beyond its end"],
)
def test_instructions_stay_within_segments_and_only_read_them(word, number, reported) -> None:
    program = replace(small_program(), segments=(SEGMENT[:100],))
    words = program.words.copy()
    # The first instruction writes 4 bytes at word 1, and reads 256 at word 3.
    words[word] = (program.first_segment + number) << 48
    with pytest.raises(QnnError, match=reported):
        from_bytes(to_bytes(replace(program, words=words)))


@pytest.mark.parametrize("number", [0, 1])
def test_a_kernel_that_is_named_twice_is_refused(number) -> None:
    """Who looks a kernel up by its name would find the first, and not what the instructions do."""
    program = small_program()
    table = program.table.copy()
    table[table[:, 0] == number, 0] = len(program.kernels)
    twice = replace(program, kernels=(*program.kernels, program.kernels[number]), table=table)
    with pytest.raises(QnnError, match="the same name") as refusal:
        from_bytes(to_bytes(twice))
    assert refusal.value.code is Code.COMMON_LOADING_BINARIES


def test_a_kernel_that_no_instruction_uses_is_refused() -> None:
    """A small file could name all kernels, and they would be compiled."""
    known = small_program()
    extra = next(kernel for kernel in KERNELS if kernel not in known.kernels)
    content = to_bytes(replace(known, kernels=(*known.kernels, extra)))
    with pytest.raises(QnnError, match=f"no instruction uses its kernel '{extra}'") as refusal:
        from_bytes(content)
    assert refusal.value.code is Code.COMMON_LOADING_BINARIES
