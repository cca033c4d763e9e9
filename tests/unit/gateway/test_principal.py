"""From a grant to a principal: which plan, whose limits, which models; worked out again only when needed."""

import dataclasses
from typing import Any

import pytest

from gateway.errors import PlanMissing
from gateway.limits import LIMIT_NAMES, Limit
from gateway.plans import Overrides
from gateway.principal import ALL_SCOPES, MAX_CACHED, Entitlements, Grant, cache_salt, client_models
from gateway.settings import EngineProfile
from tests.fakes.plans import FixedPlans, plans
from tests.fakes.standard import STANDARD

PROFILE = EngineProfile.model_validate({"served-model-name": ["served", "other"], "max-model-len": 8192})
ALIASES = {"alias": "served"}


def entitlements(present: FixedPlans) -> Entitlements:
    return Entitlements(present, profile=PROFILE, aliases=ALIASES, salt_key=b"salt")


def grant(**changes: Any) -> Grant:
    whole = Grant("acme", "key1", None, ALL_SCOPES, None, Overrides())
    return dataclasses.replace(whole, **changes)


def test_a_grant_without_a_plan_has_the_default_one() -> None:
    gold = STANDARD | {"priority": 9, "standby": ["small"]}
    present = FixedPlans(plans(default_plan="gold", plans={"gold": gold, "standard": STANDARD}))
    principal = entitlements(present).principal(grant())
    assert (principal.tenant, principal.key_id, principal.plan_name) == ("acme", "key1", "gold")
    assert (principal.priority, principal.standby) == (9, ("small",))
    assert principal.scopes == ALL_SCOPES
    assert entitlements(present).principal(grant(plan="standard")).plan_name == "standard"


def test_a_plan_that_is_not_in_the_file_is_refused_with_its_name() -> None:
    with pytest.raises(PlanMissing, match="'silver'"):
        entitlements(FixedPlans()).principal(grant(plan="silver"))


def test_a_request_counts_against_its_key_its_tenant_and_everyone() -> None:
    present = FixedPlans(
        plans(
            {"limits": {"requests_per_minute": 60, "tokens_per_minute": 9, "shadow": ["tokens_per_minute"]}},
            everyone={"tokens_per_day": 500},
            each_tenant={"parallel_requests": 4},
            tenants={"big": {"parallel_requests": 40}},
        )
    )
    assert set(entitlements(present).principal(grant()).limits) == {
        Limit("requests_per_minute", "key", "key1", 60),
        Limit("tokens_per_minute", "key", "key1", 9, shadow=True),
        Limit("parallel_requests", "tenant", "acme", 4),
        Limit("tokens_per_day", "everyone", "", 500),
    }
    assert Limit("parallel_requests", "tenant", "big", 40) in (
        entitlements(present).principal(grant(tenant="big")).limits
    )


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_a_keys_own_amount_stands_in_place_of_the_plans(name: str) -> None:
    own = Overrides.model_validate({name: 7})
    limits = entitlements(FixedPlans()).principal(grant(overrides=own)).limits
    assert [limit.amount for limit in limits if limit.name == name] == [7]


def test_output_and_fields_are_the_plans_with_the_keys_own_values() -> None:
    rules = entitlements(FixedPlans()).principal(grant()).rules
    assert (rules.output_cap, rules.output_default, rules.over_cap) == (4096, 1024, "clamp")
    assert (rules.max_model_len, rules.unknown_fields) == (8192, "pass")
    own = Overrides(output_cap=100, over_cap="refuse")
    rules = entitlements(FixedPlans()).principal(grant(overrides=own)).rules
    assert (rules.output_cap, rules.output_default, rules.over_cap) == (100, 100, "refuse")


@pytest.mark.parametrize(
    ("of_the_plan", "of_the_key", "allowed"),
    [
        (["*"], None, {"served": "served", "other": "other", "alias": "served"}),
        (["alias"], None, {"alias": "served"}),
        (["alias"], ("other",), {"other": "other"}),
        (["alias"], ("*",), {"served": "served", "other": "other", "alias": "served"}),
        (["*"], ("alias", "gone"), {"alias": "served"}),
        (["*"], ("gone",), {}),
        (["*"], (), {}),
    ],
)
def test_models_are_the_keys_own_or_the_plans(
    of_the_plan: list[str], of_the_key: tuple[str, ...] | None, allowed: dict[str, str]
) -> None:
    present = FixedPlans(plans({"models": of_the_plan}))
    assert entitlements(present).principal(grant(models=of_the_key)).rules.models == allowed


def test_client_models_are_the_served_names_and_the_aliases() -> None:
    assert client_models(PROFILE, ALIASES) == {"served": "served", "other": "other", "alias": "served"}


def test_each_tenant_has_a_cache_of_its_own_that_nobody_can_name() -> None:
    present = FixedPlans()
    salts = {
        tenant: entitlements(present).principal(grant(tenant=tenant, key_id=tenant)).rules.cache_salt
        for tenant in ("acme", "evil")
    }
    assert salts["acme"] != salts["evil"]
    assert salts["acme"] == cache_salt(b"salt", "acme") != cache_salt(b"another", "acme")
    assert len(salts["acme"]) == 43


def test_a_principal_is_worked_out_once_for_a_grant_and_again_when_plans_change() -> None:
    present = FixedPlans()
    present_entitlements, given = entitlements(present), grant()
    first = present_entitlements.principal(given)
    assert present_entitlements.principal(given) is first
    present.change(plans({"priority": 9}))
    second = present_entitlements.principal(given)
    assert (first.priority, second.priority) == (5, 9)
    assert present_entitlements.principal(given) is second


def test_a_key_that_was_changed_is_worked_out_again() -> None:
    present_entitlements = entitlements(FixedPlans())
    present_entitlements.principal(grant())
    changed = present_entitlements.principal(grant(overrides=Overrides(priority=1)))
    assert changed.priority == 1


def test_a_plan_that_is_taken_away_is_missed_at_the_next_request() -> None:
    present = FixedPlans(plans(plans={"gold": STANDARD, "standard": STANDARD}))
    present_entitlements, given = entitlements(present), grant(plan="gold")
    present_entitlements.principal(given)
    present.change(plans())
    with pytest.raises(PlanMissing):
        present_entitlements.principal(given)


def test_no_more_principals_are_kept_than_fit() -> None:
    present_entitlements = entitlements(FixedPlans())
    first = grant(key_id="first")
    kept = present_entitlements.principal(first)
    for number in range(MAX_CACHED):
        present_entitlements.principal(grant(key_id=str(number)))
    assert present_entitlements.kept == MAX_CACHED
    assert present_entitlements.principal(first) is not kept
