"""The layout of a callback's block: words that another runtime hands back with each call, for running a program.

That runtime's tensors are in an array of structures. The array may move between calls, and its tensors may get other
memory. So a callback looks up each address when it is called. All words have 64 bits.
"""

READY = 0
"""Nonzero while the program may run. If it is zero, and after a run that failed, the callback calls `FALLBACK`."""
FALLBACK = 8
"""A C function ``void (context, node, answer)`` that is called when the program cannot run; see `ANSWERED`.

`answer` is the address of a word for the status.
"""
RUN, CONTROL, THREADS = 16, 24, 32
"""The executor's entry, the program's control block, and its number of threads."""
IO = 40
"""The address to which the addresses of the program's inputs and outputs are written."""
TENSORS = 48
"""The offset, in the runtime's context, of the address of its tensors."""
ROWS, ROW_COUNT = 56, 64
"""The address and the number of the rows for inputs, then outputs."""
COPIES, COPY_COUNT = 72, 80
"""The address and the number of the rows for tensors that are copied to the runtime after a run."""
RUNS = 88
"""The number of completed runs."""
PREPARE, FREE = 96, 104
"""Functions like `FALLBACK`: one for preparing the node, and ``void (context, block, answer)`` for freeing it."""
ENDED = 112
"""`FREEING` once the runtime frees the node; `UNANSWERED` if the call that reports this has returned without an answer.

Between the two, that call is in progress and owns the block. After it, nothing outside Python refers to the block.
"""
FREEING, UNANSWERED = 1, 2
OWN = 120
"""The address of a word that is zero in any process that does not own the block, and from Python's exit on.

If it is zero, nothing runs or is called.
"""
BLOCK_BYTES = 128

FOR_DELEGATE, FOR_BEGIN, FOR_OWN = 0, 8, 16
"""The words of a delegate: the function that prepares it, the function that makes a node, and an address like `OWN`."""
DELEGATE_WORDS = 3

ANSWERED = 1
"""The difference between the value written to `answer` and the status that the runtime gets.

The functions are Python functions, and a signal handler may raise as soon as one begins. Then it writes no status, and
its return value is arbitrary. So the status is returned through `answer`, which is set to 0 before the call.
"""
NO_ANSWER = 1
"""The status if the function wrote none: TFLite's kTfLiteError."""

# A row of either table: the offsets of a tensor's address and size among the tensors, the required number of bytes, and
# the address from which a copy is made.
ROW_DATA, ROW_SIZE, ROW_BYTES, ROW_SOURCE = 0, 8, 16, 24
ROW_LENGTH = 32
