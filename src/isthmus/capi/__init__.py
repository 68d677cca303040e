"""QNN's C interface, served: libraries that any client of QNN can load, over the API in Python.

`install` makes them, `load` brings them into this process, and `graphs` shows what clients in C do with them here.
"""

from isthmus.capi.inspection import graphs, load
from isthmus.capi.installation import install

__all__ = ["graphs", "install", "load"]
