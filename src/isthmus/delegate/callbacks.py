"""The Python functions that LiteRT calls, shared by all delegates: each finds its object and lets no exception out.

The functions are created once and live forever: the interpreter refers to them, and may be collected last. Compiled
functions (`block.Functions`) call them, and only until Python's exit begins (`ownership`). They also notice a failure
that Python cannot catch: a signal handler may raise at the start of a Python function, before any `try`. So each
function reports its result in a word that it is given; if it has written nothing, it has failed.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from isthmus.delegate import foreign, ownership, structures
from isthmus.delegate.block import Answering
from isthmus.engine.native.callback import ANSWERED, DELEGATE_WORDS
from isthmus.errors import QnnError
from isthmus.log import LogLevel, to_standard_error
from isthmus.system.shield import shielded

if TYPE_CHECKING:
    from isthmus.delegate.delegate import QnnDelegate
    from isthmus.delegate.partition import Partition

MAX_MESSAGE = 1000
"""Maximum length of a message: LiteRT cuts longer ones at about this length, and loses the line end."""

delegates: weakref.WeakValueDictionary[int, QnnDelegate] = weakref.WeakValueDictionary()
"""The delegates by the address of their structure. Partitions keep a delegate alive while an interpreter has its
nodes.
"""
partitions: dict[int, tuple[QnnDelegate, Partition]] = {}
"""The partitions by the address of their block."""


def report(context: int, problem: BaseException) -> None:
    """Report an error through the interpreter, on one line; the interpreter raises it with its own error.

    Nothing of a context whose structure is unknown is called: its error goes to standard error.
    """
    text = str(problem) if isinstance(problem, QnnError) else f"{type(problem).__name__}: {problem}"
    # Cut in bytes, without a broken character at the end.
    short = text.encode(errors="replace")[:MAX_MESSAGE].decode(errors="ignore")
    try:
        foreign.check(context)
    except QnnError:
        to_standard_error(LogLevel.ERROR, short)
        return
    # The text is a C format string without arguments.
    message = short.replace("\0", "?").replace("%", "%%").encode() + b"\n"
    structures.Context.from_address(context).report_error(context, message)


def sweep() -> None:
    """Give up partitions that interpreters have freed or never received because a call was interrupted.

    A partition that another thread is just freeing is left to that thread: until it is done, no other block may have
    its address.
    """
    for address, (delegate, partition) in list(partitions.items()):
        block = partition.block
        if block.is_left or (not block.is_ending and delegate._is_lost(partition)):
            delegate._give_up(partition)
            # If it was never freed, an interpreter may still know it and free it later.
            if block.is_left:
                block.release()
            partitions.pop(address, None)


def _report_failure(function: Callable[[int, int, int], None]) -> Callable[[int, int, int], None]:
    """Wrap a function whose last argument is where its result is written: if it fails, LiteRT gets the reason."""

    def call(context: int, argument: int, answer: int) -> None:
        try:
            function(context, argument, answer)
        except BaseException as problem:
            # If even reporting fails, the missing result still says so.
            with suppress(BaseException):
                report(context, problem)

    return call


def _answer(function: Callable[[int, int], int]) -> Callable[[int, int, int], None]:
    """Wrap a function of two addresses, LiteRT's context and another, as one of three: the third gets its result."""

    @_report_failure
    def call(context: int, argument: int, answer: int) -> None:
        ctypes.c_int64.from_address(answer).value = function(context, argument)

    return call


@shielded
def _prepare(context: int, delegate: int) -> int:
    """Let a delegate take over nodes of a subgraph, and return LiteRT's status."""
    owner = delegates.get(delegate)
    if owner is None:
        raise RuntimeError("the delegate has been deleted, or is not one of isthmus")
    return ANSWERED + owner._prepare(context)


@shielded
def _begin(context: int, replaced: int) -> int:
    """Create a partition for the nodes that LiteRT replaces, and return the address of its block."""
    params = structures.DelegateParams.from_address(replaced)
    return delegates[params.delegate]._take(context, params).block.address


def _node(act: Callable[[Partition], None]) -> Callable[[int, int], int]:
    """Return a function that finds the partition of a node, calls `act` with it, and returns LiteRT's status."""

    def find_and_act(context: int, node: int) -> int:
        block = structures.Node.from_address(node).user_data
        if block not in partitions:
            raise RuntimeError("the node was not taken over")
        act(partitions[block][1])
        return ANSWERED + structures.OK

    return find_and_act


@_report_failure
def _free(context: int, block: int, answer: int) -> None:
    """End the partition of a node that LiteRT frees."""
    result = ctypes.c_int64.from_address(answer)
    # One that was given up before needs no further end.
    entry = partitions.get(block)
    if entry is None:
        result.value = ANSWERED
        return
    delegate, partition = entry
    delegate._give_up(partition)
    partition.block.release()
    # The block is written to until it is answered, so its entry must keep it until then. No signal handler runs within
    # one assignment.
    result.value, partition.block.is_answered = ANSWERED, True
    partitions.pop(block, None)


_THUNKS = [
    structures.Asked(call)
    for call in (
        _answer(_prepare),
        _answer(_begin),
        _answer(_node(lambda partition: partition.invoke())),
        _answer(_node(lambda partition: partition.prepare())),
        _free,
    )
]
# The addresses of these functions, in the order above.
_apply, _begin_node, *_of_nodes = (ctypes.cast(thunk, ctypes.c_void_p).value or 0 for thunk in _THUNKS)
_of_delegates = (ctypes.c_int64 * DELEGATE_WORDS)(_apply, _begin_node, ownership.OWN)
for _immortal in (*_THUNKS, _of_delegates):
    # A reference that is never dropped: these objects must outlive every interpreter that refers to them.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_immortal))

DELEGATE = ctypes.addressof(_of_delegates)
"""The address of the functions for a delegate."""
NODE = Answering(*_of_nodes)
"""The functions for a node."""
