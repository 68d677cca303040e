"""The best code path that the machine has is picked; each path compiles for its target, runnable here or not."""

import pytest
from harness import compile_apart

from isthmus.engine.native import target as targets
from isthmus.engine.native.target import TARGETS, by_name

HASWELL = ("avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe")
SKYLAKE = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
NEOVERSE = ("asimddp", "asimdhp", "asimdrdm", "atomics", "fphp", "lrcpc")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), "portable"),
        (HASWELL, "avx2"),
        ((*HASWELL, "avx_vnni"), "avx2-vnni"),
        ((*HASWELL, *SKYLAKE), "avx512"),
        ((*HASWELL, *SKYLAKE, "avx512_vnni"), "avx512"),
        (by_name("avx512-vnni").needs, "avx512-vnni"),
    ],
)
def test_the_best_target_of_an_x86_machine_is_picked(monkeypatch, flags, expected):
    monkeypatch.setattr(targets, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("ISTHMUS_TARGET", raising=False)
    targets.host.cache_clear()
    try:
        assert targets.host().name == expected
    finally:
        targets.host.cache_clear()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [((*NEOVERSE, "asimd"), "neon-dot"), (("asimd", "asimddp"), "neon"), (("asimd",), "neon")],
)
def test_the_best_target_of_an_arm_machine_is_picked(monkeypatch, flags, expected):
    monkeypatch.setattr(targets, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(targets.platform, "machine", lambda: "aarch64")
    monkeypatch.delenv("ISTHMUS_TARGET", raising=False)
    targets.host.cache_clear()
    try:
        assert targets.host().name == expected
    finally:
        targets.host.cache_clear()


def test_a_target_the_machine_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(targets, "cpu_flags", lambda: frozenset())
    monkeypatch.setenv("ISTHMUS_TARGET", "avx512-vnni")
    targets.host.cache_clear()
    try:
        with pytest.raises(targets.QnnError, match="cannot run its code"):
            targets.host()
    finally:
        targets.host.cache_clear()


@pytest.mark.parametrize("target", [t.name for t in TARGETS])
def test_the_executor_compiles_for_every_target(target):
    assert isinstance(compile_apart("executor:run", by_name(target)), bytes)


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        ("avx512-vnni", "vpdpbusd"),
        ("avx512", "vpmaddwd"),
        ("avx2-vnni", "vpdpbusd"),
        ("avx2", "vpmaddwd"),
        ("neon-dot", "sdot"),
        ("neon", "mla"),
        ("portable", "pmaddwd"),
    ],
)
def test_eight_bit_products_use_the_targets_instruction(target, instruction):
    assembly = compile_apart("quantized_convolution:convolve.4x2", by_name(target), assembly=True)
    assert instruction in assembly
