"""Prometheus scrapes, an alert fires and is received, Grafana's panels have data."""

import base64
import json
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ops.alerting import render
from tests.stack.client import Client
from tests.stack.stack import Stack, until

JOBS = {"vllm", "gateway", "caddy", "gpu", "node", "prometheus", "alertmanager", "grafana"}


def test_every_target_is_scraped(stack: Stack) -> None:
    targets = until("no target is unknown", lambda: scraped(stack), seconds=30)
    assert {job for job, _, _ in targets} == JOBS
    assert [target for target in targets if target[1] != "up"] == []


def scraped(stack: Stack) -> list[tuple[str, str, str]] | None:
    """(job, health, last error) of each target, once each was tried."""
    active = json.loads(stack.get("PROMETHEUS_PORT", "/api/v1/targets"))["data"]["activeTargets"]
    found = [(target["labels"]["job"], target["health"], target["lastError"]) for target in active]
    return None if any(health == "unknown" for _, health, _ in found) else found


def test_prometheus_has_no_fault_in_its_configuration_or_rules(stack: Stack) -> None:
    assert stack.value("prometheus_config_last_reload_successful") == 1
    groups = json.loads(stack.get("PROMETHEUS_PORT", "/api/v1/rules"))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert rules
    assert [rule["name"] for rule in rules if rule.get("lastError")] == []


def test_a_request_moves_the_gateways_and_the_engines_metrics(stack: Stack, client: Client) -> None:
    queries = (
        'sum(gateway_requests_total{route="/v1/chat/completions", status="2xx"}) or vector(0)',
        "sum(gateway_completion_tokens_total) or vector(0)",
        "sum(vllm:generation_tokens_total)",
    )
    before = [stack.value(query) or 0 for query in queries]
    assert client.ask(max_tokens=4).status == 200
    until(
        "each has grown",
        lambda: all((stack.value(query) or 0) > was for query, was in zip(queries, before, strict=True)),
        seconds=15,
    )


def test_a_dead_engine_raises_an_alert_that_arrives_and_is_taken_back(disturbed: Stack) -> None:
    """Prometheus, Alertmanager and the webhook of another machine, with the true rule in a hurry."""
    began = time.monotonic()
    disturbed.compose("stop", "--timeout", "2", "vllm")
    firing = until("EngineDown arrives", lambda: received(disturbed, "EngineDown", "firing"), seconds=90)
    arrived = time.monotonic() - began
    assert firing["labels"]["severity"] == "critical"
    assert "vllm" in firing["annotations"]["summary"]
    assert firing["annotations"]["runbook_url"].endswith("EngineDown.md")
    disturbed.compose("start", "vllm")
    until("it is taken back", lambda: received(disturbed, "EngineDown", "resolved"), seconds=90)
    print(f"\nEngineDown came {arrived:.0f} s after the stop, its end after {time.monotonic() - began:.0f} s")


def received(stack: Stack, name: str, status: str) -> dict[str, Any] | None:
    with urllib.request.urlopen(stack.hook, timeout=5) as reply:
        alerts = [alert for message in json.load(reply) for alert in message["alerts"]]
    return next((a for a in alerts if a["labels"]["alertname"] == name and a["status"] == status), None)


def test_alertmanager_works_with_nobody_to_tell(stack: Stack) -> None:
    """What `make setup` renders when no ALERT_* variable is set."""
    (stack.home / "nobody.yml").write_text(render({}))
    running = stack.container("alertmanager")["Config"]
    name = f"{stack.project}-nobody"
    mount = f"{stack.home}/nobody.yml:/run/secrets/alertmanager.yml:ro"
    options = ("--detach", "--name", name, "--network=none", "--volume", mount)
    stack.run("docker", "run", *options, running["Image"], *running["Cmd"])
    try:
        alert = "amtool --alertmanager.url=http://127.0.0.1:9093"
        ready = ("docker", "exec", name, "wget", "-q", "-O", "-", "http://127.0.0.1:9093/-/ready")
        until("it is ready", lambda: stack.run(*ready, check=False).stdout == "OK", seconds=20)
        stack.run("docker", "exec", name, *alert.split(), "alert", "add", "Nobody", "severity=critical")
        assert "Nobody" in stack.run("docker", "exec", name, *alert.split(), "alert", "query").stdout
    finally:
        stack.run("docker", "rm", "--force", name)


@pytest.fixture(scope="module")
def grafana(stack: Stack, trust: ssl.SSLContext) -> Callable[[str], Any]:
    """GET from Grafana's API through Caddy, as the administrator whose password `make setup` made."""
    password = (stack.home / "secrets" / "grafana_admin_password").read_text().strip()
    login = base64.b64encode(f"admin:{password}".encode()).decode()

    def get(path: str) -> Any:
        url = f"https://localhost:{stack.ports['HTTPS_PORT']}/grafana{path}"
        request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
        with urllib.request.urlopen(request, context=trust, timeout=20) as reply:
            return json.load(reply)

    return get


def test_grafana_is_behind_its_login(
    stack: Stack, trust: ssl.SSLContext, grafana: Callable[[str], Any]
) -> None:
    url = f"https://localhost:{stack.ports['HTTPS_PORT']}/grafana/api/search"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, context=trust, timeout=10)
    with refused.value as answered:
        assert answered.code == 401
    assert grafana("/api/search")


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board.get("panels", []):
        yield panel
        yield from panels(panel)


def test_every_query_of_every_panel_has_data(
    stack: Stack, client: Client, grafana: Callable[[str], Any]
) -> None:
    with client.streaming(tokens=5) as stream:
        stream.finish()
    assert client.ask(max_tokens=-1).status == 400
    boards = [grafana(f"/api/dashboards/uid/{found['uid']}")["dashboard"] for found in grafana("/api/search")]
    queries = {
        (panel["title"], target["datasource"]["uid"], target["expr"])
        for board in boards
        for panel in panels(board)
        for target in panel.get("targets", [])
    }
    assert len(queries) > 10

    def without_data() -> list[tuple[str, str, str]]:
        return [query for query in queries if not answer(grafana, *query[1:])]

    until("each query has data", lambda: not without_data(), seconds=60, every=3)
    print(f"\n{len(queries)} queries of {len(boards)} dashboard(s) have data")


def answer(grafana: Callable[[str], Any], source: str, expression: str) -> Any:
    """As Grafana asks: its own variables replaced by what they stand for at a scrape interval of 15 s."""
    query = (
        expression.replace("$__rate_interval", "1m").replace("$__range", "1h").replace("$__interval", "15s")
    )
    path = f"/api/datasources/proxy/uid/{source}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    return grafana(path)["data"]["result"]
