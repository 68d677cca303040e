"""The GPU backend: OpenCL, with the client's own buffers."""

BACKEND_ID = 4
INTERFACE_VERSION = (3, 15, 0)
"""QNN's id of this backend, and the version of QNN's GPU interface that it is modelled on."""
