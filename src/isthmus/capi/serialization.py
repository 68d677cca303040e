"""QnnSystemProfile_*: clients' measurements in files, with one line of JSON per profiled call.

The vendor's files of this kind are for the vendor's viewer. These can be read by any JSON reader.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cabi.client import checked, listed_all, pointer, read, text
from isthmus.cabi.objects import EventType, EventUnit
from isthmus.cabi.system import ProfileData, ProfileEvent, SerializationConfig, SerializationTarget
from isthmus.capi.functions import handle_type, serves
from isthmus.errors import Code, QnnError

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

# QNN's types of a target, of a config and of an event.
_FILE, _HEADER, _EXTENDED = 1, 1, 1
MAX_EVENTS = 1 << 16
"""Maximum of one call: files, calls, or events with all their sub-events."""
MAX_DEPTH = 8
"""Maximum levels of sub-events below an event."""


@handle_type("QnnSystemProfile_SerializationTargetHandle_t", "profile target")
class ProfileFile:
    """A file that profiles are written to; its first line is the header, each further line a profiled call."""

    def __init__(self, file: Path, header: dict[str, Any]) -> None:
        self.file = file
        try:
            file.write_text(json.dumps({"format": "isthmus-profile", **header}) + "\n")
        except OSError as problem:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"profile file '{file}'", str(problem)) from None

    def add(self, lines: list[dict[str, Any]]) -> None:
        """Append calls, one line each."""
        try:
            with self.file.open("a") as stream:
                for line in lines:
                    stream.write(json.dumps(line) + "\n")
        except OSError as problem:
            raise QnnError(Code.COMMON_SYSTEM, f"profile file '{self.file}'", str(problem)) from None


@serves("systemProfileCreateSerializationTarget")
def create_serialization_target(server: LibraryServer, target: int, configs: int, count: int) -> ProfileFile:
    """Create a file for profiles."""
    description = read(target, SerializationTarget)
    if description.type != _FILE:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "profile target", f"its type {description.type} is not a file")
    header: dict[str, Any] = {}
    for index in range(_check_count(count, "profile configs")):
        config = read(checked(configs), SerializationConfig, index)
        if config.type == _HEADER:
            who = config.serializationHeader
            header = {
                "application": text(pointer(who, "appName")),
                "version": text(pointer(who, "appVersion")),
                "backend": text(pointer(who, "backendVersion")),
            }
    name = text(checked(pointer(description.file, "fileName"))) or ""
    folder = text(pointer(description.file, "fileDirectory")) or "."
    return ProfileFile(Path(folder) / name, header)


@serves("systemProfileSerializeEventData")
def serialize_event_data(server: LibraryServer, target: ProfileFile, data: int, count: int) -> None:
    """Write the events of calls."""
    lines, remaining = [], [MAX_EVENTS]
    for each in listed_all(checked(data), ProfileData, _check_count(count, "profiled calls")):
        header = each.v1.header
        lines.append(
            {
                "graph": text(pointer(header, "graphName")),
                "method": header.methodType,
                "start_us": header.startTime,
                "stop_us": header.stopTime,
                "events": _events(pointer(each.v1, "profilingEvents"), each.v1.numProfilingEvents, remaining),
            }
        )
    target.add(lines)


def _check_count(count: int, what: str) -> int:
    """Return a client's count, unless it is too large; `what` is counted, for messages."""
    if count > MAX_EVENTS:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"they are {count}, more than {MAX_EVENTS}")
    return count


def _events(address: int | None, count: int, remaining: list[int], depth: int = 0) -> list[dict[str, Any]]:
    """Return events with their sub-events."""
    # - `remaining`: A list with how many events may still be read in this call. It is counted down here, since a
    #   client's event may contain itself.
    if not address or not count:
        return []
    if depth > MAX_DEPTH:
        rule = f"their parts are nested more than {MAX_DEPTH} levels deep, or have no end"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "profile events", rule)
    events = []
    for index in range(count):
        if not remaining[0]:
            rule = f"they are more than {MAX_EVENTS} with their parts, or have no end"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "profile events", rule)
        remaining[0] -= 1
        event = read(address, ProfileEvent, index)
        extended = event.type == _EXTENDED
        data = event.extendedEventData.v1 if extended else event.eventData
        events.append(
            {
                "type": _name_of(EventType, data.type),
                "unit": _name_of(EventUnit, data.unit),
                "value": data.value.uint64Value if extended else data.value,
                "name": text(pointer(data, "identifier")),
                "parts": _events(event.profileSubEventData, event.numSubEvents, remaining, depth + 1),
            }
        )
    return events


def _name_of(kind: Any, number: int) -> str | int:
    """Return the name of an enumeration's member, or the number if there is no such member."""
    return next((str(member.name) for member in kind if member == number), number)


# ONNX Runtime's provider frees each target twice, so a target that was freed before is no mistake to report.
@serves("systemProfileFreeSerializationTarget", expected=True)
def free_serialization_target(server: LibraryServer, target: ProfileFile) -> None:
    """Free the handle of a file only; the file is open only while lines are written."""
