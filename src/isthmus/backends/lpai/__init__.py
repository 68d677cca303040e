"""The LPAI backend: memory that its client plans and provides, in this process or on an accelerator."""

BACKEND_ID = 12
"""QNN's number of the backend."""
INTERFACE_VERSION = (2, 5, 0)
"""The version of the backend's own interface that this is modelled on."""
