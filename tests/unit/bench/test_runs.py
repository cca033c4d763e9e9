import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.measure import FAST_ALL, IDLE, PACED, PACED_ALL, WHOLE, Plan
from bench.runs import BENCHES

TINY = Plan(repetitions=2, requests=8, connections=2, streams=2, tokens=8, pause=0.005, idle=1.5)
COMPARED = {
    "gateway": {"bare relay", "gateway"},
    "http_clients": {"aiohttp", "httpx2", "httpx2-aiohttp", "raw"},
}


@pytest.mark.parametrize("name", BENCHES)
def test_a_run_measures_every_system_in_every_scenario_and_writes_it_down(name: str, tmp_path: Path) -> None:
    table = BENCHES[name](TINY).write(tmp_path)
    raw = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))["raw"]
    assert list(raw) == [WHOLE, PACED, PACED_ALL, FAST_ALL, IDLE]
    for scenario, by_system in raw.items():
        assert set(by_system) == COMPARED[name], scenario
        repetitions = 1 if scenario == IDLE else TINY.repetitions
        assert all(len(values) == repetitions for values in by_system.values()), scenario
        assert all(value > 0 for values in by_system.values() for value in values), scenario
    assert table.read_text(encoding="utf-8").count("\n| ") == 1 + len(raw)


def test_an_unknown_name_is_refused_with_the_ones_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["no-such-bench"])
    assert stopped.value.code == 2
    assert "there are gateway, http_clients" in capsys.readouterr().err
