"""HTP's custom memory structure and configs, under the names of its headers."""

from isthmus.backends.htp.options import BackendProperty, ContextConfig, Descriptor, MemType, Reregistration

REREGISTRATION = ContextConfig.REREGISTRATION
ACCELERATOR_PID = BackendProperty.ACCELERATOR_PID

__all__ = [
    "ACCELERATOR_PID",
    "REREGISTRATION",
    "BackendProperty",
    "ContextConfig",
    "Descriptor",
    "MemType",
    "Reregistration",
]
