"""A KeyStore in memory that can be taken away."""

from collections.abc import Sequence
from dataclasses import replace

from gateway.store import KeyRecord, StoreError


class MemoryKeyStore:
    """Several directories may share one, as several processes share a database.

    `gone`: nothing answers. `fault`: what a fault in its own code would raise.
    """

    def __init__(self) -> None:
        self.records: dict[str, KeyRecord] = {}
        self.gone = False
        self.fault: Exception | None = None
        self.closed = False

    async def changed_since(self, moment: float) -> Sequence[KeyRecord]:
        self._answer()
        return [record for record in self.records.values() if record.changed_at >= moment]

    async def add(self, record: KeyRecord) -> None:
        self._answer()
        if record.id in self.records:
            raise StoreError("there is a key with this id")
        self.records[record.id] = record

    async def revoke(self, key_id: str, moment: float) -> KeyRecord | None:
        self._answer()
        known = self.records.get(key_id)
        if known is None:
            return None
        revoked_at = moment if known.revoked_at is None else known.revoked_at
        self.records[key_id] = replace(known, revoked_at=revoked_at, changed_at=moment)
        return self.records[key_id]

    async def close(self) -> None:
        self.closed = True

    def _answer(self) -> None:
        if self.fault:
            raise self.fault
        if self.gone:
            raise StoreError("the key store cannot be reached")
