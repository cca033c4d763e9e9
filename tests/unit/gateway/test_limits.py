"""Requests per minute: the window against a brute-force model, and the forms in which waits are told."""

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits import WINDOW_SECONDS, RequestWindows, duration, whole_seconds

# Moments in 1/1024 s, which floats hold exactly: what is compared is the window, not rounding.
TICK = 1 / 1024
GAPS = st.lists(st.integers(0, 20 * 1024) | st.sampled_from([0, 1, 60 * 1024]), min_size=1, max_size=60)


def moments(gaps: list[int]) -> list[float]:
    at, now = [], 1000.0
    for gap in gaps:
        now += gap * TICK
        at.append(now)
    return at


@given(gaps=GAPS, limit=st.integers(1, 6))
def test_a_request_is_allowed_exactly_when_the_last_minute_has_room(gaps: list[int], limit: int) -> None:
    windows = RequestWindows()
    allowed: list[float] = []
    for now in moments(gaps):
        recent = [then for then in allowed if then > now - WINDOW_SECONDS]
        verdict = windows.take("key", limit, now)
        assert verdict.allowed == (len(recent) < limit)
        if verdict.allowed:
            allowed.append(now)
        assert verdict.limit == limit
        assert verdict.remaining == limit - len(recent) - verdict.allowed
    for first, last in pairwise(range(0, len(allowed), limit)):
        assert allowed[last] - allowed[first] >= WINDOW_SECONDS
    for i in range(len(allowed) - limit):
        assert allowed[i + limit] - allowed[i] >= WINDOW_SECONDS


@given(gaps=GAPS, limits=st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_a_refusal_tells_the_earliest_moment_at_which_a_retry_succeeds(
    gaps: list[int], limits: list[int]
) -> None:
    """Also when the limit was lowered meanwhile."""
    for tick, succeeds in ((-TICK, False), (0.0, True)):
        windows = RequestWindows()
        for number, now in enumerate(moments(gaps)):
            limit = limits[number % len(limits)]
            verdict = windows.take("key", limit, now)
            if verdict.allowed:
                assert verdict.retry_after == 0
                assert verdict.reset == WINDOW_SECONDS
                continue
            assert 0 < verdict.retry_after <= verdict.reset <= WINDOW_SECONDS
            assert windows.take("key", limit, now + verdict.retry_after + tick).allowed == succeeds
            break


def test_the_window_is_whole_again_at_reset() -> None:
    windows = RequestWindows()
    for now in (0.0, 10.0, 20.0):
        assert windows.take("key", 3, now).allowed
    refused = windows.take("key", 3, 30.0)
    assert (refused.reset, refused.retry_after) == (50.0, 30.0)
    assert windows.take("key", 3, 80.0).remaining == 2


def test_a_refused_request_costs_nothing() -> None:
    windows = RequestWindows()
    assert windows.take("key", 1, 0.0).allowed
    assert not any(windows.take("key", 1, now).allowed for now in (1.0, 30.0, 59.9))
    assert windows.take("key", 1, 60.0).allowed


def test_keys_do_not_share_a_window() -> None:
    windows = RequestWindows()
    assert windows.take("one", 1, 0.0).allowed
    assert windows.take("two", 1, 0.0).allowed
    assert not windows.take("one", 1, 0.0).allowed


def test_keys_that_were_quiet_for_a_minute_are_forgotten() -> None:
    windows = RequestWindows()
    for number in range(900):
        windows.take(f"early-{number}", 1, 0.0)
    for number in range(1200):
        windows.take(f"late-{number % 10}", 1000, 61.0)
    assert len(windows) == 10


@given(st.floats(0, 4000))
def test_a_duration_is_read_back_and_never_too_early(seconds: float) -> None:
    text = duration(seconds)
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+(?:\.\d{1,3})?)s)|(\d+)ms", text)
    assert found, text
    read = int(found[1] or 0) * 60 + float(found[2] or 0) + int(found[3] or 0) / 1000
    assert seconds - 1e-9 <= read <= seconds + 0.0010001


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (-1, "0ms"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (59.5, "59.5s"),
        (59.9999, "1m0s"),
        (60, "1m0s"),
        (360, "6m0s"),
        (61.25, "1m1.25s"),
    ],
)
def test_durations_are_in_openais_form(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(-1, 1e6))
def test_retry_after_is_whole_seconds_rounded_up_and_at_least_one(seconds: float) -> None:
    assert whole_seconds(seconds) == max(1, math.ceil(seconds))
    assert whole_seconds(seconds) >= seconds
