"""Key directories of several processes, on a store and snapshots in memory."""

from typing import Any

from gateway.identity import KeyDirectory, KeyDraft
from gateway.plans import Overrides
from gateway.principal import ALL_SCOPES, Entitlements, Grant, Principal
from gateway.settings import EngineProfile
from gateway.snapshot import Snapshot
from gateway.store import KeyRecord
from tests.fakes.clock import Clock
from tests.fakes.logs import LogLines
from tests.fakes.plans import FixedPlans
from tests.fakes.store import MemoryStore

PEPPER = b"pepper"
MAX_AGE = 3600.0
PROFILE = EngineProfile.model_validate({"served-model-name": ["served"], "max-model-len": 8192})


class MemorySnapshots:
    """`full`: nothing can be written, as on a full disk."""

    def __init__(self) -> None:
        self.held: Snapshot | None = None
        self.saved = 0
        self.full = False

    def save(self, snapshot: Snapshot) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.held = snapshot
        self.saved += 1

    def load(self) -> Snapshot | None:
        return self.held


def entitlements(plans: FixedPlans | None = None) -> Entitlements:
    return Entitlements(plans or FixedPlans(), profile=PROFILE, aliases={}, salt_key=b"salt")


def principal(key_id: str, tenant: str = "acme") -> Principal:
    """One on the standard plan."""
    return entitlements().principal(Grant(tenant, key_id, None, ALL_SCOPES, None, Overrides()))


class Process:
    """One gateway process: a directory on a store that others may share."""

    def __init__(
        self,
        store: MemoryStore,
        clock: Clock,
        *,
        pepper: bytes = PEPPER,
        snapshots: MemorySnapshots | None = None,
        plans: FixedPlans | None = None,
    ) -> None:
        self.log = LogLines()
        self.snapshots = snapshots or MemorySnapshots()
        self.entitlements = entitlements(plans)
        self.directory = KeyDirectory(
            store,
            pepper=pepper,
            entitlements=self.entitlements,
            snapshots=self.snapshots,
            max_age=MAX_AGE,
            clock=clock,
            log=self.log.logger,
        )

    async def create(self, **draft: Any) -> tuple[bytes, KeyRecord]:
        """A new key as a client sends it, and its record."""
        ((text, record),) = await self.directory.create(
            [KeyDraft(**({"name": "laptop", "tenant": "acme"} | draft))], actor="test"
        )
        return text.encode(), record

    def whose(self, key: bytes) -> Principal:
        return self.directory.authenticate(key)
