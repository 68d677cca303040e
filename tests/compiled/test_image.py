"""Object files are loaded wherever the process has room for them."""

import ctypes
import mmap
import os
import subprocess
import sys

import pytest

GIB = 1 << 30
PAGE = mmap.PAGESIZE
CONSTANTS = """
@constants = internal constant [4 x double] [double 0.5, double 1.5, double 2.5, double 3.5]
define double @pick(i64 %i) {
  %at = getelementptr [4 x double], [4 x double]* @constants, i64 0, i64 %i
  %found = load double, double* %at
  ret double %found
}
"""


def crowd(reserved=8 * GIB):
    """Leave one page for the next mapping; whatever comes then is far below it."""
    memory = ctypes.CDLL(None, use_errno=True)
    memory.mmap.restype = ctypes.c_size_t
    memory.mmap.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    memory.munmap.argtypes = (ctypes.c_size_t, ctypes.c_size_t)

    def taken(size):
        private, anonymous, no_reserve = 2, 32, 0x4000
        return memory.mmap(0, size, 0, private | anonymous | no_reserve, -1, 0)

    block = taken(reserved)
    for size in (GIB, 16 << 20, 1 << 20, 16 * PAGE, PAGE):
        while taken(size) > block:
            pass
    memory.munmap(block + reserved - PAGE, PAGE)


def load_in_a_crowd():
    """Load code with constants where these have no room beside it."""
    import llvmlite.binding as llvm

    from isthmus.compiled import image

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    code = machine.emit_object(llvm.parse_assembly(CONSTANTS))
    image.prepare()
    crowd()
    found = image.load([code], ["pick"])
    pick = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(found["pick"])
    assert [pick(i) for i in range(4)] == [0.5, 1.5, 2.5, 3.5]


@pytest.mark.skipif(sys.maxsize < 1 << 32, reason="an address space of 32 bits has no far places")
def test_code_and_its_constants_lie_together_where_the_address_space_is_crowded() -> None:
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, __file__], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


if __name__ == "__main__":
    load_in_a_crowd()
