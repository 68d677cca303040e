"""QnnDevice_*: devices, their descriptions, and the infrastructure for clocks and voltages."""

from __future__ import annotations

import ctypes
import itertools
from typing import TYPE_CHECKING, Any

from isthmus import qnn
from isthmus.backends.seam.facets import CFacet
from isthmus.cabi import objects
from isthmus.cabi.client import checked, listed, read, write_number
from isthmus.capi import options
from isthmus.capi.functions import handle_type, serves
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

# Power config ids: QNN gives them 32 bits, so they are no handles.
_ids = itertools.count(1)


@handle_type("Qnn_DeviceHandle_t", "device", Code.DEVICE_INVALID_HANDLE)
class ClientDevice:
    """A client's device; it belongs to no backend until a context is created on it.

    In C a device is created without a backend, in Python on one. So a client's device is a device on each backend that
    it is used with.
    """

    def __init__(self, settings: dict[Any, Any]) -> None:
        self._settings = settings
        self._devices: dict[qnn.Backend, qnn.Device] = {}

    def on(self, backend: qnn.Backend) -> qnn.Device:
        """Return this device on a backend, creating it if needed."""
        device = self._devices.get(backend)
        if device is None or not device.alive:
            device = self._devices[backend] = backend.create_device()
            if self._settings:
                device.set_config(self._settings)
        return device

    def free(self) -> None:
        """Free it, if no context uses it."""
        for device in self._devices.values():
            device.free()


class PowerConfigId:
    """An id for votes for clocks and voltages; kept in `client_objects` under the negative id, to know valid ids."""


@serves("deviceCreate", Code.COMMON_INVALID_ARGUMENT)
def device_create(server: LibraryServer, log: Log | None, configs: list[objects.DeviceConfig]) -> ClientDevice:
    """Create a device."""
    return ClientDevice(_read_configs(server, configs))


def _read_configs(server: LibraryServer, configs: list[objects.DeviceConfig]) -> dict[Any, Any]:
    """Read the configs, log those that have no effect, and refuse unknown ones."""
    settings: dict[Any, Any] = {}
    for config in configs:
        if config.option == objects.DeviceOption.CUSTOM:
            if not config.customConfig:
                raise QnnError(Code.DEVICE_INVALID_CONFIG, "device", "its custom config is null")
            settings.update(options.settings(server, "device", config.customConfig))
        elif config.option == objects.DeviceOption.PLATFORM_INFO:
            server.log(LogLevel.INFO, "the platform of a device: accepted, but without effect here")
        else:
            raise QnnError(Code.DEVICE_INVALID_CONFIG, "device", f"it has no config {config.option}")
    return settings


@serves("deviceSetConfig", Code.COMMON_INVALID_ARGUMENT)
def device_set_config(server: LibraryServer, device: ClientDevice, configs: list[objects.DeviceConfig]) -> None:
    """Log the requested configs: nothing of a device can be changed."""
    _read_configs(server, configs)


@serves("deviceGetPlatformInfo", Code.COMMON_INVALID_ARGUMENT)
def device_get_platform_info(server: LibraryServer, log: Log | None, out: int) -> None:
    """Write a description of the platform: one device with one core."""
    write_number(checked(out), server.keep(platform(server.facet)))


def platform(facet: CFacet, soc: int = 0, arch: int = 0) -> objects.PlatformInfo:
    """Return the C description of a backend's platform, with the backend's own extension if it has one.

    - `soc`, `arch`: The number of the chip and the version of its processor, 0 for what is not known.
    """
    cores = (objects.CoreInfo * 1)(objects.CoreInfo(1, objects.CoreInfoV1(0, 0, None)))
    hardware = objects.HardwareDeviceInfoV1(0, 0, 1, cores, None)
    extension = None if facet.device_info is None else facet.device_info(soc, arch)
    if extension is not None:
        hardware.deviceInfoExtension = ctypes.addressof(extension)
    devices = (objects.HardwareDeviceInfo * 1)(objects.HardwareDeviceInfo(1, hardware))
    info = objects.PlatformInfo(1, objects.PlatformInfoV1(1, devices))
    # ctypes does not keep alive what a structure points to by a plain address.
    info.extension = extension
    return info


@serves("deviceFreePlatformInfo", Code.COMMON_INVALID_ARGUMENT)
def device_free_platform_info(server: LibraryServer, log: int, info: int) -> None:
    """Free a platform description."""
    if not isinstance(server.client_objects.get(info), objects.PlatformInfo):
        what = f"platform information at {info:#x}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "it does not belong to this library")
    del server.client_objects[info]


@serves("deviceGetInfo", Code.COMMON_INVALID_ARGUMENT)
def device_get_info(server: LibraryServer, device: ClientDevice, out: int) -> None:
    """Write the description of the platform, of which the device is a part."""
    write_number(checked(out), server.keep_once("platform", lambda: platform(server.facet)))


# -- clocks and voltages -----------------------------------------------------------------------------------------------


@serves("createPowerConfigId")
def create_power_config_id(server: LibraryServer, device: int, core: int, out: int) -> None:
    """Create an id for votes."""
    number = next(_ids)
    write_number(out, number, ctypes.c_uint32)
    server.client_objects[-number] = PowerConfigId()


@serves("destroyPowerConfigId")
def destroy_power_config_id(server: LibraryServer, number: int) -> None:
    """Destroy an id."""
    _check_power_id(server, number)
    del server.client_objects[-number]


def _check_power_id(server: LibraryServer, number: int) -> None:
    """Refuse an unknown power config id."""
    if not isinstance(server.client_objects.get(-number), PowerConfigId):
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"power config id {number}", "unknown handle")


@serves("setPowerConfig")
def set_power_config(server: LibraryServer, number: int, configs: int) -> None:
    """Log votes for clocks, voltages and polling, which have no effect on this machine."""
    _check_power_id(server, number)
    names = {int(option): option.name for option in server.facet.power_options}
    # Every kind of config starts with its option.
    for option in listed(configs, ctypes.c_uint32):
        name = names.get(option.value)
        if name is None:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "power config", f"there is no option {option.value}")
        server.log(LogLevel.VERBOSE, f"power option {name}: accepted, but without effect here")


@serves("setMemoryConfig")
def set_memory_config(server: LibraryServer, device: int, core: int, configs: int) -> None:
    """Ignore how the accelerator's heap should grow: it grows by itself here."""
    if configs:
        # Refuses an invalid pointer.
        read(configs, ctypes.c_uint64)
