"""The layout of the control block that a run's threads share: byte offsets, hot words a cache line apart."""

TABLE, COUNT, BASES = 0, 8, 16
"""Address of the table, number of its rows, address of the base table."""
ROW_WORDS = 3
"""A row of the table: the kernel's address, its instruction's address, into how many shares it is split."""
TICKET = 64
"""The instruction being shared: its number since the start, times `TICKETS`, plus the next share to take."""
TICKETS = 256
CURRENT = 72
"""The row of that instruction."""
DONE = 128
"""Shares of it that are finished."""
SLEEPERS = 192
"""Workers asleep."""
WAKE = 256
"""Counts up when sleepers are woken; what they sleep on."""
STOP = 264
CONTROL_BYTES = 320
