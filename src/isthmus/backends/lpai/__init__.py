"""The LPAI backend: memory that its client plans and provides, in this process or on an accelerator."""

BACKEND_ID = 12
INTERFACE_VERSION = (2, 5, 0)
"""QNN's number of the backend, and the version of its own interface that this is modelled on."""
