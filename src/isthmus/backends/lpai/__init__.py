"""The LPAI backend: its client plans and provides the memory. Graphs run in this process or on an accelerator."""

BACKEND_ID = 12
"""QNN's id of the backend."""
INTERFACE_VERSION = (2, 5, 0)
"""The version of the backend's own interface that this is modelled on."""
