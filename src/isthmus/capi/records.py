"""QnnLog_*, QnnProfile_*, QnnSignal_*: logs, profiles and signals of clients."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isthmus import qnn
from isthmus.cabi.client import listed, write, write_number
from isthmus.cabi.objects import (
    EventData,
    EventType,
    EventUnit,
    ExtendedEventData,
    ProfileConfig,
    ProfileOption,
    SignalConfig,
    SignalOption,
)
from isthmus.capi.functions import serves
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel
from isthmus.qnn.profile import OPERATION
from isthmus.system.shield import shielded

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

_UINT64 = 0x0164
"""QNN_DATATYPE_UINT_64."""

# -- logs --------------------------------------------------------------------------------------------------------------


class ClientLog(Log):
    """A client's log: its callback, or Python's logging if it has none. Times are nanoseconds since it was created."""

    def __init__(self, server: LibraryServer, callback: int, level: int) -> None:
        created = time.monotonic_ns()

        def call(logged_level: LogLevel, text: str) -> None:
            server.hand(callback, logged_level, time.monotonic_ns() - created, text)

        super().__init__(call if callback else None, level)


def log_of(server: LibraryServer, handle: int, code: Code = Code.LOG_INVALID_ARGUMENT) -> ClientLog:
    """Return the log of a handle; `code` is the error for an unknown handle that is not null."""
    return server.handles.get(handle, ClientLog, code if handle else Code.LOG_INVALID_HANDLE, "log")


@serves("logCreate", Code.LOG_INVALID_HANDLE)
def log_create(server: LibraryServer, callback: int, level: int, out: int) -> None:
    """Create a log."""
    write_number(out, 0)
    _check_level(level)
    write_number(out, server.handles.add(ClientLog(server, callback, level)))


@serves("logSetLogLevel", Code.LOG_INVALID_ARGUMENT)
def log_set_log_level(server: LibraryServer, handle: int, level: int) -> None:
    """Change the log level."""
    log = log_of(server, handle)
    _check_level(level)
    log.set_level(level)


def _check_level(level: int) -> None:
    if level not in list(LogLevel):
        known = ", ".join(f"{each.name} {int(each)}" for each in LogLevel)
        raise QnnError(Code.LOG_INVALID_ARGUMENT, f"log level {level}", f"must be one of {known}")


@serves("logFree", Code.LOG_INVALID_ARGUMENT)
def log_free(server: LibraryServer, handle: int) -> None:
    """Free a log; no more messages are sent to it."""
    log_of(server, handle).free()
    server.handles.remove(handle)


# -- profiles ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ClientEvent:
    """One measurement, for the client.

    Parameters
    ----------
    type, unit
        QNN's numbers (`EventType`, `EventUnit`).
    timestamp
        When it was recorded, in microseconds.
    inner
        Its sub-events.
    data
        The C array of the sub-events' handles, which the client reads.
    """

    type: int
    unit: int
    value: int
    name: str
    timestamp: int
    inner: list[ClientEvent] = field(default_factory=list)
    data: Any = None


# QNN's types and units, by the names and units of Python's events.
_TYPES = {"finalize": EventType.FINALIZE, "execute": EventType.EXECUTE}
_UNITS = {"us": EventUnit.MICROSEC, "bytes": EventUnit.BYTES}


class ClientProfile:
    """A client's profile. It contains the events of the latest call that it was passed to.

    Attributes
    ----------
    handle
        The Python profile. It collects nothing: each call has a temporary one (`begin`).
    number
        The client's handle of the profile, which owns the handles of its events.
    most
        The maximum number of events, without sub-events.
    events
        The C array of the events' handles, which the client reads.
    """

    def __init__(self, server: LibraryServer, backend: qnn.Backend, level: int) -> None:
        self._server = server
        self.backend = backend
        self.handle = qnn.Profile(backend, level)
        self.number = 0
        self.most = 1 << 20
        # The handles of its events and their sub-events.
        self._kept: list[int] = []

    @staticmethod
    def of(server: LibraryServer, number: int, code: Code = Code.GRAPH_INVALID_ARGUMENT) -> ClientProfile | None:
        """Return the profile of a handle; None for null. `code` is the error for an unknown handle."""
        if not number:
            return None
        return server.handles.get(number, ClientProfile, code, "profile")

    @contextmanager
    def collecting(self) -> Iterator[qnn.Profile]:
        """Collect the events of a call; they replace the earlier ones."""
        temporary, failed = self.begin(), True
        try:
            yield temporary
            failed = False
        finally:
            self.end(temporary, failed)

    def begin(self) -> qnn.Profile:
        """Create a temporary profile for a call that starts."""
        return qnn.Profile(self.backend, self.handle.level)

    def end(self, temporary: qnn.Profile, failed: bool = False) -> None:
        """Replace the events with those of a successful call, unless the client has freed the profile.

        `temporary` is the profile that `begin` created; it is freed.
        """
        try:
            if not failed and self.handle.alive:
                self._take(temporary.get_events())
        finally:
            temporary.free()

    def _take(self, events: tuple[qnn.Event, ...]) -> None:
        """Convert Python's events for the client."""
        outer: list[ClientEvent] = []
        for event in events:
            name = event.name.removeprefix(OPERATION)
            is_operation = name != event.name
            client_event = ClientEvent(
                EventType.NODE if is_operation else _TYPES.get(name, EventType.BACKEND),
                _UNITS[event.unit],
                round(event.value),
                name,
                time.monotonic_ns() // 1000,
            )
            # Byte counts and operations are sub-events of the call that they are part of.
            is_part = is_operation or event.unit == "bytes"
            (outer[-1].inner if outer and is_part else outer).append(client_event)
        self._set(outer)

    def replace(self, events: list[tuple[EventType, str, float]]) -> None:
        """Replace the events with these: type, name and microseconds of each."""
        now = time.monotonic_ns() // 1000
        self._set([ClientEvent(kind, EventUnit.MICROSEC, round(value), name, now) for kind, name, value in events])

    def _set(self, events: list[ClientEvent]) -> None:
        """Free the handles of the earlier events, and create handles for these."""
        for number in self._kept:
            self._server.handles.remove(number)
        self._kept = []
        self.events = self._handles_of(events[: self.most])

    def _handles_of(self, events: list[ClientEvent]) -> Any:
        """Create handles for events and their sub-events, and return the C array of the former."""
        numbers = []
        for event in events:
            numbers.append(self._server.handles.add(event, self.number))
            event.data = self._handles_of(event.inner)
        self._kept += numbers
        return (ctypes.c_uint64 * len(numbers))(*numbers)

    events: Any = (ctypes.c_uint64 * 0)()


@serves("profileCreate")
def profile_create(server: LibraryServer, backend: int, level: int, out: int) -> None:
    """Create a profile."""
    from isthmus.capi.backend import backend_of

    write_number(out, 0)
    profile = ClientProfile(server, backend_of(server, backend, Code.PROFILE_INVALID_HANDLE), level)
    profile.number = server.handles.add(profile, backend)
    write_number(out, profile.number)


def _profile(server: LibraryServer, handle: int) -> ClientProfile:
    """Return the profile of a handle, in functions of profiles; `ClientProfile.of` has another error code."""
    return server.handles.get(handle, ClientProfile, Code.PROFILE_INVALID_HANDLE, "profile")


@serves("profileSetConfig")
def profile_set_config(server: LibraryServer, handle: int, configs: int) -> None:
    """Set how many events it may hold; traces of single operations are not supported."""
    profile = _profile(server, handle)
    most = profile.most
    for config in listed(configs, ProfileConfig):
        if config.option == ProfileOption.MAX_EVENTS:
            most = config.numMaxEvents
        elif config.option in list(ProfileOption):
            name = ProfileOption(config.option).name
            server.log(LogLevel.INFO, f"profile option {name}: accepted, but without effect here")
        else:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "profile", f"it has no config {config.option}")
    profile.most = most


@serves("profileGetEvents")
def profile_get_events(server: LibraryServer, handle: int, out: int, count: int) -> None:
    """Write the events of the latest call."""
    events = _profile(server, handle).events
    write_number(out, ctypes.addressof(events))
    write_number(count, len(events), ctypes.c_uint32)


def _event(server: LibraryServer, number: int) -> ClientEvent:
    return server.handles.get(number, ClientEvent, Code.COMMON_INVALID_ARGUMENT, "event")


@serves("profileGetSubEvents")
def profile_get_sub_events(server: LibraryServer, number: int, out: int, count: int) -> None:
    """Write the sub-events of an event."""
    inner = _event(server, number).data
    write_number(out, ctypes.addressof(inner))
    write_number(count, len(inner), ctypes.c_uint32)


@serves("profileGetEventData")
def profile_get_event_data(server: LibraryServer, number: int, out: int) -> None:
    """Write an event's name, value and unit."""
    event = _event(server, number)
    name = server.keep_text(event.name)
    data = EventData(event.type, event.unit, event.value, None)
    # Set the pointer by its offset: ctypes would take a text and copy it, and free the copy with `data`.
    ctypes.c_uint64.from_address(ctypes.addressof(data) + EventData.identifier.offset).value = name
    write(out, data)


@serves("profileGetExtendedEventData")
def profile_get_extended_event_data(server: LibraryServer, number: int, out: int) -> None:
    """Write an event's data with its timestamp."""
    event = _event(server, number)
    name = server.keep_text(event.name)
    data = ExtendedEventData()
    data.version, data.v1.type, data.v1.unit, data.v1.timestamp = 1, event.type, event.unit, event.timestamp
    data.v1.value.dataType, data.v1.value.uint64Value = _UINT64, event.value
    offset = ExtendedEventData.v1.offset + type(data.v1).identifier.offset
    ctypes.c_uint64.from_address(ctypes.addressof(data) + offset).value = name
    write(out, data)


@serves("profileFree")
def profile_free(server: LibraryServer, handle: int) -> None:
    """Free a profile and its events."""
    _profile(server, handle).handle.free()
    server.handles.remove(handle)


# -- signals -----------------------------------------------------------------------------------------------------------


class ClientSignal:
    """A client's signal: only its lookup, since the object itself is a `qnn.Signal`."""

    @staticmethod
    def of(server: LibraryServer, number: int) -> qnn.Signal | None:
        """Return the signal of a handle; None for null."""
        if not number:
            return None
        return server.handles.get(number, qnn.Signal, Code.GRAPH_INVALID_ARGUMENT, "signal")


def _configure(server: LibraryServer, signal: qnn.Signal, configs: int) -> None:
    """Set a client's configs, after all have been read."""
    # The arguments of `qnn.Signal.set_config`.
    settings: list[tuple[Any, ...]] = []
    for client_config in listed(configs, SignalConfig):
        if client_config.option == SignalOption.ABORT:
            settings.append((qnn.SignalConfig.ABORT,))
        elif client_config.option == SignalOption.TIMEOUT:
            settings.append((qnn.SignalConfig.TIMEOUT, client_config.timeoutDurationUs))
        elif client_config.option == SignalOption.CUSTOM:
            server.log(LogLevel.INFO, "a custom config of a signal: it has no effect here")
        else:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "signal", f"it has no config {client_config.option}")
    for config in settings:
        signal.set_config(*config)


@serves("signalCreate")
@shielded
def signal_create(server: LibraryServer, backend: int, configs: int, out: int) -> None:
    """Create a signal."""
    from isthmus.capi.backend import backend_of

    write_number(out, 0)
    signal = qnn.Signal(backend_of(server, backend))
    try:
        _configure(server, signal, configs)
    except Exception:
        signal.free()
        raise
    write_number(out, server.handles.add(signal, backend))


def _signal(server: LibraryServer, handle: int) -> qnn.Signal:
    return server.handles.get(handle, qnn.Signal, Code.COMMON_INVALID_ARGUMENT, "signal")


@serves("signalSetConfig")
def signal_set_config(server: LibraryServer, handle: int, configs: int) -> None:
    """Change what ends executions."""
    _configure(server, _signal(server, handle), configs)


@serves("signalTrigger")
def signal_trigger(server: LibraryServer, handle: int) -> None:
    """Abort the execution that uses the signal."""
    _signal(server, handle).trigger()


@serves("signalFree")
def signal_free(server: LibraryServer, handle: int) -> None:
    """Free a signal."""
    _signal(server, handle).free()
    server.handles.remove(handle)
