"""The layout of a doorbell: the page through which one process asks another to run a graph, and what serves it.

All words have 64 bits. Words that one side writes while the other polls are a cache line apart.
"""

PAGE_BYTES = 16384
REQUEST = 0
"""Counts requests; the client writes it last."""
REQUEST_SLEEPER = 64
"""Not zero while the server sleeps on REQUEST."""
RESPONSE = 128
"""The request that was answered last, or `GONE`. The client counts requests itself, so that `GONE` is the last word."""
RESPONSE_SLEEPER = 192
"""Not zero while the client sleeps on RESPONSE."""
CLIENT_CPU, SERVER_CPU = 256, 320
"""The processor each side was last seen on: spinning on the one that the other side needs is of no use."""
STATUS = 384
"""QNN's code for the answered request."""
GRAPH = 448
"""Which graph to run; -1 ends the service."""
ABORT = 512
"""The client writes here which request it no longer wants; it ends after the instruction that is under way."""
SLOTS = 576
"""For each input, then each output, the slot of the registered memory it lies in."""
MAX_IO = (PAGE_BYTES - SLOTS) // 8

GONE = -1
"""In RESPONSE: the server has died."""

# How long a side spins before it sleeps, in pauses of 15 to 50 nanoseconds each, as the processor has it.
IDLE_SPINS = 6000
"""Of a server that has nothing to do."""
WORKING_SPINS = 80_000
"""Of a client whose request is being worked on."""

# The server's own block of words, which no other process sees.
RUN, GRAPHS, GRAPH_COUNT, MEMORY, MEMORY_COUNT = 0, 8, 16, 24, 32
SERVICE_BYTES = 64
# A row of the table at GRAPHS: control block, threads, how many inputs and outputs, where their sizes are listed.
GRAPH_CONTROL, GRAPH_THREADS, GRAPH_IO, GRAPH_SIZES = 0, 8, 16, 24
GRAPH_ROW = 32
# A row of the table at MEMORY: address (0: none), bytes, and how often the row was given to new memory.
MEMORY_ADDRESS, MEMORY_SIZE, MEMORY_GENERATION = 0, 8, 16
MEMORY_ROW = 32
SLOT_BITS = 16
"""A slot names a row by its low bits and that row's generation above them: it never comes to mean other memory."""

# What the server tells of one lane, for itself.
ENTERED, LEFT = 0, 64
"""The request whose memory was looked up last, and the last one that has let go of its memory."""
LANE_BYTES = 128
