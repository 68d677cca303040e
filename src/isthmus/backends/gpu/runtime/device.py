"""OpenCL devices: which ones exist, what each can do, and which one is used.

The configuration or ``ISTHMUS_OPENCL_DEVICE`` names the device; otherwise the best one available is used.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import c_uint32, c_uint64, c_void_p
from dataclasses import dataclass

from isthmus.backends.gpu.runtime import numbers, pocl
from isthmus.backends.gpu.runtime.library import REMEDY, device_handles, library, own_library, platforms
from isthmus.errors import Code, QnnError

VARIABLE = "ISTHMUS_OPENCL_DEVICE"


@dataclass(frozen=True)
class ClDevice:
    """A device, and the facts about it that decisions depend on.

    - `handle`, `platform`: OpenCL's handles of the device and its platform.
    - `version`, `driver`: OpenCL's version as the device reports it, and that of the device's driver.
    - `kind`: "gpu", "accelerator" or "cpu".
    - `unified`: Whether it works in host memory.
    - `available`: Whether it can run kernels and compile them.
    - `alignment`: The alignment of its memory objects in bytes.
    - `vector_width`: Floats in a vector register.
    - `local_bytes`, `max_group`: Bytes of local memory, and work items, of the largest work group.
    - `largest_allocation`, `memory`: Bytes of the largest buffer, and of all memory.
    - `command_buffers`, `simultaneous`: Whether it has cl_khr_command_buffer, and whether a recorded buffer may be in
      execution more than once at a time.
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
        """A string of everything that compiled code for it depends on."""
        return "\0".join((self.platform_name, self.platform_version, self.name, self.vendor, self.version, self.driver))

    def __str__(self) -> str:
        return f"{self.name} ({self.platform_name})"


def _ignore(text: str) -> None:
    """Discard a message; this is the default log callback."""


def devices(log: Callable[[str], object] = _ignore) -> list[ClDevice]:
    """Return all devices of all platforms. A device that fails to answer a query is left out and reported."""
    own_library()
    candidates = []
    for platform in platforms():
        try:
            handles = device_handles(platform)
        except QnnError as problem:
            log(f"A platform of OpenCL is left out: {problem.rule}")
            continue
        for handle in handles:
            try:
                candidates.append(describe(handle))
            except QnnError as problem:
                log(f"A device of OpenCL is left out: {problem.rule}")
    return candidates


def describe(handle: int) -> ClDevice:
    """Ask OpenCL for all facts about the device with this handle."""
    opencl, what = library(), "OpenCL device"

    def text(which: int) -> str:
        return opencl.text(what, "clGetDeviceInfo", handle, which)

    def number(which: int, kind: type = c_uint32) -> int:
        return opencl.number(what, "clGetDeviceInfo", handle, which, kind=kind)

    platform = number(numbers.DEVICE_PLATFORM, c_void_p)
    kind = number(numbers.DEVICE_TYPE, c_uint64)
    extensions = frozenset(text(numbers.DEVICE_EXTENSIONS).split())
    commands = "cl_khr_command_buffer" in extensions and opencl.extension(platform) is not None
    capabilities = number(numbers.DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR, c_uint64) if commands else 0
    platform_name = opencl.text(what, "clGetPlatformInfo", platform, numbers.PLATFORM_NAME)
    platform_version = opencl.text(what, "clGetPlatformInfo", platform, numbers.PLATFORM_VERSION)
    if platform_name == pocl.PLATFORM and pocl.VERSION in platform_version:
        pocl.name_processor(handle)
    return ClDevice(
        handle=handle,
        platform=platform,
        platform_name=platform_name,
        platform_version=platform_version,
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
    platform: str | None = None, device: str | int | None = None, log: Callable[[str], object] = _ignore
) -> ClDevice:
    """Return the device to use.

    - `platform`: Part of its platform's name; upper and lower case are the same.
    - `device`: Part of its name, or its number among the devices of that platform; ``ISTHMUS_OPENCL_DEVICE`` is used if
      it is None.
    - `log`: The function that receives messages about devices that are left out because they do not answer.

    Raises DEVICE_HARDWARE_UNAVAILABLE if there is none; the error lists all devices.
    """
    messages: list[str] = []
    candidates = devices(messages.append)
    for text in messages:
        log(text)
    if not candidates:
        rule = "OpenCL finds no device: " + ("; ".join(messages) if messages else "no driver is installed")
        raise QnnError(Code.DEVICE_HARDWARE_UNAVAILABLE, "backend 'gpu'", rule, REMEDY)
    if device is None:
        device = os.environ.get(VARIABLE) or None
    matching = [each for each in candidates if platform is None or platform.lower() in each.platform_name.lower()]
    if isinstance(device, str) and not device.isdecimal():
        matching = [each for each in matching if device.lower() in each.name.lower()]
    elif device is not None:
        # A slice, because there may be no device of this number.
        matching = matching[int(device) : int(device) + 1]
    usable = [each for each in matching if each.available]
    if not usable:
        asked = ", ".join(
            f"{noun} {value!r}" for noun, value in (("platform", platform), ("device", device)) if value is not None
        )
        have = ", ".join(f"device {index} is {each}" for index, each in enumerate(candidates))
        rule = f"no device of OpenCL is {asked}" if asked and not matching else "no device of OpenCL is available"
        raise QnnError(Code.DEVICE_HARDWARE_UNAVAILABLE, "backend 'gpu'", rule, f"What there is: {have}.")
    return max(usable, key=_worth)


def _worth(device: ClDevice) -> tuple[int, int, int]:
    """Return a device's rank: by kind, then by compute units and memory. The first of equal devices is used."""
    return ("cpu", "accelerator", "gpu").index(device.kind), device.compute_units, device.memory
