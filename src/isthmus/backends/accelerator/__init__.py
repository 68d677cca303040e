"""The accelerator: another process that runs graphs and sees only memory whose file descriptors it was sent.

`AcceleratorDevice`, `Accelerator` and `Queue` are the client's side; `__main__` in this folder is the other side.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from isthmus.backends.accelerator.device import AcceleratorDevice
    from isthmus.backends.accelerator.faulty import start_accelerator
    from isthmus.backends.accelerator.process import Accelerator, Slots
    from isthmus.backends.accelerator.queue import Queue
    from isthmus.backends.seam.deadlines import Deadlines

__all__ = ["Accelerator", "AcceleratorDevice", "Deadlines", "Queue", "Slots", "start_accelerator"]
_MODULES = {
    "Accelerator": "accelerator.process",
    "AcceleratorDevice": "accelerator.device",
    "Deadlines": "seam.deadlines",
    "Queue": "accelerator.queue",
    "Slots": "accelerator.process",
    "start_accelerator": "accelerator.faulty",
}
"""The module that defines each name, without the package of all backends."""


def __getattr__(name: str) -> object:
    """Import a name of the client's side when it is first used: the other side starts faster without."""
    from importlib import import_module

    if name in _MODULES:
        return getattr(import_module(f"isthmus.backends.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'isthmus.backends.accelerator' has no attribute '{name}'")
