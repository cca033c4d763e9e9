"""Exact prompt lengths from an engine's own tokenizer."""

import asyncio
from collections.abc import Callable

import jiter

from gateway.endpoints import Endpoint
from gateway.errors import GatewayError
from gateway.estimate import tokenize_request
from gateway.policy import Allowed
from gateway.upstreams import Pool, Transport

TOKENIZE_PATH = "/tokenize"
TIMEOUT_SECONDS = 2.0
# An engine's tokenizer shares a core with all its streams, and a refused request costs its sender nothing:
# so one count at a time, of prompts that do not take long, and for a tenth of the time at most.
MAX_BYTES = 128 * 1024
REST = 9.0


class Uncountable(Exception):
    """No tokenizer will say how long this prompt is, however often it is asked."""


class EngineTokenizer:
    """Asks an engine, one prompt at a time, and rests after each for REST times as long as it took."""

    def __init__(self, pool: Pool, transport: Transport, monotonic: Callable[[], float]) -> None:
        self._pool = pool
        self._transport = transport
        self._monotonic = monotonic
        self._busy = False
        self._rests_until = 0.0

    async def count(self, endpoint: Endpoint, allowed: Allowed) -> int | None:
        """Tokens of the prompt as the engine will see it; None where the engine has counted enough, or does
        not answer in time. Raises Uncountable where the body is too large, of a kind that cannot be counted,
        or refused.
        """
        request = tokenize_request(endpoint, allowed.body) if len(allowed.body) <= MAX_BYTES else None
        if request is None:
            raise Uncountable
        started = self._monotonic()
        if self._busy or started < self._rests_until:
            return None
        self._busy = True
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return _count(await self._ask(request))
        except (GatewayError, TimeoutError):
            return None
        finally:
            self._busy = False
            now = self._monotonic()
            self._rests_until = now + REST * (now - started)

    async def _ask(self, request: bytes) -> bytes:
        slot = self._pool.pick()
        reply = await self._transport.post(slot.upstream, TOKENIZE_PATH, request, slot.headers)
        try:
            chunks = []
            while chunk := await reply.read():
                chunks.append(chunk)
            return b"".join(chunks) if reply.status == 200 else b""
        finally:
            reply.close()


def _count(body: bytes) -> int:
    try:
        payload = jiter.from_json(body)
    except ValueError:
        raise Uncountable from None
    count = payload.get("count") if isinstance(payload, dict) else None
    if type(count) is not int or count < 0:
        raise Uncountable
    return count
