"""What LiteRT calls: five C functions, the same for all delegates. Each finds its object and lets no exception out.

They are made once and live for ever: the interpreter keeps their addresses in its nodes, and may be collected after all
else, even while Python ends.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isthmus.delegate import structures
from isthmus.errors import QnnError

if TYPE_CHECKING:
    from isthmus.delegate.delegate import QnnDelegate
    from isthmus.delegate.partition import Partition

delegates: weakref.WeakValueDictionary[int, QnnDelegate] = weakref.WeakValueDictionary()
"""The delegates by the address of their structure; an interpreter that has nodes of one keeps it by its partitions."""
partitions: dict[int, tuple[QnnDelegate, Partition]] = {}
"""The partitions by the address of their block."""


def report(context: int, problem: BaseException) -> None:
    """Say on behalf of the interpreter what went wrong; it raises this with its own error."""
    text = str(problem) if isinstance(problem, QnnError) else f"{type(problem).__name__}: {problem}"
    # The text is a format of C's, and there is nothing to fill in.
    message = text.replace("%", "%%").encode(errors="replace").replace(b"\0", b"?")
    structures.Context.from_address(context).report_error(context, message)


def _guarded(context: int, deed: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return deed()
    except BaseException as problem:
        try:
            report(context, problem)
        except BaseException:
            return otherwise
        return otherwise


def _prepare(context: int, delegate: int) -> int:
    def deed() -> int:
        known = delegates.get(delegate)
        if known is None:
            raise RuntimeError("the delegate has been deleted, or is none of isthmus")
        return known._prepare(context)

    status: int = _guarded(context, deed, structures.DELEGATE_ERROR)
    return status


def _init(context: int, buffer: int, length: int) -> int:
    def deed() -> int:
        params = structures.DelegateParams.from_address(buffer)
        known = delegates[params.delegate]
        partition = known._take(context, params)
        partitions[partition.block.address] = known, partition
        return partition.block.address

    address: int = _guarded(context, deed, 0)
    return address


def _free(context: int, block: int | None) -> None:
    # What ended with Python needs no end of its own.
    if block and not sys.is_finalizing():

        def deed() -> None:
            delegate, partition = partitions.pop(block)
            delegate._give_up(partition)

        _guarded(context, deed, None)


def _kernel(act: Callable[[Partition], None]) -> Callable[[int, int], int]:
    def call(context: int, node: int) -> int:
        def deed() -> int:
            block = structures.Node.from_address(node).user_data
            if not block or block not in partitions:
                raise RuntimeError("the node was not taken over")
            act(partitions[block][1])
            return structures.OK

        status: int = _guarded(context, deed, structures.ERROR)
        return status

    return call


_THUNKS = (
    structures.DelegatePrepare(_prepare),
    structures.KernelInit(_init),
    structures.KernelFree(_free),
    structures.KernelCall(_kernel(lambda partition: partition.prepare())),
    structures.KernelCall(_kernel(lambda partition: partition.invoke())),
)
for _thunk in _THUNKS:
    # One reference that nobody gives back: what is compiled into an interpreter must not end before it.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_thunk))


def _address(thunk: Any) -> int:
    address = ctypes.cast(thunk, ctypes.c_void_p).value
    assert address is not None
    return address


PREPARE, INIT, FREE, KERNEL_PREPARE, KERNEL_INVOKE = map(_address, _THUNKS)
