"""The accelerator: another process that sees only memory whose file descriptors it was handed, and runs graphs there.

`Accelerator` and `Queue` are the client's side; `isthmus.backends.accelerator.__main__` is the other.
"""

from isthmus.backends.accelerator.process import Accelerator, Slots
from isthmus.backends.accelerator.queue import Queue, open_lane
from isthmus.backends.seam.deadlines import Deadlines

__all__ = ["Accelerator", "Deadlines", "Queue", "Slots", "open_lane"]
