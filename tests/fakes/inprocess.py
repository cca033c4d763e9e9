"""A whole gateway without a process: the three applications on a scripted engine and a store in memory."""

import io
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml
from pydantic import HttpUrl

from gateway.accesslog import AccessLog, make_logger
from gateway.app import Apps, create_app
from gateway.ledger import Ledger
from gateway.limits import Calendar
from gateway.memory_limiter import MemoryLimiter
from gateway.outside import Outside
from gateway.plans import PlansFile
from gateway.settings import Configuration, EngineProfile, Secrets, Settings, Upstream
from tests.fakes.asgi import Client, body, call, scope
from tests.fakes.clock import Clock
from tests.fakes.standard import STANDARD
from tests.fakes.store import MemoryStore
from tests.fakes.transport import ScriptedTransport

ADMIN_TOKEN = "an admin token of more than 32 characters"
PROFILE: dict[str, Any] = {
    "served-model-name": ["served", "org/other"],
    "max-model-len": 8192,
    "max-num-seqs": 4,
}


def configuration(**variables: str) -> Configuration:
    """A right configuration; `variables` are those of the environment."""
    return Configuration(
        settings=Settings.read({"GATEWAY_MODEL_ALIASES": '{"alias": "served"}', **variables}),
        secrets=Secrets(key_pepper=b"pepper", admin_token=ADMIN_TOKEN, engine_keys={"vllm": "engine-key"}),
        profile=EngineProfile.model_validate(PROFILE),
        upstreams=(Upstream(name="vllm", url=HttpUrl("http://vllm:8000")),),
    )


@dataclass
class InProcess:
    """The running gateway and what it stands on."""

    apps: Apps
    store: MemoryStore
    ledger: Ledger
    plans: Path
    transport: ScriptedTransport
    clock: Clock
    log: io.BytesIO
    key: str = ""

    async def admin(self, method: str, path: str, content: object = None) -> tuple[int, Any]:
        """A call to the admin API with its token: status and JSON."""
        headers = [("authorization", f"Bearer {ADMIN_TOKEN}"), ("content-type", "application/json")]
        client = await call(
            self.apps.admin, method, path, headers, b"" if content is None else orjson.dumps(content)
        )
        return client.status, orjson.loads(client.body)

    async def ask(self, path: str, content: bytes = b"", *, method: str = "POST", **headers: str) -> Client:
        """A call to the public API with the key, by a client that stays."""
        return await call(self.apps.public, method, path, self.head(headers), content)

    async def ask_as(self, client: Client, path: str, content: bytes) -> None:
        """The same by a client that the test plays."""
        for message in body(content):
            client.give(message)
        await self.apps.public(scope("POST", path, self.head({}), client=client), client.receive, client.send)

    def head(self, headers: dict[str, str]) -> list[tuple[str, str]]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return list(({"authorization": f"Bearer {self.key}"} | given).items())

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The log's lines of one kind."""
        found = [orjson.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in found if line["event"] == event]

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Another plans file in place of the present one; it is read when it is looked at."""
        write_plans(self.plans.parent, plan)

    async def metrics(self) -> str:
        return (await call(self.apps.internal, "GET", "/metrics")).body.decode()


@asynccontextmanager
async def gateway(
    transport: ScriptedTransport | None = None,
    plan: dict[str, Any] | None = None,
    *,
    parts: dict[str, Any] | None = None,
    **variables: str,
) -> AsyncIterator[InProcess]:
    """A running gateway with one key; `plan` is what the standard plan has in place of STANDARD's parts,
    `parts` are more of the plans file.
    """
    store, clock, out = MemoryStore(), Clock(), io.BytesIO()
    transport = transport or ScriptedTransport()
    log, calendar = make_logger("info", out), Calendar("UTC")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        ledger = Ledger(store, home / "spool", calendar, clock)
        outside = Outside(
            plans=PlansFile(
                write_plans(home, plan or {}, **(parts or {})),
                log,
                models=("alias", *PROFILE["served-model-name"]),
            ),
            calendar=calendar,
            store=store,
            ledger=ledger,
            limiter=MemoryLimiter(calendar, monotonic=clock, clock=clock),
            transport=transport,
            tokens=None,
            key_set=None,
            monotonic=clock,
            clock=clock,
            log=log,
            access_log=AccessLog(out),
        )
        async with create_app(configuration(GATEWAY_DATA_DIR=name, **variables), outside) as apps:
            running = InProcess(apps, store, ledger, home / "plans.yaml", transport, clock, out)
            _, created = await running.admin("POST", "/admin/keys", {"name": "laptop", "tenant": "acme"})
            running.key = created["key"]
            yield running
        await ledger.close()


def write_plans(home: Path, plan: dict[str, Any], **whole: Any) -> Path:
    """A plans file with one plan, `standard`."""
    path = home / "plans.yaml"
    text = yaml.safe_dump({"default_plan": "standard", "plans": {"standard": STANDARD | plan}} | whole)
    path.write_text(text)
    return path
