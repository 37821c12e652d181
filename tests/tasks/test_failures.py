"""Failures of users' functions: reported, counted, and given up after too many in a row."""

from __future__ import annotations

import logging

import pytest

from energy_data.core.sample import SampleSource
from energy_data.core.user_call import ErrorPolicy, log_exception, reraise_exception
from energy_data.errors import FatalSampleError, SampleError, StructureError

SAMPLE = {"__key__": "k", "__sources__": (SampleSource("cats", "shard-0.tar", 3),)}


def test_the_handler_gets_the_error_the_sample_and_its_sources():
    heard = []
    policy = ErrorPolicy(handler=lambda *facts: heard.append(facts))
    error = ValueError("x")
    policy.handle("encode", error, SAMPLE, 1)
    policy.handle("encode", error, [SAMPLE, SAMPLE], 2)
    assert heard == [
        (error, SAMPLE, list(SAMPLE["__sources__"])),
        (error, [SAMPLE, SAMPLE], list(SAMPLE["__sources__"] * 2)),
    ]


def test_old_handlers_get_the_key():
    heard = []

    def handler(error, key):
        heard.append(key)

    policy = ErrorPolicy(handler=handler)
    policy.handle("encode", ValueError(), SAMPLE, 1)
    policy.handle("encode", ValueError(), [SAMPLE], 2)
    assert heard == ["k", "k"]


def test_too_many_failures_in_a_row_are_fatal_and_name_the_sample():
    policy = ErrorPolicy(handler=lambda *_: None, tolerance=3)
    with pytest.raises(
        FatalSampleError,
        match=r"encode_sample: it failed 3 times in a row.*dataset cats.*key k.*ValueError: x",
    ):
        policy.handle("encode_sample", ValueError("x"), SAMPLE, 3)


def test_a_tolerance_of_0_puts_up_with_everything():
    policy = ErrorPolicy(handler=lambda *_: None, tolerance=0)
    policy.handle("encode", ValueError(), SAMPLE, 10**6)


@pytest.mark.parametrize(
    "error", [MemoryError(), NameError("x"), ImportError(), StructureError("torn")]
)
def test_what_is_no_samples_fault_is_fatal_at_once(error):
    heard = []
    policy = ErrorPolicy(handler=lambda *facts: heard.append(facts), tolerance=0)
    with pytest.raises(FatalSampleError, match="it cannot go on"):
        policy.handle("encode", error, SAMPLE, 1)
    assert not heard


def test_a_bad_sample_is_put_up_with_like_any_error():
    heard = []
    policy = ErrorPolicy(handler=lambda *facts: heard.append(facts))
    policy.handle("encode", SampleError("bad"), SAMPLE, 1)
    assert len(heard) == 1


def test_errors_are_logged_or_raised_again(caplog):
    with caplog.at_level(logging.ERROR):
        log_exception(ValueError("what is wrong"), SAMPLE)
    assert "skipped: dataset cats, shard shard-0.tar, key k, sample 3" in caplog.text
    assert "what is wrong" in caplog.text
    with pytest.raises(ValueError, match="x"):
        reraise_exception(ValueError("x"), SAMPLE)
