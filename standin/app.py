"""The stand-in as one ASGI application."""

import asyncio
import contextlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

from standin.answers import stream_events, whole_body
from standin.config import EngineConfig
from standin.counting import count_tokens_body, tokenize_body
from standin.embeddings import embeddings_body, rerank_body, score_body
from standin.generation import PATHS, Generation, Kind, RefusedError, parse_json, plan, served_model
from standin.metrics import MetricsPage
from standin.render import compact
from standin.replies import VERSION, Captures, ErrorReply

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Count = Callable[[dict[str, Any], EngineConfig, Captures], bytes]
Embed = Callable[[dict[str, Any], str, Captures], tuple[bytes, int]]
Answer = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
PLAIN = b"text/plain; version=0.0.4; charset=utf-8"


class Engine:
    """Answers one client request per call, as vLLM would."""

    def __init__(self, config: EngineConfig, captures: Captures) -> None:
        self._config = config
        self._captures = captures
        self._metrics = MetricsPage(captures.metrics, config)
        self._models = self._models_body()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"no {scope['type']} here")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path, method = scope["path"], scope["method"]
        if not self._authorised(path, headers):
            await self._error(send, self._captures.errors["err_401_no_key"])
            return
        posted = self._posted(path)
        if posted is None:
            await self._page(path, method, send)
        elif method != "POST":
            await self._error(send, self._captures.errors["err_405"], (b"allow", b"POST"))
        else:
            await self._post(posted, headers, receive, send)

    def _posted(self, path: str) -> Answer | None:
        answers: Mapping[str, Answer] = {
            **{path: partial(self._generate, kind) for path, kind in PATHS.items()},
            "/v1/messages/count_tokens": partial(self._count, count_tokens_body),
            "/tokenize": partial(self._count, tokenize_body),
        }
        if self._config.embeddings:
            answers = {
                **answers,
                "/v1/embeddings": partial(self._embed, embeddings_body),
                "/v1/rerank": partial(self._embed, rerank_body),
                "/v1/score": partial(self._embed, score_body),
            }
        return answers.get(path)

    async def _post(self, answer: Answer, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        raw = await _read(receive)
        if raw is None:
            return
        try:
            await answer(parse_json(raw, headers.get("content-type", ""), self._captures), receive, send)
        except RefusedError as refused:
            await self._error(send, refused.reply)

    async def _page(self, path: str, method: str, send: Send) -> None:
        pages: Mapping[str, tuple[bytes, Callable[[], bytes]]] = {
            "/health": (JSON, bytes),
            "/version": (JSON, lambda: compact({"version": VERSION})),
            "/v1/models": (JSON, lambda: self._models),
            "/metrics": (PLAIN, self._metrics.render),
        }
        if path not in pages:
            await self._error(send, self._captures.errors["err_404"])
        elif method not in {"GET", "HEAD"}:
            await self._error(send, self._captures.errors["err_405"], (b"allow", b"GET"))
        else:
            content_type, body = pages[path]
            await _reply(send, 200, body(), content_type)

    async def _generate(self, kind: Kind, body: dict[str, Any], receive: Receive, send: Send) -> None:
        generation = plan(kind, body, self._config, self._captures)
        gone = asyncio.create_task(_disconnected(receive))
        self._metrics.started()
        try:
            answer = self._stream if generation.stream else self._whole
            await answer(generation, gone, send)
        finally:
            self._metrics.ended()
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _whole(self, generation: Generation, gone: asyncio.Task[None], send: Send) -> None:
        started = time.monotonic()
        await asyncio.wait({gone}, timeout=self._config.delay * generation.completion_tokens)
        if gone.done():
            return
        self._finished(generation, started, started + self._config.delay)
        self._metrics.tokens(generation.prompt_tokens, generation.total_completion_tokens)
        await _reply(send, 200, whole_body(generation, self._captures), JSON)

    async def _stream(self, generation: Generation, gone: asyncio.Task[None], send: Send) -> None:
        started = time.monotonic()
        first = started + self._config.delay
        await send({"type": "http.response.start", "status": 200, "headers": _headers(EVENTS, None)})
        self._metrics.tokens(generation.prompt_tokens, 0)
        for event in stream_events(generation, self._captures):
            await _pause(gone, self._config.delay * event.tokens)
            if gone.done():
                return
            self._metrics.tokens(0, event.tokens)
            await send({"type": "http.response.body", "body": event.data, "more_body": True})
        self._finished(generation, started, first)
        await send({"type": "http.response.body", "body": b""})

    async def _embed(self, embed: Embed, body: dict[str, Any], receive: Receive, send: Send) -> None:  # noqa: ARG002 - an Answer
        model = served_model(body, self._config, self._captures)
        reply, tokens = embed(body, model, self._captures)
        self._metrics.tokens(tokens, 0)
        await _reply(send, 200, reply, JSON)

    async def _count(self, count: Count, body: dict[str, Any], receive: Receive, send: Send) -> None:  # noqa: ARG002 - an Answer
        await _reply(send, 200, count(body, self._config, self._captures), JSON)

    def _finished(self, generation: Generation, started: float, first: float) -> None:
        self._metrics.finished(generation, time.monotonic() - started, first - started)

    def _authorised(self, path: str, headers: Mapping[str, str]) -> bool:
        if self._config.api_key is None or not path.startswith("/v1"):
            return True
        expected = f"Bearer {self._config.api_key}"
        return hmac.compare_digest(headers.get("authorization", "").encode(), expected.encode())

    def _models_body(self) -> bytes:
        captured = self._captures.bodies["models"]
        fresh = {"created": int(time.time()), "max_model_len": self._config.max_model_len}
        models = [{**captured["data"][0], **fresh, "id": name} for name in self._config.served_model_names]
        return compact({**captured, "data": models})

    async def _error(self, send: Send, reply: ErrorReply, *headers: tuple[bytes, bytes]) -> None:
        await _reply(send, reply.status, compact(reply.body), JSON, *headers)


async def _read(receive: Receive) -> bytes | None:
    """The request's whole body; None if the client left before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _pause(gone: asyncio.Task[None], seconds: float) -> None:
    """Wait `seconds`, less if the client leaves. Also 0 seconds let the other requests on."""
    if seconds:
        await asyncio.wait({gone}, timeout=seconds)
    else:
        await asyncio.sleep(0)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _headers(content_type: bytes, length: int | None) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", content_type), (b"vary", b"Origin")]
    return headers if length is None else [(b"content-length", b"%d" % length), *headers]


async def _reply(
    send: Send, status: int, body: bytes, content_type: bytes, *extra: tuple[bytes, bytes]
) -> None:
    headers = [*_headers(content_type, len(body)), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
