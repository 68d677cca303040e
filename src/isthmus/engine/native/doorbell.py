"""The layout of a doorbell: the page through which one process asks another to run a graph, and the server's tables.

All words have 64 bits. Words that one side writes while the other polls are a cache line apart.
"""

PAGE_BYTES = 16384
REQUEST = 0
"""A count of requests; the client writes it last."""
REQUEST_SLEEPER = 64
"""Nonzero while the server sleeps on REQUEST."""
RESPONSE = 128
"""The number of the last answered request, or `GONE`. The client counts requests itself, so `GONE` stays final."""
RESPONSE_SLEEPER = 192
"""Nonzero while the client sleeps on RESPONSE."""
CLIENT_CPU, SERVER_CPU = 256, 320
"""The processor that each side last ran on: it is useless to spin on a processor that the other side needs."""
STATUS = 384
"""QNN's code for the answered request."""
GRAPH = 448
"""The graph to run; -1 ends the service."""
ABORT = 512
"""The number of a request that the client aborts; the run ends after the current instruction."""
SLOTS = 576
"""For each input, then each output, the slot of its registered memory."""
MAX_IO = (PAGE_BYTES - SLOTS) // 8

GONE = -1
"""The value of RESPONSE after the server has died."""

# How many pauses a side spins before it sleeps. A pause takes 15 to 50 nanoseconds, depending on the processor.
IDLE_SPINS = 6000
"""The spins of an idle server."""
WORKING_SPINS = 80_000
"""The spins of a client whose request is in progress."""

# The server's own words, which no other process sees.
RUN, GRAPHS, GRAPH_COUNT, MEMORY, MEMORY_COUNT = 0, 8, 16, 24, 32
"""The address of the executor's entry, and the addresses and numbers of rows of the tables below."""
SERVICE_BYTES = 64
# A row of the table at GRAPHS: control block, threads, the number of inputs and outputs, the address of their sizes.
GRAPH_CONTROL, GRAPH_THREADS, GRAPH_IO, GRAPH_SIZES = 0, 8, 16, 24
GRAPH_ROW = 32
# A row of the table at MEMORY: address (0: none), bytes, and the number of times that the row was reassigned.
MEMORY_ADDRESS, MEMORY_SIZE, MEMORY_GENERATION = 0, 8, 16
MEMORY_ROW = 32
SLOT_BITS = 16
"""The low bits of a slot are a row; the bits above are that row's generation. So a slot never refers to other
memory.
"""

# Words in which the server records the state of one queue, for itself.
ENTERED, LEFT = 0, 64
"""The last request that looked up its memory, and the last one that has released it."""
QUEUE_BYTES = 128
