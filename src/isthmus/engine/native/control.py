"""The layout of the control block that a run's threads share: byte offsets, hot words a cache line apart."""

TABLE, COUNT, BASES = 0, 8, 16
"""Address of the table, number of its rows, address of the base table."""
ROW_WORDS = 3
"""A row of the table: the kernel's address, its instruction's address, into how many shares it is split; where that is
negative, the instruction repeats so many that follow it. Above `SKIP_BITS` of it stands how many rows that follow are
executed by its shares."""
SKIP_BITS = 32
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
NEXT_TURN = 320
"""The next turn of a repetition to take, where threads take them by turns."""
BODY, ABORT, ABORT_NUMBER = 384, 392, 400
"""Of that: the address of its first row; the address of a word (or 0), and what is written there to abort the run."""
FAULT = 408
"""The address of an instruction of the last run that met an index outside its axis, or 0. It took the nearest element
instead, and so does the rest of the run: what it computes is worth nothing."""
PROGRESS = 448
"""For the turns being taken, a word and a cache line each: how many instructions are done, of all turns up to it."""
LINE = 64


def control_bytes(threads: int) -> int:
    """The bytes of the control block of so many threads."""
    return PROGRESS + LINE * threads


# Words before the addresses of the pools, counted back from them.
WORDS, CONTROL, BASE_WORDS = -1, -2, -3
"""The address of the program's words, that of the control block, and how many words a thread's addresses take."""
HEADER_WORDS = 3
