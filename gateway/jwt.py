"""JSON Web Tokens in place of keys. The one module that knows the library which verifies them."""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jiter
from jose import jwk, jws
from jose.exceptions import JOSEError

from gateway.errors import InvalidToken, StoreUnavailable
from gateway.jwks import RETRY_SECONDS, KeySet
from gateway.plans import Overrides
from gateway.principal import ALL_SCOPES, TOKEN_KEY_ID, Grant, Scope

K = TypeVar("K")
V = TypeVar("V")

MAX_TOKEN_BYTES = 8192
MAX_CACHED = 10_000
# The year 10000. Beyond it a moment is no seconds: more likely milliseconds, which would never expire.
LATEST = 253_402_300_800
# Stricter than the library, which skips what is no base64url: a signature has one text.
_FORM = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,99}")
_PLAN = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_KINDS = {"RS": "RSA", "ES": "EC"}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_NO_OVERRIDES = Overrides()
_NO_TOKEN = "This is not a JSON Web Token."  # noqa: S105 - no secret


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """Whose tokens are taken, and what their claims mean here. `leeway` in seconds. `default_tenant` None: a
    token without the tenant's claim is refused.
    """

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    leeway: float = 30.0
    tenant_claim: str = "tenant"
    plan_claim: str = "plan"
    scopes_claim: str = "scope"
    default_tenant: str | None = None


@dataclass(frozen=True, slots=True)
class _Verified:
    grant: Grant
    good_until: float
    generation: int


class TokenVerifier:
    """Verifies tokens, and remembers those that it has: a signature costs more than all else of a request.

    A token is good no longer than it says, and is verified anew when the issuer's keys change.
    """

    def __init__(
        self, settings: JwtSettings, *, keys: KeySet | None, secret: bytes | None, clock: Callable[[], float]
    ) -> None:
        """`keys` for RS… and ES…, `secret` for HS…; `clock` gives seconds since the epoch."""
        self._settings = settings
        self._keys = keys
        self._secret = secret
        self._clock = clock
        # Both the oldest first, MAX_CACHED at most.
        self._verified: dict[bytes, _Verified] = {}
        self._grants: dict[str, Grant] = {}

    async def verify(self, token: bytes) -> Grant:
        """Whose token this is: the same object for all tokens of a subject that say the same, so that what it
        is worth need not be worked out again. Raises InvalidToken, or StoreUnavailable where the issuer's
        keys cannot be had.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise InvalidToken(f"The token is longer than {MAX_TOKEN_BYTES} bytes.")
        digest = hashlib.sha256(token).digest()
        known = self._verified.get(digest)
        if known is not None and known.good_until > self._clock() and known.generation == self._generation():
            return known.grant
        self._verified.pop(digest, None)
        return await self._verify(token, digest)

    @property
    def kept(self) -> int:
        """How many tokens are remembered; MAX_CACHED at most."""
        return len(self._verified)

    async def _verify(self, token: bytes, digest: bytes) -> Grant:
        form = _FORM.fullmatch(token)
        head = _object(form[1]) if form is not None else None
        if head is None:
            raise InvalidToken(_NO_TOKEN)
        algorithm = self._algorithm_of(head)
        key = await self._key_of(head, algorithm)
        # No other coroutine runs from here on: the key is this generation's.
        claims = _object_signed_with(key, algorithm, token)
        if claims is None:
            raise InvalidToken(_NO_TOKEN)
        good_until = _good_until(claims, self._settings, self._clock())
        grant = self._one(_grant(claims, self._settings))
        _keep(self._verified, digest, _Verified(grant, good_until, self._generation()))
        return grant

    def _algorithm_of(self, head: Mapping[str, Any]) -> str:
        algorithm = head.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._settings.algorithms:
            taken = ", ".join(self._settings.algorithms)
            raise InvalidToken(f"The token's algorithm is not taken here; {taken} are.")
        if "crit" in head:
            raise InvalidToken("The token's head demands what is not understood here.")
        return algorithm

    async def _key_of(self, head: Mapping[str, Any], algorithm: str) -> Any:
        """Of the kind that the algorithm needs, from the place for that kind, whatever else the head says."""
        if algorithm.startswith("HS"):
            return self._secret
        key_id = head.get("kid")
        if self._keys is None or not isinstance(key_id, str):
            raise InvalidToken("The token names no key of the issuer's (kid).")
        key = await self._keys.find(key_id)
        if key is None and self._keys.problem is not None:
            raise StoreUnavailable(
                "This token cannot be checked now: its issuer's keys cannot be had. Try again.",
                retry_after=round(RETRY_SECONDS),
            )
        if key is None or not _fits(key, algorithm):
            raise InvalidToken("The token names no key of the issuer's (kid) that fits its algorithm.")
        return key

    def _one(self, grant: Grant) -> Grant:
        """The one object for equal grants."""
        kept = self._grants.get(grant.key_id)
        if kept != grant:
            _keep(self._grants, grant.key_id, grant)
            return grant
        return kept

    def _generation(self) -> int:
        return self._keys.generation if self._keys is not None else 0


def _keep(cache: dict[K, V], key: K, value: V) -> None:
    if key not in cache and len(cache) >= MAX_CACHED:
        del cache[next(iter(cache))]
    cache[key] = value


def _object(part: bytes) -> dict[str, Any] | None:
    """A JSON object in base64url; None where it is none, or holds what readers take differently."""
    try:
        text = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
        found = jiter.from_json(text, allow_inf_nan=False, catch_duplicate_keys=True)
    except (binascii.Error, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _object_signed_with(key: Any, algorithm: str, token: bytes) -> dict[str, Any] | None:
    """The payload, once its signature is verified; None where it is no JSON object. Raises InvalidToken."""
    try:
        # Made here: the library would guess what a text is, and take a secret that is JSON for something
        # else.
        jws.verify(token.decode("ascii"), jwk.construct(key, algorithm), [algorithm])
    except (JOSEError, ValueError, TypeError, OverflowError):
        raise InvalidToken("The token is not valid: its signature is wrong.") from None
    return _object(token.split(b".")[1])


def _fits(key: Mapping[str, Any], algorithm: str) -> bool:
    """Whether the key is of the algorithm's kind, and on its curve, and not meant for another."""
    return (
        key["kty"] == _KINDS.get(algorithm[:2])
        and key.get("crv") == _CURVES.get(algorithm)
        and key.get("alg", algorithm) == algorithm
    )


def _good_until(claims: Mapping[str, Any], settings: JwtSettings, now: float) -> float:
    """When the token ends, the leeway included. Raises InvalidToken where it is another issuer's, for another
    audience, of nobody, over, or not begun.
    """
    if claims.get("iss") != settings.issuer:
        raise _wrong("its issuer (iss) is not the one that is taken here")
    audience = claims.get("aud")
    if settings.audience not in ([audience] if isinstance(audience, str) else _texts(audience)):
        raise _wrong("its audience (aud) is not this service")
    if not isinstance(claims.get("sub"), str) or not claims["sub"]:
        raise _wrong("it names no subject (sub)")
    expires = _moment(claims, "exp")
    if expires is None:
        raise _wrong("it never expires (exp)")
    if now >= expires + settings.leeway:
        raise _wrong("it has expired")
    for name in ("nbf", "iat"):
        begins = _moment(claims, name)
        if begins is not None and begins > now + settings.leeway:
            raise _wrong(f"it is not valid yet ({name})")
    return expires + settings.leeway


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LATEST:
        raise _wrong(f"its {name} is no moment in seconds since 1970")
    return float(value)


def _texts(value: object) -> list[str]:
    """A list of texts; empty where it is none."""
    return value if isinstance(value, list) and all(isinstance(one, str) for one in value) else []


def _wrong(why: str) -> InvalidToken:
    return InvalidToken(f"The token is not valid: {why}.")


def _grant(claims: Mapping[str, Any], settings: JwtSettings) -> Grant:
    tenant = claims.get(settings.tenant_claim, settings.default_tenant)
    if not isinstance(tenant, str) or not _LABEL.fullmatch(tenant):
        raise InvalidToken(f"The token's claim `{settings.tenant_claim}` names no tenant.")
    plan = claims.get(settings.plan_claim)
    if plan is not None and not (isinstance(plan, str) and _PLAN.fullmatch(plan)):
        raise InvalidToken(f"The token's claim `{settings.plan_claim}` is not a plan's name.")
    return Grant(
        tenant=tenant,
        key_id=_key_id(settings.issuer, claims["sub"]),
        plan=plan,
        scopes=_scopes(claims.get(settings.scopes_claim), settings),
        models=None,
        overrides=_NO_OVERRIDES,
    )


def _scopes(value: object, settings: JwtSettings) -> frozenset[Scope]:
    """Those of ours that a claim names, words of a text or entries of a list; without the claim, all."""
    if value is None:
        return ALL_SCOPES
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InvalidToken(
            f"The token's claim `{settings.scopes_claim}` is neither a text nor a list of texts."
        )
    return frozenset(cast("Scope", word) for word in words if word in ALL_SCOPES)


def _key_id(issuer: str, subject: str) -> str:
    digest = hashlib.sha256(f"{issuer}\0{subject}".encode()).digest()
    return TOKEN_KEY_ID + base64.b32encode(digest)[:16].decode("ascii").lower()
