from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from prometheus.generate import Thresholds, load_thresholds
from tests.rules.scenario import Stage

Offers = Callable[[str], Mapping[str, str]]


@pytest.fixture(scope="session")
def promtool(capability: Offers) -> str:
    return capability("promtool")["PROMTOOL"]


@pytest.fixture(scope="session")
def amtool(capability: Offers) -> str:
    return capability("amtool")["AMTOOL"]


@pytest.fixture(scope="session")
def thresholds() -> Thresholds:
    return load_thresholds()


@pytest.fixture
def stage(promtool: str, tmp_path: Path) -> Stage:
    return Stage(promtool, tmp_path)
