"""The HTP backend: an accelerator in a process of its own, with registered memory."""

BACKEND_ID = 6
INTERFACE_VERSION = (5, 51, 0)
"""QNN's number of the backend, and the version of its own interface that this is modelled on."""
