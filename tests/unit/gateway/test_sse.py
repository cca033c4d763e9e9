"""The event stream: its bytes pass as they are, however they are cut, and what they say is noticed."""

from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.endpoints import ENDPOINTS, Dialect, Endpoint
from gateway.errors import EngineFailed
from gateway.sse import MAX_EVENT_BYTES, EventStream, EventTooLarge, error_event
from gateway.usage import Usage

DATA = Path(__file__).parent / "data"
STREAMS = [
    path for path in sorted(DATA.glob("*/*.sse")) if path.name.startswith(("chat", "comp", "err", "eng"))
]
NAMED = [path for path in sorted(DATA.glob("*/*.sse")) if path not in STREAMS]
RESPONSES, MESSAGES = ENDPOINTS["/v1/responses"], ENDPOINTS["/v1/messages"]
USAGE_ONLY = b'"choices":[],"usage":{'


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(raw) + 1) for place in places), len(raw)]
    return [raw[start:end] for start, end in pairwise(edges)]


def feed(chunks: list[bytes], *, hide_usage: bool = False) -> tuple[bytes, EventStream]:
    events = EventStream(hide_usage=hide_usage)
    return b"".join(events.feed(chunk) for chunk in chunks), events


def stream_of(endpoint: Endpoint, *, hide_usage: bool = False) -> EventStream:
    assert endpoint.usage
    return EventStream(endpoint.dialect, endpoint.usage, hide_usage=hide_usage)


def places(raw: bytes) -> range:
    """Where to cut: at every byte, of a long stream at every seventh."""
    return range(0, len(raw) + 1, 1 if len(raw) < 6000 else 7)


def endpoint_of(path: Path) -> Endpoint:
    return RESPONSES if path.name.startswith("responses") else MESSAGES


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@pytest.mark.parametrize("path", STREAMS, ids=named)
@given(cuts=CUTS, hide=st.booleans())
def test_a_captured_stream_passes_unchanged_but_for_what_is_not_for_the_client(
    path: Path, cuts: list[int], *, hide: bool
) -> None:
    raw = path.read_bytes()
    out, events = feed(cut(raw, cuts), hide_usage=hide)
    expected = [event + b"\n\n" for event in raw.split(b"\n\n")[:-1]]
    if any(b'data: {"error"' in event for event in expected):
        place = next(i for i, event in enumerate(expected) if b'data: {"error"' in event)
        assert out == b"".join(expected[:place])
        assert set(events.error) == {"message", "type", "param", "code"}
        assert not events.finished
    else:
        assert out == b"".join(event for event in expected if not (hide and USAGE_ONLY in event))
        assert events.finished
        assert events.error is None


@pytest.mark.parametrize("path", STREAMS, ids=named)
def test_usage_and_finish_reason_of_a_captured_stream_are_found(path: Path) -> None:
    raw = path.read_bytes()
    _, events = feed([raw])
    payloads = [orjson.loads(line[6:]) for line in raw.split(b"\n\n") if line.startswith(b"data: {")]
    usages = [payload["usage"] for payload in payloads if payload.get("usage")]
    reasons = [c["finish_reason"] for p in payloads for c in p.get("choices", ()) if c["finish_reason"]]
    assert events.finish_reason == (reasons[-1] if reasons else None)
    told = usages[-1] if usages else None
    assert events.usage == (told and Usage(told["prompt_tokens"], told["completion_tokens"]))


TEXT = st.text(max_size=12) | st.sampled_from(
    [
        '"usage":{',
        ',"usage":{"prompt_tokens":1,"completion_tokens":2},',
        "[DONE]",
        "data: [DONE]\n\n",
        '"error":{"message":"x"}',
        '"finish_reason":"stop"',
        "héllo 中文 🎉",
        "\u2028 \x85",
        "\\",
    ]
)


def content(text: str) -> bytes:
    delta = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + orjson.dumps({"choices": [delta]})


COMMENT = st.text(max_size=8).map(lambda text: b": " + text.replace("\r", "").replace("\n", "").encode())
EVENT = (
    TEXT.map(content) | COMMENT | st.sampled_from([b"event: ping\ndata: {}", b"id: 7\nretry: 10", b"data"])
)
END = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"])
MORE = st.sampled_from([b"", b"", b"\n", b"\n\n", b"\r\n"])


@given(
    events=st.lists(st.tuples(EVENT, END, MORE), max_size=8),
    usage_end=END,
    cuts=CUTS,
    hide=st.booleans(),
)
@example(
    events=[(content("a"), b"\n\n", b"\n")], usage_end=b"\n\n", cuts=[], hide=True
)  # a byte between two events
def test_any_stream_in_any_pieces_passes_but_for_the_hidden_usage(
    events: list[tuple[bytes, bytes, bytes]], usage_end: bytes, cuts: list[int], *, hide: bool
) -> None:
    before = b"".join(
        event.replace(b"\n", b"\r\n" if end == b"\r\n\r\n" else end[:1]) + end + more
        for event, end, more in events
    )
    before += b": a comment, so that the usage event begins where it seems to\n\n"
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}' + usage_end
    done = b"data: [DONE]\n\n"
    out, seen = feed(cut(before + usage + done, cuts), hide_usage=hide)
    assert out == before + (b"" if hide else usage) + done
    assert seen.usage == Usage(5, 7)
    assert seen.finished
    assert seen.error is None
    assert seen.finish_reason is None


@given(texts=st.lists(TEXT, max_size=6), cuts=CUTS)
def test_text_that_looks_like_an_end_usage_or_error_fools_nobody(texts: list[str], cuts: list[int]) -> None:
    raw = b"".join(content(text) + b"\n\n" for text in texts)
    out, seen = feed(cut(raw, cuts), hide_usage=True)
    assert out == raw
    assert (seen.usage, seen.finish_reason, seen.finished, seen.error) == (None, None, False, None)


@given(cuts=CUTS)
def test_nothing_passes_before_its_events_end_has_arrived(cuts: list[int]) -> None:
    """Nor is anything held longer: an event goes out with the chunk that completes it."""
    raw = content("one") + b"\n\n" + content("two") + b"\n\n"
    first = len(content("one")) + 2
    events = EventStream(hide_usage=False)
    fed = sent = 0
    for chunk in cut(raw, cuts):
        sent += len(events.feed(chunk))
        fed += len(chunk)
        assert sent == (len(raw) if fed == len(raw) else first if fed >= first else 0)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_events_data_may_stand_on_several_lines(end: bytes) -> None:
    lines = [
        b'data: {"choices":[],',
        b'data:"usage":{',
        b'data: "prompt_tokens":1,"completion_tokens":2}}',
        b"",
        b"",
    ]
    out, seen = feed([end.join(lines)], hide_usage=True)
    assert out == b""
    assert seen.usage == Usage(1, 2)


@pytest.mark.parametrize("spaced", ["", " "])
def test_an_error_ends_the_stream_and_none_of_it_passes(spaced: str) -> None:
    good = content("a") + b"\n\n"
    bad = f'data: {{"error":{spaced}{{"message": "/srv/x.py", "code": 500}}}}\n\n'.encode()
    out, seen = feed([good + bad + good + b"data: [DONE]\n\n"])
    assert out == good
    assert seen.error == {"message": "/srv/x.py", "code": 500}
    assert not seen.finished


@pytest.mark.parametrize("more", [b"\n", b"\n\n", b"\n\n\n"])
@pytest.mark.parametrize("event", [b'data: {"choices":[{"finish_reason":"stop"}]}', b"data: [DONE]"])
def test_empty_lines_after_an_event_that_matters_are_not_lost(event: bytes, more: bytes) -> None:
    raw = event + b"\n\n" + more
    out, _ = feed([raw])
    assert out == raw


def test_an_error_that_is_null_is_none() -> None:
    raw = b'data: {"choices":[],"error":null}\n\n'
    out, seen = feed([raw])
    assert out == raw
    assert seen.error is None


def test_running_usage_on_chunks_with_choices_is_never_hidden() -> None:
    raw = b'data: {"choices":[{"index":0}],"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\n'
    out, _ = feed([raw], hide_usage=True)
    assert out == raw


def test_running_usage_is_not_what_a_request_has_used() -> None:
    """It is that of one choice, where there may be many."""
    raw = b'data: {"choices":[{"index":0}],"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\n'
    _, seen = feed([raw] * 3)
    assert (seen.usage, seen.events) == (None, 3)
    last = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":8}}\n\n'
    assert feed([raw, last])[1].usage == Usage(5, 8)


@pytest.mark.parametrize(
    "usage", [b"[]", b"{}", b'{"prompt_tokens":"5"}', b'{"prompt_tokens":-1}', b'{"prompt_tokens":true}']
)
def test_usage_that_is_none_is_passed_and_not_counted(usage: bytes) -> None:
    raw = b'data: {"choices":[],"usage":%s}\n\n' % usage
    out, seen = feed([raw], hide_usage=True)
    assert out == raw
    assert seen.usage is None


@pytest.mark.parametrize("event", [b'data: [{"usage":{}}]\n\n', b': "error":\n\n', b'event: "usage":{\n\n'])
def test_an_event_without_an_object_passes(event: bytes) -> None:
    out, seen = feed([event])
    assert out == event
    assert seen.error is None


@pytest.mark.parametrize(
    "payload", [b'{"usage":{', b'[1,"usage":{', b'{"a":"error":1}', b'"error": /usr/lib']
)
def test_an_event_that_should_tell_something_and_is_not_json_is_a_failure(payload: bytes) -> None:
    out, seen = feed([b"data: " + payload + b"\n\n"])
    assert out == b""
    assert seen.error == "not JSON"


def test_an_event_without_an_end_is_not_collected_for_ever() -> None:
    events = EventStream(hide_usage=False)
    assert events.feed(b"x" * MAX_EVENT_BYTES) == b""
    with pytest.raises(EventTooLarge):
        events.feed(b"x")


def test_a_large_event_passes() -> None:
    raw = content("x" * (MAX_EVENT_BYTES - 1000)) + b"\n\n"
    out, _ = feed([raw[:-1], raw[-1:]])
    assert out == raw


@pytest.mark.parametrize("path", NAMED, ids=named)
def test_a_captured_stream_of_named_events_passes_unchanged_however_it_is_cut(path: Path) -> None:
    """Cut once, everywhere. What follows the end (0.16.0 adds `[DONE]` to a message) is left out."""
    raw = path.read_bytes()
    expected = raw.removesuffix(b"data: [DONE]\n\n")
    payloads = [orjson.loads(event.partition(b"data: ")[2]) for event in expected.split(b"\n\n")[:-1]]
    told = payloads[-1]["response"]["usage"] if endpoint_of(path) is RESPONSES else payloads[-2]["usage"]
    for place in places(raw):
        events = stream_of(endpoint_of(path), hide_usage=True)
        assert events.feed(raw[:place]) + events.feed(raw[place:]) == expected
        assert events.usage == Usage(told["input_tokens"], told["output_tokens"])
        assert events.finished
        assert events.error is None
        assert events.events == len(payloads)


@pytest.mark.parametrize("path", STREAMS, ids=named)
def test_a_captured_stream_is_read_alike_wherever_it_is_cut(path: Path) -> None:
    raw = path.read_bytes()
    whole, seen = feed([raw], hide_usage=True)
    state = (seen.usage, seen.finish_reason, seen.finished, seen.error, seen.events)
    for place in places(raw):
        out, events = feed([raw[:place], raw[place:]], hide_usage=True)
        assert out == whole
        assert (events.usage, events.finish_reason, events.finished, events.error, events.events) == state


@pytest.mark.parametrize("path", NAMED, ids=named)
@given(cuts=CUTS)
def test_a_stream_of_named_events_is_read_alike_in_many_pieces(path: Path, cuts: list[int]) -> None:
    raw = path.read_bytes()
    events = stream_of(endpoint_of(path))
    out = b"".join(events.feed(chunk) for chunk in cut(raw, cuts))
    assert out == raw.removesuffix(b"data: [DONE]\n\n")
    assert events.finished
    assert events.finish_reason in {"incomplete", "completed", "max_tokens", "tool_use"}


@pytest.mark.parametrize("path", NAMED, ids=named)
def test_a_stream_that_breaks_off_has_no_usage_yet_and_has_not_ended(path: Path) -> None:
    """A message's first event tells the prompt's tokens, with none of the answer's: that is no bill."""
    events = stream_of(endpoint_of(path))
    begun = b"\n\n".join(path.read_bytes().split(b"\n\n")[:5]) + b"\n\n"
    assert events.feed(begun) == begun
    assert (events.usage, events.finished, events.error, events.events) == (None, False, None, 5)


def event_of(kind: str, **fields: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps({"type": kind} | fields))


LOOKALIKES = [
    '"usage":{"input_tokens":1,"output_tokens":1}',
    '"type":"response.completed"',
    "event: message_stop\ndata: {}\n\n",
    '"message_stop"',
    '"error":{}',
    "[DONE]",
]
TRAP = {
    "usage": {"input_tokens": 1, "output_tokens": 1},
    "type": "response.completed",
    "error": {"message": "none"},
    "response": {"usage": {"input_tokens": 1, "output_tokens": 1}},
    "kind": "message_stop",
}


@given(texts=st.lists(st.sampled_from(LOOKALIKES), max_size=6), cuts=CUTS)
def test_no_text_and_no_object_of_a_clients_fools_the_reader_of_named_events(
    texts: list[str], cuts: list[int]
) -> None:
    """A response repeats its request's tools, a message holds a tool's input: any keys may stand there."""
    for endpoint, events in (
        (
            RESPONSES,
            [
                event_of(
                    "response.created", response={"tools": [TRAP], "usage": None, "status": "in_progress"}
                ),
                *(event_of("response.output_text.delta", delta=text) for text in texts),
                event_of("response.output_item.done", item=TRAP),
            ],
        ),
        (
            MESSAGES,
            [
                event_of("message_start", message={"usage": {"input_tokens": 9, "output_tokens": 0}}),
                event_of("content_block_start", content_block={"type": "tool_use", "input": TRAP}),
                *(event_of("content_block_delta", delta={"text": text}) for text in texts),
            ],
        ),
    ):
        stream = stream_of(endpoint)
        raw = b"".join(events)
        assert b"".join(stream.feed(chunk) for chunk in cut(raw, cuts)) == raw
        assert (stream.usage, stream.finished, stream.error) == (None, False, None)
        assert stream.events == len(events)


@pytest.mark.parametrize(
    ("endpoint", "bad", "error"),
    [
        (RESPONSES, event_of("error", message="/srv/x.py", code="x"), "error"),
        (RESPONSES, event_of("error", error={"code": 500}), {"code": 500}),
        (
            RESPONSES,
            event_of("response.failed", response={"error": {"message": "/srv/x.py"}}),
            "response.failed",
        ),
        (RESPONSES, b'data: {"error": {"code": 500}}\n\n', {"code": 500}),
        (MESSAGES, event_of("error", error={"type": "internal_error"}), {"type": "internal_error"}),
        (MESSAGES, b'event: error\ndata: {"error":\n\n', "not JSON"),
    ],
)
def test_an_error_among_named_events_ends_the_stream_and_does_not_pass(
    endpoint: Endpoint, bad: bytes, error: object
) -> None:
    good = event_of("ping")
    for place in range(len(bad)):
        stream = stream_of(endpoint)
        assert stream.feed(good + bad[:place]) + stream.feed(bad[place:] + good) == good
        assert stream.error == error
        assert not stream.finished


@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete"])
def test_a_response_ends_with_either_of_its_last_events(kind: str) -> None:
    last = event_of(kind, response={"status": "completed", "usage": {"input_tokens": 3, "output_tokens": 4}})
    stream = stream_of(RESPONSES)
    assert stream.feed(last + event_of("ping")) == last
    assert stream.finished
    assert (stream.usage, stream.finish_reason) == (Usage(3, 4), "completed")


@given(events=st.integers(0, 30), end=END, cuts=CUTS)
def test_events_are_counted_whatever_ends_them(events: int, end: bytes, cuts: list[int]) -> None:
    raw = (content("a") + end) * events
    _, seen = feed(cut(raw, cuts))
    assert seen.events == events


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic"])
def test_an_error_of_ours_is_one_event_that_the_reader_takes_for_an_error(dialect: Dialect) -> None:
    raw = error_event(dialect, EngineFailed("The engine failed on this request."), 7, "req-1")
    assert raw.endswith(b"\n\n")
    assert raw.count(b"\n\n") == 1
    stream = EventStream(dialect, hide_usage=False)
    assert stream.feed(raw) == b""
    assert stream.error["message"] == "The engine failed on this request."
    assert stream.error["code"] == "engine_error"
    payload = orjson.loads(raw.partition(b"data: ")[2])
    if dialect == "responses":
        assert payload.items() >= {"type": "error", "code": "engine_error", "sequence_number": 7}.items()
    if dialect == "anthropic":
        assert payload["request_id"] == "req-1"
        assert payload["error"]["type"] == "api_error"
    assert raw.startswith(b"event: error\ndata: ") == (dialect != "openai")
