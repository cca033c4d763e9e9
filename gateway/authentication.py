"""Who is calling: from a request's headers to a Principal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import AuthenticationFailed, MissingKey
from gateway.failed_logins import FailedLogins
from gateway.identity import KeyDirectory
from gateway.principal import Entitlements, Grant, Principal

_HOW = "Send `Authorization: Bearer sk-gh-…`."


class Tokens(Protocol):
    """Verifies bearer tokens that others issued."""

    async def verify(self, token: bytes) -> Grant:
        """Raises InvalidToken."""


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Takes API keys, and tokens where `tokens` is given."""

    directory: KeyDirectory
    entitlements: Entitlements
    failures: FailedLogins
    tokens: Tokens | None = None

    async def authenticate(
        self, headers: Mapping[bytes, bytes], address: str, *, api_key_header: bool
    ) -> Principal:
        """The caller. `api_key_header`: `x-api-key` is taken too, as Anthropic's clients send it.

        Raises AuthenticationFailed or one of its kinds, TooManyFailedLogins in their place for an address
        that fails often, PermissionDenied or StoreUnavailable.
        """
        try:
            return await self._caller(_credential(headers, api_key_header=api_key_header))
        except AuthenticationFailed:
            self.failures.note(address)
            raise

    async def _caller(self, credential: bytes) -> Principal:
        if self.tokens is not None and credential.count(b".") == 2:
            return self.entitlements.principal(await self.tokens.verify(credential))
        return self.directory.authenticate(credential)


def _credential(headers: Mapping[bytes, bytes], *, api_key_header: bool) -> bytes:
    authorization = headers.get(b"authorization")
    if not authorization:
        given = headers.get(b"x-api-key", b"").strip() if api_key_header else b""
        if given:
            return given
        raise MissingKey(f"No API key. {_HOW}")
    scheme, _, credential = authorization.partition(b" ")
    credential = credential.strip()
    if scheme.lower() != b"bearer" or not credential:
        raise MissingKey(f"The Authorization header holds no bearer token. {_HOW}")
    return credential
