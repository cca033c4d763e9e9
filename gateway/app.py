"""Composition: from a configuration to the three applications and what runs beside them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import ASGIApp

from gateway.accounts import Accounts
from gateway.admin import create_admin_app
from gateway.authentication import Authenticator
from gateway.body import BodyBudget
from gateway.deadlines import Deadlines
from gateway.endpoints import Routes
from gateway.estimate import Estimator
from gateway.failed_logins import FailedLogins
from gateway.health import Health
from gateway.identity import KeyDirectory
from gateway.internal import create_internal_app
from gateway.metrics import Metrics
from gateway.outside import Outside
from gateway.plans import PlansFile
from gateway.principal import Entitlements, client_models
from gateway.public import PublicApp
from gateway.refusals import RefusalLog
from gateway.relay import Relay, Timeouts
from gateway.selfservice import SelfService
from gateway.settings import Configuration
from gateway.snapshot import SnapshotFile
from gateway.tokenizer import EngineTokenizer
from gateway.upstreams import Pool, Slot, Transport

SNAPSHOT = "keys.snapshot"
# What part of the bodies in memory may be one tenant's.
TENANT_SHARE = 4


@dataclass(frozen=True, slots=True)
class Apps:
    """One ASGI application per listener."""

    public: ASGIApp
    internal: ASGIApp
    admin: ASGIApp


@asynccontextmanager
async def create_app(configuration: Configuration, outside: Outside) -> AsyncIterator[Apps]:
    """The gateway, with its background work running until the block ends."""
    plans, ledger, limiter, log = outside.plans, outside.ledger, outside.limiter, outside.log
    metrics = Metrics()
    entitlements = _entitlements(configuration, plans)
    directory = _directory(configuration, outside, entitlements)
    pool = _pool(configuration, outside.transport)
    most = configuration.settings.max_inflight_body_bytes
    budget = BodyBudget(most, max(most // TENANT_SHARE, configuration.settings.max_body_bytes))
    metrics.read_at_scrape(directory, pool, budget, ledger, limiter, plans)
    health = Health(directory, pool, ledger, limiter, plans, outside.key_set)
    refusals = RefusalLog()
    deadlines = Deadlines()
    public = PublicApp(
        settings=configuration.settings,
        routes=Routes(configuration.settings.optional_routes),
        authenticator=Authenticator(
            directory,
            entitlements,
            FailedLogins(configuration.settings.failed_logins_per_minute),
            outside.tokens,
        ),
        accounts=Accounts(
            limiter,
            Estimator(),
            ledger,
            EngineTokenizer(pool, outside.transport, outside.monotonic),
            metrics,
            outside.monotonic,
            outside.clock,
        ),
        selfservice=SelfService(limiter, ledger, outside.calendar, outside.clock),
        budget=budget,
        deadlines=deadlines,
        relay=Relay(pool, outside.transport, _timeouts(configuration), deadlines),
        health=health,
        metrics=metrics,
        refusals=refusals,
        access_log=outside.access_log,
        clock=outside.clock,
        log=log,
    )
    admin = create_admin_app(
        directory,
        store=outside.store,
        limiter=limiter,
        ledger=ledger,
        plans=plans,
        refusals=refusals,
        models=_models(configuration),
        token=configuration.secrets.admin_token,
        clock=outside.clock,
        log=log,
    )
    await asyncio.gather(directory.start(), pool.probe())
    # A fault in what runs beside the requests must end the process, not leave it serving stale knowledge.
    async with asyncio.TaskGroup() as group:
        work = (
            directory.keep_fresh(),
            pool.keep_probing(),
            plans.keep_watching(),
            ledger.keep_flushing(),
            limiter.run(ledger.totals),
        )
        background = [group.create_task(one) for one in work]
        if outside.key_set is not None:
            background.append(group.create_task(outside.key_set.keep_fresh()))
        try:
            yield Apps(public, create_internal_app(metrics, health), admin)
        finally:
            for task in background:
                task.cancel()


def _models(configuration: Configuration) -> dict[str, str]:
    return dict(client_models(configuration.profile, configuration.settings.model_aliases))


def _entitlements(configuration: Configuration, plans: PlansFile) -> Entitlements:
    return Entitlements(
        plans,
        profile=configuration.profile,
        aliases=configuration.settings.model_aliases,
        salt_key=configuration.secrets.derived("cache salt"),
    )


def _directory(configuration: Configuration, outside: Outside, entitlements: Entitlements) -> KeyDirectory:
    return KeyDirectory(
        outside.store,
        pepper=configuration.secrets.key_pepper,
        entitlements=entitlements,
        snapshots=SnapshotFile.of(configuration),
        max_age=configuration.settings.snapshot_max_age,
        clock=outside.clock,
        log=outside.log,
    )


def _pool(configuration: Configuration, transport: Transport) -> Pool:
    keys = configuration.secrets.engine_keys
    return Pool([Slot(upstream, keys[upstream.name]) for upstream in configuration.upstreams], transport)


def _timeouts(configuration: Configuration) -> Timeouts:
    settings = configuration.settings
    return Timeouts(settings.first_byte_timeout, settings.idle_timeout, settings.total_timeout)
