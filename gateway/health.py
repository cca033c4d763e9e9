"""Alive, ready, degraded: what a health check is told."""

from dataclasses import dataclass

import orjson

from gateway.identity import KeyDirectory
from gateway.upstreams import Pool

ALIVE = b'{"status":"alive"}'


@dataclass(frozen=True, slots=True)
class Readiness:
    """`status` is an HTTP status; a degraded gateway still serves, so it is ready."""

    status: int
    body: bytes


class Health:
    """Reads the state of the parts; asks nothing."""

    def __init__(self, directory: KeyDirectory, pool: Pool) -> None:
        self._directory = directory
        self._pool = pool

    def readiness(self) -> Readiness:
        if not self._pool.any_up():
            return Readiness(503, orjson.dumps({"status": "unavailable", "reasons": ["no engine answers"]}))
        if not self._directory.store_up:
            reasons = ["the key store does not answer; known keys are served, changes are refused"]
            return Readiness(200, orjson.dumps({"status": "degraded", "reasons": reasons}))
        return Readiness(200, b'{"status":"ready"}')
