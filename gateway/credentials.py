"""Whose secret a credential holds: the part of recognising a key that is paid for with each request."""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from pydantic import ValidationError

from gateway import keys
from gateway.errors import AuthenticationFailed, MistypedKey
from gateway.plans import Overrides
from gateway.principal import ALL_SCOPES, Grant, Scope
from gateway.store import KeyRecord

MAX_RECOGNISED = 10_000

_PREFIX = keys.PREFIX.encode()
_HOW = "Send `Authorization: Bearer sk-gh-…`."
_MISTYPED = f"This is not a well-formed API key: its checksum is wrong. Was it cut or mistyped? {_HOW}"
_FOREIGN = f"This is not one of this service's API keys. {_HOW}"


@dataclass(frozen=True, slots=True)
class Known:
    """Another object whenever anything of the key has changed. `grant` None: this version cannot make sense
    of the key's own limits, and without them it must not be served.
    """

    record: KeyRecord
    grant: Grant | None


class Credentials:
    """Recognises API keys by their secrets; whether a key is still good is for others to say."""

    def __init__(self, pepper: bytes, clock: Callable[[], float]) -> None:
        self._pepper = pepper
        self._pepper_id = keys.pepper_id(pepper)
        self._clock = clock
        # Credentials that were verified, by their SHA-256, the oldest first.
        self._recognised: dict[bytes, Known] = {}

    @property
    def kept(self) -> int:
        """How many credentials are remembered; MAX_RECOGNISED at most."""
        return len(self._recognised)

    def owner(self, credential: bytes, known_keys: Mapping[str, Known]) -> Known | None:
        """The key whose present or, within its overlap, previous secret this is; None where it is nobody's.
        Raises MistypedKey, or AuthenticationFailed for what cannot be a key of this service.
        """
        digest = hashlib.sha256(credential).digest()
        known = self._recognised.get(digest)
        # Of an object that is no longer the key's, not even the secret is taken for granted.
        if known is not None and known_keys.get(known.record.id) is known:
            return known
        return self._verify(credential, digest, known_keys)

    def _verify(self, credential: bytes, digest: bytes, known_keys: Mapping[str, Known]) -> Known | None:
        parsed = keys.parse(credential.decode("latin-1"))
        if parsed is None:
            raise (
                MistypedKey(_MISTYPED) if credential.startswith(_PREFIX) else AuthenticationFailed(_FOREIGN)
            )
        given = keys.digest(parsed.secret, self._pepper)
        known = known_keys.get(parsed.id)
        if known is None:
            return None
        record = known.record
        if self._is(record.digest, record.pepper_id, given):
            if digest not in self._recognised and len(self._recognised) >= MAX_RECOGNISED:
                del self._recognised[next(iter(self._recognised))]
            self._recognised[digest] = known
            return known
        # A previous secret is not remembered: it ends by itself, without a change of the record.
        return known if self._is_previous(record, given) else None

    def _is(self, digest: bytes, pepper_id: str | None, given: bytes) -> bool:
        return pepper_id == self._pepper_id and hmac.compare_digest(digest, given)

    def _is_previous(self, record: KeyRecord, given: bytes) -> bool:
        previous, until = record.previous_digest, record.previous_until
        return (
            previous is not None
            and until is not None
            and self._clock() < until
            and self._is(previous, record.previous_pepper_id, given)
        )


def grant_of(record: KeyRecord) -> Grant | None:
    """What a record grants; None where this version cannot make sense of its own limits."""
    try:
        overrides = Overrides.model_validate(dict(record.overrides))
    except ValidationError:  # of another version, perhaps
        return None
    return Grant(
        tenant=record.tenant,
        key_id=record.id,
        plan=record.plan,
        scopes=ALL_SCOPES if record.scopes is None else frozenset(cast("tuple[Scope, ...]", record.scopes)),
        models=record.models,
        overrides=overrides,
    )
