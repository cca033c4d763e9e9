"""JSON Web Tokens in place of keys. The one module that knows the library which verifies them."""

import base64
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from jose import jwt
from jose.exceptions import JOSEError

from gateway.errors import InvalidToken
from gateway.jwks import KeySet
from gateway.plans import Overrides
from gateway.principal import ALL_SCOPES, TOKEN_KEY_ID, Grant, Scope

MAX_TOKEN_BYTES = 8192
MAX_CACHED = 10_000
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,99}")
_PLAN = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_KINDS = {"RS": "RSA", "ES": "EC"}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_NO_OVERRIDES = Overrides()


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
    expires_at: float
    generation: int


class TokenVerifier:
    """Verifies tokens, and remembers those that it has: a signature costs more than all else of a request.

    A token is forgotten when it expires, and when the issuer's keys change.
    """

    def __init__(
        self, settings: JwtSettings, *, keys: KeySet | None, secret: bytes | None, clock: Callable[[], float]
    ) -> None:
        """`keys` for RS… and ES…, `secret` for HS…; `clock` gives seconds since the epoch."""
        self._settings = settings
        self._keys = keys
        self._secret = secret
        self._clock = clock
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()

    async def verify(self, token: bytes) -> Grant:
        """Whose token this is. Raises InvalidToken."""
        if len(token) > MAX_TOKEN_BYTES:
            raise InvalidToken(f"The token is longer than {MAX_TOKEN_BYTES} bytes.")
        digest = hashlib.sha256(token).digest()
        known = self._verified.get(digest)
        if known is not None and known.generation == self._generation():
            if known.expires_at > self._clock():
                return known.grant
            del self._verified[digest]
        return await self._verify(token, digest)

    async def _verify(self, token: bytes, digest: bytes) -> Grant:
        text = token.decode("latin-1")
        algorithm, key = await self._key_of(text)
        generation = self._generation()
        claims = self._claims(text, algorithm, key)
        grant = _grant(claims, self._settings)
        if len(self._verified) >= MAX_CACHED:
            self._verified.popitem(last=False)
        self._verified[digest] = _Verified(grant, claims["exp"] + self._settings.leeway, generation)
        return grant

    async def _key_of(self, token: str) -> tuple[str, Any]:
        """The algorithm and the key: of the kind that the algorithm needs, whatever else the head says."""
        try:
            head = jwt.get_unverified_header(token)
        except JOSEError:
            raise InvalidToken("This is not a JSON Web Token.") from None
        algorithm, key_id = head.get("alg"), head.get("kid")
        if algorithm not in self._settings.algorithms:
            taken = ", ".join(self._settings.algorithms)
            raise InvalidToken(f"The token's algorithm is not taken here; {taken} are.")
        if "crit" in head:
            raise InvalidToken("The token's head demands what is not understood here.")
        if algorithm.startswith("HS"):
            return algorithm, self._secret
        key = await self._keys.find(key_id) if self._keys is not None and isinstance(key_id, str) else None
        if key is None or not _fits(key, algorithm):
            raise InvalidToken("The token names no key of the issuer's (kid).")
        return algorithm, key

    def _claims(self, token: str, algorithm: str, key: Any) -> dict[str, Any]:
        settings = self._settings
        options = {"leeway": settings.leeway, "verify_at_hash": False}
        options |= {f"require_{name}": True for name in ("exp", "sub", "iss", "aud")}
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                options=options,
            )
        except (JOSEError, ValueError, TypeError, OverflowError) as error:
            raise InvalidToken(f"The token is not valid: {_reason(error)}.") from None
        if isinstance(claims["exp"], bool) or not isinstance(claims["exp"], int | float):
            raise InvalidToken("The token's expiry (exp) is not a number.")
        return claims

    def _generation(self) -> int:
        return self._keys.generation if self._keys is not None else 0


def _fits(key: dict[str, Any], algorithm: str) -> bool:
    """Whether the key is of the algorithm's kind, and on its curve, and not meant for another."""
    return (
        key["kty"] == _KINDS.get(algorithm[:2])
        and key.get("crv") == _CURVES.get(algorithm)
        and key.get("alg", algorithm) == algorithm
    )


def _reason(error: Exception) -> str:
    """The library's words where they are its own alone; others could hold a piece of the token."""
    text = str(error)
    known = ("Signature has expired", "Signature verification failed", "Invalid audience", "Invalid issuer")
    found = next((words for words in known if words in text), None)
    if found is None and "missing required key" in text:
        found = "a claim of exp, sub, iss, aud is missing"
    if found is None and "not yet valid" in text:
        found = "it is not valid yet"
    return found or "its signature or a claim is wrong"


def _grant(claims: dict[str, Any], settings: JwtSettings) -> Grant:
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
