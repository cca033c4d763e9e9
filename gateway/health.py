"""Alive, ready, degraded: what a health check is told."""

from dataclasses import dataclass

import orjson

from gateway.identity import KeyDirectory
from gateway.jwks import KeySet
from gateway.ledger import Ledger
from gateway.limits import Limiter
from gateway.plans import PlansFile
from gateway.upstreams import Pool

ALIVE = b'{"status":"alive"}'


@dataclass(frozen=True, slots=True)
class Readiness:
    """`status` is an HTTP status; a degraded gateway still serves, so it is ready."""

    status: int
    body: bytes


class Health:
    """Reads the state of the parts; asks nothing."""

    def __init__(
        self,
        directory: KeyDirectory,
        pool: Pool,
        ledger: Ledger,
        limiter: Limiter,
        plans: PlansFile,
        key_set: KeySet | None,
    ) -> None:
        self._directory = directory
        self._pool = pool
        self._ledger = ledger
        self._limiter = limiter
        self._plans = plans
        self._key_set = key_set

    def readiness(self) -> Readiness:
        if not self._pool.any_up():
            return Readiness(503, orjson.dumps({"status": "unavailable", "reasons": ["no engine answers"]}))
        if not self._directory.serves:
            reasons = ["the key store does not answer, and no key is known; nobody can be served"]
            return Readiness(503, orjson.dumps({"status": "unavailable", "reasons": reasons}))
        reasons = self._troubles()
        if reasons:
            return Readiness(200, orjson.dumps({"status": "degraded", "reasons": reasons}))
        return Readiness(200, b'{"status":"ready"}')

    def _troubles(self) -> list[str]:
        reasons = []
        if not self._directory.store_up:
            reasons.append("the key store does not answer; known keys are served, changes are refused")
        if self._ledger.problem is not None:
            lost = "some of it was lost" if self._ledger.lost else "none is lost"
            reasons.append(f"the usage ledger's store or disk cannot be written, usage waits here; {lost}")
        if self._limiter.problem is not None:
            reasons.append("limits are kept by each gateway alone; Valkey does not answer")
        if self._plans.problem is not None:
            reasons.append("the plans file has a mistake; the plans before it are in force")
        if self._key_set is not None and self._key_set.problem is not None:
            reasons.append("the tokens' issuer does not answer; tokens whose keys are known are taken")
        return reasons
