"""An issuer's keys: fetched once at a time, kept while it is away; whatever it says harms nothing."""

import asyncio
import json
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.jwks import (
    FETCH_SECONDS,
    MAX_AGE_SECONDS,
    MAX_BYTES,
    MAX_KEYS,
    REFRESH_SECONDS,
    RETRY_SECONDS,
    UNKNOWN_SECONDS,
    JwksError,
    KeySet,
    fetch,
    parse,
)
from tests.fakes import issuer as issuers
from tests.fakes.clock import Clock
from tests.fakes.issuer import Issuer, SigningKey
from tests.fakes.logs import LogLines
from tests.fakes.loop import run

FIRST, NEXT = SigningKey("first"), SigningKey("next", number=1)
URL = "https://issuer.example/jwks.json"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    started = Issuer([FIRST])
    started.start()
    yield started
    started.close()


class Source:
    """What a KeySet fetches from; each fetch takes `seconds`."""

    def __init__(self) -> None:
        self.issuer = Issuer([FIRST])
        self.log = LogLines()
        self.clock = Clock()
        self.seconds = 0.0
        self.down = False
        self.fetched = 0
        self.keys = KeySet(URL, fetch=self._fetch, monotonic=self.clock, log=self.log.logger)

    async def _fetch(self, url: str) -> bytes:
        assert url == URL
        self.fetched += 1
        await asyncio.sleep(self.seconds)
        if self.down:
            raise JwksError("the issuer does not answer: Down")
        return self.issuer.body()

    def has(self, key_id: str) -> bool:
        """Whether it is known without a fetch."""
        return key_id in self.keys._keys


@pytest.fixture
def source() -> Source:
    return Source()


# When it is fetched.


async def test_the_first_key_that_is_asked_for_makes_the_set_be_fetched(source: Source) -> None:
    assert await source.keys.find("first") == parse(source.issuer.body())["first"]
    assert await source.keys.find("first") is not None
    assert (source.fetched, source.keys.generation) == (1, 1)


async def test_an_unknown_key_makes_the_set_be_fetched_but_not_all_the_time(source: Source) -> None:
    for _ in range(100):
        assert await source.keys.find("unknown") is None
    assert source.fetched == 1
    source.clock.now += UNKNOWN_SECONDS
    for _ in range(100):
        assert await source.keys.find("unknown") is None
    assert source.fetched == 2


async def test_a_known_key_never_waits(source: Source) -> None:
    await source.keys.refresh()
    source.seconds = 1000.0
    refresh = asyncio.create_task(source.keys.refresh())
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        assert await source.keys.find("first") is not None
    refresh.cancel()


def test_all_that_ask_during_a_fetch_wait_for_it_and_see_its_keys(source: Source) -> None:
    """The requests of the first second after a rotation are none that fail."""

    async def scenario() -> None:
        await source.keys.refresh()
        source.clock.now += UNKNOWN_SECONDS
        source.issuer.rotate(NEXT)
        source.seconds = 2.0
        found = await asyncio.gather(*[source.keys.find("next") for _ in range(1000)])
        assert None not in found
        assert source.fetched == 2

    run(scenario())


def test_who_asks_during_a_fetch_waits_for_it_however_soon_it_comes_after_another(source: Source) -> None:
    async def scenario() -> None:
        await source.keys.refresh()
        source.issuer.rotate(NEXT)
        source.seconds = 2.0
        again = asyncio.create_task(source.keys.refresh())
        await asyncio.sleep(1)
        assert await source.keys.find("next") is not None
        await again

    run(scenario())


def test_one_who_leaves_does_not_end_the_fetch_for_the_others(source: Source) -> None:
    async def scenario() -> None:
        source.seconds = 2.0
        leaver = asyncio.create_task(source.keys.find("first"))
        stayer = asyncio.create_task(source.keys.find("first"))
        await asyncio.sleep(1)
        leaver.cancel()
        assert await stayer is not None
        assert leaver.cancelled()

    run(scenario())


async def test_a_set_that_says_the_same_is_no_other_generation(source: Source) -> None:
    await source.keys.refresh()
    await source.keys.refresh()
    assert source.keys.generation == 1
    source.issuer.keys = [FIRST, NEXT]
    await source.keys.refresh()
    assert source.keys.generation == 2


async def test_a_key_that_is_no_longer_published_is_forgotten(source: Source) -> None:
    await source.keys.refresh()
    source.issuer.rotate(NEXT)
    await source.keys.refresh()
    assert not source.has("first")
    assert source.has("next")


async def test_keys_are_kept_while_the_issuer_is_down_but_not_for_ever(source: Source) -> None:
    await source.keys.refresh()
    source.down = True
    source.clock.now += MAX_AGE_SECONDS
    await source.keys.refresh()
    assert source.has("first")
    assert source.keys.problem is not None
    source.clock.now += 1
    await source.keys.refresh()
    assert not source.has("first")
    source.down = False
    await source.keys.refresh()
    assert source.has("first")
    assert source.keys.problem is None


async def test_a_set_that_is_none_changes_nothing(source: Source) -> None:
    await source.keys.refresh()
    source.issuer.published = [{}] * (MAX_KEYS + 1)
    await source.keys.refresh()
    assert source.has("first")
    assert source.keys.problem == f"the key set has more than {MAX_KEYS} keys"


async def test_a_trouble_is_logged_once_and_a_change_is_logged(source: Source) -> None:
    source.down = True
    for _ in range(3):
        await source.keys.refresh()
    source.down = False
    for _ in range(3):
        await source.keys.refresh()
    assert [line["event"] for line in source.log.lines()] == ["jwks_failed", "jwks_changed"]


def test_it_is_fetched_in_the_background_and_sooner_after_a_trouble(source: Source) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(source.keys.keep_fresh())
        await asyncio.sleep(1)
        assert source.fetched == 1
        source.down = True
        await asyncio.sleep(REFRESH_SECONDS)
        assert source.fetched == 2
        await asyncio.sleep(RETRY_SECONDS)
        assert source.fetched == 3
        source.down = False
        await asyncio.sleep(RETRY_SECONDS + REFRESH_SECONDS)
        assert source.fetched == 5
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())


# What is taken of it.


def test_only_what_a_key_is_made_of_is_kept() -> None:
    more = {"x5c": ["…"], "x5u": "https://evil.example", "d": "private", "n": 5, "alg": "ES256"}
    kept = parse(json.dumps({"keys": [FIRST.public() | more]}).encode())["first"]
    assert set(kept) == {"kty", "crv", "alg", "x", "y"}
    rsa = SigningKey("rsa", "RS256").public()
    kept = parse(json.dumps({"keys": [rsa]}).encode())["rsa"]
    assert set(kept) == {"kty", "alg", "n", "e"}


@pytest.mark.parametrize(
    "change",
    [
        {"kid": None},
        {"kid": 5},
        {"kid": ["a"]},
        {"kty": "oct"},
        {"kty": "OKP"},
        {"kty": 5},
        {"use": "enc"},
        {"use": 5},
        {"key_ops": ["sign"]},
        {"key_ops": "verify"},
        {"key_ops": 5},
        {"crv": "P-192"},
        {"crv": "secp256k1"},
        {"crv": None},
        {"crv": ["P-256"]},
        {"x": None},
        {"x": 5},
        {"x": "%"},
        {"x": "ü"},
        {"x": "A" * 5000},
        {"y": ""},
    ],
)
def test_a_key_of_a_curve_that_is_not_whole_and_for_verifying_is_left_out(change: dict[str, Any]) -> None:
    body = {"keys": [FIRST.public(**change), NEXT.public()]}
    assert list(parse(json.dumps(body).encode())) == ["next"]


@pytest.mark.parametrize(
    "change",
    [{"n": None}, {"n": "AQAB"}, {"e": None}, {"e": ""}, {"e": "AQ"}, {"e": "_" * 20}, {"n": "_" * 2000}],
)
def test_an_rsa_key_that_is_weak_or_slow_is_left_out(change: dict[str, Any]) -> None:
    body = {"keys": [SigningKey("rsa", "RS256").public(**change), NEXT.public()]}
    assert list(parse(json.dumps(body).encode())) == ["next"]


def test_an_rsa_key_of_1024_bits_is_left_out() -> None:
    weak = SigningKey("weak", "RS256", bits=1024).public()
    assert parse(json.dumps({"keys": [weak]}).encode()) == {}


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{}", b'{"keys":{}}', b'{"keys":null}', b"[" * 5000, b"\xff", b"<html>"]
)
def test_what_is_no_key_set_is_refused(body: bytes) -> None:
    with pytest.raises(JwksError):
        parse(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["kid", "kty", "use", "key_ops", "alg", "crv", "n", "e", "x", "y"]), json_values
        )
        | json_values,
        max_size=4,
    )
)
def test_no_key_breaks_anything(keys: list[Any]) -> None:
    for key_id, key in parse(json.dumps({"keys": keys}).encode()).items():
        assert isinstance(key_id, str)
        assert all(isinstance(value, str) for value in key.values())


# How it is fetched, for real.


async def test_it_is_asked_for_as_json_and_unpacked(issuer: Issuer) -> None:
    assert await fetch(issuer.jwks_url) == issuer.body()
    assert issuer.headers[0]["accept"] == "application/json"
    assert issuer.headers[0]["accept-encoding"] == "identity"


async def test_it_may_not_lead_elsewhere(issuer: Issuer) -> None:
    issuer.answer = issuers.redirects
    with pytest.raises(JwksError, match="answers 302"):
        await fetch(issuer.jwks_url)
    assert issuer.asked == 1


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        (issuers.is_huge, f"the key set is larger than {MAX_BYTES} bytes"),
        (issuers.is_a_bomb, "the key set is not JSON"),  # for it is not unpacked
    ],
)
async def test_one_without_end_costs_little(issuer: Issuer, behaviour: Any, problem: str) -> None:
    issuer.answer = behaviour
    keys = KeySet(issuer.jwks_url, fetch=fetch, monotonic=time.monotonic, log=LogLines().logger)
    await keys.refresh()
    tracemalloc.start()
    try:
        await keys.refresh()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert keys.problem == problem
    assert peak < 8 * MAX_BYTES


async def test_one_that_drips_is_given_up_in_time(issuer: Issuer) -> None:
    issuer.answer = issuers.drips
    started = time.monotonic()
    with pytest.raises(JwksError, match="does not answer: TimeoutError"):
        await fetch(issuer.jwks_url)
    assert time.monotonic() - started < FETCH_SECONDS + 2


@pytest.mark.parametrize("behaviour", [issuers.fails, issuers.talks_nonsense])
async def test_what_is_no_answer_is_said(issuer: Issuer, behaviour: Any) -> None:
    issuer.answer = behaviour
    keys = KeySet(issuer.jwks_url, fetch=fetch, monotonic=time.monotonic, log=LogLines().logger)
    await keys.refresh()
    assert keys.problem in {"the issuer answers 500", "the key set is not JSON"}


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "https://127.0.0.1:1/", "http://no-such-host.invalid/", "http://a..b/"]
)
async def test_an_issuer_that_is_not_there_is_said(url: str) -> None:
    with pytest.raises(JwksError, match="does not answer"):
        await fetch(url)


async def test_one_that_speaks_no_tls_is_said(issuer: Issuer) -> None:
    with pytest.raises(JwksError, match="does not answer"):
        await fetch(issuer.jwks_url.replace("http:", "https:"))
