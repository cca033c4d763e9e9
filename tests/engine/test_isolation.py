"""No tenant finds another's prompt in the engine's prefix cache: by route, on either version."""

from typing import Any

import httpx2
import pytest

from tests.contract.subject import Subject
from tests.engine.vllm_process import VllmProcess

PROMPT = "one two three four five six seven eight nine ten " * 20
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": f"chat {PROMPT}"}], "max_tokens": 1},
    "/v1/completions": {"prompt": f"completions {PROMPT}", "max_tokens": 1},
    "/v1/responses": {"input": f"responses {PROMPT}", "max_output_tokens": 1},
    "/v1/messages": {"messages": [{"role": "user", "content": f"messages {PROMPT}"}], "max_tokens": 1},
}


def shares_its_cache(route: str, version: str) -> bool:
    """vLLM 0.16.0 knows no salt on this one route: SECURITY.md says what to do."""
    return route == "/v1/messages" and version == "0.16.0"


@pytest.mark.parametrize("route", BODIES)
def test_a_tenant_finds_its_own_prompt_in_the_cache_and_no_others(
    subject: Subject, vllm: VllmProcess, route: str
) -> None:
    """Whatever salt they send themselves."""
    other = subject.gateway.new_key(tenant="team-b")
    found = []
    for key in (subject.key, subject.key, other, other):
        before = vllm.prefix_hits()
        reply = httpx2.post(
            subject.gateway.url + route,
            json={"model": subject.model, "cache_salt": "the same"} | BODIES[route],
            headers={"authorization": f"Bearer {key.text}"},
            timeout=30,
        )
        assert reply.status_code == 200, reply.text
        found.append(vllm.prefix_hits() > before)
    assert found == [False, True, shares_its_cache(route, vllm.version), True]
