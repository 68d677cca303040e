"""The version of this software, in its one place."""

import platform

__version__ = "0.2.0"

PRODUCER = f"isthmus-{__version__}"
"""The maker of a binary, in the binary: the same on every machine."""


def build_id() -> str:
    """Return the version and the platform, as `QnnBackend_getBuildId` names them."""
    return f"{PRODUCER}-{platform.machine()}"
