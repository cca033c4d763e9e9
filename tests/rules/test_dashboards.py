"""Dashboards can be read without knowing the query, and Grafana and Prometheus understand them."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana import generate
from prometheus.generate import Thresholds
from tests.rules.exported import everywhere, series_in

ROOT = Path(__file__).resolve().parents[2]
PROVISIONING = ROOT / "grafana" / "provisioning"
BOARDS = sorted((ROOT / "grafana" / "dashboards").glob("*.json"))
MACROS = {"$__rate_interval": "1m"}


def panels() -> list[dict[str, Any]]:
    boards = [json.loads(path.read_text()) for path in BOARDS]
    return [panel for board in boards for panel in board["panels"] if panel["type"] != "row"]


def title(panel: dict[str, Any]) -> str:
    return str(panel["title"])


def expressions() -> list[str]:
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    for macro, value in MACROS.items():
        found = [expr.replace(macro, value) for expr in found]
    return found


def test_the_dashboards_are_what_the_generator_writes() -> None:
    assert [path.name for path in BOARDS] == ["overview.json"]
    assert generate.main(["--check"]) == 0


def test_the_generator_takes_its_lines_from_the_thresholds(thresholds: Thresholds) -> None:
    [text] = generate.dashboards({**thresholds, "kv_cache_usage": 0.123}).values()
    steps = [
        step["value"]
        for panel in json.loads(text)["panels"]
        if panel["title"] == "KV cache"
        for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    ]
    assert steps == [None, 0.123]


@pytest.mark.parametrize("panel", panels(), ids=title)
def test_a_panel_has_a_unit_a_description_and_the_provisioned_source(panel: dict[str, Any]) -> None:
    [source] = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yaml").read_text())["datasources"]
    expected = {"type": source["type"], "uid": source["uid"]}
    assert panel["datasource"] == expected
    assert panel["description"].endswith(".")
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    assert defaults["noValue"]
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["datasource"] == expected
        assert target["legendFormat"]


@pytest.mark.parametrize("panel", panels(), ids=title)
def test_a_panel_shows_only_series_that_exist(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        named = series_in(target["expr"])
        assert named
        assert named <= everywhere()


def test_panels_do_not_overlap_and_their_ids_differ() -> None:
    for path in BOARDS:
        taken: set[tuple[int, int]] = set()
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken, panel["title"]
            assert at["x"] + at["w"] <= 24
            taken |= cells
        ids = [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids))


@pytest.mark.requires("promtool")
def test_prometheus_parses_every_query(promtool: str, tmp_path: Path) -> None:
    found = expressions()
    assert not any(re.search(r"\$\w", expr) for expr in found), "a macro that MACROS does not know"
    rules = [{"record": f"panel:query:{number}", "expr": expr} for number, expr in enumerate(found)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(found)} rules found" in done.stdout


@pytest.mark.requires("promtool")
@pytest.mark.parametrize("title", ["GPU temperature", "GPU memory"])
def test_each_card_is_one_line_with_its_name(promtool: str, tmp_path: Path, title: str) -> None:
    [expr] = [target["expr"] for panel in panels() if panel["title"] == title for target in panel["targets"]]
    cards = {"a": 0, "b": 1}
    names = ("temperature_gpu", "memory_used_bytes", "memory_total_bytes")
    target = 'job="gpu",instance="gpu-exporter:9835"'
    series = [f'nvidia_smi_{name}{{uuid="{uuid}",{target}}}' for name in names for uuid in cards]
    series += [
        f'nvidia_smi_gpu_info{{uuid="{uuid}",index="{index}",name="RTX 3090",{target}}}'
        for uuid, index in cards.items()
    ]
    question = {
        "expr": f"count by (index, name) ({expr})",
        "eval_time": "1m",
        "exp_samples": [
            {"labels": f'{{index="{index}", name="RTX 3090"}}', "value": 1} for index in cards.values()
        ],
    }
    inputs = [{"series": name, "values": "1x9"} for name in series]
    path = tmp_path / "cards.yml"
    tests = [{"interval": "15s", "input_series": inputs, "promql_expr_test": [question]}]
    path.write_text(yaml.safe_dump({"tests": tests}))
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_the_files_where_the_stack_mounts_them() -> None:
    [provider] = yaml.safe_load((PROVISIONING / "dashboards" / "gatehouse.yaml").read_text())["providers"]
    grafana = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["grafana"]
    mounts = {mount["source"]: mount["target"] for mount in grafana["volumes"] if isinstance(mount, dict)}
    assert mounts == {
        "./grafana/provisioning": "/etc/grafana/provisioning",
        "./grafana/dashboards": provider["options"]["path"],
    }


@pytest.mark.requires("grafana-schema")
def test_a_dashboard_fits_the_types_that_grafana_publishes(
    tmp_path: Path, capability: Callable[[str], Mapping[str, str]]
) -> None:
    schemas = Path(capability("grafana-schema")["SCHEMAS"])
    assert_valid(schemas / "dashboard.json", BOARDS)
    parts: dict[str, list[Path]] = {}
    for number, panel in enumerate(panels()):
        custom = panel["fieldConfig"]["defaults"].get("custom", {})
        for part, content in (("Options", panel["options"]), ("FieldConfig", custom)):
            path = tmp_path / f"{number}-{part}.json"
            path.write_text(json.dumps(content))
            parts.setdefault(f"{panel['type']}-{part}.json", []).append(path)
    for schema, files in parts.items():
        assert_valid(schemas / schema, files)


def assert_valid(schema: Path, files: list[Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--schemafile", schema, *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
