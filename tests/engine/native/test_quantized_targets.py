"""8-bit vector kernels become code for instruction sets that this machine cannot run."""

from __future__ import annotations

import pytest
from support.suites import sampled

from engine.native.harness import compile_apart
from isthmus.engine.native.target import TARGETS, Target, runnable

KERNELS = (
    "quantized_convolution:convolve.5x2", "quantized_depthwise:convolve", "quantized_binary:add.s8",
    "quantized_binary:multiply.u8", "quantized_elementwise:lookup",
)  # fmt: skip
DOT_PRODUCTS = {"vnni": "vpdpbusd", "avxvnni": "vpdpbusd", "sdot": "sdot"}
ABSENT = [target for target in TARGETS if not runnable(target)]


@pytest.mark.parametrize("target", sampled(ABSENT, 2), ids=lambda target: target.name)
@pytest.mark.parametrize("kernel", sampled(KERNELS, 4))
def test_a_kernel_becomes_code_for_a_machine_that_is_not_here(kernel: str, target: Target) -> None:
    assembly = compile_apart(kernel, target, assembly=True)
    assert isinstance(assembly, str)
    if kernel.endswith(("5x2", "depthwise:convolve")) and target.dot in DOT_PRODUCTS:
        assert DOT_PRODUCTS[target.dot] in assembly
