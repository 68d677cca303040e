"""A program goes to bytes and back unchanged; bytes that are damaged or hostile are refused."""

import struct
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus import Code, QnnError
from isthmus.engine.native.program import Program
from isthmus.engine.native.serialization import FORMAT, from_bytes, to_bytes
from isthmus.engine.native.signatures import KERNELS
from isthmus.graph import DataType, Quantization, TensorInfo


def small_program() -> Program:
    quantization = Quantization.per_tensor(0.5, 3)
    x = TensorInfo("x", DataType.SFIXED_POINT_8, (1, 4), quantization, 4)
    s = TensorInfo("s", DataType.FLOAT_32, (2,), None, 8)
    return Program(
        name="g", target="portable", threads=2, kernels=("quantized_elementwise:lookup", "movement:fill.4"),
        table=np.array([[0, 0, 1], [1, 4, 2]]), words=np.array([4 << 48, 5 << 48, 4, 1 << 48, 3 << 48, 4, 1 << 62]),
        labels=("first", "second"), constants=np.arange(256, dtype=np.uint8),
        inputs=(x,), outputs=(x,), states=(s,), state_offsets=(8,), state_initial=np.arange(16, dtype=np.uint8),
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
    """It would be compiled: a small file could name them all."""
    known = small_program()
    extra = next(kernel for kernel in KERNELS if kernel not in known.kernels)
    content = to_bytes(replace(known, kernels=(*known.kernels, extra)))
    with pytest.raises(QnnError, match=f"no instruction uses its kernel '{extra}'") as refusal:
        from_bytes(content)
    assert refusal.value.code is Code.COMMON_LOADING_BINARIES
