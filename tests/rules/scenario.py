"""A stretch of time as Prometheus would see it, and which alerts fire in it, by `promtool test rules`."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
STEP = 15  # seconds between samples: the scrape interval
SECONDS = {"s": 1, "m": 60, "h": 3600}


def seconds(duration: str | float) -> int:
    """A duration of thresholds.yaml, such as `90s` or `2m`, in seconds."""
    match = re.fullmatch(r"(\d+)([smh])", str(duration))
    if match is None:
        raise ValueError(f"not a duration: {duration!r}")
    return int(match[1]) * SECONDS[match[2]]


def steady(value: float, samples: int = 400) -> str:
    return f"{value}x{samples}"


def rising(per_step: float, samples: int = 400, start: float = 0) -> str:
    """A counter that grows by `per_step` at every scrape."""
    return f"{start}+{per_step}x{samples}"


@dataclass(frozen=True)
class Stage:
    """Where scenarios are played."""

    promtool: str
    folder: Path

    def expect(self, firing: Mapping[str, str], series: Mapping[str, str], *, at: int) -> None:
        """Plays `series` (promtool's notation) and compares what fires after `at` seconds: {alert: severity}.

        The comparison is with everything that fires, so an empty `firing` says that the whole set is silent.
        """
        path = self.folder / "scenario.yml"
        path.write_text(yaml.safe_dump(scenario(firing, series, at)))
        done = subprocess.run(
            [self.promtool, "test", "rules", path],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def scenario(firing: Mapping[str, str], series: Mapping[str, str], at: int) -> dict[str, Any]:
    return {
        "rule_files": [str(path) for path in sorted((ROOT / "prometheus" / "rules").glob("*.yml"))],
        "evaluation_interval": f"{STEP}s",
        "tests": [
            {
                "interval": f"{STEP}s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname, severity) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{at}s",
                        "exp_samples": [
                            {"labels": f'{{alertname="{name}", severity="{severity}"}}', "value": 1}
                            for name, severity in firing.items()
                        ],
                    }
                ],
            }
        ],
    }
