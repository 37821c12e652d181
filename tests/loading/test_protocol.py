"""Messages between trainer and worker arrive complete, or the end of the peer is reported."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import warnings

import pytest

from energy_data.loading.workers.protocol import Channel, Message, exit_with


@pytest.fixture
def channels():
    pair = [Channel(end) for end in multiprocessing.Pipe()]
    yield pair
    for channel in pair:
        channel.close()


@pytest.mark.parametrize("size", [0, 100, 3_000_000])  # the last in many parts
def test_messages_of_any_size_arrive_in_order(channels, size):
    sent = [Message(0, "error", number, error=(bytes(size), "text")) for number in range(3)]
    sender = threading.Thread(target=lambda: [channels[0].send(message.pack()) for message in sent])
    sender.start()
    assert [Message.unpack(channels[1].receive()) for _ in sent] == sent
    sender.join()


@pytest.mark.parametrize("begun", [b"", b"\x10", b"\x10" + bytes(7), b"\x10" + bytes(12)])
def test_an_end_in_the_middle_of_a_message_is_an_end(channels, begun):
    os.write(channels[0].fd, begun)
    channels[0].close()
    with pytest.raises(EOFError):
        channels[1].receive()


def test_a_closed_channel_has_no_descriptor_that_may_be_another_file_by_now(channels):
    channels[0].close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        channels[0].send(None)


def no_pidfd(process):
    raise PermissionError


@pytest.mark.parametrize("allowed", [True, False], ids=["pidfd", "no pidfd"])
def test_a_process_ends_with_the_one_it_belongs_to(monkeypatch, allowed):
    if not allowed:
        monkeypatch.setattr(os, "pidfd_open", no_pidfd)
    trainer = subprocess.Popen(["sleep", "0.2"])
    worker = multiprocessing.get_context("fork").Process(target=exit_with, args=(trainer.pid,))
    worker.start()
    assert worker.is_alive()
    trainer.wait()
    worker.join(10)
    assert worker.exitcode == 1


def test_received_files_that_an_interrupt_discards_are_closed_without_a_warning(
    channels, monkeypatch
):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    with open(os.devnull) as file, warnings.catch_warnings():  # noqa: PTH123
        warnings.simplefilter("error")
        channels[0].send_files([file.fileno()] * 2)
        channels[1].receive_files(2)
    assert seen == []
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
