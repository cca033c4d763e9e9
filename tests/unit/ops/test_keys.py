"""`make keys`, through Docker and straight to a real gateway process."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops import keys, secretfiles
from ops.commands import Result
from ops.docker import Docker
from ops.errors import OpsError
from tests.capabilities import ROOT
from tests.unit.ops.fake_commands import DAEMON_DOWN, FakeCommands

CALL = "docker compose exec -T gateway python -m gateway.call"
RECORD = {"id": "abcdefghij", "name": "alice", "tenant": "default", "key": "sk-gh-abcdefghij-x"}


def through_docker(result: Result) -> tuple[keys.ExecTransport, FakeCommands]:
    commands = FakeCommands()
    commands.on(CALL, result)
    return keys.ExecTransport(Docker(commands)), commands


def said(status: int, body: Any) -> Result:
    return Result(0, json.dumps({"status": status, "body": body}) + "\n")


def test_a_key_is_created_through_the_container_with_the_body_on_stdin() -> None:
    transport, commands = through_docker(said(201, RECORD))
    assert keys.create(transport, {"name": "alice"}) == RECORD
    assert commands.calls[-1][-2:] == ["POST", "/admin/keys"]
    assert json.loads(commands.stdin[-1] or "") == {"name": "alice"}


@pytest.mark.parametrize(
    ("result", "message", "fix"),
    [
        (Result(1, err='service "gateway" is not running\n'), "not running", "make up"),
        (Result(3, err="gateway: the admin API does not answer: refused\n"), "not running", "make up"),
        (DAEMON_DOWN, "daemon does not answer", "systemctl"),
        (Result(0, "Traceback"), "another version", "--build"),
        (Result(0, "[]"), "another version", "--build"),
        (said(401, {"error": {"message": "no"}}), "admin token", "token"),
        (said(400, {"error": {"message": "name is too long."}}), "400: name is too long.", "--help"),
        (said(503, {"error": {"message": "the store is down"}}), "503: the store is down.", "make status"),
        (said(500, "what"), "no reason given", "make status"),
    ],
)
def test_a_failure_is_one_line_with_its_fix(result: Result, message: str, fix: str) -> None:
    with pytest.raises(OpsError) as caught:
        keys.create(through_docker(result)[0], {"name": "alice"})
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_an_unknown_or_malformed_id_is_named() -> None:
    with pytest.raises(OpsError, match="no key with the id zzz"):
        keys.revoke(through_docker(said(404, {"error": {"message": "x"}}))[0], "zzz")
    transport, commands = through_docker(said(200, {}))
    with pytest.raises(OpsError, match="not a key's id"):
        keys.revoke(transport, "../keys")
    assert commands.calls == []


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


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[keys.HttpTransport]:
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
        "GATEWAY_READY_FILE": str(ready),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "gateway"], cwd=ROOT, env=environ, stdout=subprocess.DEVNULL
    ) as process:
        try:
            deadline = time.monotonic() + 20
            while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            port = json.loads(ready.read_text())["admin"]
            yield keys.HttpTransport(f"http://127.0.0.1:{port}/", secrets / "admin_token")
        finally:
            process.kill()


def test_keys_live_and_die_in_a_real_gateway(gateway: keys.HttpTransport, tmp_path: Path) -> None:
    assert keys.list_keys(gateway) == []
    request = {
        "name": "alice",
        "tenant": "web",
        "requests_per_minute": 5,
        "expires_at": "2099-01-01T00:00:00+01:00",
    }
    created = keys.create(gateway, request)
    assert created["key"].startswith(f"sk-gh-{created['id']}-")
    listed = keys.list_keys(gateway)
    assert [(k["name"], k["tenant"], k["requests_per_minute"]) for k in listed] == [("alice", "web", 5)]
    assert created["key"] not in json.dumps(listed)
    revoked = keys.revoke(gateway, created["id"])
    assert revoked["revoked_at"]
    with pytest.raises(OpsError, match="no key with the id"):
        keys.revoke(gateway, "aaaaaaaaaa")
    with pytest.raises(OpsError, match="answers 4"):
        keys.create(gateway, {"name": ""})
    (tmp_path / "wrong").write_text("w" * 40)
    wrong = keys.HttpTransport(gateway._url, tmp_path / "wrong")
    with pytest.raises(OpsError, match="admin token"):
        keys.list_keys(wrong)


def test_nobody_there_and_no_token_are_said(tmp_path: Path) -> None:
    with pytest.raises(OpsError, match="cannot be read"):
        keys.HttpTransport("http://127.0.0.1:9", tmp_path / "none")
    (tmp_path / "token").write_text("t" * 40)
    with pytest.raises(OpsError, match="No gateway answers"):
        keys.list_keys(keys.HttpTransport("http://127.0.0.1:9", tmp_path / "token"))
