"""Messages between trainer and worker arrive whole, or it is said that the other end is gone."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest

from energy_data.loading.wire import Line, Message, receive, send


@pytest.fixture
def lines():
    pair = [Line(end) for end in multiprocessing.Pipe()]
    yield pair
    for line in pair:
        line.hang_up()


@pytest.mark.parametrize("size", [0, 100, 3_000_000])  # the last in many parts
def test_messages_of_any_size_arrive_in_order(lines, size):
    sent = [Message(0, "error", number, error=(bytes(size), "text")) for number in range(3)]
    sender = threading.Thread(target=lambda: [send(lines[0], message) for message in sent])
    sender.start()
    assert [receive(lines[1], Message) for _ in sent] == sent
    sender.join()


@pytest.mark.parametrize("begun", [b"", b"\x10", b"\x10" + bytes(7), b"\x10" + bytes(12)])
def test_an_end_in_the_middle_of_a_message_is_an_end(lines, begun):
    os.write(lines[0].fd, begun)
    lines[0].hang_up()
    with pytest.raises(EOFError):
        receive(lines[1], Message)


def test_what_was_hung_up_has_no_descriptor_that_may_be_another_file_by_now(lines):
    lines[0].hang_up()
    with pytest.raises(OSError, match="Bad file descriptor"):
        send(lines[0], None)
