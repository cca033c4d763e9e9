"""What a measurement leaves behind: a JSON file with everything, and a Markdown table."""

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import orjson

from bench.arithmetic import Comparison, compare
from bench.measure import IDLE, Plan, Results

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("aiohttp", "httptools", "httpx2", "httpx-aiohttp", "uvicorn", "uvloop")


@dataclass(frozen=True, slots=True)
class Report:
    """One finished measurement. `base` names the system that the others are compared with."""

    name: str
    title: str
    base: str
    method: Sequence[str]
    plan: Plan
    results: Results
    measured: Mapping[str, object]

    def write(self, folder: Path) -> Path:
        """Writes NAME.json and NAME.md into `folder`; the path of the table."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "name": self.name,
            "command": f"python -m bench {self.name}",
            "measured": self.measured,
            "method": list(self.method),
            "plan": asdict(self.plan),
            "unit": "CPU microseconds (user + system of the system's process)",
            "raw": self.results,
            "compared_with": self.base,
            "summary": {
                scenario: {system: asdict(found) for system, found in row.items()}
                for scenario, row in self.compared().items()
            },
        }
        (folder / f"{self.name}.json").write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
        table = folder / f"{self.name}.md"
        table.write_text(self.markdown(), encoding="utf-8")
        return table

    def compared(self) -> dict[str, dict[str, Comparison]]:
        """Scenario -> system -> its comparison with the base."""
        return {
            scenario: {system: compare(values, by_system[self.base]) for system, values in by_system.items()}
            for scenario, by_system in self.results.items()
        }

    def markdown(self) -> str:
        """Title, table, conditions."""
        rows = self.compared()
        systems = list(next(iter(rows.values())))
        lines = [
            f"**{self.title}**",
            "",
            "| CPU µs per | " + " | ".join(systems) + " |",
            "|---|" + "---:|" * len(systems),
        ]
        for scenario, row in rows.items():
            cells = [
                _cell(row[system], with_ratio=system != self.base and scenario != IDLE) for system in systems
            ]
            lines.append(f"| {scenario} | " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", f"{_conditions(self.measured)} {' '.join(self.method)}", ""])


def _cell(found: Comparison, *, with_ratio: bool) -> str:
    if not with_ratio:
        return f"{found.median:.1f}"
    return f"{found.median:.1f}, {found.ratio:.2f}x ({found.low:.2f}-{found.high:.2f})"


def facts() -> Mapping[str, object]:
    """Where and when: machine, Python, versions, commit."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "commit": _commit(),
    }


def _conditions(found: Mapping[str, object]) -> str:
    return (
        f"Measured on {found['date']} at commit {found['commit']}: {found['cores']} cores of {found['cpu']}, "
        f"Python {found['python']}. Medians and their ratio; in parentheses the middle half of the single "
        "repetitions' ratios."
    )


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str | None:
    """The short commit, with a + where what is measured differs from it; None outside a clone."""
    git = shutil.which("git")
    head = _said(git, "rev-parse", "--short", "HEAD") if git else ""
    if not git or not head:
        return None
    changed = _said(git, "status", "--porcelain", "--", "gateway", "standin", "bench/*.py")
    return f"{head}+" if changed else head


def _said(git: str, *arguments: str) -> str:
    ran = subprocess.run(
        [git, *arguments], cwd=RESULTS.parent.parent, capture_output=True, text=True, check=False
    )
    return ran.stdout.strip()
