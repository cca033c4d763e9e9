"""/v1/embeddings, for a stand-in that plays an embedding model."""

import base64
import hashlib
import struct
import time
from typing import Any

from standin.render import compact, request_id
from standin.text import count_tokens

DIMENSIONS = 8


def embeddings_body(body: dict[str, Any], model: str) -> tuple[bytes, int]:
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


def _vector(text: str, *, as_base64: bool) -> str | list[float]:
    digest = hashlib.sha256(text.encode()).digest()
    values = [byte / 255 - 0.5 for byte in digest[:DIMENSIONS]]
    return base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *values)).decode() if as_base64 else values
