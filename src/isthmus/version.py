"""The version of this software, in its one place, and that of the SDK whose interface it offers."""

import platform

__version__ = "0.3.0"

SDK_VERSION = (2, 51, 0)
"""The version of QNN's SDK whose interface this is modelled on."""
PRODUCER = f"v{'.'.join(map(str, SDK_VERSION))}.0-isthmus-{__version__}"
"""The maker of a binary, in the binary: the same on every machine.

It has the form of the SDK's build ids, of which clients read the version: v2.51.0, then the number of a build (0 here).
"""


def build_id() -> str:
    """Return the versions and the platform, as `QnnBackend_getBuildId` names them."""
    return f"{PRODUCER}-{platform.machine()}"
