"""Refusals are remembered, bounded, and explained: why, and what would let the request pass."""

import math

import pytest

from gateway.errors import GatewayError
from gateway.limits import Limit, LimitScope, Refused
from gateway.refusals import Explanation, Refusal, RefusalLog, explain


def refusal(request_id: str = "req-1", **fields: object) -> Refusal:
    given: dict[str, object] = {
        "at": 1.8e9,
        "route": "/v1/chat/completions",
        "status": 429,
        "code": "rate_limit_exceeded",
        "message": "Too much.",
        "key_id": "abcdefghij",
    }
    return Refusal(request_id, **(given | fields))  # type: ignore[arg-type]


def held(
    scope: LimitScope = "key", subject: str = "abcdefghij", *, wait: float = 4.2, amount: int = 100
) -> Refused:
    limit = Limit("tokens_per_minute", scope, subject, amount)
    return Refused(limit, used=90, asked=30, retry_after=wait)


def explained(*limits: Refused) -> Explanation:
    return explain(refusal(limits=limits))


def every_error(base: type[GatewayError] = GatewayError) -> list[type[GatewayError]]:
    return [base, *(error for below in base.__subclasses__() for error in every_error(below))]


def test_a_refusal_is_found_by_its_request_id() -> None:
    log = RefusalLog()
    log.note(refusal("a"))
    log.note(refusal("b"))
    found = log.find("a")
    assert found is not None
    assert found.request_id == "a"
    assert log.find("c") is None


def test_only_so_many_are_kept_and_the_oldest_goes_first() -> None:
    log = RefusalLog(known=2)
    for request_id in ("a", "b", "c"):
        log.note(refusal(request_id))
    assert len(log) == 2
    assert log.find("a") is None
    assert log.find("b")
    assert log.find("c")


def test_of_an_id_that_is_used_twice_the_later_refusal_is_kept_and_counts_as_new() -> None:
    log = RefusalLog(known=2)
    for request_id, message in (("a", "first"), ("b", ""), ("a", "second"), ("c", "")):
        log.note(refusal(request_id, message=message))
    found = log.find("a")
    assert found is not None
    assert found.message == "second"
    assert log.find("b") is None


def test_strangers_push_out_no_known_callers_refusal() -> None:
    log = RefusalLog(known=2, strangers=3)
    log.note(refusal("known"))
    for number in range(10):
        log.note(refusal(f"stranger-{number}", key_id=None))
    assert log.find("known")
    assert log.find("stranger-9")
    assert log.find("stranger-0") is None
    assert len(log) == 4


def test_a_limit_is_explained_by_what_it_held_and_when_the_request_fits() -> None:
    found = explained(held())
    assert found.why == ("key abcdefghij: tokens_per_minute is 100; 90 were used and the request needed 30.",)
    assert "5 s later" in found.remedies[0]
    assert "change abcdefghij --tokens-per-minute 120" in found.remedies[1]


def test_what_is_larger_than_the_limit_is_told_not_to_wait() -> None:
    found = explained(held(wait=math.inf, amount=20))
    assert "waiting does not help" in found.remedies[0]
    assert "--tokens-per-minute 30" in found.remedies[1]


def test_of_several_limits_each_is_named_and_the_longest_wait_counts() -> None:
    found = explained(held(wait=1.0), held("tenant", "acme", wait=30.0), held("everyone", "", wait=2.0))
    assert [line.split(":")[0] for line in found.why] == [
        "key abcdefghij",
        "tenant acme",
        "everyone together",
    ]
    assert "30 s later" in found.remedies[0]
    assert "tenants.acme.tokens_per_minute" in found.remedies[2]
    assert "everyone.tokens_per_minute" in found.remedies[3]


def test_who_comes_with_a_token_has_no_key_to_change() -> None:
    found = explained(held(subject="jwt-aaaaaaaaaaaaaaaa"))
    assert "make keys" not in found.remedies[1]
    assert "plans.yaml" in found.remedies[1]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_every_refusal_has_a_reason_and_a_remedy(error: type[GatewayError]) -> None:
    found = explain(refusal(status=error.status, code=error.code))
    assert found.why == ("Too much.",)
    (remedy,) = found.remedies
    assert remedy.endswith(".")
    assert "{key}" not in remedy


@pytest.mark.parametrize(
    ("code", "status", "part"),
    [
        ("disabled_api_key", 401, "enable abcdefghij"),
        ("expired_api_key", 401, "change abcdefghij --expires"),
        ("plan_missing", 403, "change abcdefghij --plan"),
        ("invalid_json", 400, "correct it as the message says"),
        ("internal_error", 500, "make status"),
        ("draining", 503, "after the restart"),
    ],
)
def test_the_remedy_fits_the_refusal(code: str, status: int, part: str) -> None:
    assert part in explain(refusal(code=code, status=status)).remedies[0]


def test_without_a_key_the_command_has_a_place_for_one() -> None:
    found = explain(refusal(code="expired_api_key", status=401, key_id=None))
    assert "change ID --expires" in found.remedies[0]
