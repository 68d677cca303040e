"""OpenCL devices: what there are, what each can do, and which one is meant.

One is named by the configuration, by ``ISTHMUS_OPENCL_DEVICE``, or by nobody: then the best available is taken.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import c_uint32, c_uint64, c_void_p
from dataclasses import dataclass

from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime.library import REMEDY, device_handles, library, own_library, platforms
from isthmus.errors import Code, QnnError

VARIABLE = "ISTHMUS_OPENCL_DEVICE"


@dataclass(frozen=True)
class ClDevice:
    """A device, and the facts about it that others decide by.

    Parameters
    ----------
    handle, platform
        OpenCL's own.
    kind
        "gpu", "accelerator" or "cpu".
    unified
        Whether it works in the host's memory.
    alignment
        What the addresses of its memory objects are a multiple of, in bytes.
    vector_width
        Floats in a vector register.
    largest_allocation, memory
        Bytes of one buffer, and of all.
    command_buffers, simultaneous
        Whether it has cl_khr_command_buffer, and whether a recorded buffer may be under way more than once.
    """

    handle: int
    platform: int
    platform_name: str
    platform_version: str
    name: str
    vendor: str
    version: str
    driver: str
    kind: str
    unified: bool
    available: bool
    alignment: int
    vector_width: int
    local_bytes: int
    max_group: int
    compute_units: int
    largest_allocation: int
    memory: int
    extensions: frozenset[str]
    command_buffers: bool
    simultaneous: bool

    @property
    def identity(self) -> str:
        """What compiled code for it depends on."""
        return "\0".join(
            (self.platform_name, self.platform_version, self.name, self.vendor, self.version, self.driver)
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.platform_name})"


def _ignore(text: str) -> None:
    """Tell nobody."""


def devices(tell: Callable[[str], object] = _ignore) -> list[ClDevice]:
    """All devices of all platforms. One that does not answer what it is asked is left out, and told of."""
    own_library()
    known = []
    for platform in platforms():
        try:
            handles = device_handles(platform)
        except QnnError as problem:
            tell(f"A platform of OpenCL is left out: {problem.rule}")
            continue
        for handle in handles:
            try:
                known.append(describe(handle))
            except QnnError as problem:
                tell(f"A device of OpenCL is left out: {problem.rule}")
    return known


def describe(handle: int) -> ClDevice:
    """A device by its handle."""
    found, what = library(), "OpenCL device"

    def text(which: int) -> str:
        return found.text(what, "clGetDeviceInfo", handle, which)

    def number(which: int, kind: type = c_uint32) -> int:
        return found.number(what, "clGetDeviceInfo", handle, which, kind=kind)

    platform = number(numbers.DEVICE_PLATFORM, c_void_p)
    kind = number(numbers.DEVICE_TYPE, c_uint64)
    extensions = frozenset(text(numbers.DEVICE_EXTENSIONS).split())
    commands = "cl_khr_command_buffer" in extensions and found.extension(platform) is not None
    capabilities = number(numbers.DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR, c_uint64) if commands else 0
    return ClDevice(
        handle=handle,
        platform=platform,
        platform_name=found.text(what, "clGetPlatformInfo", platform, numbers.PLATFORM_NAME),
        platform_version=found.text(what, "clGetPlatformInfo", platform, numbers.PLATFORM_VERSION),
        name=text(numbers.DEVICE_NAME),
        vendor=text(numbers.DEVICE_VENDOR),
        version=text(numbers.DEVICE_VERSION),
        driver=text(numbers.DRIVER_VERSION),
        kind="gpu"
        if kind & numbers.DEVICE_TYPE_GPU
        else "accelerator"
        if kind & numbers.DEVICE_TYPE_ACCELERATOR
        else "cpu",
        unified=bool(number(numbers.DEVICE_HOST_UNIFIED_MEMORY)),
        available=bool(number(numbers.DEVICE_AVAILABLE)) and bool(number(numbers.DEVICE_COMPILER_AVAILABLE)),
        alignment=max(number(numbers.DEVICE_MEM_BASE_ADDR_ALIGN) // 8, 1),
        vector_width=max(number(numbers.DEVICE_NATIVE_VECTOR_WIDTH_FLOAT), 1),
        local_bytes=number(numbers.DEVICE_LOCAL_MEM_SIZE, c_uint64),
        max_group=number(numbers.DEVICE_MAX_WORK_GROUP_SIZE, ctypes.c_size_t),
        compute_units=number(numbers.DEVICE_MAX_COMPUTE_UNITS),
        largest_allocation=number(numbers.DEVICE_MAX_MEM_ALLOC_SIZE, c_uint64),
        memory=number(numbers.DEVICE_GLOBAL_MEM_SIZE, c_uint64),
        extensions=extensions,
        command_buffers=commands,
        simultaneous=bool(capabilities & numbers.COMMAND_BUFFER_CAPABILITY_SIMULTANEOUS_USE_KHR),
    )


def choose(
    platform: str | None = None, device: str | int | None = None, tell: Callable[[str], object] = _ignore
) -> ClDevice:
    """The device that is meant.

    Parameters
    ----------
    platform
        Part of its platform's name, in any case of letters.
    device
        Part of its name, or its number in the list that is left; ``ISTHMUS_OPENCL_DEVICE`` has the same without it.
    tell
        Who is told of devices that are left out since they do not answer.

    Raises
    ------
    QnnError
        DEVICE_HARDWARE_UNAVAILABLE if there is none, with all that there are.
    """
    told: list[str] = []
    known = devices(told.append)
    for text in told:
        tell(text)
    if not known:
        rule = "OpenCL finds no device: " + ("; ".join(told) if told else "no driver is installed")
        raise QnnError(Code.DEVICE_HARDWARE_UNAVAILABLE, "backend 'gpu'", rule, REMEDY)
    if device is None:
        device = os.environ.get(VARIABLE) or None
    left = [each for each in known if platform is None or platform.lower() in each.platform_name.lower()]
    if isinstance(device, str) and not device.isdecimal():
        left = [each for each in left if device.lower() in each.name.lower()]
    elif device is not None:
        left = left[int(device) : int(device) + 1]
    usable = [each for each in left if each.available]
    if not usable:
        asked = ", ".join(
            f"{noun} {value!r}" for noun, value in (("platform", platform), ("device", device)) if value is not None
        )
        have = ", ".join(f"device {index} is {each}" for index, each in enumerate(known))
        rule = f"no device of OpenCL is {asked}" if asked and not left else "no device of OpenCL is available"
        raise QnnError(Code.DEVICE_HARDWARE_UNAVAILABLE, "backend 'gpu'", rule, f"What there is: {have}.")
    return max(usable, key=_worth)


def _worth(device: ClDevice) -> tuple[int, int, int]:
    """How good a device is: its kind first, then how much of it there is. Of equals the first one is taken."""
    return ("cpu", "accelerator", "gpu").index(device.kind), device.compute_units, device.memory

