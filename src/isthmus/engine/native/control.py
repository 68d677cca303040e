"""The layout of the control block that a run's threads share: byte offsets of 64-bit words.

Words that threads write often are a cache line apart. An executor writes the addresses; kernels use the rest.
"""

TABLE, COUNT, BASES = 0, 8, 16
"""Address of the table, number of its rows, address of the base table."""
ROW_WORDS = 3
"""A row of the table: the kernel's address, the instruction's address, and the number of shares into which it is split.
A negative number -n means that the instruction repeats the n instructions after it. The bits above `SKIP_BITS` hold the
number of following rows that its shares execute.
"""
SKIP_BITS = 32
TICKET = 64
"""The instruction being shared, in one word: a count of shared instructions, this one's row, the next share to take.

A thread takes a share by adding 1 to the word. The count tells workers that another instruction is being shared.
"""
SHARE_BITS, ROW_BITS, COUNT_BITS = 8, 32, 23
DONE = 128
"""The number of finished shares of the instruction in `TICKET`."""
SLEEPERS = 192
"""The number of sleeping workers."""
WAKE = 256
"""The futex word that sleeping workers wait on; it counts up when they are woken."""
STOP = 264
"""Nonzero once the workers must end."""
NEXT_ITERATION = 320
"""The next iteration to take when threads pipeline a repetition."""
BODY, ABORT, ABORT_NUMBER = 384, 392, 400
"""For instructions that execute those after them: the address of the first such row, the address of a word (or 0), and
the number that is written there to abort the run.
"""
FAULT = 408
"""The address of an instruction of the last run that met an index outside its axis, or 0. The instruction used the
nearest element instead, and the run went on, so its results are invalid.
"""
PROGRESS = 448
"""For each iteration in progress, a word in its own cache line: instructions done, counted over all iterations up to
it.
"""
LINE = 64
"""The size of a cache line in bytes."""


def control_bytes(threads: int) -> int:
    """Return the size of the control block for this many threads, in bytes."""
    return PROGRESS + LINE * threads


# Words of a base table before the addresses of the pools, at negative indices.
WORDS, CONTROL, BASE_WORDS = -1, -2, -3
"""The address of the program's words, the address of the control block, and the number of words in a thread's base
table.
"""
HEADER_WORDS = 3
"""The number of these words."""
