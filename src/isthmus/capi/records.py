"""QnnLog_*, QnnProfile_*, QnnSignal_*: logs, profiles and signals of clients."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isthmus import qnn
from isthmus.cabi.client import write, write_number
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
from isthmus.capi import options
from isthmus.capi.functions import handle_type, serves
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel
from isthmus.qnn.profile import OPERATION

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

handle_type("Qnn_SignalHandle_t", "signal")(qnn.Signal)

# QNN_DATATYPE_UINT_64.
_UINT64 = 0x0164


@serves("logFree", Code.LOG_INVALID_ARGUMENT)
@serves("systemLogFree")
@serves("signalFree")
@serves("deviceFree", Code.DEVICE_INVALID_HANDLE)
def free(server: LibraryServer, thing: Any) -> None:
    """Free a log, to which no more messages are sent, a signal, or a device that no context uses."""
    thing.free()


# -- logs --------------------------------------------------------------------------------------------------------------


@handle_type("Qnn_LogHandle_t", "log", Code.LOG_INVALID_ARGUMENT, null=Code.LOG_INVALID_HANDLE)
class ClientLog(Log):
    """A client's log: its callback, or Python's logging if it has none. Times are nanoseconds since it was created."""

    def __init__(self, server: LibraryServer, callback: int, level: int) -> None:
        created = time.monotonic_ns()

        def call(logged_level: LogLevel, text: str) -> None:
            server.hand(callback, logged_level, time.monotonic_ns() - created, text)

        super().__init__(call if callback else None, level)


@serves("logCreate", Code.LOG_INVALID_HANDLE)
@serves("systemLogCreate")
def log_create(server: LibraryServer, callback: int, level: int) -> ClientLog:
    """Create a log."""
    _check_level(level)
    return ClientLog(server, callback, level)


@serves("logSetLogLevel", Code.LOG_INVALID_ARGUMENT)
@serves("systemLogSetLogLevel")
def log_set_log_level(server: LibraryServer, log: ClientLog, level: int) -> None:
    """Change the log level."""
    _check_level(level)
    log.set_level(level)


def _check_level(level: int) -> None:
    if level not in list(LogLevel):
        levels = ", ".join(f"{each.name} {int(each)}" for each in LogLevel)
        raise QnnError(Code.LOG_INVALID_ARGUMENT, f"log level {level}", f"must be one of {levels}")


# -- profiles ----------------------------------------------------------------------------------------------------------


@handle_type("QnnProfile_EventId_t", "event")
@dataclass(eq=False)
class ClientEvent:
    """One measurement, for the client.

    - `timestamp`: When it was recorded, in microseconds.
    - `data`: The C array of the sub-events' handles, which the client reads.
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


@handle_type("Qnn_ProfileHandle_t", "profile", Code.PROFILE_INVALID_HANDLE)
class ClientProfile:
    """A client's profile. It contains the events of the latest call that it was passed to.

    - `handle`: The Python profile. It collects nothing: each call has a temporary one (`begin`).
    - `most`: The maximum number of events, without sub-events.
    - `events`: The C array of the events' handles, which the client reads.
    """

    def __init__(self, server: LibraryServer, backend: qnn.Backend, level: int) -> None:
        self._server = server
        self.backend = backend
        self.handle = qnn.Profile(backend, level)
        self.most = 1 << 20
        # The handles of its events and their sub-events.
        self._event_handles: list[int] = []

    @staticmethod
    def of(server: LibraryServer, number: int) -> ClientProfile | None:
        """Return the profile of a graph by its handle; None for null."""
        if not number:
            return None
        return server.handles.get(number, ClientProfile, Code.GRAPH_INVALID_ARGUMENT, "profile")

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

    def replace(self, events: list[tuple[EventType, str, float]], memory: Iterable[tuple[str, int]] = ()) -> None:
        """Replace the events with these: type, name and microseconds of each; names and bytes of `memory`."""
        now = time.monotonic_ns() // 1000
        times = [ClientEvent(kind, EventUnit.MICROSEC, round(value), name, now) for kind, name, value in events]
        bytes_used = [ClientEvent(EventType.BACKEND, EventUnit.BYTES, value, name, now) for name, value in memory]
        self._set(times + bytes_used)

    def _set(self, events: list[ClientEvent]) -> None:
        """Free the handles of the earlier events, and create handles for these."""
        for number in self._event_handles:
            self._server.handles.remove(number)
        self._event_handles = []
        self.events = self._handles_of(events[: self.most])

    def _handles_of(self, events: list[ClientEvent]) -> Any:
        """Create handles for events and their sub-events, and return the C array of the former."""
        numbers, owner = [], self._server.handles.number_of(self)
        for event in events:
            numbers.append(self._server.handles.add(event, owner))
            event.data = self._handles_of(event.inner)
        self._event_handles += numbers
        return (ctypes.c_uint64 * len(numbers))(*numbers)

    events: Any = (ctypes.c_uint64 * 0)()


@serves("profileCreate")
def profile_create(server: LibraryServer, backend: qnn.Backend, level: int) -> ClientProfile:
    """Create a profile."""
    return ClientProfile(server, backend, level)


@serves("profileSetConfig")
def profile_set_config(server: LibraryServer, profile: ClientProfile, configs: list[ProfileConfig]) -> None:
    """Set how many events it may hold; traces of single operations are not supported."""
    most = profile.most
    for config in configs:
        if config.option == ProfileOption.MAX_EVENTS:
            most = config.numMaxEvents
        else:
            options.log_unused(server, "profile", ProfileOption, config.option, Code.COMMON_INVALID_ARGUMENT)
    profile.most = most


@serves("profileGetEvents")
def profile_get_events(server: LibraryServer, profile: ClientProfile, out: int, count: int) -> None:
    """Write the events of the latest call."""
    write_number(out, ctypes.addressof(profile.events))
    write_number(count, len(profile.events), ctypes.c_uint32)


@serves("profileGetSubEvents")
def profile_get_sub_events(server: LibraryServer, event: ClientEvent, out: int, count: int) -> None:
    """Write the sub-events of an event."""
    write_number(out, ctypes.addressof(event.data))
    write_number(count, len(event.data), ctypes.c_uint32)


@serves("profileGetEventData")
def profile_get_event_data(server: LibraryServer, event: ClientEvent, out: int) -> None:
    """Write an event's name, value and unit."""
    name = server.keep_text(event.name)
    data = EventData(event.type, event.unit, event.value, None)
    # Set the pointer by its offset: ctypes would take a text and copy it, and free the copy with `data`.
    ctypes.c_uint64.from_address(ctypes.addressof(data) + EventData.identifier.offset).value = name
    write(out, data)


@serves("profileGetExtendedEventData")
def profile_get_extended_event_data(server: LibraryServer, event: ClientEvent, out: int) -> None:
    """Write an event's data with its timestamp."""
    name = server.keep_text(event.name)
    data = ExtendedEventData()
    data.version, data.v1.type, data.v1.unit, data.v1.timestamp = 1, event.type, event.unit, event.timestamp
    data.v1.value.dataType, data.v1.value.uint64Value = _UINT64, event.value
    offset = ExtendedEventData.v1.offset + type(data.v1).identifier.offset
    ctypes.c_uint64.from_address(ctypes.addressof(data) + offset).value = name
    write(out, data)


@serves("profileFree")
def profile_free(server: LibraryServer, profile: ClientProfile) -> None:
    """Free a profile and its events."""
    profile.handle.free()


# -- signals -----------------------------------------------------------------------------------------------------------


@serves("signalSetConfig")
def signal_set_config(server: LibraryServer, signal: qnn.Signal, configs: list[SignalConfig]) -> None:
    """Change what ends executions: all configs are checked before the first is set."""
    # The arguments of `qnn.Signal.set_config`.
    settings: list[tuple[Any, ...]] = []
    for client_config in configs:
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


@serves("signalCreate", is_shielded=True)
def signal_create(server: LibraryServer, backend: qnn.Backend, configs: list[SignalConfig]) -> qnn.Signal:
    """Create a signal."""
    signal = qnn.Signal(backend)
    try:
        signal_set_config(server, signal, configs)
    except Exception:
        signal.free()
        raise
    return signal


@serves("signalTrigger")
def signal_trigger(server: LibraryServer, signal: qnn.Signal) -> None:
    """Abort the execution that uses the signal."""
    signal.trigger()
