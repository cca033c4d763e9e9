import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import systems
from bench.load import Target
from bench.systems import Cores, NotStarted, System
from gateway.plans import LIMIT_NAMES, Plans

BURN = "import time\nwhile time.process_time() < 0.2: pass\nprint(time.process_time(), flush=True); input()"


def test_the_cpu_clock_of_another_process_is_what_it_says_itself() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = float(process.stdout.readline())
        # Between its reading and ours it only printed, and waits.
        assert System("burner", process.pid, Target(0)).cpu_seconds() == pytest.approx(said, abs=0.1)
        process.communicate("\n")


def test_waiting_costs_no_cpu() -> None:
    here = System("here", os.getpid(), Target(0))
    before = here.cpu_seconds()
    time.sleep(0.3)
    assert here.cpu_seconds() - before < 0.25


def test_cores_are_apart_where_there_are_two() -> None:
    cores = Cores.of_this_machine()
    apart = cores.measured.isdisjoint(cores.rest)
    assert apart == (len(os.sched_getaffinity(0)) > 1)


def test_what_starts_in_the_block_is_pinned_and_this_process_is_as_before_after_it() -> None:
    before = os.sched_getaffinity(0)
    one = Cores.of_this_machine().measured
    with systems.on(one):
        code = "import os; print(sorted(os.sched_getaffinity(0)))"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(sorted(one))
    assert os.sched_getaffinity(0) == before


def test_settings_of_the_caller_do_not_reach_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_LOG_LEVEL", "debug")
    environ = systems.gateway_environment(tmp_path, 1234, tmp_path / "ready.json")
    assert "GATEWAY_LOG_LEVEL" not in environ
    assert environ["GATEWAY_DATA_DIR"] == str(tmp_path)


def test_the_measured_plan_has_every_kind_of_limit(tmp_path: Path) -> None:
    environ = systems.gateway_environment(tmp_path, 1234, tmp_path / "ready.json")
    plans = Plans.load(Path(environ["GATEWAY_PLANS_FILE"]))
    assert set(plans.plans[plans.default_plan].limits.amounts()) == set(LIMIT_NAMES)


def test_a_process_that_does_not_start_says_why(tmp_path: Path) -> None:
    cores = Cores.of_this_machine()
    with pytest.raises(NotStarted, match="invalid choice"):
        with systems.bare_relay(tmp_path, "no-such-client", 1, cores):
            pass
