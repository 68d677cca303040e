"""QNN's C interface: libraries that any QNN client can load, on top of the Python API.

`install` writes them, `load` loads them into this process, and `graphs` shows what C clients do with them here.
"""

from isthmus.capi.inspection import graphs, load
from isthmus.capi.installation import install

__all__ = ["graphs", "install", "load"]
