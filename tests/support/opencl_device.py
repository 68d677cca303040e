"""The device that tests of OpenCL run on: the best there is, whatever it is; without a driver they are skipped.

Nothing here asks Isthmus whether there is one: tests must not skip themselves because that went wrong.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from isthmus.backends.gpu.runtime.device import ClDevice, choose

# pyopencl and PoCL read these variables when they are loaded.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
os.environ.setdefault("POCL_CACHE_DIR", str(Path(__file__).parents[2] / ".cache" / "pocl"))
cl = pytest.importorskip("pyopencl", reason="the package pyopencl is not installed", exc_type=ImportError)
_FUSE = 30.0


def _has_devices() -> bool:
    try:
        return any(platform.get_devices() for platform in cl.get_platforms())
    except cl.Error:
        return False


if not _has_devices():
    pytest.skip("no driver of OpenCL is installed", allow_module_level=True)
DEVICE: ClDevice = choose()
ROUNDS = 200 if DEVICE.kind == "cpu" else 100_000
"""How often 8,192 work-items compute a sine one after the other in some milliseconds."""


def client_context() -> Any:
    """An OpenCL context of the client's own, on the device that a backend takes by itself."""
    return cl.Context([cl.Device.from_int_ptr(DEVICE.handle)])


class Gate:
    """An event of the client's, which happens when it is let go, or after a time, or when the block ends.

    A driver may wait where it need not. Were it for this event, that would be for ever; so it fails a test instead.

    Parameters
    ----------
    context
        Of pyopencl.
    seconds
        After which it happens by itself.
    """

    def __init__(self, context: Any, seconds: float = _FUSE) -> None:
        self.event = cl.UserEvent(context)
        self._has_happened = threading.Lock()
        self._timer = threading.Timer(seconds, self.let_go)
        self._timer.daemon = True
        self._timer.start()

    def let_go(self) -> None:
        """Complete the event; safe to call again."""
        if self._has_happened.acquire(blocking=False):
            self.event.set_status(cl.command_execution_status.COMPLETE)

    def fail(self, status: int) -> None:
        """Complete the event with an error instead."""
        assert self._has_happened.acquire(blocking=False)
        self.event.set_status(status)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()
        self._timer.join()
        self.let_go()
