"""A device of HTP: an accelerator process, and the chip that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any
from weakref import WeakValueDictionary

from isthmus.backends.accelerator.device import AcceleratorDevice
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.htp import options
from isthmus.backends.htp.chips import profile_of
from isthmus.backends.htp.spill_fill_groups import SpillFillGroup
from isthmus.backends.seam import driver as seam
from isthmus.domains import ChipProfile, profile
from isthmus.errors import Code, QnnError
from isthmus.log import Log
from isthmus.memory.integers import is_int


class HtpDevice(AcceleratorDevice):
    """A device: an accelerator process, and the chip that it stands for.

    The chip changes nothing that is executed. Binaries state it, and contexts are charged to its process domains.
    """

    configs = options.HtpDeviceConfigOption

    def __init__(
        self, soc: int, arch: int, chip: ChipProfile | None, log: Log, start: Callable[[], Accelerator]
    ) -> None:
        super().__init__("HTP device", Code.DEVICE_INVALID_HANDLE, log, start)
        self._chip = chip
        self._stated = {options.HtpDeviceConfigOption.SOC: soc, options.HtpDeviceConfigOption.ARCH: arch}
        self.groups: WeakValueDictionary[int, SpillFillGroup] = WeakValueDictionary()
        """The groups that configurations have named, by their number there."""

    def get_config(self, option: IntEnum) -> Any:
        return self._stated[options.HtpDeviceConfigOption(option)]

    def set_config(self, option: IntEnum, value: Any) -> seam.Change:
        is_known = options.is_soc if option is options.HtpDeviceConfigOption.SOC else options.is_architecture
        if not is_int(value) or not is_known(value):
            raise QnnError(Code.DEVICE_INVALID_CONFIG, f"{option.name} {value!r}", "there is none of this number")
        return seam.Change.entry(self._stated, option, int(value))

    @property
    def soc(self) -> int:
        """The number of the chip; 0 if none is named."""
        return self._stated[options.HtpDeviceConfigOption.SOC]

    @property
    def arch(self) -> int:
        """The version of its processor: the chip's, or the one that was named without a chip."""
        return options.arch_of(self.soc, self._stated[options.HtpDeviceConfigOption.ARCH])

    @property
    def profile(self) -> ChipProfile | None:
        """The process domains of its chip; None if neither a chip nor a version of the processor is named."""
        if self._chip is not None:
            return self._chip
        if self.soc:
            return profile_of(str(self.soc))
        arch = self._stated[options.HtpDeviceConfigOption.ARCH]
        return profile(f"v{arch}", arch=arch) if arch else None
