"""Tokens of a live issuer at a running gateway: taken, refused, rotated, with the issuer away."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from jose import jws

from gateway.jwks import RETRY_SECONDS, UNKNOWN_SECONDS
from tests.contract.developer import HELLO
from tests.fakes import issuer as issuers
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway_process import EnginePlan, GatewayProcess
from tests.fakes.issuer import AUDIENCE, Issuer, SigningKey
from tests.gateway.conftest import ENGINE_KEY, MAX_MODEL_LEN, MODEL

ES, RS, NEXT = SigningKey("es"), SigningKey("rs", "RS256"), SigningKey("next", number=1)
SECRET = "kJ8vQ2mX7rT4wZ1nB6cL9pF3hD5gS0aE-shared"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    started = Issuer([ES, RS])
    started.start()
    yield started
    started.close()


@pytest.fixture
def unstarted(tmp_path: Path, engine: FakeEngine, issuer: Issuer) -> GatewayProcess:
    """A gateway that takes this issuer's tokens."""
    settings = {
        "GATEWAY_JWT_ISSUER": issuer.url,
        "GATEWAY_JWT_AUDIENCE": AUDIENCE,
        "GATEWAY_JWT_JWKS_URL": issuer.jwks_url,
    }
    return GatewayProcess(tmp_path, EnginePlan(engine.url, ENGINE_KEY, [MODEL], MAX_MODEL_LEN), settings)


@pytest.fixture
def gateway(unstarted: GatewayProcess) -> Iterator[GatewayProcess]:
    unstarted.environment["GATEWAY_FAILED_LOGINS_PER_MINUTE"] = "1000"
    unstarted.start()
    yield unstarted
    assert unstarted.stop() == 0


def chat(gateway: GatewayProcess, token: bytes) -> httpx2.Response:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2}
    headers = {"authorization": f"Bearer {token.decode()}"}
    return httpx2.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=15)


def told(gateway: GatewayProcess, token: bytes) -> tuple[int, str]:
    """The status, and an error's code."""
    answer = chat(gateway, token)
    return answer.status_code, answer.json().get("error", {}).get("code", "")


def within(seconds: float, happens: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, f"not within {seconds} seconds"
        time.sleep(0.1)


def test_a_token_is_taken_in_place_of_a_key_and_counted_for_its_subject(
    gateway: GatewayProcess, issuer: Issuer
) -> None:
    for key in (ES, RS):
        answer = chat(gateway, issuer.token(key=key))
        assert answer.status_code == 200
    line = gateway.access_line(answer.headers["x-request-id"])
    assert line["tenant"] == "acme"
    assert line["key_id"].startswith("jwt-")
    headers = {"authorization": f"Bearer {issuer.token(key=ES).decode()}"}
    within(
        3,
        lambda: (
            sum(
                row["requests"]
                for row in httpx2.get(f"{gateway.url}/v1/usage", headers=headers).json()["data"]
            )
            == 2
        ),
    )
    assert told(gateway, gateway.new_key().text.encode()) == (200, "")
    assert issuer.asked <= 2
    assert gateway.metric("gateway_requests_total", key_id="jwt-", status="2xx") >= 2


def test_what_a_token_says_it_may_do_is_all_that_it_may_do(gateway: GatewayProcess, issuer: Issuer) -> None:
    assert told(gateway, issuer.token(scope="embed openid")) == (403, "scope_missing")
    assert told(gateway, issuer.token(scope="generate")) == (200, "")
    assert told(gateway, issuer.token(plan="no-such-plan")) == (403, "plan_missing")


def test_tokens_of_a_subject_share_its_limits(gateway: GatewayProcess, issuer: Issuer) -> None:
    gateway.write_plans(
        {"standard": {"limits": {"requests_per_minute": 3}, "output": {"cap": 9, "default": 9}}}
    )
    within(3, lambda: any(line["event"] == "plans_changed" for line in gateway.log_lines()))
    answers = [told(gateway, issuer.token(jti=str(number))) for number in range(4)]
    assert answers == [(200, "")] * 3 + [(429, "rate_limit_exceeded")]
    assert told(gateway, issuer.token(sub="user-2")) == (200, "")


BAD: list[dict[str, Any]] = [
    {"exp": 1},
    {"exp": None},
    {"exp": "tomorrow"},
    {"nbf": 9_000_000_000},
    {"aud": "other"},
    {"iss": "https://evil.example"},
    {"sub": None},
    {"tenant": None},
    {"key": SigningKey("es", number=1)},
    {"key": SigningKey("stranger", number=1)},
]


def test_a_token_that_is_not_valid_here_is_refused_and_told_to_nobody(
    gateway: GatewayProcess, issuer: Issuer
) -> None:
    for changes in BAD:
        token = issuer.token(**changes)
        answer = chat(gateway, token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_token"), changes
        assert token.split(b".")[2] not in answer.content
        assert token.split(b".")[2] not in gateway.output()


def test_a_rotation_of_the_issuers_keys_is_followed_within_seconds(
    gateway: GatewayProcess, issuer: Issuer
) -> None:
    old = issuer.token(key=ES)
    assert told(gateway, old) == (200, "")
    issuer.rotate(NEXT)
    within(UNKNOWN_SECONDS + 4, lambda: told(gateway, issuer.token()) == (200, ""))
    assert told(gateway, old) == (401, "invalid_token")


def test_while_the_issuer_is_away_what_is_known_is_taken_and_the_rest_is_no_401(
    unstarted: GatewayProcess, issuer: Issuer
) -> None:
    issuer.answer = issuers.fails
    unstarted.start()
    key = unstarted.new_key()
    assert told(unstarted, issuer.token()) == (503, "store_unavailable")
    assert told(unstarted, key.text.encode()) == (200, "")
    ready = httpx2.get(f"{unstarted.url}/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    issuer.answer = None
    within(RETRY_SECONDS + 1, lambda: told(unstarted, issuer.token()) == (200, ""))
    issuer.answer = issuers.redirects
    time.sleep(UNKNOWN_SECONDS)
    assert told(unstarted, issuer.token(key=NEXT)) == (503, "store_unavailable")
    assert told(unstarted, issuer.token(jti="another")) == (200, "")
    assert unstarted.stop() == 0


def test_tokens_of_a_shared_secret_are_taken_where_the_settings_say_so(
    unstarted: GatewayProcess, issuer: Issuer
) -> None:
    unstarted.environment |= {"GATEWAY_JWT_ALGORITHMS": "HS256", "GATEWAY_JWT_JWKS_URL": ""}
    unstarted.write_secret("jwt_secret", SECRET)
    unstarted.start()
    token: str = jws.sign(issuer.claims(), SECRET, algorithm="HS256")
    assert told(unstarted, token.encode()) == (200, "")
    assert told(unstarted, issuer.token()) == (401, "invalid_token")
    assert issuer.asked == 0
    assert unstarted.stop() == 0
