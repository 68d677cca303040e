"""The version of this software, in its one place."""

import platform

__version__ = "0.2.0"


def build_id() -> str:
    """Return the version and the platform, as context binaries and `QnnBackend_getBuildId` name them."""
    return f"isthmus-{__version__}-{platform.machine()}"
