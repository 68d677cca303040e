"""The accelerator: another process that runs graphs and sees only memory whose file descriptors it was sent.

`AcceleratorDevice`, `Accelerator` and `Queue` are the client's side; `__main__` in this folder is the other side.
"""

from isthmus.backends.accelerator.device import AcceleratorDevice
from isthmus.backends.accelerator.faulty import start_accelerator
from isthmus.backends.accelerator.process import Accelerator, Slots
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam.deadlines import Deadlines

__all__ = ["Accelerator", "AcceleratorDevice", "Deadlines", "Queue", "Slots", "start_accelerator"]
