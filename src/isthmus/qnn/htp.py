"""HTP's custom memory structure and configs, under the names of its headers."""

from isthmus.backends.htp_options import (
    ContextConfig,
    Descriptor,
    DeviceProperty,
    GraphConfig,
    MemType,
    Reregistration,
)

THREADS = GraphConfig.THREADS
REREGISTRATION = ContextConfig.REREGISTRATION
ACCELERATOR_PID = DeviceProperty.ACCELERATOR_PID

__all__ = [
    "ACCELERATOR_PID",
    "REREGISTRATION",
    "THREADS",
    "ContextConfig",
    "Descriptor",
    "DeviceProperty",
    "GraphConfig",
    "MemType",
    "Reregistration",
]
