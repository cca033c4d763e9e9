"""The plans file: what it may say, how a mistake is refused, and how a change is taken in."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from gateway.configfiles import ConfigurationError
from gateway.limits import LIMIT_NAMES
from gateway.plans import WATCH_SECONDS, Limits, Output, Overrides, Plan, Plans, PlansFile
from tests.fakes.logs import LogLines

SHIPPED = Path(__file__).resolve().parents[3] / "gateway/config/plans.yaml"
MODELS = ("model-a", "alias")


def minimal(**plan: Any) -> dict[str, Any]:
    output = {"cap": 100, "default": 10}
    return {"default_plan": "standard", "plans": {"standard": {"output": output} | plan}}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], Path]:
    """Writes a plans file: bytes as they are, anything else as YAML."""

    def written(content: object) -> Path:
        path = tmp_path / "plans.yaml"
        path.write_bytes(content if isinstance(content, bytes) else yaml.safe_dump(content).encode())
        return path

    return written


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        call()
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_the_shipped_file_has_a_standard_plan_a_stricter_and_a_wider_one() -> None:
    plans = Plans.load(SHIPPED)
    assert plans.default_plan == "standard"
    standard, trial, service = (plans.plans[name] for name in ("standard", "trial", "service"))
    assert standard.limits.requests_per_minute == 60
    assert standard.limits.parallel_requests == 8
    assert standard.output == Output(cap=4096, default=1024, over_cap="clamp")
    for name in ("requests_per_minute", "tokens_per_minute", "parallel_requests"):
        amounts = [plan.limits.amounts()[name] for plan in (trial, standard, service)]
        assert amounts == sorted(set(amounts)), name
    assert trial.output.cap < standard.output.cap < service.output.cap
    assert trial.priority < standard.priority < service.priority


def test_every_plan_of_the_shipped_file_admits_a_request_of_its_whole_output() -> None:
    for name, plan in Plans.load(SHIPPED).plans.items():
        assert plan.output.cap < (plan.limits.tokens_per_minute or 0), name


@pytest.mark.parametrize("part", [Plans, Plan, Limits, Output, Overrides])
def test_every_field_is_in_the_documentation(part: type[BaseModel]) -> None:
    page = (SHIPPED.parents[2] / "docs/plans.md").read_text()
    assert [name for name in part.model_fields if f"`{name}`" not in page] == []


def test_the_documentations_example_is_a_plans_file(write: Callable[[object], Path]) -> None:
    page = (SHIPPED.parents[2] / "docs/plans.md").read_text()
    example = page.partition("```yaml\n")[2].partition("```")[0]
    assert Plans.load(write(example.encode())).for_tenant("research").shadow == {"tokens_per_day"}


def test_what_a_plan_does_not_say_is_the_narrow_choice(write: Callable[[object], Path]) -> None:
    plan = Plans.load(write(minimal())).plans["standard"]
    assert plan.limits == Limits()
    assert plan.output.over_cap == "clamp"
    assert plan.models == ("*",)
    assert plan.unknown_fields == "refuse"
    assert plan.priority == 5
    assert plan.standby == ()


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ({}, "default_plan"),
        ([], "dictionary"),
        (b"plans: [", "YAML"),
        (b"\xff", "YAML"),
        (b"default_plan: a\ndefault_plan: b\n", "'default_plan' twice"),
        ({"default_plan": "standard", "plans": {}}, "plans"),
        (minimal() | {"default_plan": "gold"}, "there are standard"),
        (minimal() | {"default_plans": "gold"}, "did you mean default_plan?"),
        (minimal() | {"timezone": "Mars/Olympus"}, "Europe/Berlin"),
        (minimal() | {"timezone": "Europe"}, "timezone"),
        (minimal() | {"timezone": "../UTC"}, "timezone"),
        (minimal() | {"timezone": ""}, "timezone"),
        (minimal() | {"everyone": {"requests_per_minute": 0}}, "everyone.requests_per_minute"),
        (minimal() | {"everyone": {"requests_per_minute": -1}}, "everyone.requests_per_minute"),
        (minimal() | {"each_tenant": {"tokens_per_day": "1000"}}, "each_tenant.tokens_per_day"),
        (minimal() | {"each_tenant": {"tokens_per_day": True}}, "each_tenant.tokens_per_day"),
        (minimal() | {"each_tenant": {"tokens_per_day": 1.5}}, "each_tenant.tokens_per_day"),
        (minimal() | {"each_tenant": {"tokens_per_day": 2**60}}, "each_tenant.tokens_per_day"),
        (minimal() | {"tenants": {"team-a": {"tokens": 1}}}, "tenants.team-a: tokens is not known here"),
        (minimal() | {"tenants": {"team-a": {"shadow": ["tokens"]}}}, "tenants.team-a.shadow"),
        (minimal(output={"cap": 10, "default": 11}), "default (11) is more than cap (10)"),
        (minimal(output={"cap": 10}), "plans.standard.output.default"),
        (minimal(output={"cap": 10, "default": 1, "over_cap": "cut"}), "'clamp' or 'refuse'"),
        (minimal(models=[]), "plans.standard.models"),
        (minimal(models="model-a"), "plans.standard.models"),
        (minimal(priority=10), "plans.standard.priority"),
        (minimal(unknown_fields="drop"), "'pass' or 'refuse'"),
        (minimal(limit={}), "did you mean limits?"),
        (minimal() | {"plans": {"Not A Name": {"output": {"cap": 1, "default": 1}}}}, "Not A Name"),
    ],
)
def test_a_mistake_is_refused_with_the_file_the_place_and_what_is_allowed(
    write: Callable[[object], Path], content: object, place: str
) -> None:
    path = write(content)
    message = refusal(lambda: Plans.load(path))
    assert message.startswith(str(path))
    assert place in message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "plans.yaml" in refusal(lambda: Plans.load(tmp_path / "plans.yaml"))


def test_a_model_that_no_client_can_name_is_refused_with_those_that_are(
    write: Callable[[object], Path],
) -> None:
    plans = Plans.load(write(minimal(models=["model-b"])))
    assert "plans.standard.models: 'model-b'" in refusal(lambda: plans.check_models(MODELS))
    assert "alias, model-a" in refusal(lambda: plans.check_models(MODELS))
    plans.check_models(["model-b"])


def test_a_tenants_own_limits_stand_over_each_tenants(write: Callable[[object], Path]) -> None:
    each = {"requests_per_minute": 100, "tokens_per_day": 1000, "shadow": ["tokens_per_day"]}
    own = {"requests_per_minute": 500, "tokens_per_day": None}
    plans = Plans.load(write(minimal() | {"each_tenant": each, "tenants": {"big": own}}))
    assert plans.for_tenant("small") == Limits(**each)
    assert plans.for_tenant("big").amounts() == {"requests_per_minute": 500}
    assert plans.for_tenant("big").shadow == {"tokens_per_day"}


def test_a_key_overrides_single_values() -> None:
    plan = Plan(
        limits=Limits(
            requests_per_minute=60, tokens_per_minute=1000, shadow=frozenset(["tokens_per_minute"])
        ),
        output=Output(cap=100, default=50),
    )
    assert Overrides().applied_to(plan) is plan
    changed = Overrides(requests_per_minute=5, tokens_per_day=7, output_cap=20, priority=0).applied_to(plan)
    assert changed.limits.amounts() == {
        "requests_per_minute": 5,
        "tokens_per_minute": 1000,
        "tokens_per_day": 7,
    }
    assert changed.limits.shadow == {"tokens_per_minute"}
    assert changed.output == Output(cap=20, default=20)
    assert changed.priority == 0
    wider = Overrides(output_cap=500, output_default=400, over_cap="refuse").applied_to(plan)
    assert wider.output == Output(cap=500, default=400, over_cap="refuse")
    assert Overrides(output_default=400).applied_to(plan).output == Output(cap=100, default=100)


@pytest.mark.parametrize(
    "wrong",
    [{"requests_per_minute": 0}, {"output_cap": "9"}, {"priority": 10}, {"over_cap": "cut"}, {"rpm": 1}],
)
def test_a_wrong_override_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Overrides.model_validate(wrong)


def test_each_limit_of_a_plan_can_be_overridden() -> None:
    for name in LIMIT_NAMES:
        changed = Overrides.model_validate({name: 3}).applied_to(Plan(output=Output(cap=1, default=1)))
        assert changed.limits.amounts() == {name: 3}


def test_a_bad_file_is_refused_at_start(write: Callable[[object], Path]) -> None:
    path = write(minimal(models=["model-b"]))
    assert refusal(lambda: PlansFile(path, LogLines().logger, models=MODELS)).startswith(f"{path}: ")


def state(plans: PlansFile) -> tuple[int, str | None]:
    return plans.generation, plans.problem


def test_a_change_is_taken_in_and_a_bad_one_leaves_the_plans_as_they_were(
    write: Callable[[object], Path],
) -> None:
    log = LogLines()
    plans = PlansFile(write(minimal()), log.logger, models=MODELS)
    assert state(plans) == (0, None)
    write(minimal(priority=9))
    assert plans.reload().plans["standard"].priority == 9
    assert plans.generation == 1
    write(minimal(priority=10))
    assert refusal(plans.reload) == plans.problem
    assert plans.plans.plans["standard"].priority == 9
    assert plans.generation == 1
    write(minimal(priority=9))
    plans.reload()
    assert state(plans) == (1, None)
    assert [line["event"] for line in log.lines()] == ["plans_changed", "plans_refused"]


def test_the_time_zone_stays_until_a_restart_for_periods_are_counted_in_it(
    write: Callable[[object], Path],
) -> None:
    plans = PlansFile(write(minimal()), LogLines().logger, models=MODELS)
    write(minimal() | {"timezone": "Asia/Tokyo"})
    assert "timezone" in refusal(plans.reload)
    assert plans.plans.timezone == "UTC"


async def test_a_file_is_read_again_only_when_it_changed(write: Callable[[object], Path]) -> None:
    log = LogLines()
    plans = PlansFile(write(minimal()), log.logger, models=MODELS)
    before = plans.plans
    await plans.look()
    assert plans.plans is before
    write(minimal(priority=10))
    for _ in range(3):
        await plans.look()
    assert [line["event"] for line in log.lines()] == ["plans_refused"]


@pytest.mark.parametrize("kind", ["in place", "replaced", "taken away and put back"])
async def test_every_way_of_writing_a_file_is_seen(write: Callable[[object], Path], kind: str) -> None:
    path = write(minimal())
    plans = PlansFile(path, LogLines().logger, models=MODELS)
    if kind == "in place":
        write(minimal(priority=9))
    elif kind == "replaced":
        new = path.with_name("new")
        new.write_text(yaml.safe_dump(minimal(priority=9)))
        os.utime(new, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
        new.replace(path)
    else:
        path.unlink()
        await plans.look()
        assert plans.problem is not None
        assert plans.plans.plans["standard"].priority == 5
        write(minimal(priority=9))
    await plans.look()
    assert plans.plans.plans["standard"].priority == 9
    assert plans.problem is None


async def test_a_watched_file_is_taken_in_by_itself(write: Callable[[object], Path]) -> None:
    plans = PlansFile(write(minimal()), LogLines().logger, models=MODELS)
    watching = asyncio.create_task(plans.keep_watching())
    write(minimal(priority=9))
    for _ in range(100):
        if plans.generation:
            break
        await asyncio.sleep(WATCH_SECONDS / 20)
    watching.cancel()
    assert plans.plans.plans["standard"].priority == 9


def test_the_shipped_file_is_taken_for_any_model(tmp_path: Path) -> None:
    shutil.copy(SHIPPED, tmp_path / "plans.yaml")
    assert PlansFile(tmp_path / "plans.yaml", LogLines().logger, models=["anything"]).problem is None
