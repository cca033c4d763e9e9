"""Which series exist: what rules and dashboards may name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = Path(__file__).parent / "captures"
ENGINES = ("v0.16.0", "v0.32.0")
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}

NAME = re.compile(r"(?<![\w.])[A-Za-z_:][A-Za-z0-9_:]*")
# Everything in an expression that isn't a series' name: strings, selectors, label lists, ranges, functions.
QUOTED = re.compile(r'"[^"]*"')
SELECTOR = re.compile(r"\{[^}]*\}")
LABELS = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)")
RANGE = re.compile(r"\[[^\]]*\]")
FUNCTION = re.compile(r"\b[a-z_]+(?=\s*\()")
WORDS = {"and", "or", "unless", "by", "on", "bool", "offset"}


def engine(version: str) -> set[str]:
    text = (CAPTURES / f"vllm-{version}.txt").read_text()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def registered(registry: CollectorRegistry) -> Iterator[str]:
    """The series of every metric, those included that have no labelled child yet."""
    for family in registry.collect():
        yield from (family.name + suffix for suffix in SUFFIXES[family.type])


def gateway() -> set[str]:
    return set(registered(Metrics().registry))


def names(file: str) -> set[str]:
    return set((CAPTURES / file).read_text().split())


def rules() -> list[dict[str, Any]]:
    files = sorted((ROOT / "prometheus" / "rules").glob("*.yml"))
    return [
        rule
        for path in files
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def everywhere() -> set[str]:
    """Series that exist with each of the supported engines."""
    shared = set.intersection(*(engine(version) for version in ENGINES))
    exporters = names("node-exporter.names") | names("nvidia-gpu-exporter.names")
    return shared | gateway() | exporters | recorded() | {"up"}


def series_in(expr: str) -> set[str]:
    """The names of the series in a PromQL expression that promtool has parsed."""
    for pattern in (QUOTED, SELECTOR, LABELS, RANGE, FUNCTION):
        expr = pattern.sub(" ", expr)
    return {name for name in NAME.findall(expr) if name not in WORDS}
