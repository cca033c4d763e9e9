"""Composition: from a configuration to the three applications and what runs beside them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType

from starlette.types import ASGIApp
from structlog.typing import FilteringBoundLogger

from gateway.accesslog import AccessLog
from gateway.admin import create_admin_app
from gateway.body import BodyBudget
from gateway.health import Health
from gateway.identity import KeyDirectory
from gateway.internal import create_internal_app
from gateway.limits import RequestWindows
from gateway.metrics import Metrics
from gateway.policy import Rules
from gateway.public import PublicApp
from gateway.relay import Relay, Timeouts
from gateway.settings import Configuration
from gateway.store import KeyStore
from gateway.upstreams import Pool, Slot, Transport


@dataclass(frozen=True, slots=True)
class Apps:
    """One ASGI application per listener."""

    public: ASGIApp
    internal: ASGIApp
    admin: ASGIApp


@asynccontextmanager
async def create_app(
    configuration: Configuration,
    *,
    store: KeyStore,
    transport: Transport,
    clock: Callable[[], float],
    log: FilteringBoundLogger,
    access_log: AccessLog,
) -> AsyncIterator[Apps]:
    """The gateway, with its background work running until the block ends. `clock` gives seconds since the
    epoch.
    """
    settings = configuration.settings
    metrics = Metrics()
    directory = KeyDirectory(
        store,
        pepper=configuration.secrets.key_pepper,
        default_rpm=settings.requests_per_minute,
        clock=clock,
    )
    pool = _pool(configuration, transport)
    budget = BodyBudget(settings.max_inflight_body_bytes)
    metrics.read_at_scrape(directory, pool, budget)
    health = Health(directory, pool)
    public = PublicApp(
        settings=settings,
        rules=_rules(configuration),
        directory=directory,
        windows=RequestWindows(),
        budget=budget,
        relay=Relay(
            pool,
            transport,
            Timeouts(settings.first_byte_timeout, settings.idle_timeout, settings.total_timeout),
        ),
        health=health,
        metrics=metrics,
        access_log=access_log,
        log=log,
    )
    admin = create_admin_app(directory, token=configuration.secrets.admin_token, log=log)
    await asyncio.gather(directory.refresh(), pool.probe())
    # A fault in what runs beside the requests must end the process, not leave it serving stale knowledge.
    async with asyncio.TaskGroup() as group:
        background = [group.create_task(directory.keep_fresh()), group.create_task(pool.keep_probing())]
        try:
            yield Apps(public, create_internal_app(metrics, health), admin)
        finally:
            for task in background:
                task.cancel()


def _pool(configuration: Configuration, transport: Transport) -> Pool:
    keys = configuration.secrets.engine_keys
    return Pool([Slot(upstream, keys[upstream.name]) for upstream in configuration.upstreams], transport)


def _rules(configuration: Configuration) -> Rules:
    settings, profile = configuration.settings, configuration.profile
    served = {name: name for name in profile.served_model_name}
    return Rules(
        models=MappingProxyType(served | settings.model_aliases),
        max_model_len=profile.max_model_len,
        output_default=settings.default_max_tokens,
        output_cap=settings.max_tokens_cap,
        over_cap=settings.max_tokens_mode,
    )
