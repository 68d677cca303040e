"""The accelerator: another process that sees only memory whose file descriptors it was handed, and runs graphs there.

`Accelerator` and `Lane` are the client's side; `isthmus.backends.accelerator.__main__` is the other.
"""

from isthmus.backends.accelerator.lane import Lane, open_lane
from isthmus.backends.accelerator.process import Accelerator, Slots
from isthmus.backends.seam.deadlines import Deadlines

__all__ = ["Accelerator", "Deadlines", "Lane", "Slots", "open_lane"]
