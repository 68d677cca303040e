"""The CPU backend: the native engine in the client's own process."""

BACKEND_ID = 3
"""QNN's id of the backend."""
INTERFACE_VERSION = (1, 1, 0)
"""The version of the backend's own interface that this is modelled on."""
