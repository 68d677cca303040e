"""The accelerator: another process that sees only memory whose file descriptors it was handed, and runs graphs there.

`Accelerator` and `Lane` are the client's side; `isthmus.accelerator.__main__` is the other.
"""

from isthmus.accelerator.deadlines import Deadlines
from isthmus.accelerator.lane import Lane, open_lane
from isthmus.accelerator.process import Accelerator, Slots

__all__ = ["Accelerator", "Deadlines", "Lane", "Slots", "open_lane"]
