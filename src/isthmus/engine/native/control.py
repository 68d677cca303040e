"""The layout of the control block that a run's threads share: byte offsets, hot words a cache line apart."""

TABLE, COUNT, BASES = 0, 8, 16
"""Address of the table, number of its rows, address of the base table."""
ROW_WORDS = 3
"""A row of the table: the kernel's address, its instruction's address, into how many shares it is split; where that is
negative, the instruction repeats so many that follow it."""
TICKET = 64
"""What is being shared, in one word: a count of such instructions, the row of this one, the next share to take."""
SHARE_BITS, ROW_BITS, COUNT_BITS = 8, 32, 23
DONE = 128
"""Shares of it that are finished."""
SLEEPERS = 192
"""Workers asleep."""
WAKE = 256
"""Counts up when sleepers are woken; what they sleep on."""
STOP = 264
CONTROL_BYTES = 320
