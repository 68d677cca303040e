"""Profiles that clients measured are kept in files, a line a call; what has no end or no file is an answer."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest

from capi.qnn_calls import Client
from isthmus.cabi import system
from isthmus.capi import serialization
from isthmus.errors import Code


@pytest.fixture
def client(libraries: Path) -> Client:
    return Client(libraries / "libQnnSystem.so")


def target(client: Client, folder: Path) -> int:
    """A file for profiles."""
    given = system.SerializationTarget(1, (b"profile", str(folder).encode()))
    out = ctypes.c_void_p()
    client.do("systemProfileCreateSerializationTarget", given, None, 0, ctypes.byref(out))
    return out.value or 0


def call(event: system.ProfileEvent) -> ctypes.Array[ctypes._Pointer[system.ProfileData]]:
    """One call that took one event."""
    data = system.ProfileData(1)
    data.v1.header.graphName = b"twice"
    data.v1.profilingEvents, data.v1.numProfilingEvents = ctypes.pointer(event), 1
    return (ctypes.POINTER(system.ProfileData) * 1)(ctypes.pointer(data))


def test_a_call_is_a_line_with_its_events_and_their_parts(client: Client, tmp_path: Path) -> None:
    part = system.ProfileEvent()
    whole = system.ProfileEvent()
    part.eventData.identifier, part.eventData.value = b"part", 3
    whole.eventData.identifier, whole.eventData.value = b"whole", 4
    whole.profileSubEventData, whole.numSubEvents = ctypes.addressof(part), 1
    handle = target(client, tmp_path)
    client.do("systemProfileSerializeEventData", handle, call(whole), 1)
    client.do("systemProfileFreeSerializationTarget", handle)
    _, line = (tmp_path / "profile").read_text().splitlines()
    (event,) = json.loads(line)["events"]
    assert (event["name"], event["value"], event["parts"][0]["name"]) == ("whole", 4, "part")


def nested(levels: int) -> ctypes.Array[system.ProfileEvent]:
    """Return an event with this many levels of sub-events below it, each the only part of the one before."""
    events = (system.ProfileEvent * (levels + 1))()
    for index in range(levels):
        events[index].profileSubEventData, events[index].numSubEvents = ctypes.addressof(events[index + 1]), 1
    return events


def test_events_nested_too_deeply_are_refused_and_none_is_dropped(client: Client, tmp_path: Path) -> None:
    handle = target(client, tmp_path)
    deepest, deeper = nested(serialization.MAX_DEPTH), nested(serialization.MAX_DEPTH + 1)
    # The deepest event has an address but numSubEvents is 0: the address is ignored, and it has no parts.
    deepest[serialization.MAX_DEPTH].profileSubEventData = ctypes.addressof(deeper)
    client.do("systemProfileSerializeEventData", handle, call(deepest[0]), 1)
    answer = client.systemProfileSerializeEventData(handle, call(deeper[0]), 1)
    assert answer == Code.COMMON_INVALID_ARGUMENT
    client.do("systemProfileFreeSerializationTarget", handle)
    _, line = (tmp_path / "profile").read_text().splitlines()
    assert line.count('"parts"') == len(deepest)


def test_more_calls_than_the_maximum_are_refused_and_none_is_dropped(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serialization, "MAX_EVENTS", 2)
    handle = target(client, tmp_path)
    event, one = system.ProfileEvent(), system.ProfileData(1)
    one.v1.profilingEvents = ctypes.pointer(event)
    calls = (ctypes.POINTER(system.ProfileData) * 3)(*[ctypes.pointer(one)] * 3)
    client.do("systemProfileSerializeEventData", handle, calls, 2)
    assert client.systemProfileSerializeEventData(handle, calls, 3) == Code.COMMON_INVALID_ARGUMENT
    client.do("systemProfileFreeSerializationTarget", handle)
    assert len((tmp_path / "profile").read_text().splitlines()) == 1 + 2


def test_an_event_that_is_a_part_of_itself_is_refused(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serialization, "MAX_EVENTS", 100)
    round_ = (system.ProfileEvent * 4)()
    for event in round_:
        event.profileSubEventData, event.numSubEvents = ctypes.addressof(round_), 4
    handle = target(client, tmp_path)
    answer = client.systemProfileSerializeEventData(handle, call(round_[0]), 1)
    assert answer == Code.COMMON_INVALID_ARGUMENT
    assert len((tmp_path / "profile").read_text().splitlines()) == 1
    client.do("systemProfileFreeSerializationTarget", handle)


def test_a_file_that_is_gone_is_answered_with_an_error(client: Client, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    handle = target(client, tmp_path / "folder")
    (tmp_path / "folder" / "profile").unlink()
    (tmp_path / "folder").rmdir()
    assert client.systemProfileSerializeEventData(handle, call(system.ProfileEvent()), 1) == Code.COMMON_SYSTEM
    client.do("systemProfileFreeSerializationTarget", handle)


def test_a_target_that_is_freed_twice_gives_a_code_and_no_error_line(
    client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    # ONNX Runtime's provider does so with every target.
    handle = target(client, tmp_path)
    client.do("systemProfileFreeSerializationTarget", handle)
    assert client.systemProfileFreeSerializationTarget(handle) == Code.COMMON_INVALID_ARGUMENT
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]
    assert capfd.readouterr().err == ""
