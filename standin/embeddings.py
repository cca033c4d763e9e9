"""/v1/embeddings, /v1/rerank and /v1/score, for a stand-in that plays an embedding model."""

import base64
import hashlib
import struct
import time
from typing import Any

from standin.render import compact, request_id
from standin.replies import Captures
from standin.text import count_tokens

DIMENSIONS = 8


def embeddings_body(body: dict[str, Any], model: str, captures: Captures) -> tuple[bytes, int]:  # noqa: ARG001 - as the others
    """The reply to an embeddings request and its prompt tokens. The vectors depend on the text alone."""
    given = body.get("input", "")
    texts = [str(text) for text in given] if isinstance(given, list) else [str(given)]
    as_base64 = body.get("encoding_format") == "base64"
    tokens = sum(count_tokens(text) for text in texts)
    counts = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    data = [
        {"index": index, "object": "embedding", "embedding": _vector(text, as_base64=as_base64)}
        for index, text in enumerate(texts)
    ]
    head = {"id": request_id("embeddings"), "object": "list", "created": int(time.time()), "model": model}
    return compact({**head, "data": data, "usage": {**counts, **details}}), tokens


def rerank_body(body: dict[str, Any], model: str, captures: Captures) -> tuple[bytes, int]:
    """The reply to a rerank request, best first, and its prompt tokens."""
    documents = [str(document) for document in body.get("documents", ())]
    captured = captures.bodies["rerank"]
    scored = [
        {
            **captured["results"][0],
            "index": index,
            "document": {**captured["results"][0]["document"], "text": text},
            "relevance_score": _score(text),
        }
        for index, text in enumerate(documents)
    ]
    best = sorted(scored, key=lambda result: -result["relevance_score"])[: body.get("top_n") or None]
    tokens = sum(count_tokens(text) for text in [str(body.get("query", "")), *documents])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    head = {"id": request_id("score"), "model": model, "usage": usage, "results": best}
    return compact({**captured, **head}), tokens


def score_body(body: dict[str, Any], model: str, captures: Captures) -> tuple[bytes, int]:
    """The reply to a score request and its prompt tokens."""
    given = body.get("text_2", "")
    texts = [str(text) for text in given] if isinstance(given, list) else [str(given)]
    captured = captures.bodies["score"]
    data = [
        {**captured["data"][0], "index": index, "score": _score(text)} for index, text in enumerate(texts)
    ]
    tokens = sum(count_tokens(text) for text in [str(body.get("text_1", "")), *texts])
    usage = {**captured["usage"], "prompt_tokens": tokens, "total_tokens": tokens}
    head = {"id": request_id("score"), "created": int(time.time()), "model": model}
    return compact({**captured, **head, "data": data, "usage": usage}), tokens


def _score(text: str) -> float:
    """Between 0 and 1, by the text alone."""
    return hashlib.sha256(text.encode()).digest()[0] / 255


def _vector(text: str, *, as_base64: bool) -> str | list[float]:
    digest = hashlib.sha256(text.encode()).digest()
    values = [byte / 255 - 0.5 for byte in digest[:DIMENSIONS]]
    return base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *values)).decode() if as_base64 else values
