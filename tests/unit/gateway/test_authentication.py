"""From a request's headers to its caller: which header, a key or a token, and who fails too often."""

from collections.abc import Mapping

import pytest

from gateway import keys
from gateway.authentication import Authenticator
from gateway.errors import (
    AuthenticationFailed,
    InvalidToken,
    MissingKey,
    PlanMissing,
    StoreUnavailable,
    TooManyFailedLogins,
)
from gateway.failed_logins import FailedLogins
from gateway.plans import Overrides
from gateway.principal import ALL_SCOPES, Grant, Principal
from tests.fakes.clock import Clock
from tests.fakes.directories import Process
from tests.fakes.store import MemoryStore

ADDRESS = "192.0.2.7"
UNKNOWN = keys.generate().encode()


class OneToken:
    """Takes the token `good.to.ken`; `plan` is the plan that it names."""

    plan: str | None = None

    async def verify(self, token: bytes) -> Grant:
        if token != b"good.to.ken":
            raise InvalidToken("no")
        return Grant("issuer's", "jwt-a", self.plan, ALL_SCOPES, None, Overrides())


class Door:
    """An Authenticator with one key, and at most 3 failures a minute of an address."""

    def __init__(self, process: Process, key: bytes, tokens: OneToken | None) -> None:
        self.process = process
        self.key = key
        self._authenticator = Authenticator(process.directory, process.entitlements, FailedLogins(3), tokens)

    async def ask(
        self, headers: Mapping[bytes, bytes], *, address: str = ADDRESS, api_key_header: bool = False
    ) -> Principal:
        return await self._authenticator.authenticate(headers, address, api_key_header=api_key_header)

    async def bearer(self, credential: bytes, address: str = ADDRESS) -> Principal:
        return await self.ask({b"authorization": b"Bearer " + credential}, address=address)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def made(store: MemoryStore, tokens: OneToken | None) -> Door:
    process = Process(store, Clock())
    await process.directory.refresh()
    return Door(process, (await process.create())[0], tokens)


@pytest.fixture
async def door(store: MemoryStore) -> Door:
    """Takes keys alone."""
    return await made(store, None)


@pytest.fixture
async def wide(store: MemoryStore) -> Door:
    """Takes tokens too."""
    return await made(store, OneToken())


async def test_the_scheme_is_read_in_any_case_and_spaces_are_no_part_of_a_key(door: Door) -> None:
    for variant in (b"Bearer %b", b"bearer %b", b"BEARER   %b", b"Bearer %b "):
        assert (await door.ask({b"authorization": variant % door.key})).tenant == "acme"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"authorization": b""},
        {b"authorization": b"Bearer"},
        {b"authorization": b"Bearer "},
        {b"authorization": b"Basic YTpi"},
        {b"authorization": UNKNOWN},
    ],
)
async def test_no_bearer_token_is_a_missing_key(door: Door, headers: dict[bytes, bytes]) -> None:
    with pytest.raises(MissingKey):
        await door.ask(headers)


async def test_the_other_header_is_read_only_where_the_route_has_it(door: Door) -> None:
    headers = {b"x-api-key": b" " + door.key}
    assert (await door.ask(headers, api_key_header=True)).tenant == "acme"
    with pytest.raises(MissingKey):
        await door.ask(headers)


@pytest.mark.parametrize("value", [b"", b"  "])
async def test_an_empty_other_header_is_a_missing_key(door: Door, value: bytes) -> None:
    with pytest.raises(MissingKey):
        await door.ask({b"x-api-key": value}, api_key_header=True)


async def test_of_two_headers_authorization_decides(door: Door) -> None:
    both = {b"authorization": b"Bearer " + UNKNOWN, b"x-api-key": door.key}
    with pytest.raises(AuthenticationFailed):
        await door.ask(both, api_key_header=True)


async def test_a_refusal_repeats_nothing_of_the_credential(wide: Door) -> None:
    for credential in (UNKNOWN, UNKNOWN[:-1], b"sk-proj-0123456789abcdef", b"aaaa0123.bbbb4567.cccc89ab"):
        with pytest.raises(AuthenticationFailed) as refused:
            await wide.bearer(credential, address=credential.decode())
        assert credential[6:20].decode() not in refused.value.message


async def test_tokens_and_keys_are_told_apart(wide: Door) -> None:
    assert (await wide.bearer(b"good.to.ken")).tenant == "issuer's"
    assert (await wide.bearer(wide.key)).tenant == "acme"
    with pytest.raises(InvalidToken):
        await wide.bearer(b"other.to.ken")


async def test_where_no_tokens_are_taken_one_is_no_key(door: Door) -> None:
    with pytest.raises(AuthenticationFailed, match="not one of this service's API keys"):
        await door.bearer(b"good.to.ken")


async def test_a_tokens_plan_must_exist(store: MemoryStore) -> None:
    tokens = OneToken()
    tokens.plan = "gone"
    with pytest.raises(PlanMissing):
        await (await made(store, tokens)).bearer(b"good.to.ken")


async def test_failures_of_an_address_are_bounded_and_a_valid_key_is_always_taken(wide: Door) -> None:
    """Of every kind of failure, together."""
    for credential in (UNKNOWN, b"other.to.ken", b"x"):
        with pytest.raises(AuthenticationFailed):
            await wide.bearer(credential)
    for _ in range(5):
        with pytest.raises(TooManyFailedLogins) as refused:
            await wide.bearer(UNKNOWN)
        assert (await wide.bearer(wide.key)).tenant == "acme"
        assert (await wide.bearer(b"good.to.ken")).tenant == "issuer's"
    assert refused.value.status == 429
    with pytest.raises(AuthenticationFailed):
        await wide.bearer(UNKNOWN, address="192.0.2.8")


async def test_what_is_not_the_callers_fault_is_no_failed_login(store: MemoryStore, door: Door) -> None:
    store.gone = True
    await door.process.directory.refresh()
    for _ in range(10):
        with pytest.raises(StoreUnavailable):
            await door.bearer(UNKNOWN)
