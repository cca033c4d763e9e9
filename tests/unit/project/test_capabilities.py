"""What a test requires is provided once; what cannot be had is left out with its reason, or fails in CI."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capabilities import ROOT, Capabilities, run_provider

TESTS = """
import pytest

@pytest.mark.requires("thing")
def test_that_needs_it(capability):
    assert capability("thing")["ADDRESS"] == "here=there"

@pytest.mark.requires("thing")
def test_that_needs_it_too(): ...

def test_that_needs_nothing(): ...
"""


def provider(directory: Path, script: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "thing"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_what_a_provider_prints_as_name_and_value_is_what_it_offers(tmp_path: Path) -> None:
    found = run_provider(
        provider(tmp_path, "echo starting; echo ADDRESS=here=there; echo 'not so=x'"), timeout=10
    )
    assert found.missing is None
    assert dict(found.offers) == {"ADDRESS": "here=there"}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo some noise >&2; echo 'no engine: install it so' >&2; echo >&2; exit 1",
            "no engine: install it so",
        ),
        ("exit 3", "failed (3), without a word"),
        ("sleep 60", "was not ready after 0 s"),
    ],
)
def test_a_provider_that_fails_says_why(tmp_path: Path, script: str, reason: str) -> None:
    found = run_provider(provider(tmp_path, script), timeout=0.3)
    assert found.missing
    assert reason in found.missing


def test_a_requirement_that_nothing_provides_is_missing(tmp_path: Path) -> None:
    assert run_provider(tmp_path / "thing", timeout=1).missing


def test_a_service_that_a_provider_leaves_running_does_not_hold_it_up(tmp_path: Path) -> None:
    found = run_provider(provider(tmp_path, "sleep 5 & echo PID=$!"), timeout=3)
    assert found.missing is None
    os.kill(int(found.offers["PID"]), signal.SIGTERM)


def test_a_provider_runs_once(tmp_path: Path) -> None:
    provider(tmp_path, f"echo ran >>{tmp_path}/runs")
    said: list[str] = []
    capabilities = Capabilities(say=said.append, providers=tmp_path)
    assert capabilities.get("thing") is capabilities.get("thing")
    assert (tmp_path / "runs").read_text() == "ran\n"
    assert said == ["thing: ready (0 s)"]


def run_tests(project: Path, *, ci: bool, script: str) -> str:
    """The output of pytest in a project that has our conftest and a provider that does `script`."""
    for name in ("conftest.py", "capabilities.py"):
        (project / "tests" / "unit").mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, project / "tests" / name)
    (project / "tests" / "unit" / "test_it.py").write_text(TESTS)
    (project / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --import-mode=importlib\n")
    provider(project / "tests" / "provide", script)
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | (
        {"CI": "true"} if ci else {}
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    ).stdout


def left_out(output: str) -> list[str]:
    lines = output.splitlines()
    start = next(number for number, line in enumerate(lines) if " Left out " in line)
    end = next(number for number, line in enumerate(lines) if number > start and line.startswith("="))
    return [line for line in lines[start + 1 : end] if line]


def test_nothing_is_left_out_when_all_is_there(tmp_path: Path) -> None:
    output = run_tests(tmp_path, ci=True, script="echo ADDRESS=here=there")
    assert "3 passed" in output.splitlines()[-1]
    assert left_out(output) == ["nothing was left out"]


def test_what_is_missing_is_left_out_with_its_reason(tmp_path: Path) -> None:
    output = run_tests(tmp_path, ci=False, script="echo 'not root' >&2; exit 1")
    assert "1 passed, 2 skipped" in output.splitlines()[-1]
    assert left_out(output) == ["tests/unit: 2 test(s): needs thing: not root"]


def test_what_is_missing_fails_in_ci(tmp_path: Path) -> None:
    output = run_tests(tmp_path, ci=True, script="echo 'not root' >&2; exit 1")
    assert "1 passed, 2 errors" in output.splitlines()[-1]
    assert "CI must have thing: not root" in output
