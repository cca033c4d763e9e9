"""Rules and dashboards name series that exist, and every alert says what to do."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.metrics import DURATION_BUCKETS, TTFT_BUCKETS
from prometheus.generate import Thresholds, threshold
from tests.rules.exported import engine, everywhere, gateway, rules, series_in

ROOT = Path(__file__).resolve().parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
ALERTS = [rule for rule in rules() if "alert" in rule]
ALERT_NAMES = sorted({rule["alert"] for rule in ALERTS})
# `docker compose COMMAND [options] SERVICE`
COMPOSE_COMMAND = re.compile(
    r"docker compose (?:ps|logs|restart|up|stop|kill|exec)(?: -\S+(?: \d\S*| HUP)?)* ([a-z][a-z-]+)"
)
SECTIONS = ["## What users see", "## Checks", "## Causes and fixes", "## It is over when"]


def by_name(rule: dict[str, Any]) -> str:
    return str(rule.get("alert") or rule.get("record"))


def test_series_are_found_in_an_expression() -> None:
    expr = (
        'sum by (le) (rate(x:y_bucket{b="c{d}"}[5m])) > 0.5 and on (a) increase(z_total[1m]) >= 1e3 or 1 - up'
    )
    assert series_in(expr) == {"x:y_bucket", "z_total", "up"}


def test_the_lists_of_what_exists_hold_what_they_should() -> None:
    assert "vllm:kv_cache_usage_perc" in engine("v0.16.0") & engine("v0.32.0")
    assert "vllm:gpu_cache_usage_perc" not in everywhere()
    assert {"gateway_requests_total", "gateway_upstream_up"} <= gateway()
    assert "gateway_time_to_first_token_seconds_bucket" in gateway()


@pytest.mark.parametrize("rule", rules(), ids=by_name)
def test_a_rule_reads_only_what_exists(rule: dict[str, Any]) -> None:
    named = series_in(rule["expr"])
    assert named
    assert named <= everywhere()


@pytest.mark.parametrize("rule", ALERTS, ids=by_name)
def test_an_alert_says_how_bad_it_is_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["labels"]["component"] in {"engine", "gateway"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert re.search(r"\bFirst: ", rule["annotations"]["description"])
    assert rule["for"]


@pytest.mark.parametrize("rule", ALERTS, ids=by_name)
def test_an_alert_links_to_its_runbook(rule: dict[str, Any]) -> None:
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"
    assert (ROOT / rule["annotations"]["runbook_url"]).is_file()


@pytest.mark.parametrize("name", ALERT_NAMES)
def test_a_runbook_has_what_one_needs_at_night(name: str) -> None:
    lines = (RUNBOOKS / f"{name}.md").read_text().splitlines()
    assert lines[0] == f"# {name}"
    assert [line for line in lines if line.startswith("## ")] == SECTIONS


def test_the_index_lists_every_runbook_and_no_other() -> None:
    listed = re.findall(r"\[(\w+)\]\((\w+)\.md\)", (RUNBOOKS / "README.md").read_text())
    assert sorted(listed) == [(name, name) for name in ALERT_NAMES]
    assert sorted(path.stem for path in RUNBOOKS.glob("*.md")) == sorted([*ALERT_NAMES, "README"])


def test_a_runbook_asks_only_for_series_that_exist() -> None:
    for path in RUNBOOKS.glob("*.md"):
        for expr in re.findall(r"^```promql\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
            assert series_in(expr) <= everywhere(), path.name


def test_a_runbook_names_services_that_exist() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    asked = {name for path in RUNBOOKS.glob("*.md") for name in COMPOSE_COMMAND.findall(path.read_text())}
    assert asked
    assert asked <= set(services)


def test_a_runbook_names_make_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {
        name for path in RUNBOOKS.glob("*.md") for name in re.findall(r"\bmake ([a-z]+)\b", path.read_text())
    }
    assert named
    for name in named:
        assert re.search(rf"^{name}: ## ", makefile, re.MULTILINE), name


@pytest.mark.parametrize(
    ("name", "edges"),
    [("ttft_p95_seconds", TTFT_BUCKETS), ("request_duration_p95_seconds", DURATION_BUCKETS)],
)
def test_a_latency_goal_is_a_bucket_edge(thresholds: Thresholds, name: str, edges: tuple[float, ...]) -> None:
    assert threshold(thresholds, name) in edges
    assert all(low < high for low, high in pairwise(edges))
