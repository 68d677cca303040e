"""The GPU backend: OpenCL, with buffers of the client's own."""

BACKEND_ID = 4
INTERFACE_VERSION = (3, 15, 0)
"""QNN's number of the backend, and the version of its own interface that this is modelled on."""
