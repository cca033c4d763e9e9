"""What a gateway stands on: its files, stores and engines, opened before it serves and closed after."""

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from gateway.accesslog import AccessLog
from gateway.authentication import Tokens
from gateway.jwks import KeySet, fetch
from gateway.jwt import JwtSettings, TokenVerifier
from gateway.ledger import Ledger
from gateway.limits import Calendar, Limiter
from gateway.memory_limiter import MemoryLimiter
from gateway.plans import PlansFile
from gateway.principal import client_models
from gateway.settings import Configuration, ConfigurationError, Settings
from gateway.snapshot import SNAPSHOT, SnapshotFile
from gateway.sqlstore import SqlStore
from gateway.store import Store, StoreError, StoreUnfit
from gateway.upstreams import AiohttpTransport, Transport
from gateway.valkey_limiter import ValkeyLimiter

DATABASE = "gateway.db"
SPOOL = "spool"


@dataclass(frozen=True, slots=True)
class Outside:
    """`clock`: seconds since the epoch. `calendar`: the plans' days. Without `tokens`, keys alone pass."""

    plans: PlansFile
    calendar: Calendar
    store: Store
    ledger: Ledger
    limiter: Limiter
    transport: Transport
    tokens: Tokens | None
    key_set: KeySet | None
    monotonic: Callable[[], float]
    clock: Callable[[], float]
    log: FilteringBoundLogger
    access_log: AccessLog


@contextlib.asynccontextmanager
async def opened(
    configuration: Configuration, log: FilteringBoundLogger, access_log: AccessLog
) -> AsyncIterator[Outside]:
    """All of it. Raises ConfigurationError where it cannot be had as configured; a database or Valkey that
    does not answer is no reason not to start.
    """
    settings = configuration.settings
    names = client_models(configuration.profile, settings.model_aliases)
    plans = PlansFile(settings.plans_file, log, models=names)
    calendar = Calendar(plans.plans.timezone)
    async with contextlib.AsyncExitStack() as stack:
        store = await _open_store(configuration, log)
        stack.push_async_callback(store.close)
        ledger = _open_ledger(configuration, store, calendar)
        stack.push_async_callback(ledger.close)
        limiter = _open_limiter(configuration, calendar, log)
        stack.push_async_callback(limiter.close)
        transport = AiohttpTransport(connect_timeout=settings.connect_timeout)
        stack.push_async_callback(transport.close)
        key_set = _key_set(settings, log)
        yield Outside(
            plans=plans,
            calendar=calendar,
            store=store,
            ledger=ledger,
            limiter=limiter,
            transport=transport,
            tokens=_tokens(configuration, key_set),
            key_set=key_set,
            monotonic=time.monotonic,
            clock=time.time,
            log=log,
            access_log=access_log,
        )


async def _open_store(configuration: Configuration, log: FilteringBoundLogger) -> Store:
    settings = configuration.settings
    if settings.database_url is None:
        return _open_sqlite(configuration, log)
    store = SqlStore.postgresql(settings.database_url, configuration.secrets.database_password)
    try:
        await store.open()
    except StoreUnfit as error:
        await store.close()
        raise ConfigurationError(f"GATEWAY_DATABASE_URL: {error}.") from error
    except StoreError as error:
        log.warning("store_gone", problem=str(error))
    return store


def _open_sqlite(configuration: Configuration, log: FilteringBoundLogger) -> Store:
    """The file, made where there is none. One that cannot be opened, or is gone although there were keys, is
    a store that is gone: while the last known keys may be served, that is no reason not to start.
    """
    home = configuration.settings.data_dir
    path = home / DATABASE
    if not os.access(home, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"the store {path} cannot be opened. Is {home} there, and writable for user {os.getuid()}?"
        )
    snapshot = SnapshotFile.of(configuration).load()
    had_keys = snapshot is not None and len(snapshot.records) > 0
    try:
        if path.exists() or not had_keys:
            return SqlStore.open_sqlite(path)
        problem = f"the store {path} is gone"
    except StoreUnfit as error:
        raise ConfigurationError(f"{error}.") from error
    except StoreError as error:
        problem = str(error)
    oldest = time.time() - configuration.settings.snapshot_max_age
    if snapshot is None or not had_keys or snapshot.taken_at < oldest:
        begin = f"to begin without any key, remove it and {home / SNAPSHOT}"
        raise ConfigurationError(f"{problem}. Put it back from a backup; {begin}.")
    log.warning("store_gone", problem=problem)
    return SqlStore.sqlite(path)


def _open_ledger(configuration: Configuration, store: Store, calendar: Calendar) -> Ledger:
    directory = configuration.settings.data_dir / SPOOL
    try:
        return Ledger(store, directory, calendar)
    except OSError as error:
        raise ConfigurationError(
            f"{directory} cannot be written ({error.strerror}). It must be writable for user {os.getuid()}."
        ) from error


def _open_limiter(configuration: Configuration, calendar: Calendar, log: FilteringBoundLogger) -> Limiter:
    settings = configuration.settings
    if settings.valkey_url is None:
        return MemoryLimiter(calendar, monotonic=time.monotonic, clock=time.time)
    return ValkeyLimiter.connect(
        settings.valkey_url,
        configuration.secrets.valkey_password,
        settings.valkey_timeout,
        calendar,
        replicas=settings.replicas,
        monotonic=time.monotonic,
        clock=time.time,
        log=log,
    )


def _key_set(settings: Settings, log: FilteringBoundLogger) -> KeySet | None:
    if settings.jwt_issuer is None or settings.jwt_jwks_url is None:
        return None
    return KeySet(settings.jwt_jwks_url, fetch=fetch, monotonic=time.monotonic, log=log)


def _tokens(configuration: Configuration, key_set: KeySet | None) -> Tokens | None:
    settings = configuration.settings
    if settings.jwt_issuer is None or settings.jwt_audience is None:
        return None
    return TokenVerifier(
        JwtSettings(
            issuer=settings.jwt_issuer,
            audience=settings.jwt_audience,
            algorithms=settings.jwt_algorithms,
            leeway=settings.jwt_leeway,
            tenant_claim=settings.jwt_tenant_claim,
            plan_claim=settings.jwt_plan_claim,
            scopes_claim=settings.jwt_scopes_claim,
            default_tenant=settings.jwt_default_tenant,
        ),
        keys=key_set,
        secret=configuration.secrets.jwt_secret,
        clock=time.time,
    )
