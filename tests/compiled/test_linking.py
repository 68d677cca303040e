"""Object files become one block of code that runs wherever it is placed."""

import contextlib
import ctypes
import random
import struct
import tracemalloc
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from isthmus.compiled import image
from isthmus.compiled.linking import link
from isthmus.errors import Code, QnnError

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
CALLS = """
declare float @powf(float, float)
declare i64 @other(i64)
define float @power(float %x) {
  %y = call float @powf(float %x, float 3.0)
  ret float %y
}
define i64 @twice_other(i64 %x) {
  %y = call i64 @other(i64 %x)
  %z = add i64 %y, %y
  ret i64 %z
}
"""
OTHER = "define i64 @other(i64 %x) {\n %y = add i64 %x, 5\n ret i64 %y\n}"
TABLE = (
    "define i64 @chosen(i64 %x) {\n%p = alloca i64\nswitch i64 %x, label %none [\n"
    + "\n".join(f"i64 {i}, label %l{i}" for i in range(8))
    + "\n]\nnone:\nret i64 -1\n"
    + "\n".join(f"l{i}:\nstore volatile i64 {i}, ptr %p\nret i64 {i * i * 7 + 3}" for i in range(8))
    + "\n}"
)
CONSTANT = "define <2 x double> @constant() {\n ret <2 x double> <double 1.25, double 3.5>\n}"
VARIABLE = "@count = global i64 1\ndefine i64 @get() {\n %y = load i64, ptr @count\n ret i64 %y\n}"
FOREIGN = "@environ = external global ptr\ndefine ptr @get() {\n %y = load ptr, ptr @environ\n ret ptr %y\n}"
UNKNOWN = "declare void @isthmus_no_such()\ndefine void @get() {\n call void @isthmus_no_such()\n ret void\n}"


def compiled(text, triple=None):
    """Compile LLVM's IR to an object file as the compilers of this package do."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple or llvm.get_default_triple())
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    return machine.emit_object(module)


def function(text, name, result, *arguments):
    return ctypes.CFUNCTYPE(result, *arguments)(image.load([compiled(text)], [name])[name])


def test_code_calls_the_c_library_and_other_files() -> None:
    found = image.load([compiled(CALLS), compiled(OTHER)], ["power", "twice_other"])
    assert ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(found["power"])(2.5) == 2.5**3
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(found["twice_other"])(16) == 42


def test_a_switch_finds_its_branches() -> None:
    chosen = function(TABLE, "chosen", ctypes.c_int64, ctypes.c_int64)
    assert [chosen(i) for i in range(9)] == [*(i * i * 7 + 3 for i in range(8)), -1]


def test_loaded_code_cannot_be_written() -> None:
    address = image.load([compiled(OTHER)], ["other"])["other"]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        first, end = (int(number, 16) for number in span.split("-"))
        if first <= address < end:
            assert rights == "r-xp"
            return
    pytest.fail("the code is not mapped")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (VARIABLE, "variables"),
        (FOREIGN, "a relocation of kind"),
        (UNKNOWN, "isthmus_no_such"),
    ],
    ids=["variable", "variable of another library", "unknown function"],
)
def test_what_compiled_code_never_needs_is_refused(text, rule) -> None:
    with pytest.raises(QnnError, match=rule) as refusal:
        image.load([compiled(text)], ["get"])
    assert refusal.value.code is Code.COMMON_LOADING_BINARIES


@pytest.mark.parametrize("damage", ["half", "start", "other"])
def test_a_damaged_file_is_refused(damage) -> None:
    code = compiled(CALLS)
    damaged = {"half": code[: len(code) // 2], "start": code[:3], "other": b"x" * len(code)}[damage]
    with pytest.raises(QnnError) as refusal:
        image.load([damaged], ["power"])
    assert refusal.value.code is Code.COMMON_LOADING_BINARIES


def test_references_of_arm64_lead_to_constants_and_stubs() -> None:
    """Decodes the instructions: the page and the offset of a constant, and the distance of a call."""
    block, exports = link([compiled(OTHER, ARM), compiled(CONSTANT, ARM)], lambda name: 0)
    at = exports["constant"]
    page, load = struct.unpack_from("<II", block, at)
    pages = (page >> 5 & 0x7FFFF) << 2 | page >> 29 & 3
    assert page & 0x9F000000 == 0x90000000  # adrp
    place = at // 4096 * 4096 + pages * 4096 + (load >> 10 & 0xFFF) * 16
    assert struct.unpack_from("<dd", block, place) == (1.25, 3.5)

    block, exports = link([compiled(CALLS, ARM), compiled(OTHER, ARM)], lambda name: 0x123456789ABC)
    calls = []
    for at in range(0, exports["other"], 4):
        (word,) = struct.unpack_from("<I", block, at)
        if word >> 26 in (0b100101, 0b000101):  # bl, b
            distance = (word & 0x03FFFFFF) * 4
            calls.append(at + distance)
    stub = calls[0]
    assert struct.unpack_from("<IIQ", block, stub) == (0x58000050, 0xD61F0200, 0x123456789ABC)  # ldr x16, 8; br x16
    assert calls[1] == exports["other"]


def test_damaged_headers_are_refused_in_bounded_memory() -> None:
    sound = [compiled(text) for text in (CALLS, OTHER, TABLE, CONSTANT)]
    numbers = (0, 1, 8, 1 << 12, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 64) - 1)
    rng = random.Random(5)
    tracemalloc.start()
    for _ in range(1500):
        code = bytearray(rng.choice(sound))
        first, (count,) = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<H", code, 60)
        for _ in range(rng.choice((1, 2, 4))):
            field = first + 64 * rng.randrange(count) + rng.choice((4, 8, 24, 32, 40, 44, 48))
            bits = 64 if field % 8 == 0 else 32
            struct.pack_into("<Q" if bits == 64 else "<I", code, field, rng.choice(numbers) % (1 << bits))
        with contextlib.suppress(QnnError):
            link([bytes(code)], lambda name: 1)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("kind", [2, 4], ids=["symbols", "relocations"])
def test_tables_that_occur_twice_are_refused(kind) -> None:
    code = compiled(CALLS)
    first, (count,) = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<H", code, 60)
    headers = [code[first + 64 * i : first + 64 * (i + 1)] for i in range(count)]
    again = next(header for header in headers if struct.unpack_from("<I", header, 4)[0] == kind)
    doubled = bytearray(code[:first] + b"".join([*headers, again]))
    struct.pack_into("<H", doubled, 60, count + 1)
    with pytest.raises(QnnError, match="two tables of"):
        link([bytes(doubled)], lambda name: 1)
