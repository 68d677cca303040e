"""HTP's custom memory structure and configs, under the names of its headers."""

from isthmus.backends.htp.options import (
    HtpBackendProperty as BackendProperty,
)
from isthmus.backends.htp.options import (
    HtpContextConfigOption as ContextConfig,
)
from isthmus.backends.htp.options import (
    HtpDescriptor as Descriptor,
)
from isthmus.backends.htp.options import (
    HtpMemType as MemType,
)
from isthmus.backends.htp.options import (
    Reregistration,
)

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
