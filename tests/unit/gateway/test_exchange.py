"""What is read from a request's head: the request id, kept or replaced, and whose address is believed."""

import re
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.exchange import Exchange
from tests.fakes.asgi import scope

PROXIES = (ip_network("172.28.0.0/24"), ip_network("fd00::/8"))


def begin(*headers: tuple[str, str], peer: str | None = "192.0.2.7") -> Exchange:
    return Exchange.begin(scope("GET", "/v1/models", headers, peer=peer), PROXIES)


@pytest.mark.parametrize("given_id", ["a", "A.b_c-9", "x" * 128])
def test_a_well_formed_request_id_is_kept(given_id: str) -> None:
    exchange = begin(("X-Request-Id", given_id))
    assert exchange.request_id == given_id
    assert exchange.answer_headers == [(b"x-request-id", given_id.encode())]


@given(st.text(st.characters(max_codepoint=255), max_size=200))
def test_any_other_is_replaced_so_that_none_can_forge_a_line_or_header(given_id: str) -> None:
    request_id = begin(("X-Request-Id", given_id)).request_id
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", request_id)
    kept = re.fullmatch(r"[A-Za-z0-9._-]{1,128}", given_id) is not None
    assert (request_id == given_id) == kept


def test_two_requests_without_an_id_get_two() -> None:
    assert begin().request_id != begin().request_id


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("172.28.0.9", "203.0.113.5", "203.0.113.5"),
        ("172.28.0.9", "10.0.0.1, 203.0.113.5", "203.0.113.5"),
        ("172.28.0.9", "spoofed, 2001:db8::1", "2001:db8::1"),
        ("fd00::9", "203.0.113.5", "203.0.113.5"),
        ("172.28.0.9", "203.0.113.5, nonsense", "172.28.0.9"),
        ("172.28.0.9", "", "172.28.0.9"),
        ("192.0.2.7", "203.0.113.5", "192.0.2.7"),
        ("no address", "203.0.113.5", "no address"),
    ],
)
def test_only_a_trusted_proxys_last_word_on_the_address_is_believed(
    peer: str, forwarded: str, client: str
) -> None:
    assert begin(("X-Forwarded-For", forwarded), peer=peer).client_ip == client


def test_a_peer_without_an_address_has_none() -> None:
    assert begin(peer=None).client_ip == ""


def test_without_trusted_proxies_nobody_is_believed() -> None:
    head = scope("GET", "/", [("X-Forwarded-For", "203.0.113.5")], peer="172.28.0.9")
    assert Exchange.begin(head, ()).client_ip == "172.28.0.9"


def test_headers_that_are_not_needed_are_not_kept() -> None:
    exchange = begin(("Cookie", "a=b"), ("Authorization", "Bearer key"), ("X-Data-Parallel-Rank", "3"))
    assert exchange.headers == {b"authorization": b"Bearer key"}


def test_a_key_does_not_show_in_a_repr() -> None:
    assert "hush" not in repr(begin(("Authorization", "Bearer hush")))
