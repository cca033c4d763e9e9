"""The bytes of an answer: captured replies with this request's values put in."""

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from standin.generation import Generation
from standin.replies import Captures
from standin.text import answer_tokens

DONE = b"data: [DONE]\n\n"
_SLOT = "\x00slot\x00"
_SLOT_JSON = json.dumps(_SLOT)
_ID_PREFIX = {
    "chat": "chatcmpl-",
    "completions": "cmpl-",
    "embeddings": "embd-",
    "messages": "chatcmpl-",
    "responses": "resp_",
    "message": "msg_",
    "score": "score-",
}
_TEXT_FIELD = {"chat": "content", "completions": "text"}


class StreamEvent(NamedTuple):
    """One event's bytes, and how many completion tokens it carries."""

    data: bytes
    tokens: int


def compact(value: object) -> bytes:
    """JSON without spaces, as vLLM writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def request_id(kind: str) -> str:
    """A fresh id in vLLM's form."""
    return _ID_PREFIX[kind] + secrets.token_hex(8)


def whole_body(generation: Generation, captures: Captures) -> bytes:
    """The body of a chat or completions reply that is not streamed."""
    name = "chat_nonstream" if generation.kind == "chat" else "completions"
    captured = captures.bodies[name]
    text = "".join(answer_tokens(generation.text_tokens))
    choice = captured["choices"][0]
    choices = [_whole_choice(choice, index, text, generation) for index in range(generation.choices)]
    usage = {**captured["usage"], **_usage(generation, generation.total_completion_tokens)}
    return compact({**captured, **_head(generation), "choices": choices, "usage": usage})


def stream_events(generation: Generation, captures: Captures) -> Iterator[StreamEvent]:
    """The events of a streamed chat or completions reply, one token each, `data: [DONE]` last."""
    chunks = _Chunks(generation, captures)
    if generation.kind == "chat":
        yield from (StreamEvent(chunks.role(index), 0) for index in range(generation.choices))
    tokens = answer_tokens(generation.text_tokens)
    stops = generation.finish_reason == "stop"
    for at, token in enumerate(tokens, start=1):
        ends = not stops and at == len(tokens)
        for index in range(generation.choices):
            yield StreamEvent(chunks.finish(index, token) if ends else chunks.token(index, token, at), 1)
    if stops:
        yield from (StreamEvent(chunks.finish(index, ""), 1) for index in range(generation.choices))
    if generation.include_usage:
        yield StreamEvent(chunks.usage(), 0)
    yield StreamEvent(DONE, 0)


class _Chunks:
    """Renders one stream's chunks. The parts that all chunks share are rendered once."""

    def __init__(self, generation: Generation, captures: Captures) -> None:
        self._generation = generation
        self._head = _head(generation)
        self._field = _TEXT_FIELD[generation.kind]
        if generation.kind == "chat":
            name = "chat_stream_usage_continuous" if generation.continuous_usage else "chat_stream_usage"
            self._role, self._token, self._stop, self._usage = captures.streams[name]
            self._length = captures.streams["chat_stream_n2_usage"][-2]
        else:
            self._token, self._stop, self._usage = captures.streams["completions_stream_usage"]
            self._role = self._length = self._token
        self._fingerprint = captures.streams["chat_stream_nousage"][-1]["system_fingerprint"]
        self._parts = [self._split_token_chunk(index) for index in range(generation.choices)]

    def role(self, index: int) -> bytes:
        return self._event(self._chunk(self._role, index, self._role["choices"][0], 0))

    def token(self, index: int, text: str, at: int) -> bytes:
        if self._generation.continuous_usage:
            choice = self._with_text(self._token["choices"][0], text)
            return self._event(self._chunk(self._token, index, choice, at))
        before, after = self._parts[index]
        return before + json.dumps(text, ensure_ascii=False).encode() + after

    def finish(self, index: int, text: str) -> bytes:
        length = self._generation.finish_reason == "length"
        captured = self._length if length else self._stop
        choice = self._with_text(captured["choices"][0], text) if length else captured["choices"][0]
        choice = {**choice, "finish_reason": self._generation.finish_reason}
        chunk = self._chunk(captured, index, choice, self._generation.completion_tokens)
        # The fingerprint stands on the stream's last chunk, which is the usage chunk where there is one.
        if index == self._generation.choices - 1 and not self._generation.include_usage:
            chunk["system_fingerprint"] = self._fingerprint
        return self._event(chunk)

    def usage(self) -> bytes:
        usage = _usage(self._generation, self._generation.total_completion_tokens)
        return self._event({**self._usage, **self._head, "usage": usage})

    def _split_token_chunk(self, index: int) -> tuple[bytes, bytes]:
        choice = self._with_text(self._token["choices"][0], _SLOT)
        before, after = self._event(self._chunk(self._token, index, choice, 0)).split(_SLOT_JSON.encode())
        return before, after

    def _with_text(self, choice: dict[str, Any], text: str) -> dict[str, Any]:
        if self._generation.kind == "chat":
            return {**choice, "delta": {**choice["delta"], "content": text}}
        return {**choice, "text": text}

    def _chunk(
        self, captured: dict[str, Any], index: int, choice: dict[str, Any], tokens: int
    ) -> dict[str, Any]:
        chunk = {**captured, **self._head, "choices": [{**choice, "index": index}]}
        if self._generation.continuous_usage:
            chunk["usage"] = {**_usage(self._generation, tokens), "completion_tokens_details": None}
        return chunk

    @staticmethod
    def _event(chunk: dict[str, Any]) -> bytes:
        return b"data: " + compact(chunk) + b"\n\n"


def _head(generation: Generation) -> dict[str, Any]:
    return {"id": request_id(generation.kind), "created": int(time.time()), "model": generation.model}


def _usage(generation: Generation, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": generation.prompt_tokens,
        "total_tokens": generation.prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def _whole_choice(captured: dict[str, Any], index: int, text: str, generation: Generation) -> dict[str, Any]:
    choice = {**captured, "index": index, "finish_reason": generation.finish_reason}
    if generation.kind == "chat":
        return {**choice, "message": {**captured["message"], "content": text}}
    return {**choice, "text": text}
