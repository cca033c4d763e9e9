"""From a request's body to what will be generated, or to the refusal that the engine would send."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from standin.config import EngineConfig
from standin.replies import Captures, ErrorReply
from standin.text import TEMPLATE_TOKENS, count_tokens

Kind = Literal["chat", "completions", "responses", "messages"]
# The route of each kind.
PATHS: dict[str, Kind] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
# vLLM's own default for /v1/completions; the others go on to the end of the context.
COMPLETIONS_DEFAULT_TOKENS = 16
# Beside `max_tokens`, and before it where both are given.
_OUTPUT_FIELDS: dict[Kind, str] = {"chat": "max_completion_tokens", "responses": "max_output_tokens"}


class RefusedError(Exception):
    """The engine answers with this error instead of generating."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.body)
        self.reply = reply


@dataclass(frozen=True)
class Generation:
    """One admitted request. Token counts are per choice, except `prompt_tokens`, which is the request's."""

    kind: Kind
    model: str
    choices: int
    prompt_tokens: int
    completion_tokens: int
    max_tokens: int
    finish_reason: Literal["stop", "length"]
    stream: bool
    include_usage: bool
    continuous_usage: bool

    @property
    def text_tokens(self) -> int:
        """Tokens with text: a generation that stops by itself ends with a token that has none."""
        return self.completion_tokens - (self.finish_reason == "stop")

    @property
    def total_completion_tokens(self) -> int:
        """Completion tokens of all choices."""
        return self.completion_tokens * self.choices


def parse_json(raw: bytes, content_type: str, captures: Captures) -> dict[str, Any]:
    """The request's JSON object. Raises RefusedError."""
    errors = captures.errors
    if not raw:
        raise RefusedError(errors["err_empty_body"])
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(errors["err_wrong_ctype"])
    try:
        body = json.loads(raw)
    except UnicodeDecodeError:
        raise RefusedError(errors["err_bad_json_utf8"]) from None
    except json.JSONDecodeError as error:
        captured = errors["err_bad_json"]
        message = captured.body["error"]["message"].replace("body.15", f"body.{error.pos}")
        raise RefusedError(captured.with_message(message, param=f"body.{error.pos}")) from None
    if not isinstance(body, dict):
        raise RefusedError(errors["err_json_array"])
    return body


def served_model(body: dict[str, Any], config: EngineConfig, captures: Captures) -> str:
    """The model that answers: the default where the request names none. Raises RefusedError."""
    name = body.get("model") or config.served_model_names[0]
    if name not in config.served_model_names:
        aliases = ", ".join(config.served_model_names)
        message = f"The model `{name}` does not exist. Valid aliases: {aliases}."
        raise RefusedError(captures.errors["err_unknown_model"].with_message(message))
    return str(name)


def plan(kind: Kind, body: dict[str, Any], config: EngineConfig, captures: Captures) -> Generation:
    """Check `body` as the engine does. Raises RefusedError."""
    if kind == "messages":
        with anthropic_errors():
            return _plan(kind, body, config, captures)
    return _plan(kind, body, config, captures)


@contextmanager
def anthropic_errors() -> Iterator[None]:
    """What is refused after the request's fields were found valid has Anthropic's shape on its routes."""
    try:
        yield
    except RefusedError as refused:
        error = refused.reply.body["error"]
        if error["type"] == "Bad Request":
            raise
        body = {"type": "error", "error": {"type": error["type"], "message": error["message"]}}
        raise RefusedError(ErrorReply(refused.reply.status, body)) from None


def prompt_length(prompts: list[str], template: int, config: EngineConfig, captures: Captures) -> int:
    """Tokens of all prompts. Raises RefusedError where they leave no room."""
    tokens = sum(count_tokens(prompt) + template for prompt in prompts)
    if tokens >= config.max_model_len:
        raise RefusedError(_context_too_long(tokens, config, captures))
    return tokens


def _plan(kind: Kind, body: dict[str, Any], config: EngineConfig, captures: Captures) -> Generation:
    prompts = prompts_of(kind, body, captures)
    _check_parameters(body, captures)
    model = served_model(body, config, captures)
    template = 0 if kind == "completions" else TEMPLATE_TOKENS
    prompt_tokens = prompt_length(prompts, template, config, captures)
    room = config.max_model_len - prompt_tokens
    max_tokens = min(_asked_tokens(kind, body, config, captures), room)
    wanted = max_tokens + 1 if body.get("ignore_eos") else config.tokens
    options = body.get("stream_options") or {}
    include_usage = bool(options.get("include_usage"))
    return Generation(
        kind=kind,
        model=model,
        choices=len(prompts) * int(body.get("n") or 1) if kind in ("chat", "completions") else 1,
        prompt_tokens=prompt_tokens,
        completion_tokens=min(max_tokens, wanted),
        max_tokens=max_tokens,
        finish_reason="length" if max_tokens < wanted else "stop",
        stream=bool(body.get("stream")),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options.get("continuous_usage_stats")),
    )


def prompts_of(kind: Kind, body: dict[str, Any], captures: Captures) -> list[str]:
    """The texts that the engine would read. Raises RefusedError."""
    if kind == "completions":
        return _prompts(body, captures)
    if kind == "responses":
        if "input" not in body:
            raise RefusedError(_missing("input", len(body), captures))
        return [_text([body.get("instructions"), body["input"]])]
    if kind == "messages" and not {"messages", "max_tokens"} <= body.keys():
        raise RefusedError(captures.errors["err_messages_missing"])
    return [_text([body.get("system"), chat_messages(body, captures)])]


def chat_messages(body: dict[str, Any], captures: Captures) -> list[Any]:
    """The messages. Raises RefusedError."""
    messages = body.get("messages")
    if "messages" not in body:
        raise RefusedError(_missing("messages", len(body), captures))
    if not isinstance(messages, list):
        raise RefusedError(captures.errors["err_messages_wrong_type"])
    if not messages:
        raise RefusedError(captures.errors["err_empty_messages"])
    return messages


def _text(value: object) -> str:
    """All text in messages, items, or their parts."""
    if isinstance(value, list):
        return " ".join(_text(one) for one in value)
    if isinstance(value, dict):
        return _text(value.get("content") or value.get("text") or "")
    return str(value or "")


def _prompts(body: dict[str, Any], captures: Captures) -> list[str]:
    prompt = body.get("prompt")
    if prompt is None:
        raise RefusedError(_missing("prompt", len(body), captures))
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        return [one if isinstance(one, str) else " ".join(map(str, one)) for one in prompt]
    return [" ".join(map(str, prompt)) if isinstance(prompt, list) else str(prompt)]


def _missing(field: str, fields: int, captures: Captures) -> ErrorReply:
    captured = captures.errors["err_missing_messages"]
    message = captured.body["error"]["message"]
    message = message.replace("messages", field).replace("of 1 items", f"of {fields} items")
    return captured.with_message(message, param=f"body.{field}")


def _check_parameters(body: dict[str, Any], captures: Captures) -> None:
    errors = captures.errors
    temperature = body.get("temperature")
    if isinstance(temperature, str):
        captured = errors["err_temperature_str"]
        message = captured.body["error"]["message"].replace("'hot'", repr(temperature))
        raise RefusedError(captured.with_message(message))
    if temperature is not None and temperature < 0:
        value = f"{float(temperature)}"
        message = f"temperature must be non-negative, got {value}. (parameter=temperature, value={value})"
        raise RefusedError(errors["err_temperature"].with_message(message))
    if body.get("n") is not None and body["n"] < 1:
        raise RefusedError(errors["err_n_zero"].with_message(f"n must be at least 1, got {body['n']}."))
    if body.get("stream_options") is not None and not body.get("stream"):
        raise RefusedError(errors["err_stream_options_nostream"])


def _asked_tokens(kind: Kind, body: dict[str, Any], config: EngineConfig, captures: Captures) -> int:
    asked = body.get(_OUTPUT_FIELDS.get(kind, ""))
    asked = body.get("max_tokens") if asked is None and kind != "responses" else asked
    if asked is None:
        return COMPLETIONS_DEFAULT_TOKENS if kind == "completions" else config.max_model_len
    tail = f"(parameter=max_tokens, value={asked})"
    if asked < 1:
        message = f"max_tokens must be at least 1, got {asked}. {tail}"
        raise RefusedError(captures.errors["err_max_tokens_negative"].with_message(message))
    if asked > config.max_model_len:
        message = (
            f"max_tokens={asked} cannot be greater than max_model_len={config.max_model_len}. "
            f"Please request fewer output tokens. {tail}"
        )
        raise RefusedError(captures.errors["err_max_tokens_too_big"].with_message(message))
    return int(asked)


def _context_too_long(prompt_tokens: int, config: EngineConfig, captures: Captures) -> ErrorReply:
    captured = captures.errors["err_context_too_long"]
    message = captured.body["error"]["message"].replace("2048 tokens", f"{config.max_model_len} tokens")
    return captured.with_message(message.replace("2049", str(prompt_tokens)))
