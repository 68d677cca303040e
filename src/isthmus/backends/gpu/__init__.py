"""The GPU backend: OpenCL, with buffers of the client's own."""

BACKEND_ID = 4
"""QNN's number of the backend."""
INTERFACE_VERSION = (3, 15, 0)
"""The version of the backend's own interface that this is modelled on."""
