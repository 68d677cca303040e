"""A processor's features are read where this process's own kernel tells them, and by LLVM where it does not."""

import subprocess
import sys

import pytest

from isthmus.engine.native import processor
from isthmus.engine.native.target import TARGETS

CORTEX_A53, NEOVERSE_N1 = 0x8FB, 0x119FFB
NEOVERSE = {"neon", "lse", "fullfp16", "rdm", "rcpc", "dotprod"}
X86_FILE = (
    "processor\t: 0\nvendor_id\t: Genuine\nflags\t\t: fpu avx2 bmi1 abm avx512_vnni avx_vnni amx_tile\nbugs\t\t:\n"
)
ARM_FILE = "processor\t: 0\nBogoMIPS\t: 100.00\nFeatures\t: fp asimd asimddp\nCPU part\t: 0xd0c\n"


@pytest.fixture
def fresh():
    """Features are found once in a process; here they are found again, and again afterwards."""
    processor.features.cache_clear()
    yield
    processor.features.cache_clear()


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (CORTEX_A53, {"neon"}),
        (NEOVERSE_N1, NEOVERSE),
        (NEOVERSE_N1 & ~(1 << 9), NEOVERSE - {"fullfp16"}),  # half floats in vectors alone
        (0, set()),
    ],
)
def test_features_of_an_arm_processor_are_read_from_the_auxiliary_vector(bits, expected) -> None:
    assert processor.from_auxiliary_vector({16: bits}.__getitem__) == expected


def test_the_auxiliary_vector_of_this_process_can_be_read() -> None:
    assert processor.from_auxiliary_vector() is not None


def test_features_of_an_x86_processor_are_read_from_cpuinfo_and_get_llvms_names(tmp_path) -> None:
    (tmp_path / "cpuinfo").write_text(X86_FILE)
    found = processor.from_cpuinfo(tmp_path / "cpuinfo")
    assert found == {"fpu", "avx2", "bmi", "lzcnt", "avx512vnni", "avxvnni", "amx-tile"}


@pytest.mark.parametrize("content", [None, "", ARM_FILE], ids=["absent", "empty", "of an arm machine"])
def test_a_cpuinfo_without_an_x86_processor_differs_from_one_without_features(tmp_path, content) -> None:
    file = tmp_path / "cpuinfo"
    if content is not None:
        file.write_text(content)
    assert processor.from_cpuinfo(file) is None


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64", "riscv64"])
def test_llvm_detects_features_where_the_kernel_does_not_list_them(monkeypatch, fresh, architecture) -> None:
    monkeypatch.setattr(processor, "architecture", lambda: architecture)
    monkeypatch.setattr(processor, "_READERS", {"x86_64": lambda: None, "aarch64": lambda: None})
    monkeypatch.setattr(processor, "from_llvm", lambda: frozenset(("asked",)))
    assert processor.features() == {"asked"}


@pytest.mark.skipif(processor.architecture() != "x86_64", reason="LLVM asks the processor itself on x86 only")
def test_the_kernel_and_llvm_agree_on_every_feature_that_targets_of_this_machine_need() -> None:
    here = [target for target in TARGETS if target.triple.startswith(processor.architecture())]
    needed = {name for target in here for name in target.needs}
    assert processor.features() & needed == processor.from_llvm() & needed


def test_choosing_a_target_loads_no_llvm_where_the_kernel_lists_features() -> None:
    script = "import sys; from isthmus.engine.native.target import host; host(); assert 'llvmlite' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(("there", "expected"), [(True, {"avx2"}), (False, {"avx2", "avx512f", "avxvnni"})])
def test_valgrind_has_no_instructions_beyond_avx2(monkeypatch, fresh, there, expected) -> None:
    monkeypatch.setattr(processor, "architecture", lambda: "x86_64")
    monkeypatch.setattr(processor, "_READERS", {"x86_64": lambda: frozenset({"avx2", "avx512f", "avxvnni"})})
    monkeypatch.setattr(processor, "on_valgrind", lambda: there)
    assert processor.features() == expected
