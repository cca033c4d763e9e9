"""A real gateway in a process of its own, with settings, secrets and keys made for a test."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.fakes.standard import STANDARD

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 30.0
STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Key:
    """A key that the gateway made."""

    id: str
    text: str
    tenant: str


@dataclass(frozen=True)
class EnginePlan:
    """What the gateway is told about an engine. `max_model_len` in tokens."""

    url: str
    key: str
    served_names: Sequence[str]
    max_model_len: int


class GatewayProcess:
    """Started by `start`, ended by `stop`; its files live in `home`."""

    def __init__(
        self,
        home: Path,
        engine: EnginePlan,
        settings: Mapping[str, str] | None = None,
        plan: Mapping[str, object] | None = None,
    ) -> None:
        """`plan`: parts of the standard plan in place of tests.fakes.standard's."""
        self.home = home
        self.plans_file = home / "plans.yaml"
        self.admin_token = secrets.token_urlsafe(32)
        self.secrets_dir = home / "secrets"
        self._ready = home / "ready.json"
        self._out, self._err = home / "stdout", home / "stderr"
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}
        self._write_files(engine)
        self.write_plans({"standard": STANDARD | dict(plan or {})})
        self.environment = self._environment(settings or {})

    @property
    def url(self) -> str:
        """The public listener."""
        return f"http://127.0.0.1:{self._ports['public']}"

    @property
    def port(self) -> int:
        """The public listener's port."""
        return self._ports["public"]

    @property
    def internal(self) -> str:
        """The internal listener: metrics and health."""
        return f"http://127.0.0.1:{self._ports['metrics']}"

    @property
    def admin(self) -> str:
        """The admin listener."""
        return f"http://127.0.0.1:{self._ports['admin']}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process
        return self._process

    def start(self) -> None:
        """Start and wait until all listeners accept."""
        self._ready.unlink(missing_ok=True)
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gateway"], cwd=ROOT, env=self.environment, stdout=out, stderr=err
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._ready.exists():
            assert self._process.poll() is None, f"the gateway ended: {self._err.read_text()}"
            assert time.monotonic() < deadline, "the gateway did not start"
            time.sleep(0.02)
        self._ports = json.loads(self._ready.read_text())

    def refuse_to_start(self) -> tuple[int, str, str]:
        """Run a gateway that should not start: its exit code, standard output and standard error."""
        done = subprocess.run(
            [sys.executable, "-m", "gateway"],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def stop(self) -> int:
        """SIGTERM, and the exit code; a process that does not end in time is killed and fails the test."""
        self.process.terminate()
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def new_key(self, name: str = "test", tenant: str = "team-a", **fields: object) -> Key:
        """Make a key through the admin API; `fields` as the API names them."""
        made = self.call_admin("POST", "/admin/keys", {"name": name, "tenant": tenant} | fields)
        assert made.status_code == 201, made.text
        body = made.json()
        return Key(body["id"], body["key"], body["tenant"])

    def revoke(self, key: Key) -> None:
        """Revoke a key through the admin API."""
        assert self.call_admin("POST", f"/admin/keys/{key.id}/revoke").status_code == 200

    def call_admin(self, method: str, path: str, body: object = None) -> httpx2.Response:
        """One call to the admin API with its token."""
        headers = {"authorization": f"Bearer {self.admin_token}"}
        return httpx2.request(method, self.admin + path, json=body, headers=headers)

    def access_lines(self) -> list[dict[str, Any]]:
        """Every access line so far."""
        return [line for line in self.log_lines() if line["event"] == "request"]

    def access_line(self, request_id: str) -> dict[str, Any]:
        """The one access line of this request, waited for."""
        deadline = time.monotonic() + 2
        while True:
            found = [line for line in self.access_lines() if line["request_id"] == request_id]
            if found:
                assert len(found) == 1, f"{len(found)} access lines for one request"
                return found[0]
            assert time.monotonic() < deadline, f"no access line for {request_id}"
            time.sleep(0.02)

    def log_lines(self) -> list[dict[str, Any]]:
        """Every whole line on standard output: each is a JSON object."""
        whole, _, _ = self._out.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]

    def output(self) -> bytes:
        """Both outputs, as they are."""
        return self._out.read_bytes() + self._err.read_bytes()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of a metric that have these labels."""
        total = 0.0
        for line in httpx2.get(f"{self.internal}/metrics").text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample == name or sample.startswith(f"{name}{{"):
                total += (
                    float(value) if all(f'{key}="{text}"' in sample for key, text in labels.items()) else 0.0
                )
        return total

    def open_sockets(self) -> int:
        """How many sockets the process holds open."""
        links = [str(entry.readlink()) for entry in Path(f"/proc/{self.process.pid}/fd").iterdir()]
        return sum(link.startswith("socket:") for link in links)

    def errors(self) -> str:
        """What was written to standard error: nothing, as long as all is well."""
        return self._err.read_text()

    def write_secret(self, name: str, text: str) -> None:
        """Replace one secret file."""
        (self.secrets_dir / name).write_text(text)

    def write_plans(self, plans: Mapping[str, object], **whole: object) -> None:
        """Replace the plans file, as an editor does; `whole` are parts of the file beside its plans."""
        new = self.plans_file.with_name("plans.new")
        new.write_text(yaml.safe_dump({"default_plan": "standard", "plans": dict(plans)} | whole))
        new.replace(self.plans_file)

    def _write_files(self, engine: EnginePlan) -> None:
        self.secrets_dir.mkdir()
        (self.home / "data").mkdir()
        self.write_secret("key_pepper", secrets.token_urlsafe(32))
        self.write_secret("admin_token", self.admin_token)
        self.write_secret("engine_api_key", engine.key)
        profile = {
            "served-model-name": list(engine.served_names),
            "max-model-len": engine.max_model_len,
            "max-num-seqs": 4,
        }
        (self.home / "profile.yaml").write_text(yaml.safe_dump(profile))
        upstreams = {"upstreams": [{"name": "vllm", "url": engine.url, "key_file": "engine_api_key"}]}
        (self.home / "upstreams.yaml").write_text(yaml.safe_dump(upstreams))

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
        return {
            **inherited,
            "GATEWAY_HOST": "127.0.0.1",
            "GATEWAY_PORT": "0",
            "GATEWAY_METRICS_PORT": "0",
            "GATEWAY_ADMIN_PORT": "0",
            "GATEWAY_DATA_DIR": str(self.home / "data"),
            "GATEWAY_SECRETS_DIR": str(self.secrets_dir),
            "GATEWAY_ENGINE_PROFILE": str(self.home / "profile.yaml"),
            "GATEWAY_UPSTREAMS_FILE": str(self.home / "upstreams.yaml"),
            "GATEWAY_PLANS_FILE": str(self.plans_file),
            "GATEWAY_READY_FILE": str(self._ready),
            **settings,
        }
