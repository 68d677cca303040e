"""QNN's C interface: libraries that any QNN client can load, on top of the Python API.

`install` writes them, `install_sdk` does so in the layout of QNN's SDK, `load` loads them into this process, and
`graphs` shows what C clients do with them here.
"""

from isthmus.capi.inspection import graphs, load
from isthmus.capi.installation import install, install_sdk

__all__ = ["graphs", "install", "install_sdk", "load"]
