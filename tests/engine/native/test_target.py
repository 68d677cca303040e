"""The best code path that the machine has is picked; each path compiles for its target, runnable here or not."""

import pytest
from support.suites import long

from engine.native.harness import compile_apart
from isthmus.engine.native import target as targets
from isthmus.engine.native.target import TARGETS, by_name

HASWELL = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe")
SKYLAKE = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
NEOVERSE = ("neon", "dotprod", "fullfp16", "rdm", "lse", "rcpc")


@pytest.fixture
def on_machine(monkeypatch):
    """Pretends that the tests run on a processor of an architecture with some features."""

    def pretend(architecture, features, permission=True):
        monkeypatch.setattr(targets.processor, "architecture", lambda: architecture)
        monkeypatch.setattr(targets.processor, "features", lambda: frozenset(features))
        monkeypatch.setattr(targets.processor, "may_use_matrix_registers", lambda: permission)
        monkeypatch.delenv("ISTHMUS_TARGET", raising=False)
        targets.host.cache_clear()

    yield pretend
    targets.host.cache_clear()


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ((), "portable"),
        (HASWELL, "avx2"),
        ((*HASWELL, "avxvnni"), "avx2-vnni"),
        ((*HASWELL, *SKYLAKE), "avx512"),
        ((*HASWELL, *SKYLAKE, "avx512vnni"), "avx512"),
        (by_name("avx512-vnni").needs, "avx512-vnni"),
        (by_name("avx512-amx").needs, "avx512-amx"),
    ],
)
def test_the_best_target_of_an_x86_machine_is_picked(on_machine, features, expected) -> None:
    on_machine("x86_64", features)
    assert targets.host().name == expected


def test_matrix_registers_are_used_only_where_the_system_permits_it(on_machine, monkeypatch) -> None:
    on_machine("x86_64", by_name("avx512-amx").needs, permission=False)
    assert targets.host().name == "avx512-vnni"
    monkeypatch.setenv("ISTHMUS_TARGET", "avx512-amx")
    targets.host.cache_clear()
    with pytest.raises(targets.QnnError, match="cannot run its code"):
        targets.host()


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (NEOVERSE, "neon-dot"),
        (("neon", "dotprod"), "neon"),
        (("neon",), "neon"),
        ((), "portable-arm"),
    ],
)
def test_the_best_target_of_an_arm_machine_is_picked(on_machine, features, expected) -> None:
    on_machine("aarch64", features)
    assert targets.host().name == expected


def test_a_target_the_machine_lacks_is_refused(on_machine, monkeypatch) -> None:
    on_machine("x86_64", ())
    monkeypatch.setenv("ISTHMUS_TARGET", "avx512-vnni")
    with pytest.raises(targets.QnnError, match="cannot run its code"):
        targets.host()


@pytest.mark.parametrize("target", [t.name for t in TARGETS])
def test_the_executor_compiles_for_every_target(target) -> None:
    assert isinstance(compile_apart("executor:run", by_name(target)), bytes)


def mnemonics(kernel, target):
    """The instructions that a kernel becomes."""
    assembly = compile_apart(kernel, by_name(target), assembly=True)
    return {line.split()[0] for line in assembly.splitlines() if line.strip()}


@pytest.mark.parametrize(("target", "addition"), [("neon", {"ldaxr", "stlxr"}), ("neon-dot", {"ldaddal"})])
def test_shared_words_are_ordered_on_arm_where_other_accesses_are_not(target, addition) -> None:
    found = mnemonics("executor:work", target) | mnemonics("executor:run", target)
    assert found >= {"ldar", "stlr"} | addition
    assert "ldapr" not in found, "it may overtake a store that came before it"


@pytest.mark.parametrize(("target", "instruction"), [("portable", "pause"), ("neon", "isb"), ("neon-dot", "isb")])
@pytest.mark.parametrize("kernel", ["executor:run", "executor:work", "doorbell:call", "doorbell:serve"])
def test_a_processor_rests_while_it_spins(kernel, target, instruction) -> None:
    assert instruction in mnemonics(kernel, target)


@pytest.mark.parametrize(("form", "instruction"), [("u8", "tdpbusd"), ("s8", "tdpbssd")])
def test_blocks_are_multiplied_by_matrix_registers_which_are_released_afterwards(form, instruction) -> None:
    found = mnemonics(f"quantized_convolution:convolve_blocks.{form}", "avx512-amx")
    assert found >= {"ldtilecfg", instruction, "tilerelease"}
    others = mnemonics(f"quantized_convolution:convolve_blocks.{form}", "avx512-vnni")
    assert "vpdpbusd" in others
    assert not any(name.startswith(("tdp", "tile")) for name in others)


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        ("avx512-vnni", "vpdpbusd"),
        long("avx512", "vpmaddwd"),
        long("avx2-vnni", "vpdpbusd"),
        ("avx2", "vpmaddwd"),
        ("neon-dot", "sdot"),
        long("neon", "mla"),
        long("portable", "pmaddwd"),
    ],
)
def test_eight_bit_products_use_the_targets_instruction(target, instruction) -> None:
    assembly = compile_apart("quantized_convolution:convolve.4x2", by_name(target), assembly=True)
    assert instruction in assembly
