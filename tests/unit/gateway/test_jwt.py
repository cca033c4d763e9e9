"""Tokens: who may sign, what a claim may be, how long a verified one is remembered."""

import asyncio
import base64
import hmac
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jose import jws

from gateway.errors import AuthenticationFailed, InvalidToken, StoreUnavailable
from gateway.jwks import UNKNOWN_SECONDS, JwksError, KeySet
from gateway.jwt import LATEST, MAX_CACHED, MAX_TOKEN_BYTES, JwtSettings, TokenVerifier
from gateway.principal import ALL_SCOPES
from tests.fakes.clock import Clock
from tests.fakes.issuer import AUDIENCE, Issuer, SigningKey
from tests.fakes.logs import LogLines

SECRET = b"a secret that the issuer shares, of more than 32 bytes"
ES, RS = SigningKey("es"), SigningKey("rs", "RS256")
EVERY = [
    SigningKey(algorithm.lower(), algorithm)
    for algorithm in ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")
]
ISSUER = "https://issuer.example"


class Gateway:
    """A verifier and the issuer that it knows. `down`: the issuer does not answer."""

    def __init__(self, keys: list[SigningKey], algorithms: tuple[str, ...], **settings: Any) -> None:
        self.clock = Clock()
        self.issuer = Issuer(keys, clock=self.clock)
        self.down = False
        self.fetched = 0
        self.keys = KeySet(
            self.issuer.jwks_url, fetch=self._fetch, monotonic=self.clock, log=LogLines().logger
        )
        self.verifier = TokenVerifier(
            JwtSettings(ISSUER, AUDIENCE, algorithms, **settings),
            keys=self.keys,
            secret=SECRET,
            clock=self.clock,
        )

    async def _fetch(self, url: str) -> bytes:
        assert url == self.issuer.jwks_url
        self.fetched += 1
        if self.down:
            raise JwksError("it does not answer")
        return self.issuer.body()

    async def refused(self, token: bytes) -> str:
        with pytest.raises(InvalidToken) as refused:
            await self.verifier.verify(token)
        return refused.value.message


@pytest.fixture
def gateway() -> Gateway:
    return Gateway([ES, RS], ("ES256", "RS256"))


def encoded(part: object) -> bytes:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def forged(head: object, claims: object, signature: bytes = b"\0" * 64) -> bytes:
    return b".".join((encoded(head), encoded(claims), encoded(signature)))


def hmac_token(head: object, claims: object, secret: bytes) -> bytes:
    signed = encoded(head) + b"." + encoded(claims)
    return signed + b"." + encoded(hmac.digest(secret, signed, "sha256"))


# What a good token is.


@pytest.mark.parametrize("key", EVERY, ids=lambda key: key.algorithm)
async def test_a_token_is_verified_with_the_key_that_it_names(key: SigningKey) -> None:
    gateway = Gateway(EVERY, tuple(key.algorithm for key in EVERY))
    grant = await gateway.verifier.verify(gateway.issuer.token(key=key, plan="gold", scope="embed rank"))
    assert (grant.tenant, grant.plan, grant.models) == ("acme", "gold", None)
    assert grant.scopes == {"embed", "rank"}
    assert len(grant.key_id) == len("jwt-") + 16


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_a_token_is_verified_with_the_shared_secret(algorithm: str) -> None:
    gateway = Gateway([], (algorithm,))
    token = jws.sign(gateway.issuer.claims(), SECRET, algorithm=algorithm).encode()
    assert (await gateway.verifier.verify(token)).tenant == "acme"
    wrong = jws.sign(gateway.issuer.claims(), SECRET + b"!", algorithm=algorithm).encode()
    assert "signature" in await gateway.refused(wrong)


async def test_a_secret_that_looks_like_json_is_taken_as_it_is() -> None:
    """The library would read it, and use what it says in its place."""
    for secret in (b'"0123456789012345678901234567890123"', b"[1234567890123456789012345678901234]"):
        verifier = TokenVerifier(
            JwtSettings(ISSUER, AUDIENCE, ("HS256",)), keys=None, secret=secret, clock=Clock()
        )
        claims = Issuer(clock=Clock()).claims()
        token = hmac_token({"alg": "HS256"}, claims, secret)
        assert (await verifier.verify(token)).tenant == "acme"


async def test_one_subject_is_one_key_id_and_two_are_two(gateway: Gateway) -> None:
    async def key_id(**changes: Any) -> str:
        return (await gateway.verifier.verify(gateway.issuer.token(**changes))).key_id

    assert await key_id() == await key_id(jti="another token", tenant="other")
    assert await key_id() != await key_id(sub="user-2")


async def test_tokens_of_a_subject_that_say_the_same_are_one_grant(gateway: Gateway) -> None:
    """Or what it is worth would be worked out again at each change between two of them."""
    first = await gateway.verifier.verify(gateway.issuer.token())
    assert await gateway.verifier.verify(gateway.issuer.token(jti="2")) is first
    narrower = await gateway.verifier.verify(gateway.issuer.token(scope="embed"))
    assert narrower.scopes == {"embed"}


# Whose signature counts.


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, 5, ["ES256"], "HS256", "ES384"])
async def test_an_algorithm_that_is_not_taken_is_refused_whatever_the_signature(
    gateway: Gateway, algorithm: object
) -> None:
    for signature in (b"", b"\0" * 64):
        token = forged({"alg": algorithm, "kid": "es"}, gateway.issuer.claims(), signature)
        message = await gateway.refused(token)
        assert "algorithm" in message or "not a JSON Web Token" in message


async def test_a_public_key_is_no_shared_secret() -> None:
    """The oldest trick: HS256 with the text of the RSA key, which anyone can have."""
    gateway = Gateway([RS], ("RS256", "HS256"))
    texts = [RS.public_pem, RS.public_pem.strip(), json.dumps(RS.public()), RS.public()["n"]]
    for secret in texts:
        for head in ({"alg": "HS256", "kid": "rs"}, {"alg": "HS256"}):
            token = hmac_token(head, gateway.issuer.claims(), secret.encode())
            assert "signature" in await gateway.refused(token)


async def test_a_symmetric_key_in_the_key_set_is_nobodys_secret() -> None:
    gateway = Gateway([], ("ES256", "HS256"))
    published = encoded(b"published, and of more than 32 bytes")
    gateway.issuer.published = [{"kty": "oct", "kid": "o", "alg": "HS256", "k": published.decode()}]
    token = hmac_token(
        {"alg": "HS256", "kid": "o"}, gateway.issuer.claims(), b"published, and of more than 32 bytes"
    )
    assert "signature" in await gateway.refused(token)


async def test_a_key_that_the_token_brings_along_is_not_believed(gateway: Gateway) -> None:
    stranger = SigningKey("es", number=1)
    brought: list[dict[str, Any]] = [
        {"jwk": stranger.public()},
        {"jku": "https://evil.example/jwks.json"},
        {"x5u": "https://evil.example/cert.pem"},
        {"x5c": [stranger.public_pem]},
    ]
    for more in brought:
        assert "signature" in await gateway.refused(stranger.sign(gateway.issuer.claims(), **more))
    assert gateway.fetched == 1


@pytest.mark.parametrize(
    "key_id",
    [None, "", "nobody's", "../../etc/passwd", "' OR 1=1 --", 5, ["es"], {"a": 1}, "es\0", "k" * 4000],
)
async def test_a_key_id_is_looked_up_and_nothing_else(gateway: Gateway, key_id: object) -> None:
    token = ES.sign(gateway.issuer.claims(), kid=key_id)
    assert "names no key" in await gateway.refused(token)


async def test_a_token_without_a_key_id_is_refused(gateway: Gateway) -> None:
    token: str = jws.sign(gateway.issuer.claims(), ES.pem, algorithm="ES256")
    assert "names no key" in await gateway.refused(token.encode())


async def test_the_key_of_one_kind_verifies_no_other() -> None:
    everything = tuple(key.algorithm for key in EVERY)
    gateway = Gateway(EVERY, everything)
    for key in EVERY:
        for other in EVERY:
            if other is not key:
                token = key.sign(gateway.issuer.claims(), kid=other.kid)
                assert await gateway.refused(token)
                token = key.sign(gateway.issuer.claims(), alg=other.algorithm)
                assert await gateway.refused(token)


@pytest.mark.parametrize(
    "meant",
    [
        {"alg": "ES384"},
        {"alg": "RS256"},
        {"use": "enc"},
        {"key_ops": ["sign"]},
        {"key_ops": "verify"},
        {"crv": "P-384"},
    ],
)
async def test_a_key_that_is_meant_for_something_else_verifies_nothing(meant: dict[str, Any]) -> None:
    gateway = Gateway([], ("ES256",))
    gateway.issuer.published = [ES.public(**meant)]
    assert await gateway.refused(gateway.issuer.token(key=ES))


async def test_a_key_of_another_curve_verifies_nothing_though_its_signature_is_right() -> None:
    """The library would take it."""
    gateway, wide = Gateway([], ("ES256",)), SigningKey("es", "ES384")
    gateway.issuer.published = [wide.public(alg=None)]
    token: str = jws.sign(gateway.issuer.claims(), wide.pem, headers={"kid": "es"}, algorithm="ES256")
    assert "fits its algorithm" in await gateway.refused(token.encode())


async def test_a_published_key_that_is_none_refuses_and_breaks_nothing() -> None:
    gateway = Gateway([], ("ES256", "RS256"))
    good = ES.public()
    gateway.issuer.published = [
        good | {"kid": "off the curve", "x": good["y"]},
        good | {"kid": "too large", "x": encoded(b"\xff" * 40).decode()},
        RS.public(kid="even", n=encoded(b"\xff" * 255 + b"\0").decode(), e="Ag"),
    ]
    for key_id in ("off the curve", "too large"):
        assert "signature" in await gateway.refused(ES.sign(gateway.issuer.claims(), kid=key_id))
    assert "signature" in await gateway.refused(RS.sign(gateway.issuer.claims(), kid="even"))


async def test_a_head_that_demands_something_is_refused(gateway: Gateway) -> None:
    for demand in (["exp"], [], ["b64"]):
        token = ES.sign(gateway.issuer.claims(), crit=demand, b64=False)
        assert "demands" in await gateway.refused(token)


async def test_any_changed_byte_is_noticed(gateway: Gateway) -> None:
    token = gateway.issuer.token()
    for place in range(len(token) - 1):  # the last character holds bits that mean nothing
        changed = token[:place] + (b"A" if token[place : place + 1] != b"A" else b"B") + token[place + 1 :]
        assert await gateway.refused(changed)
    assert (await gateway.verifier.verify(token)).tenant == "acme"


@pytest.mark.parametrize("extra", [b"!", b"=", b"==", b" ", b"\n", b"\xff", b".", b".e30"])
async def test_a_signature_has_one_text(gateway: Gateway, extra: bytes) -> None:
    """The library skips what is no base64url: a token would have texts without number."""
    token = gateway.issuer.token()
    for changed in (token + extra, extra + token, token.replace(b".", b"." + extra)):
        assert await gateway.refused(changed) == "This is not a JSON Web Token."


@given(st.binary(max_size=300) | st.lists(st.binary(max_size=60), min_size=3, max_size=3).map(b".".join))
def test_no_bytes_break_anything(token: bytes) -> None:
    async def scenario() -> None:
        with pytest.raises(AuthenticationFailed):
            await Gateway([ES], ("ES256", "HS256")).verifier.verify(token)

    asyncio.run(scenario())


async def test_a_token_that_is_too_long_is_not_looked_at(gateway: Gateway) -> None:
    token = gateway.issuer.token(note="x" * MAX_TOKEN_BYTES)
    assert "longer than" in await gateway.refused(token)
    assert gateway.fetched == 0


@pytest.mark.parametrize(
    "head",
    [
        b'{"alg":"none","alg":"ES256","kid":"es"}',
        b'{"alg":"ES256","alg":"none","kid":"es"}',
        b'{"alg":"ES256","kid":"x","kid":"es"}',
        b"[" * 3000,
        b'{"a":' * 1000,
        b"null",
        b'"ES256"',
        b'["ES256"]',
        b"",
        b"\xff\xfe",
        b'{"alg":"ES256","kid":"\\ud800"}',
    ],
)
async def test_a_head_that_readers_take_differently_is_none(gateway: Gateway, head: bytes) -> None:
    claims = encoded(gateway.issuer.claims())
    signed = encoded(head) + b"." + claims
    signature = ES.sign(b"x").rpartition(b".")[2]
    assert await gateway.refused(signed + b"." + signature) == "This is not a JSON Web Token."


@pytest.mark.parametrize(
    "claims",
    [
        b"null",
        b"[]",
        b"",
        b"{",
        b'{"exp":1,"exp":99999999999}',
        b'{"exp":NaN}',
        b'{"exp":Infinity}',
        b"[" * 3000,
        b'{"sub":"\\ud800"}',
    ],
)
async def test_claims_that_readers_take_differently_are_none(gateway: Gateway, claims: bytes) -> None:
    assert await gateway.refused(ES.sign(claims)) == "This is not a JSON Web Token."


# What the claims may be.


@pytest.mark.parametrize("name", ["iss", "aud", "sub", "exp", "tenant"])
async def test_a_claim_that_is_needed_is_missed(gateway: Gateway, name: str) -> None:
    assert name in await gateway.refused(gateway.issuer.token(**{name: None}))


@pytest.mark.parametrize("issuer", ["", ISSUER + "/", ISSUER.upper(), [ISSUER], {"a": ISSUER}, 5])
async def test_another_issuer_is_refused(gateway: Gateway, issuer: object) -> None:
    assert "(iss)" in await gateway.refused(gateway.issuer.token(iss=issuer))


@pytest.mark.parametrize(
    "audience", ["", "other", "gatehouse2", [], ["a"], [AUDIENCE, 5], [[AUDIENCE]], {AUDIENCE: 1}, 5]
)
async def test_another_audience_is_refused(gateway: Gateway, audience: object) -> None:
    assert "(aud)" in await gateway.refused(gateway.issuer.token(aud=audience))


async def test_one_audience_of_several_is_enough(gateway: Gateway) -> None:
    await gateway.verifier.verify(gateway.issuer.token(aud=["other", AUDIENCE]))


@pytest.mark.parametrize("subject", ["", 5, ["a"], {"a": 1}, True])
async def test_a_subject_is_a_text(gateway: Gateway, subject: object) -> None:
    assert "(sub)" in await gateway.refused(gateway.issuer.token(sub=subject))


@pytest.mark.parametrize("subject", ["ü" * 500, "a\0b", "'; DROP TABLE", "\x1b[31m"])
async def test_any_text_is_a_subject_and_none_gets_further(gateway: Gateway, subject: str) -> None:
    grant = await gateway.verifier.verify(gateway.issuer.token(sub=subject))
    assert grant.key_id.removeprefix("jwt-").isalnum()


async def test_a_token_is_good_until_it_expires_and_the_leeway_longer(gateway: Gateway) -> None:
    expiry = gateway.clock.now + 10
    for age in (0.0, 9.0, 29.999):
        gateway.clock.now += age
        await gateway.verifier.verify(gateway.issuer.token(exp=expiry, jti=str(age)))
    gateway.clock.now = expiry + 30
    assert "expired" in await gateway.refused(gateway.issuer.token(exp=expiry))


async def test_a_remembered_token_expires_to_the_moment(gateway: Gateway) -> None:
    token = gateway.issuer.token(exp=gateway.clock.now + 10)
    await gateway.verifier.verify(token)
    gateway.clock.now += 39.999
    await gateway.verifier.verify(token)
    gateway.clock.now += 0.001
    assert "expired" in await gateway.refused(token)
    assert gateway.verifier.kept == 0


@pytest.mark.parametrize(
    "value", ["1900000000", True, [1], {"a": 1}, LATEST, 1_900_000_000_000, 10**40, -(10**300)]
)
@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
async def test_a_moment_is_a_number_of_seconds(gateway: Gateway, name: str, value: Any) -> None:
    """One in milliseconds would otherwise be good for fifty thousand years."""
    assert f"its {name} is no moment" in await gateway.refused(gateway.issuer.token(**{name: value}))


@pytest.mark.parametrize("value", [b"1e400", b"1" + b"0" * 4000, b"-1e400"])
async def test_a_number_beyond_all_bounds_is_refused(gateway: Gateway, value: bytes) -> None:
    claims = json.dumps(gateway.issuer.claims(exp=-7777)).encode()
    assert await gateway.refused(ES.sign(claims.replace(b"-7777", value)))


@pytest.mark.parametrize("expiry", [0, -1, -1e9, 1_799_999_970, 0.5])
async def test_a_moment_that_has_passed_has_passed(gateway: Gateway, expiry: float) -> None:
    assert "expired" in await gateway.refused(gateway.issuer.token(exp=expiry))


@pytest.mark.parametrize("name", ["nbf", "iat"])
async def test_a_token_from_the_future_is_not_good_yet(gateway: Gateway, name: str) -> None:
    future: dict[str, Any] = {name: gateway.clock.now + 31}
    token = gateway.issuer.token(**future)
    assert f"not valid yet ({name})" in await gateway.refused(token)
    gateway.clock.now += 1
    await gateway.verifier.verify(token)


@pytest.mark.parametrize("tenant", ["", " a", 5, ["a"], "a\0", "a\n", "x" * 101, "ü", "${x}"])
async def test_a_tenant_is_a_name_that_can_be_a_label(gateway: Gateway, tenant: object) -> None:
    assert "`tenant`" in await gateway.refused(gateway.issuer.token(tenant=tenant))


async def test_claims_are_found_under_the_names_that_the_settings_give() -> None:
    gateway = Gateway(
        [ES],
        ("ES256",),
        tenant_claim="https://acme.example/org",
        plan_claim="tier",
        scopes_claim="roles",
        default_tenant="everybody",
    )
    full: dict[str, Any] = {"https://acme.example/org": "o1", "tier": "gold", "roles": ["rank", "admin"]}
    grant = await gateway.verifier.verify(gateway.issuer.token(**full))
    assert (grant.tenant, grant.plan) == ("o1", "gold")
    assert grant.scopes == {"rank"}
    grant = await gateway.verifier.verify(gateway.issuer.token(sub="user-2"))
    assert (grant.tenant, grant.plan) == ("everybody", None)
    assert grant.scopes == ALL_SCOPES


@pytest.mark.parametrize("plan", ["", "Gold", 5, ["gold"], "../x", "g" * 41])
async def test_a_plan_is_a_plans_name(gateway: Gateway, plan: object) -> None:
    assert "`plan`" in await gateway.refused(gateway.issuer.token(plan=plan))


async def test_scopes_of_others_give_nothing(gateway: Gateway) -> None:
    assert (await gateway.verifier.verify(gateway.issuer.token(scope="openid profile"))).scopes == frozenset()
    assert (await gateway.verifier.verify(gateway.issuer.token(scope=""))).scopes == frozenset()
    for wrong in (5, {"a": 1}, ["embed", 5], True):
        assert "`scope`" in await gateway.refused(gateway.issuer.token(scope=wrong))


async def test_no_message_repeats_what_the_token_says(gateway: Gateway) -> None:
    hush = "hush-0123456789"
    for name in ("iss", "aud", "sub", "exp", "nbf", "iat", "tenant", "plan", "scope"):
        changes: dict[str, Any] = {name: {hush: hush}}
        assert hush not in await gateway.refused(gateway.issuer.token(**changes))
    assert hush not in await gateway.refused(forged({"alg": hush, "kid": hush}, {}))


# Remembered, and rotated.


async def test_a_verified_token_is_not_verified_again(gateway: Gateway) -> None:
    token = gateway.issuer.token()
    first = await gateway.verifier.verify(token)
    gateway.issuer.published = []
    assert await gateway.verifier.verify(token) is first
    assert (gateway.fetched, gateway.verifier.kept) == (1, 1)


async def test_a_token_whose_key_was_withdrawn_is_refused_though_it_was_remembered(gateway: Gateway) -> None:
    token = gateway.issuer.token(key=ES)
    await gateway.verifier.verify(token)
    gateway.issuer.rotate(SigningKey("next"))
    gateway.clock.now += UNKNOWN_SECONDS
    await gateway.verifier.verify(gateway.issuer.token())
    assert "names no key" in await gateway.refused(token)


async def test_the_same_key_id_with_another_key_takes_no_old_token(gateway: Gateway) -> None:
    token = gateway.issuer.token(key=ES)
    await gateway.verifier.verify(token)
    gateway.issuer.rotate(SigningKey("es", number=1))
    await gateway.keys.refresh()
    assert "signature" in await gateway.refused(token)


async def test_a_new_key_is_taken_at_its_first_token(gateway: Gateway) -> None:
    await gateway.verifier.verify(gateway.issuer.token())
    gateway.clock.now += UNKNOWN_SECONDS
    gateway.issuer.rotate(SigningKey("next"))
    await gateway.verifier.verify(gateway.issuer.token())
    assert gateway.fetched == 2


async def test_thousands_of_invented_key_ids_ask_the_issuer_once(gateway: Gateway) -> None:
    await gateway.verifier.verify(gateway.issuer.token())
    gateway.clock.now += UNKNOWN_SECONDS
    claims = gateway.issuer.claims()
    tokens = [forged({"alg": "ES256", "kid": f"invented-{number}"}, claims) for number in range(3000)]
    found = await asyncio.gather(*map(gateway.verifier.verify, tokens), return_exceptions=True)
    assert all(isinstance(one, InvalidToken) for one in found)
    assert gateway.fetched == 2
    assert gateway.verifier.kept == 1


async def test_while_the_issuer_is_down_an_unknown_key_is_no_401_and_a_known_one_is_taken(
    gateway: Gateway,
) -> None:
    await gateway.verifier.verify(gateway.issuer.token())
    gateway.down = True
    gateway.clock.now += UNKNOWN_SECONDS
    next_key = SigningKey("next")
    with pytest.raises(StoreUnavailable) as refused:
        await gateway.verifier.verify(gateway.issuer.token(key=next_key))
    assert b"retry-after" in dict(refused.value.headers)
    await gateway.verifier.verify(gateway.issuer.token(key=RS))


async def test_no_more_than_so_many_are_remembered(gateway: Gateway) -> None:
    await gateway.verifier.verify(gateway.issuer.token())
    tokens, grants = gateway.verifier._verified, gateway.verifier._grants
    for number in range(MAX_CACHED - 3):
        tokens[b"%d" % number] = next(iter(tokens.values()))
        grants[str(number)] = next(iter(grants.values()))
    for number in range(5):
        token = gateway.issuer.token(sub=str(number))
        assert await gateway.verifier.verify(token) is await gateway.verifier.verify(token)
    assert (len(tokens), len(grants), gateway.verifier.kept) == (MAX_CACHED, MAX_CACHED, MAX_CACHED)


async def test_a_remembered_token_is_held_as_a_digest(gateway: Gateway) -> None:
    token = gateway.issuer.token()
    await gateway.verifier.verify(token)
    assert token[:40] not in repr(gateway.verifier._verified).encode()
    assert sys.getsizeof(next(iter(gateway.verifier._verified))) < 100
