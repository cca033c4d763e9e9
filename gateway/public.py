"""The public listener: a request's way through the allow-list, identity, body, policy and limits to the
engine.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from traceback import walk_tb
from urllib.parse import unquote

import orjson
from starlette.types import Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from gateway import endpoints, limits, policy
from gateway.accesslog import AccessLog
from gateway.body import BodyBudget, ClientGone, HeldBody
from gateway.endpoints import Endpoint, Kind
from gateway.errors import GatewayError, ModelNotFound, RateLimited
from gateway.exchange import Exchange
from gateway.health import ALIVE, Health
from gateway.identity import KeyDirectory, Principal
from gateway.metrics import Metrics
from gateway.presence import Presence
from gateway.relay import Answer, BrokenAnswer, Relay
from gateway.settings import Settings

# What nginx logs for a client that closed its connection; nobody receives it.
CLIENT_CLOSED = 499
# The reason of a request that a shutdown cut off; nobody receives it.
DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class PublicApp:
    """The ASGI application. Everything it needs is given; it keeps no state of its own."""

    settings: Settings
    rules: policy.Rules
    directory: KeyDirectory
    windows: limits.RequestWindows
    budget: BodyBudget
    relay: Relay
    health: Health
    metrics: Metrics
    access_log: AccessLog
    log: FilteringBoundLogger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no WebSocket here: the server answers the handshake with 403
        exchange = Exchange.begin(scope, self.settings.trusted_proxies)
        answer = Answer(exchange, send)
        self.metrics.in_flight.inc()
        try:
            await self._serve(exchange, scope, receive, answer)
        except GatewayError as error:
            await _refuse(exchange, answer, error)
        except ClientGone:
            exchange.client_left = True
            exchange.status = exchange.status or CLIENT_CLOSED
        except asyncio.CancelledError:  # the time to drain is over: the server ends what still runs
            exchange.refused_by = DRAINING
            exchange.status = exchange.status or 503
            raise
        except BrokenAnswer:
            raise  # the exchange says what happened
        except Exception as error:  # noqa: BLE001 - the edge: logged once, answered in OpenAI's shape
            self._log_fault(exchange, error)
            if answer.begun:
                # The server closes the connection: the client sees that the answer is not whole.
                raise BrokenAnswer from None
            await _refuse(
                exchange, answer, GatewayError("Something failed in the gateway. It has been logged.")
            )
        finally:
            self.metrics.in_flight.dec()
            duration = time.monotonic() - exchange.started
            self.metrics.record(exchange, duration)
            self.access_log.write(exchange, duration)

    def _log_fault(self, exchange: Exchange, error: Exception) -> None:
        exchange.refused_by = GatewayError.code
        # The error's own text may hold a piece of a prompt: its type and place are enough to find it.
        frame, line = [*walk_tb(error.__traceback__)][-1]
        where = f"{frame.f_code.co_filename}:{line}"
        self.log.error("fault", request_id=exchange.request_id, error=type(error).__name__, where=where)

    async def _serve(self, exchange: Exchange, scope: Scope, receive: Receive, answer: Answer) -> None:
        endpoint = endpoints.match(exchange.method, exchange.raw_path)
        exchange.route = endpoint.path
        if endpoint.kind is Kind.LIVE:
            await answer.send_json(200, ALIVE)
            return
        if endpoint.kind is Kind.READY:
            ready = self.health.readiness()
            await answer.send_json(ready.status, ready.body)
            return
        exchange.principal = self.directory.authenticate(exchange.headers.get(b"authorization"))
        if endpoint.kind is Kind.MODELS:
            await answer.send_json(200, _model_list(self.rules.models))
        elif endpoint.kind is Kind.MODEL:
            await answer.send_json(200, _one_model(self.rules.models, exchange.raw_path))
        else:
            presence = Presence.of(scope)
            await self._ask_engine(exchange, endpoint, exchange.principal, receive, presence, answer)

    async def _ask_engine(
        self,
        exchange: Exchange,
        endpoint: Endpoint,
        principal: Principal,
        receive: Receive,
        presence: Presence,
        answer: Answer,
    ) -> None:
        settings = self.settings
        with HeldBody(self.budget, max_bytes=settings.max_body_bytes, timeout=settings.body_timeout) as held:
            raw = await held.read(exchange.headers, receive)
            exchange.bytes_in = len(raw)
            allowed = policy.decide(endpoint, raw, self.rules)
            exchange.model, exchange.stream = allowed.model, allowed.stream
            self._charge(exchange, principal)
            if allowed.max_tokens is not None:
                exchange.answer_headers.append((b"x-gatehouse-max-tokens", b"%d" % allowed.max_tokens))
            with presence:
                await self.relay.carry(exchange, endpoint, allowed, answer)

    def _charge(self, exchange: Exchange, principal: Principal) -> None:
        """Counts the request, last of all checks, so that a refused one costs nothing."""
        verdict = self.windows.take(principal.key_id, principal.requests_per_minute, time.monotonic())
        exchange.answer_headers += [
            (b"x-ratelimit-limit-requests", b"%d" % verdict.limit),
            (b"x-ratelimit-remaining-requests", b"%d" % verdict.remaining),
            (b"x-ratelimit-reset-requests", limits.duration(verdict.reset).encode("ascii")),
        ]
        if not verdict.allowed:
            wait = limits.whole_seconds(verdict.retry_after)
            raise RateLimited(
                f"This key may make {verdict.limit} requests per minute. Wait {wait} s.", retry_after=wait
            )


async def _refuse(exchange: Exchange, answer: Answer, error: GatewayError) -> None:
    exchange.refused_by = error.code
    await answer.send_json(error.status, error.body(), error.headers)


def _model_list(models: Mapping[str, str]) -> bytes:
    return orjson.dumps({"object": "list", "data": [_model_card(name) for name in models]})


def _one_model(models: Mapping[str, str], raw_path: bytes) -> bytes:
    name = unquote(raw_path.decode("latin-1").removeprefix(endpoints.MODELS_PREFIX))
    if name not in models:
        raise ModelNotFound("No such model here. GET /v1/models lists what this key may use.", param="model")
    return orjson.dumps(_model_card(name))


def _model_card(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "gatehouse"}
