"""Days and months of a time zone, and the forms in which waits are told."""

import math
import re
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits import Calendar, Limit, Reading, duration, tightest, whole_seconds


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


ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut", "Pacific/Apia", "Australia/Lord_Howe"]


@given(zone=st.sampled_from(ZONES), at=st.floats(1.3e9, 2.0e9))
def test_a_moment_lies_in_the_day_and_month_that_the_zones_clocks_show(zone: str, at: float) -> None:
    calendar, local = Calendar(zone), datetime.fromtimestamp(at, ZoneInfo(zone))
    day, month = calendar.day(at), calendar.month(at)
    assert (day.id, month.id) == (f"{local:%Y-%m-%d}", f"{local:%Y-%m}")
    assert day.start <= at < day.end
    assert month.start <= at < month.end
    assert month.start <= day.start
    assert day.end <= month.end


@given(zone=st.sampled_from(ZONES), at=st.floats(1.3e9, 2.0e9))
def test_one_period_ends_where_the_next_begins(zone: str, at: float) -> None:
    calendar = Calendar(zone)
    for period_of in (calendar.day, calendar.month):
        period = period_of(at)
        following = period_of(period.end)
        assert following.start == period.end
        assert following.id > period.id


def test_a_day_has_the_hours_that_its_clocks_show() -> None:
    calendar = Calendar("Europe/Berlin")
    hours = {
        day: (calendar.day(at).end - calendar.day(at).start) / 3600
        for day in ("2026-03-29", "2026-07-01", "2026-10-25")
        for at in [datetime.fromisoformat(f"{day}T12:00+01:00").timestamp()]
    }
    assert hours == {"2026-03-29": 23, "2026-07-01": 24, "2026-10-25": 25}


def test_the_tightest_is_the_enforced_one_with_the_least_left() -> None:
    def reading(amount: int, *, shadow: bool = False) -> Reading:
        return Reading(Limit("requests_per_minute", "key", str(amount), amount, shadow), 0, amount, 0.0)

    assert tightest("requests_per_minute", [reading(9), reading(4), reading(1, shadow=True)]) == reading(4)
    assert tightest("tokens_per_minute", [reading(9)]) is None
