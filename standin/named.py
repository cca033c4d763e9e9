"""The bytes of an answer on the routes whose events have names: responses and messages."""

import time
from collections.abc import Iterator
from typing import Any

from standin.generation import Generation
from standin.render import StreamEvent, compact, request_id
from standin.replies import Captures
from standin.text import answer_tokens

Event = dict[str, Any]
_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}


def response_body(generation: Generation, captures: Captures) -> bytes:
    """The body of a response that is not streamed."""
    captured = captures.bodies["responses_nonstream"]
    text = "".join(answer_tokens(generation.text_tokens))
    item = captured["output"][0]
    item = {**item, "id": request_id("message"), "content": [{**item["content"][0], "text": text}]}
    return compact({**_ended({**captured, **_head(generation)}, generation), "output": [item]})


def response_events(generation: Generation, captures: Captures) -> Iterator[StreamEvent]:
    """The events of a streamed response, one token each."""
    captured = {event["type"]: event for event in captures.streams["responses_stream"]}
    head, item_id = _head(generation), request_id("message")
    tokens = answer_tokens(generation.text_tokens)
    text = "".join(tokens)

    def event(kind: str, number: int, **fields: object) -> bytes:
        return _named({**captured[kind], **fields, "sequence_number": number})

    def response(kind: str, **fields: object) -> Event:
        return {**captured[kind]["response"], **head, **fields}

    def item(kind: str, **fields: object) -> Event:
        return {**captured[kind]["item"], "id": item_id, **fields}

    for number, kind in enumerate(("response.created", "response.in_progress")):
        asked = response(kind, max_output_tokens=generation.max_tokens)
        yield StreamEvent(event(kind, number, response=asked), 0)
    added = "response.output_item.added"
    yield StreamEvent(event(added, 2, item=item(added)), 0)
    yield StreamEvent(event("response.content_part.added", 3, item_id=item_id), 0)
    for number, token in enumerate(tokens, start=4):
        yield StreamEvent(event("response.output_text.delta", number, item_id=item_id, delta=token), 1)
    number = 4 + len(tokens)
    # A generation that stops by itself ends with a token that has no text.
    last = generation.completion_tokens - len(tokens)
    yield StreamEvent(event("response.output_text.done", number, item_id=item_id, text=text), last)
    part = {**captured["response.content_part.done"]["part"], "text": text}
    yield StreamEvent(event("response.content_part.done", number + 1, item_id=item_id, part=part), 0)
    done = "response.output_item.done"
    whole = item(done, content=[{**captured[done]["item"]["content"][0], "text": text}])
    yield StreamEvent(event(done, number + 2, item=whole), 0)
    kind = "response.completed"
    ended = _ended(response(kind), generation) | {"output": [whole]}
    yield StreamEvent(event(kind, number + 3, response=ended), 0)


def message_body(generation: Generation, captures: Captures) -> bytes:
    """The body of a message that is not streamed."""
    captured = captures.bodies["messages_nonstream"]
    text = "".join(answer_tokens(generation.text_tokens))
    return compact(
        {
            **captured,
            "id": request_id("messages"),
            "content": [{**captured["content"][0], "text": text}],
            "model": generation.model,
            "stop_reason": _STOP_REASONS[generation.finish_reason],
            "usage": _usage(generation),
        }
    )


def message_events(generation: Generation, captures: Captures) -> Iterator[StreamEvent]:
    """The events of a streamed message, one token each."""
    captured = {event["type"]: event for event in captures.streams["messages_stream"]}
    begun = captured["message_start"]["message"]
    usage = _usage(generation) | {"output_tokens": 0}
    begun = {**begun, "id": request_id("messages"), "model": generation.model, "usage": usage}
    yield StreamEvent(_named({**captured["message_start"], "message": begun}), 0)
    yield StreamEvent(_named(captured["content_block_start"]), 0)
    delta = captured["content_block_delta"]
    tokens = answer_tokens(generation.text_tokens)
    for token in tokens:
        yield StreamEvent(_named({**delta, "delta": {**delta["delta"], "text": token}}), 1)
    yield StreamEvent(_named(captured["content_block_stop"]), generation.completion_tokens - len(tokens))
    end = captured["message_delta"]
    reason = {**end["delta"], "stop_reason": _STOP_REASONS[generation.finish_reason]}
    yield StreamEvent(_named({**end, "delta": reason, "usage": _usage(generation)}), 0)
    yield StreamEvent(_named(captured["message_stop"]), 0)


def _named(event: Event) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), compact(event))


def _head(generation: Generation) -> Event:
    return {"id": request_id("responses"), "created_at": int(time.time()), "model": generation.model}


def _ended(response: Event, generation: Generation) -> Event:
    """The response with what is known at its end."""
    cut = generation.finish_reason == "length"
    usage = _usage(generation)
    return {
        **response,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "max_output_tokens": generation.max_tokens,
        "status": "incomplete" if cut else "completed",
        "usage": {**response["usage"], **usage, "total_tokens": sum(usage.values())},
    }


def _usage(generation: Generation) -> dict[str, int]:
    return {"input_tokens": generation.prompt_tokens, "output_tokens": generation.completion_tokens}
