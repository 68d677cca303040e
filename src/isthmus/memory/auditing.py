"""Start and end audits: `isthmus.audit`, and the audit of a whole process that ``ISTHMUS_AUDIT`` asks for."""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from isthmus import audit_log
from isthmus.audit_log import Action, AuditLog
from isthmus.log import log_message
from isthmus.memory.buffer import Buffer
from isthmus.memory.resource import Adaptor, AdaptorSet, AllocationRequest, current
from isthmus.system.writing import write_whole

VARIABLE = "ISTHMUS_AUDIT"
"""The environment variable with the file that a process writes its audit to: JSON if it ends in ``.json``.

``%p`` in it stands for the process id, for programs that start others. ``1`` is standard error; ``0`` asks for none.
"""
suspended = audit_log.suspend
"""The block whose events no audit in progress records, for runs that a command makes only to measure."""


class AllocationReporter(Adaptor):
    """An adaptor that reports allocations to the audits in progress."""

    def fulfil(self, request: AllocationRequest) -> Buffer:
        since = time.monotonic()
        buffer = self.upstream.fulfil(request)
        key = audit_log.new_key()
        # The finalizer comes first: after an interrupt a buffer must not stay on record forever.
        buffer.when_gone(audit_log.end, key)
        spans = buffer.spans(0, buffer.nbytes)
        audit_log.begin(key, Action.ALLOCATE, buffer.what, buffer.nbytes, spans=spans, since=since, kind=self.kind)
        return buffer


# The adaptors around all memory while an audit is in progress; all audits share their reports.
_reporters = AdaptorSet(AllocationReporter)


@audit_log.when_switched
def _switch(audited: bool) -> None:
    """Put the adaptors around all memory when the first audit begins, and remove them when the last one has ended."""
    if audited:
        _reporters.place()
    else:
        _reporters.remove()


@contextmanager
def audit(*kinds: str) -> Iterator[AuditLog]:
    """Record what the program does with memory inside the block, for the whole process, and the mistakes it makes.

    Each allocation, registration, copy, execution and free is recorded with the line of the program that led to it.
    Printing the log shows what was copied and why, and each mistake with its remedy. Memory that the block allocates or
    registers should end in the block. With names of kinds of memory ("host", "rpcmem" …), other allocations are not
    recorded.

    Examples
    --------
    >>> import isthmus
    >>> from isthmus import memory
    >>> with isthmus.audit() as log:
    ...     kept = memory.host(64)
    ...     memory.host(32).close()
    >>> [(event.action.value, event.nbytes) for event in log.events]
    [('allocate', 64), ('allocate', 32), ('free', 32)]
    >>> [(mistake.kind, mistake.what) for mistake in log.mistakes]
    [('never freed', 'host buffer of 64 bytes')]
    """
    for kind in kinds:
        # Refuses a kind that is not known.
        current(kind)
    log = AuditLog(frozenset(kinds))
    try:
        audit_log.start(log)
        yield log
    finally:
        try:
            audit_log.stop(log)
        finally:
            # Again, because an interrupt may have ended the first attempt early.
            audit_log.stop(log)


# The audit of this process, if it has one: its file (None: standard error), its log, and the block that it is in.
_process: list[tuple[Path | None, AuditLog, ExitStack]] = []


os.register_at_fork(after_in_child=_process.clear)


def audit_process() -> None:
    """Start the audit that ``ISTHMUS_AUDIT`` asks for, if it does and none has begun; it ends with the process."""
    name = os.environ.get(VARIABLE)
    if name and name != "0" and not _process:
        block = ExitStack()
        # Standard error is not opened by its path: if it is a file, that would be replaced.
        path = None if name in ("1", "/dev/stderr") else Path(name.replace("%p", str(os.getpid())))
        _process.append((path, block.enter_context(audit()), block))
        atexit.register(conclude)


def conclude(wording: Callable[[str], str] | None = None) -> None:
    """End the audit of this process and write its file; safe to call again.

    A process without events writes none: it may be a helper of the audited one. `wording` turns the texts of events and
    mistakes into those for another language than Python.
    """
    while _process:
        path, log, block = _process.pop()
        block.close()
        if wording is not None:
            log.reword(wording)
        if path is None and (log.events or log.mistakes):
            print(str(log).encode(errors="backslashreplace").decode(), file=sys.stderr, flush=True)
        elif path is not None and (log.events or log.mistakes):
            text = json.dumps(log.as_data(), indent=1) if path.suffix == ".json" else str(log)
            try:
                write_whole(path, f"{text}\n".encode(errors="backslashreplace"), 0o666)
            except OSError as problem:
                log_message(logging.ERROR, f"audit file '{path}': cannot be written: {problem.strerror}")
