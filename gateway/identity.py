"""Who is calling: from an `Authorization` header to a Principal, without a store on the data path."""

import asyncio
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from gateway import keys
from gateway.errors import AuthenticationFailed, ExpiredKey, MissingKey, RevokedKey, StoreUnavailable
from gateway.store import KeyRecord, KeyStore, StoreError

REFRESH_SECONDS = 1.0
# A change is stamped before it is committed, so a refresh looks back this far for changes that were still
# under way.
OVERLAP_SECONDS = 10.0

_HOW = "Send `Authorization: Bearer sk-gh-…`."
# The same for an id that exists and for one that does not: ids are not to be found out by asking.
_WRONG = f"There is no such API key. {_HOW}"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request is from, and what it may do."""

    tenant: str
    key_id: str
    requests_per_minute: int


class KeyDirectory:
    """Every key in memory, refreshed from the store. Lookups touch nothing else; a store that is gone changes
    nothing for known keys, and makes an unknown one a 503 instead of a 401.
    """

    def __init__(
        self,
        store: KeyStore,
        *,
        pepper: bytes,
        default_rpm: int,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._pepper = pepper
        self._pepper_id = keys.pepper_id(pepper)
        self._default_rpm = default_rpm
        self._clock = clock
        self._records: dict[str, KeyRecord] = {}
        self._newest = 0.0
        self.store_up = False

    def authenticate(self, authorization: bytes | None) -> Principal:
        """The caller. Raises AuthenticationFailed (or MissingKey, RevokedKey, ExpiredKey) or
        StoreUnavailable.
        """
        parsed = _bearer_key(authorization)
        record = self._records.get(parsed.id)
        if record is None:
            if not self.store_up:
                raise StoreUnavailable(
                    "This key cannot be checked now: the key store does not answer. Try again.", retry_after=5
                )
            raise AuthenticationFailed(_WRONG)
        if record.pepper_id != self._pepper_id or not hmac.compare_digest(
            record.digest, keys.digest(parsed.secret, self._pepper)
        ):
            raise AuthenticationFailed(_WRONG)
        if record.revoked_at is not None:
            raise RevokedKey("This API key was revoked. Ask your operator for a new one.")
        if record.expires_at is not None and record.expires_at <= self._clock():
            raise ExpiredKey("This API key has expired. Ask your operator for a new one.")
        return Principal(record.tenant, record.id, record.requests_per_minute or self._default_rpm)

    async def create(
        self, *, name: str, tenant: str, requests_per_minute: int | None, expires_at: float | None
    ) -> tuple[str, KeyRecord]:
        """A new key, stored before it is returned: its text, which is nowhere else, and its record. Raises
        StoreError.
        """
        text = keys.generate()
        parsed = keys.parse(text)
        assert parsed is not None
        now = self._clock()
        record = KeyRecord(
            id=parsed.id,
            name=name,
            tenant=tenant,
            digest=keys.digest(parsed.secret, self._pepper),
            pepper_id=self._pepper_id,
            overrides={} if requests_per_minute is None else {"requests_per_minute": requests_per_minute},
            created_at=now,
            expires_at=expires_at,
            revoked_at=None,
            changed_at=now,
        )
        await self._store.add([record], actor="admin")
        self._apply(record)
        return text, record

    async def revoke(self, key_id: str) -> KeyRecord | None:
        """Revokes at once; None where there is no such key. Raises StoreError."""
        now = self._clock()
        changes = {"revoked_at": now, "changed_at": now}
        record = await self._store.change(key_id, changes, actor="admin", action="revoke")
        if record is not None:
            self._apply(record)
        return record

    def all(self) -> list[KeyRecord]:
        """Every key, oldest first."""
        return sorted(self._records.values(), key=lambda record: (record.created_at, record.id))

    async def refresh(self) -> None:
        """Takes in what other processes changed. A store that is gone is noted, not raised."""
        try:
            for record in await self._store.changed_since(self._newest - OVERLAP_SECONDS):
                self._apply(record)
        except StoreError:
            self.store_up = False
        else:
            self.store_up = True

    async def keep_fresh(self) -> None:
        """Refreshes until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await self.refresh()

    def _apply(self, record: KeyRecord) -> None:
        self._newest = max(self._newest, record.changed_at)
        known = self._records.get(record.id)
        if known is not None and known.revoked_at is not None and record.revoked_at is None:
            return  # read before the revocation, arrived after it: a revoked key stays revoked
        self._records[record.id] = record


def _bearer_key(authorization: bytes | None) -> keys.ParsedKey:
    if not authorization:
        raise MissingKey(f"No API key. {_HOW}")
    scheme, _, token = authorization.partition(b" ")
    if scheme.lower() != b"bearer" or not token.strip():
        raise MissingKey(f"The Authorization header holds no bearer token. {_HOW}")
    parsed = keys.parse(token.strip().decode("latin-1"))
    if parsed is None:
        raise AuthenticationFailed(
            f"This is not a well-formed API key: its checksum is wrong. Was it cut or mistyped? {_HOW}"
        )
    return parsed
