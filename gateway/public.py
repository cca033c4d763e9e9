"""The public listener: a request's way through the allow-list, identity, body, policy and limits to the
engine.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from traceback import walk_tb

from starlette.types import Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from gateway import anthropic, endpoints, policy
from gateway.accesslog import AccessLog
from gateway.accounts import Accounts
from gateway.authentication import Authenticator
from gateway.body import BodyBudget, ClientGone, HeldBody
from gateway.deadlines import Deadlines
from gateway.endpoints import Endpoint, Kind, Routes
from gateway.errors import GatewayError, ScopeMissing
from gateway.exchange import Exchange
from gateway.health import ALIVE, Health
from gateway.metrics import Metrics
from gateway.presence import Presence
from gateway.principal import Principal
from gateway.refusals import Refusal, RefusalLog
from gateway.relay import Answer, BrokenAnswer, Relay
from gateway.selfservice import SelfService
from gateway.settings import Settings

# What nginx logs for a client that closed its connection; nobody receives it.
CLIENT_CLOSED = 499
# The reason of a request that a shutdown cut off; nobody receives it.
DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class PublicApp:
    """The ASGI application. Everything it needs is given; it keeps no state of its own."""

    settings: Settings
    routes: Routes
    authenticator: Authenticator
    accounts: Accounts
    selfservice: SelfService
    budget: BodyBudget
    deadlines: Deadlines
    relay: Relay
    health: Health
    metrics: Metrics
    refusals: RefusalLog
    access_log: AccessLog
    clock: Callable[[], float]
    log: FilteringBoundLogger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no WebSocket here: the server answers the handshake with 403
        exchange = Exchange.begin(scope, self.settings.trusted_proxies)
        answer = Answer(exchange, send)
        self.metrics.in_flight += 1
        try:
            await self._serve(exchange, scope, receive, answer)
        except GatewayError as error:
            await self._refuse(exchange, answer, error)
        except ClientGone:
            exchange.client_left = True
            exchange.status = exchange.status or CLIENT_CLOSED
        except asyncio.CancelledError:  # the time to drain is over: the server ends what still runs
            exchange.refused_by = DRAINING
            exchange.status = exchange.status or 503
            self._note(exchange, GatewayError("The gateway was stopped before the answer's end."))
            raise
        except BrokenAnswer:
            raise  # the exchange says what happened
        except Exception as error:  # noqa: BLE001 - the edge: logged once, answered in the route's shape
            self._log_fault(exchange, error)
            if answer.begun:
                # The server closes the connection: the client sees that the answer is not whole.
                raise BrokenAnswer from None
            failed = GatewayError("Something failed in the gateway. It has been logged.")
            await self._refuse(exchange, answer, failed)
        finally:
            self.metrics.in_flight -= 1
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
        if endpoints.dialect_of(exchange.raw_path) == "anthropic":  # its SDK reads the id under this name
            exchange.answer_headers.append((b"request-id", exchange.request_id.encode("ascii")))
        endpoint = self.routes.match(exchange.method, exchange.raw_path)
        exchange.route = endpoint.path
        if endpoint.kind is Kind.LIVE:
            await answer.send_json(200, ALIVE)
            return
        if endpoint.kind is Kind.READY:
            ready = self.health.readiness()
            await answer.send_json(ready.status, ready.body)
            return
        principal = exchange.principal = await self.authenticator.authenticate(
            exchange.headers, exchange.client_ip, api_key_header=endpoint.dialect == "anthropic"
        )
        if endpoint.scope is not None and endpoint.scope not in principal.scopes:
            raise ScopeMissing(
                f"This key may not use {endpoint.path}: it lacks the scope `{endpoint.scope}`."
            )
        if endpoint.kind is Kind.ENGINE:
            await self._ask_engine(exchange, endpoint, principal, receive, Presence.of(scope), answer)
        else:
            await answer.send_json(200, await self._about(principal, endpoint, scope))

    async def _about(self, principal: Principal, endpoint: Endpoint, scope: Scope) -> bytes:
        """What a key asks about itself."""
        match endpoint.kind:
            case Kind.MODELS:
                return self.selfservice.models(principal)
            case Kind.MODEL:
                return self.selfservice.model(principal, scope["raw_path"])
            case Kind.LIMITS:
                return await self.selfservice.limits(principal)
            case _:
                return await self.selfservice.usage(principal, scope["query_string"])

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
        with HeldBody(
            self.budget,
            self.deadlines,
            tenant=principal.tenant,
            max_bytes=settings.max_body_bytes,
            timeout=settings.body_timeout,
        ) as held:
            raw = await held.read(exchange.headers, receive)
            exchange.bytes_in = len(raw)
            allowed = policy.decide(endpoint, raw, principal.rules)
            exchange.model, exchange.stream = allowed.model, allowed.stream
            account = None
            try:
                with presence:
                    account = await self.accounts.reserve(exchange, endpoint, allowed, principal)
                    if allowed.max_tokens is not None:
                        cap = b"%d" % allowed.max_tokens
                        exchange.answer_headers.append((b"x-gatehouse-max-tokens", cap))
                    await self.relay.carry(exchange, endpoint, allowed, answer)
            except (ClientGone, asyncio.CancelledError):
                exchange.cut_off = True
                raise
            finally:
                if account is not None:
                    await self.accounts.settle(account, exchange, endpoint)

    async def _refuse(self, exchange: Exchange, answer: Answer, error: GatewayError) -> None:
        exchange.refused_by = error.code
        self._note(exchange, error)
        if endpoints.dialect_of(exchange.raw_path) == "anthropic":
            body = anthropic.error_body(error, exchange.request_id)
        else:
            body = error.body()
        await answer.send_json(error.status, body, error.headers)

    def _note(self, exchange: Exchange, error: GatewayError) -> None:
        """For the operator who is asked why."""
        who = exchange.principal
        tenant, key_id = (who.tenant, who.key_id) if who else error.owner or (None, None)
        self.refusals.note(
            Refusal(
                request_id=exchange.request_id,
                at=self.clock(),
                route=exchange.route,
                status=exchange.status or error.status,
                code=exchange.refused_by or error.code,
                message=error.message,
                param=error.param,
                model=exchange.model,
                tenant=tenant,
                key_id=key_id,
                plan=who.plan_name if who else None,
                limits=exchange.refused,
            )
        )
