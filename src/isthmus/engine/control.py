"""The layout of the control block that a run's threads share: byte offsets, hot words a cache line apart."""

TABLE, COUNT, BASES, BARRIER_BASE = 0, 8, 16, 24
REQUEST = 64
SLEEPERS = 128
ARRIVED = 192
STOP = 256
CONTROL_BYTES = 320
