"""Token usage as the engine reports it, read from the bytes that pass."""

import re
from dataclasses import dataclass
from typing import TypeGuard

import jiter

USAGE_KEY = b'"usage":{'
FINISH_KEY = b'"finish_reason":"'
_FINISH = re.compile(rb'"finish_reason":"([a-z_]{1,40})"')


@dataclass(frozen=True, slots=True)
class UsageRule:
    """How a route's replies name their tokens: the keys of the `usage` object. It stands at the top level of
    a whole reply, and in a stream's event at the top level or inside the object that `inside` names.
    """

    prompt: str
    completion: str
    inside: str | None = None


COMPLETIONS_USAGE = UsageRule("prompt_tokens", "completion_tokens")
RESPONSES_USAGE = UsageRule("input_tokens", "output_tokens", inside="response")
MESSAGES_USAGE = UsageRule("input_tokens", "output_tokens", inside="message")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int

    @classmethod
    def of(cls, value: object) -> "Usage | None":
        """From a `usage` object; None where it is not one. Embeddings report no completion tokens."""
        if not isinstance(value, dict):
            return None
        prompt, completion = value.get("prompt_tokens"), value.get("completion_tokens") or 0
        if not _is_count(prompt) or not _is_count(completion):
            return None
        return cls(prompt, completion)


def _is_count(value: object) -> TypeGuard[int]:
    """Whether a counter may be raised by it: one that is negative or beyond 64 bits is a broken reply."""
    return type(value) is int and 0 <= value < 2**63


def find_usage(body: bytes) -> Usage | None:
    """From a whole JSON reply, without parsing all of it: the key cannot stand inside a string, its quotes
    would be escaped.
    """
    at = body.rfind(USAGE_KEY)
    if at < 0:
        return None
    start = at + len(USAGE_KEY) - 1
    try:
        # What follows the object is the rest of the reply: partial mode takes the object and leaves that.
        return Usage.of(jiter.from_json(body[start : start + 1024], partial_mode=True))
    except ValueError:
        return None


def find_finish_reason(body: bytes) -> str | None:
    """Why the last choice ended, from an event or a whole reply."""
    at = body.rfind(FINISH_KEY)
    found = _FINISH.match(body, at) if at >= 0 else None
    return found[1].decode("ascii") if found else None
