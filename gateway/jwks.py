"""An issuer's public keys: fetched in the background, found by key id, kept while the issuer is away."""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import jiter
from structlog.typing import FilteringBoundLogger

Fetch = Callable[[str], Awaitable[bytes]]

REFRESH_SECONDS = 300.0
# A key id that is not known makes the set be fetched, but not more often than this: anyone can invent one.
UNKNOWN_SECONDS = 5.0
RETRY_SECONDS = 10.0
FETCH_SECONDS = 5.0
# Keys outlive their issuer's silence by this much.
MAX_AGE_SECONDS = 86_400.0
MAX_BYTES = 256 * 1024
MAX_KEYS = 100
RSA_BITS = (2048, 8192)
# Every issuer's is 65537; a long one makes each signature cost milliseconds.
MOST_EXPONENT_BITS = 32
# A compressed answer could be of any size once it is unpacked.
_HEADERS = {"accept": "application/json", "accept-encoding": "identity"}
_CURVES = ("P-256", "P-384", "P-521")


class JwksError(Exception):
    """The key set cannot be had, or is none."""


async def fetch(url: str) -> bytes:
    """What stands at `url`, which may not lead elsewhere. Raises JwksError."""
    try:
        timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=_HEADERS, auto_decompress=False) as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise JwksError(f"the issuer answers {answer.status}")
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise JwksError(f"the key set is larger than {MAX_BYTES} bytes")
            return bytes(body)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:  # ValueError: no host's name
        raise JwksError(f"the issuer does not answer: {type(error).__name__}") from error


class KeySet:
    """Public keys by id. `generation` is another whenever they are."""

    def __init__(
        self, url: str, *, fetch: Fetch, monotonic: Callable[[], float], log: FilteringBoundLogger
    ) -> None:
        self._url = url
        self._fetch = fetch
        self._monotonic = monotonic
        self._log = log
        self._keys: Mapping[str, dict[str, Any]] = {}
        self._tried_at: float | None = None
        self._good_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self.problem: str | None = None
        self.generation = 0

    async def find(self, key_id: str) -> dict[str, Any] | None:
        """The JWK. For one that is not known the set is fetched, unless that was just done: whoever asks
        meanwhile waits for the same fetch, FETCH_SECONDS at most.
        """
        if key_id not in self._keys and (self._fetching is not None or self._may_try()):
            await self.refresh()
        return self._keys.get(key_id)

    async def refresh(self) -> None:
        """Fetches the set. One that cannot be had is noted, and the keys stay until they are too old."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._refresh())
        # One who leaves does not end what others wait for.
        await asyncio.shield(self._fetching)

    async def keep_fresh(self) -> None:
        """Refreshes until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS if self.problem is None else RETRY_SECONDS)

    async def _refresh(self) -> None:
        try:
            keys = parse(await self._fetch(self._url))
        except JwksError as error:
            self._note(str(error))
            if self._good_at is not None and self._monotonic() - self._good_at > MAX_AGE_SECONDS:
                self._take({})
        else:
            self._good_at = self._monotonic()
            self._note(None)
            self._take(keys)
        finally:
            self._tried_at = self._monotonic()
            self._fetching = None

    def _may_try(self) -> bool:
        return self._tried_at is None or self._monotonic() - self._tried_at >= UNKNOWN_SECONDS

    def _take(self, keys: Mapping[str, dict[str, Any]]) -> None:
        if keys != self._keys:
            self._keys = keys
            self.generation += 1
            self._log.info("jwks_changed", keys=len(keys))

    def _note(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            self._log.error("jwks_failed", problem=problem)
        self.problem = problem


def parse(body: bytes) -> Mapping[str, dict[str, Any]]:
    """The keys of a JWK set (RFC 7517) that are to verify signatures, by id: RSA of 2048 to 8192 bits and
    elliptic curves. Others, and what else stands in a key, are left out. Raises JwksError where it is no key
    set.
    """
    try:
        held = jiter.from_json(body)
    except ValueError:
        raise JwksError("the key set is not JSON") from None
    keys = held.get("keys") if isinstance(held, dict) else None
    if not isinstance(keys, list):
        raise JwksError("the key set has no list of keys")
    if len(keys) > MAX_KEYS:
        raise JwksError(f"the key set has more than {MAX_KEYS} keys")
    return {
        key["kid"]: public for key in keys if isinstance(key, dict) and (public := _public(key)) is not None
    }


def _public(key: Mapping[str, Any]) -> dict[str, Any] | None:
    uses = key.get("key_ops", ["verify"])
    for_verifying = isinstance(uses, list) and "verify" in uses and key.get("use", "sig") == "sig"
    if not for_verifying or not isinstance(key.get("kid"), str):
        return None
    if key.get("kty") == "RSA":
        names = ("n", "e")
        least, most = RSA_BITS
        good = least <= _bits(key.get("n")) <= most and 1 < _bits(key.get("e")) <= MOST_EXPONENT_BITS
    elif key.get("kty") == "EC":
        names = ("x", "y")
        good = key.get("crv") in _CURVES and all(_bits(key.get(name)) for name in names)
    else:
        return None
    if not good:
        return None
    wanted = ("kty", "crv", "alg", *names)
    return {name: key[name] for name in wanted if isinstance(key.get(name), str)}


def _bits(value: object) -> int:
    """The length of a number in base64url; 0 where it is none."""
    if not isinstance(value, str) or len(value) > 4096:
        return 0
    try:
        raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        return 0
    return int.from_bytes(raw, "big").bit_length()
