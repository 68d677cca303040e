"""What lowering is told of a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.opencl_device import DEVICE

from isthmus.backends.gpu import prepare as gpu_prepare
from isthmus.backends.gpu.runtime.device import ClDevice
from isthmus.engine.native import processor

VNNI = frozenset({"avx2", "avx512vl", "avx512vnni"})


@pytest.fixture
def pocl() -> ClDevice:
    """This machine's processor as PoCL has it."""
    return replace(DEVICE, kind="cpu", platform_name="Portable Computing Language", name="pthread-a processor")


def test_a_processor_has_the_instructions_that_the_machine_has(pocl: ClDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "features", lambda: VNNI)
    assert gpu_prepare.traits(pocl).vnni
    monkeypatch.setattr(processor, "features", lambda: VNNI - {"avx512vl"})
    assert not gpu_prepare.traits(pocl).vnni


@pytest.mark.parametrize("other", [{"platform_name": "another"}, {"name": "remote-cpu"}, {"kind": "gpu"}])
def test_a_device_that_may_be_elsewhere_has_none_of_them(
    pocl: ClDevice, other: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "features", lambda: VNNI)
    assert not gpu_prepare.traits(replace(pocl, **other)).vnni
