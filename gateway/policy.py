"""From a request's body to what the engine may see. Pure: no I/O, no clock, no state."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jiter
import orjson

from gateway import parameters
from gateway.endpoints import Endpoint
from gateway.errors import (
    BodyNotObject,
    InvalidJSON,
    InvalidMaxTokens,
    InvalidRequest,
    MaxTokensTooLarge,
    MissingModel,
    ModelNotFound,
)
from gateway.parameters import ParameterRules

# What `1e999` becomes; nothing else in a JSON text can.
_INFINITIES = (math.inf, -math.inf)
# Objects and lists of one body. A megabyte can hold half a million; parsing those stops every other request
# for a third of a second.
MAX_CONTAINERS = 50_000
# Strings, also one without an end, so that no text makes it start over; as many at a time as nothing that
# counts stands between: one by one, a megabyte of short ones takes five times as long.
_STRINGS = re.compile(rb'(?:"(?:[^"\\]++|\\.)*+"?[^"\[{]*+)++', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the policy needs to know of one caller. Output and context in tokens.

    `models` maps every name that a client may use to the name that the engine serves. `cache_salt` parts the
    engine's prefix cache by tenant.
    """

    models: Mapping[str, str]
    max_model_len: int
    output_default: int
    output_cap: int
    over_cap: Literal["clamp", "refuse"]
    unknown_fields: Literal["pass", "refuse"] = "refuse"
    parameters: ParameterRules = ParameterRules()  # noqa: RUF009 - frozen
    cache_salt: str = ""


class Allowed(NamedTuple):
    """A body that the engine may see. `max_tokens` is per choice, and set only where the cap changed the
    request; `output_tokens` is the most that all its answers can have together.

    `hide_usage`: the engine is asked for its usage event, the client did not ask and must not see it.
    `prompt_bytes`: the size of the JSON that carries the prompt.
    """

    body: bytes
    model: str
    stream: bool
    hide_usage: bool
    max_tokens: int | None
    output_tokens: int = 0
    prompt_bytes: int = 0


def parse(raw: bytes) -> dict[str, Any]:
    """The body as an object. Raises InvalidJSON or BodyNotObject.

    Refused, because two readers could read them differently: duplicate keys, NaN and infinities, lone
    surrogates, bad UTF-8, and nesting beyond the parser's own bound. And, for its cost, more than
    MAX_CONTAINERS objects and lists.
    """
    if _containers(raw) > MAX_CONTAINERS and _containers(_STRINGS.sub(b"", raw)) > MAX_CONTAINERS:
        raise InvalidJSON(f"The body holds more than {MAX_CONTAINERS} objects and lists.")
    try:
        value = jiter.from_json(raw, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        raise InvalidJSON(f"The body is not valid JSON: {_position(error)}.") from None
    if not isinstance(value, dict):
        raise BodyNotObject("The body must be a JSON object.")
    if _has_infinity(value):
        raise InvalidJSON("The body holds a number that is too large.")
    return value


def decide(endpoint: Endpoint, raw: bytes, rules: Rules) -> Allowed:
    """The body that goes to the engine. Raises an InvalidRequest that says what to change."""
    body = parse(raw)
    model = _model(body, rules)
    body["model"] = model
    stream = _stream(endpoint, body)
    hide_usage = _ask_for_usage(body, stream=stream) if endpoint.usage_option else False
    parameters.apply(endpoint, body, rules.parameters, refuse_unknown=rules.unknown_fields == "refuse")
    max_tokens, output_tokens = _cap_output(endpoint, body, rules) if endpoint.output_fields else (None, 0)
    if endpoint.usage is not None:
        body["cache_salt"] = rules.cache_salt
    try:
        sent = orjson.dumps(body)
    except orjson.JSONEncodeError:
        raise InvalidJSON("The body holds an integer beyond 64 bits.") from None
    return Allowed(sent, model, stream, hide_usage, max_tokens, output_tokens, len(raw))


def _stream(endpoint: Endpoint, body: Mapping[str, Any]) -> bool:
    stream = _flag(body, "stream")
    if stream and not endpoint.streams:
        raise InvalidRequest("This route does not stream.", param="stream")
    return stream


def _model(body: Mapping[str, Any], rules: Rules) -> str:
    name = body.get("model")
    if name is None:
        raise MissingModel("`model` is required. GET /v1/models lists what this key may use.", param="model")
    if not isinstance(name, str):
        raise InvalidRequest("`model` must be a string.", param="model")
    served = rules.models.get(name)
    if served is None:
        raise ModelNotFound("No such model here. GET /v1/models lists what this key may use.", param="model")
    return served


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidRequest(f"`{name}` must be true or false.", param=name)
    return value


def _ask_for_usage(body: dict[str, Any], *, stream: bool) -> bool:
    """Makes the engine end a stream with its usage event; True if the client did not ask for that."""
    options = body.get("stream_options")
    if not stream:
        if options is not None:
            raise InvalidRequest("`stream_options` is only for `stream: true`.", param="stream_options")
        return False
    if options is None:
        options = {}
    if not isinstance(options, dict):
        raise InvalidRequest("`stream_options` must be an object.", param="stream_options")
    asked = _flag(options, "include_usage")
    # Without the usage event, running counts on every chunk are not wanted either; vLLM would send both.
    body["stream_options"] = options | {"include_usage": True} if asked else {"include_usage": True}
    return not asked


def _cap_output(endpoint: Endpoint, body: dict[str, Any], rules: Rules) -> tuple[int | None, int]:
    """Caps every alias so that all answers together stay within the cap. Returns the tokens per answer if it
    changed any, and the most that all answers can have.
    """
    answers, most = _answers(endpoint, body)
    allowed = rules.output_cap // answers
    if allowed < 1:
        raise InvalidRequest(
            f"`{most}` asks for more answers than one request may have output tokens, {rules.output_cap}.",
            param=most,
        )
    given = {name: _tokens(name, body[name]) for name in endpoint.output_fields if body.get(name) is not None}
    if not given:
        default = min(endpoint.output_default or rules.output_default, allowed)
        body[endpoint.output_fields[0]] = default
        _check_least(body, default)
        return default, default * answers
    for name, tokens in given.items():
        if tokens > rules.max_model_len:
            raise MaxTokensTooLarge(
                f"`{name}` is more than the model's whole context, {rules.max_model_len} tokens.",
                param=name,
            )
    asked = max(given.values())
    _check_least(body, min(asked, allowed))
    if asked <= allowed:
        return None, asked * answers
    if rules.over_cap == "refuse":
        name = max(given, key=lambda field: given[field])
        raise MaxTokensTooLarge(f"`{name}` is more than {allowed}, the most per answer here.", param=name)
    body.update({name: min(tokens, allowed) for name, tokens in given.items()})
    return allowed, allowed * answers


def _check_least(body: Mapping[str, Any], output: int) -> None:
    """An engine that must write more than it may waits for ever: vLLM 0.16 hangs."""
    least = body.get("min_tokens")
    if least is not None and least > output:
        raise InvalidRequest(
            f"`min_tokens` is more than the {output} tokens of the answer.", param="min_tokens"
        )


def _answers(endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[int, str]:
    """Answers that one request makes, `n` or `best_of` for each prompt of a list of prompts; and the field
    that asks for most.
    """
    asked = {name: _count(body, name) for name in endpoint.choice_fields}
    choices = max(asked.values(), default=1)
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    asked["prompt"] = prompts
    return choices * prompts, max(asked, key=lambda name: asked[name])


def _count(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidRequest(f"`{name}` must be a whole number from 1.", param=name)
    return value


def _tokens(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidMaxTokens(f"`{name}` must be a whole number.", param=name)
    if value < 1:
        raise InvalidMaxTokens(f"`{name}` must be at least 1.", param=name)
    return value


def _containers(raw: bytes) -> int:
    return raw.count(b"{") + raw.count(b"[")


def _has_infinity(container: dict[str, Any] | list[Any]) -> bool:
    # By exact type, and without a call for what is no container: it sees every value of every body.
    values: Iterable[Any] = container.values() if isinstance(container, dict) else container
    for value in values:
        kind = type(value)
        if kind is float:
            if value in _INFINITIES:
                return True
        elif (kind is dict or kind is list) and _has_infinity(value):
            return True
    return False


def _position(error: ValueError) -> str:
    """The parser's complaint without anything of the body: jiter quotes a duplicate key's name."""
    found = re.fullmatch(r"(.*)( at line \d+ column \d+)", str(error), re.DOTALL)
    if found is None:
        return "unreadable"
    reason, place = found.groups()
    return ("duplicate key" if "duplicate key" in reason else reason) + place
