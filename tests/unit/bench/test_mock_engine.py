import json

from bench.load import body_of
from bench.mock_engine import Replies


def test_the_whole_reply_counts_the_tokens_asked_for() -> None:
    reply = json.loads(body_of(Replies.of_tokens(7).whole))
    assert reply["usage"]["completion_tokens"] == 7


def test_the_stream_has_one_event_a_token_then_usage_and_the_end() -> None:
    replies = Replies.of_tokens(7)
    assert sum(event.tokens for event in replies.events) == 7
    sizes = [event.data.partition(b"\r\n") for event in replies.events]
    events = [framed.removesuffix(b"\r\n") for _, _, framed in sizes]
    assert [int(size, 16) for size, _, _ in sizes] == [len(event) for event in events]
    assert all(event.startswith(b"data: ") and event.endswith(b"\n\n") for event in events)
    assert json.loads(events[-2].removeprefix(b"data: "))["usage"]["completion_tokens"] == 7
    assert events[-1] == b"data: [DONE]\n\n"
