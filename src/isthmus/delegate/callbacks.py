"""What LiteRT calls of Python, the same for all delegates: each finds its object and lets no exception out.

The functions are made once and live for ever: the interpreter keeps its way to them, and may be collected after all
else, even while Python ends. They stand behind compiled ones (`block.Functions`): where a function of Python's begins
the handler of a signal may raise, and nobody is there yet to catch it. So each says how it went, in a word that it is
given, and what has said nothing has failed.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from isthmus.delegate import ownership, structures
from isthmus.delegate.block import Answering
from isthmus.engine.native.callback import DELEGATE_WORDS, SAID
from isthmus.errors import QnnError
from isthmus.system.shield import shielded

if TYPE_CHECKING:
    from isthmus.delegate.delegate import QnnDelegate
    from isthmus.delegate.partition import Partition

MAX_MESSAGE = 1000
"""LiteRT cuts longer messages at about this length, and the end of the line with the rest."""

delegates: weakref.WeakValueDictionary[int, QnnDelegate] = weakref.WeakValueDictionary()
"""The delegates by the address of their structure; an interpreter that has nodes of one keeps it by its partitions."""
partitions: dict[int, tuple[QnnDelegate, Partition]] = {}
"""The partitions by the address of their block."""


def report(context: int, problem: BaseException) -> None:
    """Say on behalf of the interpreter what went wrong, in a line; it raises this with its own error."""
    text = str(problem) if isinstance(problem, QnnError) else f"{type(problem).__name__}: {problem}"
    whole = text.encode(errors="replace")[:MAX_MESSAGE].decode(errors="ignore")
    # The text is a format of C's, and there is nothing to fill in.
    message = whole.replace("\0", "?").replace("%", "%%").encode() + b"\n"
    structures.Context.from_address(context).report_error(context, message)


def sweep() -> None:
    """Give up the partitions that interpreters have freed, or never got: an interrupt came into the call about it.

    One that another thread is just freeing is left to it: until that is done no other block may have its address.
    """
    for address, (delegate, partition) in list(partitions.items()):
        block = partition.block
        if block.is_left or (not block.is_ending and delegate._lost(partition)):
            delegate._give_up(partition)
            # One that was never freed may still be known to an interpreter that is about to.
            if block.is_left:
                block.release()
            partitions.pop(address, None)


def _asked(deed: Callable[[int, int], int]) -> Callable[[int, int, int], None]:
    """A deed as a function of C's. Its answer is written down; where it fails, nothing, and LiteRT is told why."""

    act = shielded(deed)

    def call(context: int, subject: int, answer: int) -> None:
        try:
            ctypes.c_int64.from_address(answer).value = act(context, subject)
        except BaseException as problem:
            # Where not even that can be said, the failure itself is.
            with suppress(BaseException):
                report(context, problem)

    return call


def _prepare(context: int, delegate: int) -> int:
    known = delegates.get(delegate)
    if known is None:
        raise RuntimeError("the delegate has been deleted, or is not one of isthmus")
    return SAID + known._prepare(context)


def _begin(context: int, replaced: int) -> int:
    params = structures.DelegateParams.from_address(replaced)
    return delegates[params.delegate]._take(context, params).block.address


def _node(act: Callable[[Partition], None]) -> Callable[[int, int], int]:
    def deed(context: int, node: int) -> int:
        block = structures.Node.from_address(node).user_data
        if block not in partitions:
            raise RuntimeError("the node was not taken over")
        act(partitions[block][1])
        return SAID + structures.OK

    return deed


def _free(context: int, block: int, answer: int) -> None:
    try:
        said = ctypes.c_int64.from_address(answer)
        # What ended with Python needs no end of its own, and what was given up before has had its.
        known = None if sys.is_finalizing() else partitions.get(block)
        if known is None:
            said.value = SAID
            return
        delegate, partition = known
        delegate._give_up(partition)
        partition.block.release()
        # Until there is an answer the block is written to, and its entry keeps it. No handler of a signal runs within
        # one assignment.
        said.value, partition.block.is_answered = SAID, True
        partitions.pop(block, None)
    except BaseException as problem:
        with suppress(BaseException):
            report(context, problem)


_THUNKS = [
    structures.Asked(call)
    for call in (
        _asked(_prepare),
        _asked(_begin),
        _asked(_node(lambda partition: partition.invoke())),
        _asked(_node(lambda partition: partition.prepare())),
        _free,
    )
]
_apply, _begin_node, *_of_nodes = (ctypes.cast(thunk, ctypes.c_void_p).value or 0 for thunk in _THUNKS)
_of_delegates = (ctypes.c_int64 * DELEGATE_WORDS)(_apply, _begin_node, ownership.OWN)
for _immortal in (*_THUNKS, _of_delegates):
    # One reference that nobody gives back: what an interpreter leads to must not end before it.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_immortal))

DELEGATE = ctypes.addressof(_of_delegates)
"""What answers for a delegate."""
NODE = Answering(*_of_nodes)
"""What answers for a node."""
