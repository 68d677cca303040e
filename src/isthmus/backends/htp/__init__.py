"""The HTP backend: an accelerator in its own process, with registered memory."""

BACKEND_ID = 6
"""QNN's id of the backend."""
INTERFACE_VERSION = (5, 51, 0)
"""The version of the backend's own interface that this is modelled on."""
