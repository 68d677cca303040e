"""The layout of what a callback runs a program by: a block of words that another runtime hands back with each call.

That runtime's tensors lie in an array of structures, which may move between calls and whose tensors may get other
memory; so a callback looks each one's address up when it is called. All words have 64 bits.
"""

READY = 0
"""Not zero while the program may run; else the callback calls `OTHERWISE`, and so it does after a run that failed."""
OTHERWISE = 8
"""A C function ``void (context, node, answer)`` that is called where the program cannot run; see `SAID`."""
RUN, CONTROL, THREADS = 16, 24, 32
"""The executor's entry, the program's control block, and its number of threads."""
IO = 40
"""Where the addresses of the program's inputs and outputs are written."""
TENSORS = 48
"""Where in the runtime's context the address of its tensors is."""
ROWS, ROW_COUNT = 56, 64
"""A row for each input, then each output."""
COPIES, COPY_COUNT = 72, 80
"""A row for each tensor that is copied to the runtime after a run."""
RUNS = 88
"""Counts the runs."""
PREPARE, FREE = 96, 104
"""The same for when the runtime prepares the node, and ``void (context, block, answer)`` for when it frees it."""
ENDED = 112
"""`FREEING` from when the runtime frees the node; `UNHEARD` once the call that tells of it has ended without an answer.

In between that call is under way, and the block is its own. After it, nobody outside Python knows the block.
"""
FREEING, UNHEARD = 1, 2
OWN = 120
"""The address of a word that is zero in a process that is not the block's: nothing is run there, and nothing called."""
BLOCK_BYTES = 128

FOR_DELEGATE, FOR_BEGIN, FOR_OWN = 0, 8, 16
"""What a delegate leads to: the function that prepares it, the one that makes a node, and the same address."""
DELEGATE_WORDS = 3

SAID = 1
"""What is written to `answer` is more by this than the status that the runtime is told.

The functions are Python's, and where such a function begins the handler of a signal may raise: then nobody has said
anything, and what is returned is chance. So `answer` is a word that holds 0 before.
"""
UNSAID = 1
"""The status where nothing was said: TFLite's kTfLiteError."""

# A row of either table: where among the tensors its address is, where its size, how many bytes there must be, and the
# address that a copy comes from.
ROW_DATA, ROW_SIZE, ROW_BYTES, ROW_SOURCE = 0, 8, 16, 24
ROW_LENGTH = 32
