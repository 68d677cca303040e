"""A device: the core of a backend that contexts are created on (QnnDevice_*)."""

from __future__ import annotations

from isthmus.errors import Code, QnnError
from isthmus.qnn.backend import Backend
from isthmus.qnn.handle import Handle
from isthmus.system.shield import shielded


class Device(Handle):
    """A device (QnnDevice_create).

    Attributes
    ----------
    driver
        The backend's object for the device; None if the backend has no devices.
    """

    invalid = Code.DEVICE_INVALID_HANDLE

    @shielded(release=Handle.free)
    def __init__(self, backend: Backend) -> None:
        backend._check()
        self.backend = backend
        self.contexts: set[Handle] = set()
        """The contexts on this device."""
        self.driver = backend.driver.create_device()
        try:
            super().__init__(f"device of {backend._what}", backend)
        except QnnError:
            self._release()
            raise

    def _may_end(self) -> None:
        """Refuse to free a device that a context uses."""
        # A backend that is being freed has already ended its contexts, since they are younger than their device.
        if self.contexts:
            raise QnnError(
                Code.DEVICE_ASSOCIATED_TO_CONTEXT, self._what, "a context still uses it", "Free the context first."
            )

    def _release(self) -> None:
        if self.driver is not None:
            self.driver.close()
