"""Failed logins by address: counted, bounded, in bounded memory."""

import threading

import pytest

from gateway import failed_logins
from gateway.errors import TooManyFailedLogins
from gateway.failed_logins import MOST_NOTED, FailedLogins


def refused(failures: FailedLogins, address: str) -> bool:
    try:
        failures.note(address)
    except TooManyFailedLogins:
        return True
    return False


def test_so_many_failures_are_answered_for_what_they_are_and_no_more() -> None:
    failures = FailedLogins(5)
    assert [refused(failures, "192.0.2.1") for _ in range(8)] == [False] * 5 + [True] * 3


def test_the_refusal_says_when_the_next_is_answered() -> None:
    failures = FailedLogins(1)
    failures.note("192.0.2.1")
    with pytest.raises(TooManyFailedLogins, match="valid key is still taken") as raised:
        failures.note("192.0.2.1")
    after = int(dict(raised.value.headers)[b"retry-after"])
    assert 58 <= after <= 61


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"),
        ("2001:db8:1:2::1", "2001:0DB8:0001:0002::9"),
        ("192.0.2.1", "::ffff:192.0.2.1"),
        ("", ""),
        ("unix:", "unix:"),
    ],
)
def test_addresses_of_one_sender_are_counted_together(first: str, second: str) -> None:
    failures = FailedLogins(1)
    failures.note(first)
    assert refused(failures, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [("192.0.2.1", "192.0.2.2"), ("2001:db8:1:2::1", "2001:db8:1:3::1"), ("", "192.0.2.1")],
)
def test_addresses_of_different_senders_are_counted_apart(first: str, second: str) -> None:
    failures = FailedLogins(1)
    failures.note(first)
    assert not refused(failures, second)


def test_two_gateways_do_not_share_their_counts() -> None:
    one, other = FailedLogins(1), FailedLogins(1)
    one.note("192.0.2.1")
    other.note("192.0.2.1")


def test_a_sender_with_many_networks_does_not_fill_the_memory() -> None:
    failures = FailedLogins(1)
    for number in range(MOST_NOTED):
        failures.note(f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::1")
    assert refused(failures, "2001:db8:0:5::1") is False  # counting has begun anew
    assert refused(failures, "2001:db8:0:5::2")


def test_counting_leaves_no_threads_behind() -> None:
    """The library sweeps in a thread that ends by itself."""
    before = threading.active_count()
    failures = FailedLogins(1)
    for number in range(100):
        failures.note(f"192.0.2.{number}")
    assert threading.active_count() <= before + 1


def test_one_network_of_ipv6_is_one_sender() -> None:
    assert failed_logins.IPV6_PREFIX == 64
