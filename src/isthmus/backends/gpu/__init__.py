"""The GPU backend: OpenCL, with the client's own buffers."""

BACKEND_ID = 4
"""QNN's id of this backend."""
INTERFACE_VERSION = (3, 15, 0)
"""The version of QNN's GPU interface that it is modelled on."""
