"""`ops.keys`: the admin API as functions, what a refusal is called, and the commands on a real gateway."""

import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ops import keys, secretfiles
from ops.errors import OpsError
from ops.keys_transport import Answer
from tests.capabilities import ROOT
from tests.unit.ops.conftest import Terminal


class Scripted:
    """A Transport that answers the same to everything."""

    def __init__(self, status: int, body: Any) -> None:
        self._answer = Answer(status, body)
        self.asked: list[tuple[str, str, Mapping[str, Any] | None]] = []

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        self.asked.append((method, path, body))
        return self._answer


@pytest.mark.parametrize(
    ("status", "body", "message", "fix"),
    [
        (401, {"error": {"message": "no"}}, "admin token", "token"),
        (400, {"error": {"message": "name is too long."}}, "400: name is too long.", "--help"),
        (409, {"error": {"message": "It is revoked."}}, "409: It is revoked.", "--help"),
        (503, {"error": {"message": "the store is down"}}, "503: the store is down.", "make status"),
        (500, "what", "no reason given", "make status"),
        (200, [], "no reason given", ""),
    ],
)
def test_a_refusal_is_one_line_with_its_fix(status: int, body: Any, message: str, fix: str) -> None:
    with pytest.raises(OpsError) as caught:
        keys.Admin(Scripted(status, body)).create({"name": "alice"})
    assert message in caught.value.message
    assert fix in caught.value.fix


@pytest.mark.parametrize("key_id", ["../keys", "", "a b", "x?y=z", "a/revoke", "x" * 41])
def test_what_is_no_id_is_not_asked_for(key_id: str) -> None:
    transport = Scripted(200, {})
    for ask in (keys.Admin(transport).revoke, keys.Admin(transport).show, keys.Admin(transport).limits):
        with pytest.raises(OpsError, match="not a key's id"):
            ask(key_id)
    assert transport.asked == []


@pytest.mark.parametrize("request_id", ["..", "", "a b", "x/y", "?", "x" * 129])
def test_what_is_no_request_id_is_not_asked_for(request_id: str) -> None:
    transport = Scripted(200, {})
    with pytest.raises(OpsError, match="not a request's id"):
        keys.Admin(transport).explain(request_id)
    assert transport.asked == []


def test_a_query_has_only_what_is_given_and_is_quoted() -> None:
    transport = Scripted(200, {"keys": [], "next": None})
    keys.Admin(transport).keys(tenant="a b&c", state=None)
    keys.Admin(transport).usage(from_="2026-12-01", to=None)
    assert [path for _, path, _ in transport.asked] == [
        "/admin/keys?tenant=a%20b%26c",
        "/admin/usage?from=2026-12-01",
    ]


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, "https://localhost/v1"),
        ({"SITE_ADDRESS": "llm.example.com"}, "https://llm.example.com/v1"),
        ({"SITE_ADDRESS": "gpu.lan, 192.168.1.10", "HTTPS_PORT": "8443"}, "https://gpu.lan:8443/v1"),
        ({"SITE_ADDRESS": "2001:db8::7"}, "https://[2001:db8::7]/v1"),
        ({"SITE_ADDRESS": "https://llm.example.com"}, "https://llm.example.com/v1"),
    ],
)
def test_the_base_url_follows_the_site(variables: dict[str, str], url: str) -> None:
    assert keys.base_url(variables) == url


def test_the_environment_names_the_authority_only_where_there_is_one() -> None:
    path = Path("/x/root.crt")
    assert keys.client_environment("k", {}, path)["SSL_CERT_FILE"] == "/x/root.crt"
    assert set(keys.client_environment("k", {}, None)) == {"OPENAI_BASE_URL", "OPENAI_API_KEY"}


@dataclass(frozen=True)
class Gateway:
    """Where the admin API of a running gateway is."""

    url: str
    token_file: Path
    public: str = ""

    def where(self) -> tuple[str, ...]:
        return ("keys", "--admin-url", self.url, "--admin-token-file", str(self.token_file))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """The admin API of a real gateway process."""
    secrets = tmp_path / "secrets"
    secretfiles.ensure_directory(secrets)
    for name in secretfiles.NAMES:
        secretfiles.ensure_secret(secrets, name)
    upstreams = tmp_path / "upstreams.yaml"
    upstreams.write_text("upstreams: [{name: vllm, url: 'http://127.0.0.1:9', key_file: engine_api_key}]\n")
    ready = tmp_path / "ready.json"
    environ = {
        "PATH": os.environ["PATH"],
        "GATEWAY_HOST": "127.0.0.1",
        **{f"GATEWAY_{name}": "0" for name in ("PORT", "METRICS_PORT", "ADMIN_PORT")},
        "GATEWAY_DATA_DIR": str(tmp_path),
        "GATEWAY_SECRETS_DIR": str(secrets),
        "GATEWAY_ENGINE_PROFILE": str(ROOT / "vllm" / "profiles" / "single-3090-awq.yaml"),
        "GATEWAY_UPSTREAMS_FILE": str(upstreams),
        "GATEWAY_PLANS_FILE": str(ROOT / "gateway" / "config" / "plans.yaml"),
        "GATEWAY_READY_FILE": str(ready),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "gateway"], cwd=ROOT, env=environ, stdout=subprocess.DEVNULL
    ) as process:
        try:
            deadline = time.monotonic() + 20
            while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            ports = json.loads(ready.read_text())
            yield Gateway(
                f"http://127.0.0.1:{ports['admin']}/",
                secrets / "admin_token",
                f"http://127.0.0.1:{ports['public']}",
            )
        finally:
            process.kill()


@dataclass
class Shell:
    """The `keys` commands against a running gateway."""

    gateway: Gateway
    terminal: Terminal

    def run(self, *arguments: str) -> str:
        """What a command that must succeed prints."""
        code, out, errors = self.terminal.run(*self.gateway.where(), *arguments)
        assert code == 0, errors
        return out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    def refusal(self, *arguments: str) -> str:
        """What a command that must fail says: one line."""
        code, out, errors = self.terminal.run(*self.gateway.where(), *arguments)
        assert (code, out) == (1, "")
        assert errors.count("\n") == 1
        return errors


@pytest.fixture
def shell(gateway: Gateway, terminal: Terminal) -> Shell:
    terminal.width = 80
    return Shell(gateway, terminal)


def test_a_keys_whole_life_in_a_real_gateway(shell: Shell, tmp_path: Path) -> None:
    assert "no keys yet" in shell.run("list")
    made = shell.json("create", "--name", "alice", "--tenant", "web", "--requests-per-minute", "5")
    key_id = made["id"]
    assert made["key"].startswith(f"sk-gh-{key_id}-")
    assert made["environment"] == {"OPENAI_API_KEY": made["key"]}
    (listed,) = shell.json("list", "--tenant", "web", "--state", "active")["keys"]
    assert (listed["name"], listed["requests_per_minute"]) == ("alice", 5)
    assert made["key"] not in json.dumps(listed)
    assert "requests_per_minute" in shell.run("show", key_id)
    assert shell.json("limits", key_id)["limits"]
    changed = shell.json("change", key_id, "--clear", "requests-per-minute", "--expires", "2099-01-01")
    assert changed["requests_per_minute"] is None
    rotated = shell.json("rotate", key_id, "--overlap", "24h")
    assert (rotated["id"], rotated["state"]) == (key_id, "rotating")
    assert rotated["key"] != made["key"]
    assert shell.json("disable", key_id)["state"] == "disabled"
    assert shell.json("enable", key_id)["state"] == "rotating"
    assert shell.json("revoke", key_id)["state"] == "revoked"
    assert "revoked" in shell.refusal("enable", key_id)
    actions = [entry["action"] for entry in shell.json("audit")["entries"]]
    assert actions == ["revoke", "enable", "disable", "rotate", "change", "create"]
    assert key_id in shell.run("audit")
    assert "no usage" in shell.run("usage")
    assert "standard" in shell.run("plans", "--reload")
    assert "No refusal" in shell.refusal("explain", "req-1")
    assert "plan" in shell.refusal("create", "--name", "x", "--plan", "gold")
    assert "in the past" in shell.refusal("create", "--name", "x", "--expires", "2020-01-01")
    wrong = tmp_path / "wrong"
    wrong.write_text("w" * 40)
    assert "admin token" in Shell(Gateway(shell.gateway.url, wrong), shell.terminal).refusal("list")


def test_a_refused_request_is_explained_and_what_was_done_about_it_lets_it_pass(shell: Shell) -> None:
    """There is no engine: a request that passes every check is a 503."""
    made = shell.json("create", "--name", "alice", "--requests-per-minute", "1")
    (model,) = shell.json("show", made["id"])["effective"]["models"]

    def ask(**headers: str) -> tuple[int, str]:
        answer = httpx2.post(
            f"{shell.gateway.public}/v1/chat/completions",
            json={"model": model, "messages": [{"role": "user", "content": "hi"}]},
            headers={"authorization": f"Bearer {made['key']}", **headers},
        )
        return answer.status_code, answer.headers["x-request-id"]

    assert ask()[0] == 503
    status, request_id = ask()
    assert status == 429
    found = shell.json("explain", request_id)
    assert (found["code"], found["key_id"], found["plan"]) == ("rate_limit_exceeded", made["id"], "standard")
    assert [(limit["used"], limit["asked"], limit["amount"]) for limit in found["limits"]] == [(1, 1, 1)]
    advice = f'make keys ARGS="change {made["id"]} --requests-per-minute 2"'
    assert any(advice in remedy for remedy in found["remedies"])
    assert "Why:" in shell.run("explain", request_id)
    shell.run("change", made["id"], "--requests-per-minute", "2")
    assert ask()[0] == 503
    shell.run("disable", made["id"])
    status, request_id = ask()
    assert status == 401
    advice = f'make keys ARGS="enable {made["id"]}"'
    assert advice in shell.run("explain", request_id)


def test_what_is_exported_is_imported_and_bad_files_change_nothing(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "keys.csv"
    file.write_text("name,tenant,tokens_per_day\nalice,web,1000\nbob,web,\n")
    shell.run("import", "--dry-run", str(file))
    assert shell.json("list")["keys"] == []
    rows = [*csv.DictReader(io.StringIO(shell.run("import", str(file))))]
    assert [row["name"] for row in rows] == ["alice", "bob"]
    out = tmp_path / "out.jsonl"
    shell.run("export", "--out", str(out))
    assert {json.loads(line)["id"] for line in out.read_text().splitlines()} == {row["id"] for row in rows}
    assert not any(row["key"][-49:] in out.read_text() for row in rows)
    assert f"{out} line 1: id: there is a key" in shell.refusal("import", str(out))
    file.write_text("name,plan\ncarol,\ndave,gold\n")
    assert f"{file} line 3: plan: there is no plan 'gold'" in shell.refusal("import", str(file))
    assert len(shell.json("list")["keys"]) == 2
