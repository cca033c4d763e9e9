"""Exact prompt lengths: asked of the engine one at a time, and never waited for in vain."""

import asyncio

import orjson
import pytest
from pydantic import HttpUrl

from gateway.endpoints import ENDPOINTS
from gateway.errors import EngineFailed
from gateway.policy import Allowed
from gateway.settings import Upstream
from gateway.tokenizer import MAX_BYTES, EngineTokenizer, Uncountable
from gateway.upstreams import Pool, Slot, unavailable
from tests.fakes.loop import run
from tests.fakes.transport import ScriptedReply, ScriptedTransport

CHAT = ENDPOINTS["/v1/chat/completions"]
EMBEDDINGS = ENDPOINTS["/v1/embeddings"]
COUNTED = b'{"count":17,"max_model_len":8192,"tokens":[1,2]}'


def chat(content: str = "Hello") -> Allowed:
    body = orjson.dumps({"model": "served", "messages": [{"role": "user", "content": content}]})
    return Allowed(body, "served", stream=False, hide_usage=False, max_tokens=None)


def tokenizer(*replies: ScriptedReply | Exception | float) -> tuple[EngineTokenizer, ScriptedTransport]:
    transport = ScriptedTransport(*replies)
    pool = Pool([Slot(Upstream(name="vllm", url=HttpUrl("http://vllm:8000")), "engine-key")], transport)
    return EngineTokenizer(pool, transport, lambda: 5.0), transport


def test_the_engine_counts_the_prompt() -> None:
    counter, transport = tokenizer(ScriptedReply([COUNTED[:9], COUNTED[9:]]))
    assert run(counter.count(CHAT, chat())) == 17
    (sent,) = transport.sent
    assert sent.path == "/tokenize"
    assert orjson.loads(sent.body)["messages"] == [{"role": "user", "content": "Hello"}]
    assert sent.headers["Authorization"] == "Bearer engine-key"


@pytest.mark.parametrize(
    "reply",
    [
        ScriptedReply([b'{"error":{"message":"no"}}'], status=400),
        ScriptedReply([b"not JSON"]),
        ScriptedReply([b'{"count":"17"}']),
        ScriptedReply([b'{"count":-1}']),
        ScriptedReply([b"[17]"]),
    ],
    ids=["refused", "no JSON", "text", "negative", "list"],
)
def test_a_prompt_that_the_engine_does_not_count_is_uncountable(reply: ScriptedReply) -> None:
    counter, _ = tokenizer(reply, ScriptedReply([COUNTED]))
    with pytest.raises(Uncountable):
        run(counter.count(CHAT, chat()))
    assert run(counter.count(CHAT, chat())) == 17, "the next prompt is counted again"


@pytest.mark.parametrize(
    "reply",
    [ScriptedReply([b'{"cou', EngineFailed("broke off")]), unavailable()],
    ids=["broken off", "down"],
)
def test_an_engine_that_fails_may_count_later(reply: ScriptedReply | Exception) -> None:
    counter, _ = tokenizer(reply, ScriptedReply([COUNTED]))
    assert run(counter.count(CHAT, chat())) is None
    assert run(counter.count(CHAT, chat())) == 17, "the next prompt is counted again"


def test_one_prompt_is_counted_at_a_time() -> None:
    counter, transport = tokenizer(0.05, ScriptedReply([COUNTED]))

    async def two() -> tuple[int | None, ...]:
        return tuple(await asyncio.gather(counter.count(CHAT, chat()), counter.count(CHAT, chat())))

    assert list(run(two())) == [17, None]
    assert len(transport.sent) == 1


def test_it_rests_for_nine_times_as_long_as_it_counted() -> None:
    """A refused request costs nothing: without a rest one key could keep the engine's tokenizer busy."""
    times = iter([100.0, 100.5, 104.9, 105.0, 105.1])
    transport = ScriptedTransport(ScriptedReply([COUNTED]), ScriptedReply([COUNTED]))
    pool = Pool([Slot(Upstream(name="vllm", url=HttpUrl("http://vllm:8000")), "engine-key")], transport)
    counter = EngineTokenizer(pool, transport, lambda: next(times))
    assert [run(counter.count(CHAT, chat())) for _ in range(3)] == [17, None, 17]


def test_what_would_keep_the_tokenizer_busy_is_not_asked() -> None:
    counter, transport = tokenizer()
    inputs = Allowed(b'{"input":[1,2]}', "served", stream=False, hide_usage=False, max_tokens=None)
    for endpoint, allowed in ((CHAT, chat("x" * MAX_BYTES)), (EMBEDDINGS, inputs)):
        with pytest.raises(Uncountable):
            run(counter.count(endpoint, allowed))
    assert transport.sent == []
