"""PoCL's description of a processor that its compiler does not know gets a name that it knows."""

import ctypes
from pathlib import Path

import pytest

from isthmus.backends.gpu.runtime.pocl import name_processor

V2 = "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma abm movbe"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


def described(name: bytes) -> tuple[ctypes.Array, ctypes.Array]:
    """Return a description with a pointer to a name at 640, between other words; and the name."""
    words, text = (ctypes.c_void_p * 256)(), ctypes.create_string_buffer(name, 16)
    words[3], words[80], words[81] = 12345, ctypes.addressof(text), ctypes.addressof(words)
    return words, text


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (V4, b"x86-64-v4"),
        (V3, b"x86-64-v3"),
        (V4.replace("fma", ""), b"x86-64-v2"),
        ("avx avx2", b"x86-64"),
    ],
)
def test_an_unknown_processor_is_named_by_the_instructions_that_it_has(tmp_path: Path, flags: str, name: bytes) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: fpu sse2 {flags}\nbugs\t\t:\n")
    words, text = described(b"generic")
    name_processor(ctypes.addressof(words), cpuinfo)
    assert ctypes.string_at(words[80]) == name
    assert text.value == b"generic"
    assert [words[3], words[81]] == [12345, ctypes.addressof(words)]


@pytest.mark.parametrize("name", [b"znver3", b"generic-rv64", b""])
def test_a_processor_with_another_name_keeps_it(name: bytes) -> None:
    words, text = described(name)
    before = bytes(words)
    name_processor(ctypes.addressof(words))
    assert bytes(words) == before
    assert text.value == name


def test_an_address_that_is_no_memory_is_left_alone() -> None:
    name_processor(8)
