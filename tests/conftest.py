"""Provides what marked tests require, and says at the end what was left out and why.

Under CI (``CI=true``) a required thing that is missing fails the test instead of skipping it.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.capabilities import ROOT, Capabilities

CAPABILITIES = pytest.StashKey[Capabilities]()
LEFT_OUT = pytest.StashKey["Counter[tuple[str, str]]"]()

# Directories that `make test` runs; a run that leaves one out says so.
SUITES = ("unit", "gateway", "demo", "rules", "engine", "stack")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "requires(name, ...): needs what tests/provide/<name> provides")
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    say = reporter.write_line if reporter else print
    config.stash[CAPABILITIES] = Capabilities(say=lambda line: say(f"tests/provide/{line}"))
    config.stash[LEFT_OUT] = Counter()


def required_by(item: pytest.Item) -> list[str]:
    return [name for mark in item.iter_markers("requires") for name in mark.args]


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        item.config.stash[LEFT_OUT][suite_of(item.path), "not selected by this command's options"] += 1


def pytest_collection_finish(session: pytest.Session) -> None:
    # Here, not in the tests' own time: an install may take minutes, a test may not.
    if not session.config.option.collectonly:
        for name in dict.fromkeys(name for item in session.items for name in required_by(item)):
            session.config.stash[CAPABILITIES].get(name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in required_by(item):
        offers_or_stop(item.config, name)


@pytest.fixture(scope="session")
def capability(pytestconfig: pytest.Config) -> Callable[[str], Mapping[str, str]]:
    """`capability(name)` is what the provider offers; the test is left out when there is none."""
    return lambda name: offers_or_stop(pytestconfig, name)


def offers_or_stop(config: pytest.Config, name: str) -> Mapping[str, str]:
    found = config.stash[CAPABILITIES].get(name)
    if found.missing is None:
        return found.offers
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must have {name}: {found.missing}", pytrace=False)
    pytest.skip(f"needs {name}: {found.missing}")


def suite_of(path: Path) -> str:
    """`tests/<suite>` of a test file."""
    return "/".join(path.resolve().relative_to(ROOT).parts[:2])


def selected_suites(config: pytest.Config) -> set[str]:
    """The suites that the command line names; all of them when it names tests/ itself or nothing."""
    named = {Path(str(arg).partition("::")[0]).resolve() for arg in config.args}
    homes = {suite: ROOT / "tests" / suite for suite in SUITES}
    return {
        suite
        for suite, home in homes.items()
        if any(home.is_relative_to(path) or path.is_relative_to(home) for path in named)
    }


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = config.stash[LEFT_OUT].copy()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        left_out[suite_of(ROOT / report.fspath), reason.removeprefix("Skipped: ")] += 1
    terminalreporter.section("Left out")
    for suite in SUITES:
        if suite not in selected_suites(config):
            terminalreporter.write_line(f"tests/{suite}: not part of this command (make test runs all)")
    for (suite, reason), count in sorted(left_out.items()):
        terminalreporter.write_line(f"{suite}: {count} test(s): {reason}")
    if not left_out and len(selected_suites(config)) == len(SUITES):
        terminalreporter.write_line("nothing was left out")
