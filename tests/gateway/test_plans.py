"""A running gateway follows its plans file."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

from gateway.settings import RETIRED
from tests.contract.developer import HELLO
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway_process import EnginePlan, GatewayProcess, Key
from tests.fakes.standard import STANDARD
from tests.gateway.conftest import ENGINE_KEY, MAX_MODEL_LEN, MODEL

CHAT = "/v1/chat/completions"


@pytest.fixture
def unstarted(tmp_path: Path, engine: FakeEngine) -> GatewayProcess:
    return GatewayProcess(tmp_path, EnginePlan(engine.url, ENGINE_KEY, [MODEL], MAX_MODEL_LEN))


@pytest.fixture
def planned(unstarted: GatewayProcess) -> Iterator[GatewayProcess]:
    """A gateway whose plans are the test's own."""
    unstarted.start()
    yield unstarted
    assert unstarted.stop() == 0


def chat(gateway: GatewayProcess, key: Key, **fields: object) -> httpx2.Response:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2} | fields
    headers = {"authorization": f"Bearer {key.text}"}
    return httpx2.post(gateway.url + CHAT, json=body, headers=headers, timeout=10)


def within_two_seconds(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + 2
    while not happens():
        assert time.monotonic() < end, "not within two seconds"
        time.sleep(0.05)


def test_a_changed_plan_counts_for_the_next_requests_without_a_restart(planned: GatewayProcess) -> None:
    key = planned.new_key()
    assert chat(planned, key).headers["x-ratelimit-limit-requests"] == "60"
    assert "x-gatehouse-max-tokens" not in chat(planned, key).headers
    output = {"cap": 1, "default": 1, "over_cap": "clamp"}
    planned.write_plans({"standard": STANDARD | {"limits": {"requests_per_minute": 500}, "output": output}})
    within_two_seconds(lambda: chat(planned, key).headers["x-ratelimit-limit-requests"] == "500")
    assert chat(planned, key).headers["x-gatehouse-max-tokens"] == "1"


def test_a_mistake_in_the_file_changes_nothing_and_is_logged(planned: GatewayProcess) -> None:
    key = planned.new_key()
    planned.plans_file.write_text("plans: {standard: {output: {cap: 0}}}")
    within_two_seconds(lambda: any(line["event"] == "plans_refused" for line in planned.log_lines()))
    assert chat(planned, key).status_code == 200
    (refused,) = [line for line in planned.log_lines() if line["event"] == "plans_refused"]
    assert str(planned.plans_file) in refused["problem"]


def test_a_plan_that_is_taken_out_refuses_its_keys_until_it_is_back(planned: GatewayProcess) -> None:
    planned.write_plans({"standard": STANDARD, "gold": STANDARD})
    within_two_seconds(lambda: any(line["event"] == "plans_changed" for line in planned.log_lines()))
    key = planned.new_key(plan="gold")
    assert chat(planned, key).status_code == 200
    planned.write_plans({"standard": STANDARD})
    within_two_seconds(lambda: chat(planned, key).status_code == 403)
    assert chat(planned, key).json()["error"]["code"] == "plan_missing"
    assert chat(planned, planned.new_key()).status_code == 200
    planned.write_plans({"standard": STANDARD, "gold": STANDARD})
    within_two_seconds(lambda: chat(planned, key).status_code == 200)


def test_a_tenants_keys_share_the_tenants_limit(planned: GatewayProcess) -> None:
    planned.write_plans({"standard": STANDARD}, tenants={"small": {"requests_per_minute": 2}})
    within_two_seconds(lambda: any(line["event"] == "plans_changed" for line in planned.log_lines()))
    first, second = planned.new_key(tenant="small"), planned.new_key(tenant="small")
    statuses = [chat(planned, key).status_code for key in (first, second, first, second)]
    assert statuses == [200, 200, 429, 429]
    assert chat(planned, planned.new_key(tenant="other")).status_code == 200


def test_a_bad_file_stops_the_start_with_one_line(unstarted: GatewayProcess) -> None:
    whole = yaml.safe_load(unstarted.plans_file.read_text())
    whole["plans"]["standard"]["limits"] = {"request_per_minute": 5}
    unstarted.plans_file.write_text(yaml.safe_dump(whole))
    code, out, err = unstarted.refuse_to_start()
    assert (code, out) == (2, "")
    assert err.startswith(f"gateway: {unstarted.plans_file}: plans.standard.limits: request_per_minute")
    assert "did you mean requests_per_minute?" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", sorted(RETIRED))
def test_a_setting_that_went_into_the_file_stops_the_start_and_says_so(
    unstarted: GatewayProcess, name: str
) -> None:
    unstarted.environment |= {name: "5"}
    code, _, err = unstarted.refuse_to_start()
    assert code == 2
    assert "gateway/config/plans.yaml" in err
