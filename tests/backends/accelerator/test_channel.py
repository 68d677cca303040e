"""Messages of any sane size cross whole, with their descriptors; what cannot be sent is refused and harms nothing."""

import hashlib
import os
import resource
import struct
import threading

import pytest
from support.waiting import PATIENCE

from isthmus import Code, QnnError
from isthmus.system.channel import FORMAT, Channel, ChannelClosed, Message, system_refusal
from isthmus.system.container import MAX_HEADER


@pytest.fixture
def ends():
    mine, theirs = Channel.pair()
    other = Channel(theirs)
    yield mine, other
    mine.close()
    other.close()


def crossed(ends, header, fds=(), number=7):
    """The message that arrives at the other end."""
    arrived = []
    reading = threading.Thread(target=lambda: arrived.append(ends[1].receive()))
    reading.start()
    ends[0].send(Message(header, {}, fds, number))
    reading.join(PATIENCE)
    return arrived[0]


@pytest.mark.parametrize("length", [0, 1 << 16, 5 << 20])
def test_long_messages_arrive_whole_and_in_order(ends, length) -> None:
    for number in (1, 2, 1 << 60):
        message = crossed(ends, {"text": "ü" * length}, number=number)
        assert (message.number, message.header) == (number, {"text": "ü" * length})


def test_descriptors_come_with_their_message_and_no_other(ends) -> None:
    read, write = os.pipe()
    messages = [crossed(ends, {"n": n}, fds) for n, fds in enumerate(([read, write], [], [write] * 64))]
    assert [len(message.descriptors) for message in messages] == [2, 0, 64]
    os.write(messages[0].descriptors[1], b"through")
    assert os.read(read, 100) == b"through"
    for message in messages:
        message.close()
    os.close(read)
    os.close(write)


def test_a_message_beyond_all_bounds_is_refused(ends) -> None:
    with pytest.raises(QnnError, match="more than") as refusal:
        ends[0].send(Message({"text": "x" * MAX_HEADER}))
    assert refusal.value.code is Code.COMMON_INVALID_ARGUMENT
    other = Channel(ends[1]._socket, 1000)
    ends[0].send(Message({"text": "x" * 1000}))
    with pytest.raises(QnnError, match="more than 1,000"):
        other.receive()


def test_a_closed_descriptor_is_refused_and_the_next_message_arrives(ends) -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    with pytest.raises(QnnError) as refusal:
        ends[0].send(Message({}, {}, [write]))
    assert refusal.value.code is Code.MEM_INVALID_ARGUMENT
    assert crossed(ends, {"next": 1}).header == {"next": 1}


def test_descriptors_that_the_receiver_cannot_take_are_noticed(ends) -> None:
    read, write = os.pipe()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    ends[0].send(Message({"call": "x"}, {}, [write] * 8))
    resource.setrlimit(resource.RLIMIT_NOFILE, (write + 3, limits[1]))
    try:
        message = ends[1].receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (message.header, message.missing + len(message.descriptors)) == ({"call": "x"}, 8)
    assert message.missing
    message.close()
    os.close(read)
    os.close(write)
    assert crossed(ends, {"next": 1}).header == {"next": 1}


@pytest.mark.parametrize("text", [b"", b"[1]", b"{", b"[" * 100_000, b"\xff"])
def test_a_message_that_makes_no_sense_is_refused(ends, text) -> None:
    content = _with_header(text)
    ends[0]._socket.sendall(struct.pack("<QQI", 1, len(content), 0) + content)
    with pytest.raises(QnnError, match="message of another process"):
        ends[1].receive()


def _with_header(text):
    """A container whose header is a text."""
    fields = struct.pack("<8sIIQ", FORMAT.magic, FORMAT.version, len(text), 56 + len(text))
    return fields + hashlib.sha256(fields + text).digest() + text


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nHost: none\r\n\r\n", b"\xff" * 100, b"ISTH"])
def test_bytes_that_are_no_frame_close_the_channel(ends, said) -> None:
    ends[0]._socket.sendall(said)
    ends[0].shut()
    with pytest.raises((ChannelClosed, QnnError)):
        ends[1].receive()


def test_shutting_one_end_is_seen_although_others_have_its_descriptor(ends) -> None:
    held = os.dup(ends[0]._socket.fileno())
    ends[0].shut()
    ends[0].shut()
    with pytest.raises(ChannelClosed):
        ends[1].receive()
    with pytest.raises(ChannelClosed):
        ends[1].send(Message())
    os.close(held)


def test_an_error_of_a_signals_handler_is_not_taken_for_one_of_the_system() -> None:
    raised = TimeoutError("the user's own")
    assert system_refusal(raised, "memory", "cannot be made") is raised
