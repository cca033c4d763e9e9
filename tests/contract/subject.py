"""What the contract's tests are run against: a gateway, and behind it an engine, fake or real."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import openai
from anthropic import Anthropic, AsyncAnthropic

from tests.fakes.gateway_process import GatewayProcess, Key

ALIAS = "team-model"
DEFAULT_TOKENS = 24
MAX_BODY_BYTES = 20_000


def settings(model: str) -> dict[str, str]:
    """For every gateway that the contract's tests are run against."""
    return {
        "GATEWAY_MODEL_ALIASES": json.dumps({ALIAS: model}),
        "GATEWAY_MAX_BODY_BYTES": str(MAX_BODY_BYTES),
    }


def plan(output_cap: int) -> dict[str, dict[str, object]]:
    """The standard plan of the same gateways: a cap, no limit that the tests could meet, and answers that go
    on to the cap where a test asks for that.
    """
    return {
        "limits": {"requests_per_minute": 100_000},
        "output": {"cap": output_cap, "default": DEFAULT_TOKENS, "over_cap": "clamp"},
        "parameters": {"ignore_eos": True},
    }


class EngineUnderTest(Protocol):
    """What can be seen of any engine."""

    def requests_seen(self) -> int:
        """Requests, of any kind but health probes, that have reached the engine so far."""

    def requests_running(self) -> int:
        """Requests that it is working on now."""

    def completion_tokens(self) -> int:
        """Tokens that it has generated so far."""


@dataclass(frozen=True)
class Subject:
    """A gateway, a key for it, and the engine. `model` is the engine's name for what it serves.

    `output_cap` is the gateway's, in tokens: so many that a client can leave the engine before the end.
    `counts_messages`: the engine has /v1/messages/count_tokens, which vLLM 0.16.0 has not.
    """

    gateway: GatewayProcess
    key: Key
    engine: EngineUnderTest
    model: str
    max_model_len: int
    output_cap: int
    counts_messages: bool = True
    clients: list[openai.OpenAI | Anthropic] = field(default_factory=list)

    def sdk(self, key: str | None = None) -> openai.OpenAI:
        """The official client, without retries."""
        text = self.key.text if key is None else key
        url = f"{self.gateway.url}/v1"
        client = openai.OpenAI(base_url=url, api_key=text, max_retries=0, timeout=30)
        self.clients.append(client)
        return client

    def async_sdk(self) -> openai.AsyncOpenAI:
        """The official async client, without retries."""
        url = f"{self.gateway.url}/v1"
        return openai.AsyncOpenAI(base_url=url, api_key=self.key.text, max_retries=0, timeout=30)

    def anthropic(self, key: str | None = None) -> Anthropic:
        """Anthropic's official client, without retries; it sends the key as `x-api-key`."""
        text = self.key.text if key is None else key
        client = Anthropic(base_url=self.gateway.url, api_key=text, max_retries=0, timeout=30)
        self.clients.append(client)
        return client

    def async_anthropic(self) -> AsyncAnthropic:
        """Anthropic's official async client, without retries."""
        url = self.gateway.url
        return AsyncAnthropic(base_url=url, api_key=self.key.text, max_retries=0, timeout=30)

    def bearer(self) -> dict[str, str]:
        """The Authorization header."""
        return {"authorization": f"Bearer {self.key.text}"}

    def behind(self, gateway: GatewayProcess) -> "Subject":
        """The same engine behind another gateway, with a key of that one."""
        return replace(self, gateway=gateway, key=gateway.new_key())

    def close(self) -> None:
        """Close every client that was handed out, of the subjects made from this one too."""
        for client in self.clients:
            client.close()

    @contextmanager
    def engine_sees_nothing(self) -> Iterator[None]:
        """What happens inside must not reach the engine."""
        before = self.engine.requests_seen()
        yield
        assert self.engine.requests_seen() == before, "the engine saw a request that was to be refused"
