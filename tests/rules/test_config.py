"""Prometheus accepts its configuration, and it scrapes what the stack runs."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from prometheus import generate

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "prometheus" / "prometheus.yml"
TARGETS = {
    "vllm": "vllm:8000",
    "gateway": "gateway:9100",
    "caddy": "caddy:2020",
    "gpu": "gpu-exporter:9835",
    "node": "node-exporter:9100",
    "prometheus": "localhost:9090",
    "alertmanager": "alertmanager:9093",
    "grafana": "grafana:3000",
}


@pytest.fixture
def jobs() -> dict[str, Any]:
    config = yaml.safe_load(CONFIG.read_text())
    (folder,) = config["scrape_config_files"]
    more = [yaml.safe_load(path.read_text()) for path in CONFIG.parent.glob(folder)]
    found = [job for part in (config, *more) for job in part["scrape_configs"]]
    return {job["job_name"]: job for job in found}


@pytest.mark.requires("promtool")
def test_prometheus_accepts_the_configuration_and_its_rules(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "config", CONFIG], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = sorted((ROOT / "prometheus" / "rules").glob("*.yml"))
    assert [path.name for path in rules] == ["alerts.yml", "recording.yml"]
    linted = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", *rules],
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_each_service_is_scraped_where_it_listens(jobs: dict[str, Any]) -> None:
    assert {name: job["static_configs"][0]["targets"] for name, job in jobs.items()} == {
        name: [target] for name, target in TARGETS.items()
    }


def test_a_second_engine_is_found_in_the_folder_its_override_mounts(jobs: dict[str, Any]) -> None:
    assert jobs["vllm"]["file_sd_configs"] == [{"files": ["/etc/prometheus-targets/*.yml"]}]
    [group] = yaml.safe_load((ROOT / "prometheus" / "targets" / "vllm-replica.yml").read_text())
    assert group == {"targets": ["vllm-replica:8000"]}


def test_several_gateways_are_found_by_name_and_their_absence_is_seen() -> None:
    several = yaml.safe_load((CONFIG.parent / "scrape.scale" / "gateway.yml").read_text())["scrape_configs"]
    each, any_of_them = several
    [found] = each["dns_sd_configs"]
    assert (each["job_name"], found["names"], found["type"], found["port"]) == (
        "gateway",
        ["gateway"],
        "A",
        9100,
    )
    assert any_of_them["static_configs"] == [{"targets": [TARGETS["gateway"]]}]
    assert any_of_them["relabel_configs"] == [{"target_label": "job", "replacement": "gateway"}]
    # Its samples would be counted twice.
    assert any_of_them["metric_relabel_configs"][0]["action"] == "drop"


def test_the_rules_are_what_the_generator_writes() -> None:
    assert generate.main(["--check"]) == 0
