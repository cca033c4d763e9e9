"""Two gateways on PostgreSQL and Valkey: they share keys and limits, and outlive both."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import keys
from tests.stack.conftest import write_env
from tests.stack.stack import Stack, until

MODEL = "qwen2.5-14b-instruct-awq"
GATEWAYS = (1, 2)
STORES = ("postgres", "valkey")
# Asks the gateway of the container that it runs in; prints the status.
ASK = """
import json, sys, urllib.error, urllib.request
key, path, body = sys.argv[1], sys.argv[2], sys.argv[3].encode() or None
head = {"authorization": "Bearer " + key, "content-type": "application/json"}
request = urllib.request.Request("http://127.0.0.1:8080" + path, data=body, headers=head)
try:
    print(urllib.request.urlopen(request, timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.fixture(scope="module")
def scaled(stack: Stack) -> Iterator[Stack]:
    """The stack with compose.scale.yaml, and as it was afterwards."""
    env = stack.home / ".env"
    before = env.read_text()
    (files,) = re.findall(r"^COMPOSE_FILE=(.*)$", before, flags=re.MULTILINE)
    write_env(env, {"COMPOSE_FILE": files.replace("compose.yaml", "compose.yaml:compose.scale.yaml", 1)})
    try:
        stack.ops("up")
        stack.compose("up", "--detach", "--wait")
        yield stack
    finally:
        env.write_text(before)
        stack.compose("up", "--detach", "--wait", "--remove-orphans")


@pytest.fixture(scope="module")
def key(scaled: Stack) -> str:
    text: str = scaled.create_key("scale")["key"]
    for gateway in GATEWAYS:
        within_two_seconds(scaled, gateway, text, 200)
    return text


def within_two_seconds(stack: Stack, gateway: int, key: str, status: int) -> None:
    """The design's promise, and what it takes to start the process that asks."""
    until(f"gateway {gateway} says {status}", lambda: ask(stack, gateway, key) == status, seconds=2.5)


def ask(stack: Stack, gateway: int, key: str, path: str = "/v1/models", body: object = None) -> int:
    inside = ("docker", "compose", "exec", "--no-TTY", "--index", str(gateway), "gateway")
    sent = "" if body is None else json.dumps(body)
    return int(stack.run(*inside, "python", "-c", ASK, key, path, sent).stdout)


def chat(stack: Stack, gateway: int, key: str) -> int:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    return ask(stack, gateway, key, "/v1/chat/completions", body)


def limited_key(stack: Stack, **limits: int) -> str:
    options = [word for name, value in limits.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    made = stack.ops("keys", "create", "--name", "limited", *options, "--json").stdout
    text: str = json.loads(made)["key"]
    within_two_seconds(stack, 2, text, 200)
    return text


@pytest.fixture
def without(scaled: Stack) -> Iterator[Callable[[str], None]]:
    """Stops a store; it is started again afterwards."""
    stopped: list[str] = []

    def stop(store: str) -> None:
        scaled.compose("stop", "--timeout", "5", store)
        stopped.append(store)

    yield stop
    scaled.compose("up", "--detach", "--wait", *stopped)


@pytest.mark.parametrize("store", STORES)
def test_a_store_is_hardened_and_keeps_its_password_out_of_its_arguments(store: str, scaled: Stack) -> None:
    process = Path(f"/proc/{scaled.pid(store)}")
    status = dict(re.findall(r"^(\w+):\s*(.*)$", (process / "status").read_text(), flags=re.MULTILINE))
    assert int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert "0" not in status["Uid"].split()
    name = "database_password" if store == "postgres" else "valkey_password"
    password = (scaled.home / "secrets" / name).read_text().strip()
    assert password not in json.dumps(scaled.container(store))
    for line in scaled.run("ps", "-eo", "args").stdout.splitlines():
        assert password not in line


@pytest.mark.parametrize(("store", "port"), [("postgres", 5432), ("valkey", 6379)])
def test_only_the_gateways_reach_a_store(store: str, port: int, scaled: Stack) -> None:
    ((network, address),) = scaled.addresses(store).items()
    assert network == "state"
    for service in ("caddy", "prometheus", "loopback", "vllm", "grafana", "alertmanager"):
        assert not scaled.connects(service, address, port), service


def test_a_key_works_at_both_gateways_and_ends_at_both_within_two_seconds(scaled: Stack) -> None:
    made: dict[str, Any] = scaled.create_key("short-lived")
    for gateway in GATEWAYS:
        within_two_seconds(scaled, gateway, made["key"], 200)
    scaled.ops("keys", "revoke", made["id"])
    for gateway in GATEWAYS:
        within_two_seconds(scaled, gateway, made["key"], 401)


def test_a_limit_holds_over_both_gateways_together(scaled: Stack) -> None:
    key = limited_key(scaled, requests_per_minute=4)
    statuses = [chat(scaled, gateway, key) for gateway in (1, 2, 1, 2, 1, 2)]
    assert statuses == [200, 200, 200, 200, 429, 429]


def test_without_valkey_each_gateway_allows_its_share(
    scaled: Stack, key: str, without: Callable[[str], None]
) -> None:
    limited = limited_key(scaled, requests_per_minute=4)
    without("valkey")
    for gateway in GATEWAYS:
        assert [chat(scaled, gateway, limited) for _ in range(3)] == [200, 200, 429], gateway


def test_without_postgres_known_keys_go_on(scaled: Stack, key: str, without: Callable[[str], None]) -> None:
    without("postgres")
    unknown = keys.generate()
    for gateway in GATEWAYS:
        assert chat(scaled, gateway, key) == 200
    refused = scaled.ops("keys", "create", "--name", "late", check=False)
    assert refused.returncode != 0
    assert ask(scaled, 1, unknown) == 503


def test_prometheus_finds_both_gateways_and_counts_them_once(scaled: Stack) -> None:
    each = 'count(up{job="gateway", instance!="gateway:9100"} == 1)'
    until("both are scraped", lambda: scaled.value(each) == len(GATEWAYS), seconds=40)
    # What was scraped before there were two is in no window of ten seconds any more.
    by_name = 'count_over_time(gateway_upstream_up{instance="gateway:9100"}[10s])'
    until("none is counted twice", lambda: not scaled.query(by_name), seconds=30)
