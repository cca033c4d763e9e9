"""The admin API alone: real directory, limiter, ledger and plans file, on a store in memory."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import yaml
from fastapi import FastAPI

from gateway.accesslog import make_logger
from gateway.admin import create_admin_app
from gateway.identity import KeyDirectory
from gateway.ledger import Ledger
from gateway.limits import Calendar
from gateway.memory_limiter import MemoryLimiter
from gateway.plans import PlansFile
from gateway.principal import Entitlements, client_models
from gateway.refusals import RefusalLog
from gateway.settings import EngineProfile
from gateway.snapshot import Snapshot
from tests.fakes.asgi import Client, body, scope
from tests.fakes.clock import Clock
from tests.fakes.store import MemoryStore

TOKEN = "an admin token of more than 32 characters"
PLANS: dict[str, Any] = {
    "timezone": "Europe/Berlin",
    "default_plan": "standard",
    "plans": {
        "standard": {"limits": {"requests_per_minute": 60}, "output": {"cap": 4096, "default": 1024}},
        "wide": {"limits": {"tokens_per_day": 1_000_000}, "output": {"cap": 8192, "default": 1024}},
    },
}
MODELS = {"served-model-name": ["served", "org/other"], "max-model-len": 8192}


class NoSnapshots:
    def save(self, snapshot: Snapshot) -> None: ...

    def load(self) -> Snapshot | None:
        return None


@dataclass
class Administration:
    """`home`: where the plans file and the ledger's spool are."""

    home: Path
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: Clock = field(default_factory=Clock)
    log: io.BytesIO = field(default_factory=io.BytesIO)
    refusals: RefusalLog = field(default_factory=RefusalLog)
    pepper: bytes = b"pepper"

    def __post_init__(self) -> None:
        self.home.mkdir(exist_ok=True)
        logger = make_logger("info", self.log)
        profile, aliases = EngineProfile.model_validate(MODELS), {"alias": "served"}
        models = client_models(profile, aliases)
        self.write_plans(PLANS)
        self.plans = PlansFile(self.plans_path, logger, models=models)
        entitlements = Entitlements(self.plans, profile=profile, aliases=aliases, salt_key=b"salt")
        self.directory = KeyDirectory(
            self.store,
            pepper=self.pepper,
            entitlements=entitlements,
            snapshots=NoSnapshots(),
            max_age=86_400,
            clock=self.clock,
            log=logger,
        )
        calendar = Calendar(self.plans.plans.timezone)
        self.limiter = MemoryLimiter(calendar, monotonic=self.clock, clock=self.clock)
        self.ledger = Ledger(self.store, self.home / "spool", calendar, self.clock)
        self.app: FastAPI = create_admin_app(
            self.directory,
            store=self.store,
            limiter=self.limiter,
            ledger=self.ledger,
            plans=self.plans,
            refusals=self.refusals,
            models=models,
            token=TOKEN,
            clock=self.clock,
            log=logger,
        )

    @property
    def plans_path(self) -> Path:
        return self.home / "plans.yaml"

    def write_plans(self, plans: object) -> None:
        self.plans_path.write_text(yaml.safe_dump(plans))

    @classmethod
    async def start(cls, home: Path, **given: Any) -> "Administration":
        """One that has read the store once."""
        started = cls(home, **given)
        await started.directory.start()
        return started

    async def raw(
        self, method: str, path: str, content: bytes = b"", *, actor: bytes | None = None
    ) -> Client:
        """A call with the token; `path` may have a query."""
        headers = [("authorization", f"Bearer {TOKEN}"), ("content-type", "application/json")]
        if actor is not None:
            headers.append(("x-gatehouse-actor", actor.decode("latin-1")))
        client = Client(body(content))
        where, _, query = path.partition("?")
        asked = scope(method, where, headers) | {"query_string": query.encode("latin-1")}
        await self.app(asked, client.receive, client.send)
        return client

    async def ask(
        self, method: str, path: str, content: object = None, *, actor: bytes | None = None
    ) -> tuple[int, Any]:
        """The same with JSON: status and JSON."""
        raw = b"" if content is None else orjson.dumps(content)
        client = await self.raw(method, path, raw, actor=actor)
        return client.status, orjson.loads(client.body)

    async def key(self, **given: object) -> dict[str, Any]:
        """A new key."""
        status, made = await self.ask("POST", "/admin/keys", {"name": "laptop", "tenant": "acme"} | given)
        assert status == 201, made
        found: dict[str, Any] = made
        return found

    def lines(self, event: str) -> list[dict[str, Any]]:
        found = [orjson.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in found if line["event"] == event]
