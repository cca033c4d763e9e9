"""Token usage as the engine reports it, read from the bytes that pass."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import jiter

USAGE_KEY = b'"usage":{'
_WORD = re.compile(r"[a-z_]{1,40}")
_QUOTED = re.compile(rb'([a-z_]{1,40})"')


@dataclass(frozen=True, slots=True)
class UsageRule:
    """How a route's replies tell their tokens and why they ended.

    `prompt` and `completion` are keys of the `usage` object, `finish` is the key of the reason. Both stand at
    the top level of a whole reply, and in a stream in the object that `inside` names or, where that is empty,
    at the top level of the event.

    `echoes`: a reply repeats objects of the client's (a tool's schema, a document), which could hold such
    keys too: it is parsed. Other replies hold the client's text in strings alone, where a key's quotes are
    escaped: the last such key is the engine's own.
    """

    prompt: str
    completion: str
    finish: str
    inside: str = ""
    echoes: bool = False
    finish_key: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "finish_key", b'"%s":"' % self.finish.encode())


COMPLETIONS_USAGE = UsageRule("prompt_tokens", "completion_tokens", "finish_reason")
RESPONSES_USAGE = UsageRule("input_tokens", "output_tokens", "status", inside="response", echoes=True)
# A stream's first event, message_start, has a usage object inside `message`: of a prompt without an answer.
MESSAGES_USAGE = UsageRule("input_tokens", "output_tokens", "stop_reason", echoes=True)
# A ranking repeats its documents.
RANKING_USAGE = UsageRule("prompt_tokens", "completion_tokens", "finish_reason", echoes=True)


class Usage(NamedTuple):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int

    @classmethod
    def of(cls, value: object, rule: UsageRule = COMPLETIONS_USAGE) -> "Usage | None":
        """From a `usage` object; None where it is not one. Embeddings report no completion tokens."""
        if not isinstance(value, dict):
            return None
        prompt, completion = value.get(rule.prompt), value.get(rule.completion) or 0
        if not _is_count(prompt) or not _is_count(completion):
            return None
        return cls(prompt, completion)


class Told(NamedTuple):
    """What a reply says of itself."""

    usage: Usage | None = None
    finish_reason: str | None = None


def _is_count(value: object) -> TypeGuard[int]:
    """Whether a counter may be raised by it: one that is negative or beyond 64 bits is a broken reply."""
    return type(value) is int and 0 <= value < 2**63


def read_reply(body: bytes, rule: UsageRule) -> Told:
    """From a whole JSON reply, or from the end of one that is too large to be kept."""
    if rule.echoes:
        try:
            payload = jiter.from_json(body)
        except ValueError:  # only its end: then the last such key has to do
            payload = None
        if isinstance(payload, dict):
            return Told(Usage.of(payload.get("usage"), rule), word(payload.get(rule.finish)))
    return Told(find_usage(body, rule), find_finish_reason(body, rule))


def read_event(payload: Mapping[str, Any], rule: UsageRule) -> Told:
    """From a parsed event of a stream."""
    if rule is COMPLETIONS_USAGE:
        return Told(Usage.of(payload.get("usage"), rule))
    told = payload.get(rule.inside) if rule.inside else payload
    if not isinstance(told, dict):
        return Told()
    ends = told.get("delta") if not rule.inside else told
    reason = ends.get(rule.finish) if isinstance(ends, dict) else None
    return Told(Usage.of(told.get("usage"), rule), word(reason))


def word(value: object) -> str | None:
    """A reason as the engine names it; None for what is no plain word."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


def find_usage(body: bytes, rule: UsageRule = COMPLETIONS_USAGE) -> Usage | None:
    """By the last such key, without parsing all of it."""
    at = body.rfind(USAGE_KEY)
    if at < 0:
        return None
    start = at + len(USAGE_KEY) - 1
    try:
        # What follows the object is the rest of the reply: partial mode takes the object and leaves that.
        return Usage.of(jiter.from_json(body[start : start + 1024], partial_mode=True), rule)
    except ValueError:
        return None


def find_finish_reason(body: bytes, rule: UsageRule = COMPLETIONS_USAGE) -> str | None:
    """Why the last choice ended, by the last such key of an event or a reply."""
    at = body.rfind(rule.finish_key)
    if at < 0:
        return None
    found = _QUOTED.match(body, at + len(rule.finish_key))
    return found[1].decode("ascii") if found else None
