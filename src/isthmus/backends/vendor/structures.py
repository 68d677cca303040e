"""HTP's configs of graphs and devices, and memory of tensors, as C structures for a library that is called."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from ctypes import POINTER, c_void_p
from typing import Any

from isthmus.backends.htp.c import HtpDeviceConfig, HtpDeviceOption, HtpGraphConfig, HtpGraphOption
from isthmus.backends.vendor.target import PRECISIONS
from isthmus.cabi.objects import DeviceConfig, GraphConfig
from isthmus.cabi.types import Tensor, TensorMemType
from isthmus.cabi.writer import Keeps

_OPTIMIZATION_LEVEL, _OPTIMIZATION_DLBC = 3, 4
"""QNN_HTP_GRAPH_OPTIMIZATION_TYPE_*."""


def graph_configs(target: Mapping[str, Any], keeps: Keeps) -> Any:
    """Build the list of a graph's configs for a target."""
    values: list[tuple[HtpGraphOption, str, Any]] = []
    if target.get("level") is not None:
        values.append((HtpGraphOption.OPTIMIZATION, "optimizationOption", (_OPTIMIZATION_LEVEL, target["level"])))
    if target.get("dlbc"):
        values.append((HtpGraphOption.OPTIMIZATION, "optimizationOption", (_OPTIMIZATION_DLBC, 1)))
    if target.get("precision") is not None:
        values.append((HtpGraphOption.PRECISION, "precision", PRECISIONS[target["precision"]]))
    if target.get("vtcm_mb") is not None:
        values.append((HtpGraphOption.VTCM_SIZE_IN_MB, "vtcmSizeInMB", target["vtcm_mb"]))
    if target.get("hvx_threads") is not None:
        values.append((HtpGraphOption.NUM_HVX_THREADS, "numHvxThreads", target["hvx_threads"]))
    return _listed(GraphConfig, [_custom(HtpGraphConfig(), *each) for each in values], keeps)


def device_configs(target: Mapping[str, Any], keeps: Keeps) -> Any:
    """Build the list of a device's configs for a target; without a chip the list is empty."""
    socs = [] if target.get("soc") is None else [target["soc"]]
    return _listed(DeviceConfig, [_custom(HtpDeviceConfig(), HtpDeviceOption.SOC, "socModel", n) for n in socs], keeps)


def _custom(config: Any, option: int, field: str, value: Any) -> Any:
    """Fill in a custom config of HTP: its option, and one member of its union."""
    config.option = option
    if isinstance(value, tuple):
        member = getattr(config, field)
        member.type, member.floatValue = value
    else:
        setattr(config, field, value)
    return config


def _listed(kind: Any, customs: Iterable[Any], keeps: Keeps) -> Any:
    """Return a null-terminated list of pointers to configs (option 0) that point to custom ones."""
    made = []
    for custom in customs:
        config = kind()
        config.option, config.customConfig = 0, ctypes.addressof(custom)
        keeps.append(custom)
        made.append(config)
    listed = (POINTER(kind) * (len(made) + 1))(*(ctypes.pointer(config) for config in made))
    keeps += (made, listed)
    return listed


def handle_memory(tensor: Tensor, handle: int) -> None:
    """Let a tensor use registered memory."""
    tensor.v1.memType, tensor.v1.memHandle = TensorMemType.MEMHANDLE, c_void_p(handle)
