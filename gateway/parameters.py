"""Which fields a request may have, and which values: what could harm the engine, the host or other tenants is
refused or bounded, each with its reason. Pure.

The facts behind each rule, by engine version, are in docs/parameters.md.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final

import jiter
from pydantic import BaseModel, ConfigDict, Field

from gateway import constraints, fields
from gateway.endpoints import Endpoint
from gateway.errors import InvalidRequest, ParameterRefused, UnknownParameter

Check = Callable[[str, Any, "ParameterRules"], None]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
# OpenAI's own bound for a stop sequence is not documented; nothing longer is of use.
LONGEST_STOP = 256
_TEXT_PARTS: Final = frozenset(
    (
        "text",
        "input_text",
        "output_text",
        "refusal",
        "thinking",
        "redacted_thinking",
        "reasoning",
        "reasoning_text",
        "summary_text",
        "tool_use",
        "tool_result",
        "message",
        "function_call",
        "function_call_output",
    )
)


class ParameterRules(BaseModel):
    """The `parameters:` part of a plan: what its keys may ask for. Numbers are the most that is taken.

    `token_ids`: `stop_token_ids` and `allowed_token_ids` may name ids from 0 below this number; 0: none. It
    must not be more than the model's vocabulary: an id beyond it kills vLLM 0.16.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: Annotated[int, Field(ge=1, le=128)] = 4
    prompts: Count = 128
    messages: Count = 2048
    tools: Count = 128
    logprobs: Annotated[int, Field(ge=0, le=20)] = 20
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    echo: bool = False
    ignore_eos: bool = False
    stop: Count = 16
    logit_bias: Count = 256
    bad_words: Count = 64
    token_ids: Count = 0
    media: bool = False
    grammar: bool = False
    schema_bytes: Count = 32_768
    schema_nodes: Count = 2_000
    regex_chars: Count = 512
    repetitions: Count = 1_000
    choices: Count = 256
    template_arguments: tuple[str, ...] = ("enable_thinking", "thinking", "reasoning_effort")

    @property
    def bounds(self) -> constraints.Bounds:
        """Those of constrained decoding."""
        return constraints.Bounds(
            self.schema_bytes, self.schema_nodes, self.regex_chars, self.repetitions, self.choices
        )


def apply(endpoint: Endpoint, body: dict[str, Any], rules: ParameterRules, *, refuse_unknown: bool) -> None:
    """Takes out what the gateway sets itself. Raises ParameterRefused, UnknownParameter or InvalidRequest."""
    checks = _BY_ROUTE[endpoint.path]
    own = []
    for name, value in body.items():
        if name in fields.OWN:
            own.append(name)
        elif name not in checks:
            _foreign(name, value, rules, checks if refuse_unknown else None)
        elif value is not None and (check := checks[name]) is not None:
            check(name, value, rules)
    for name in own:
        del body[name]


def _foreign(name: str, value: object, rules: ParameterRules, known: Iterable[str] | None) -> None:
    """A field that the route does not know: what could harm is looked at, though an engine may ignore it."""
    refused = fields.REFUSED.get(name)
    if refused is not None:
        if value not in refused.harmless:
            raise ParameterRefused(f"`{name}` is not allowed here: {refused.reason}", param=name)
    elif known is not None:
        raise _unknown(name, known)
    elif (check := _CHECKS.get(name)) is not None:
        check(name, value, rules)


def _unknown(name: str, known: Iterable[str]) -> UnknownParameter:
    shown = name if name.isascii() and name.isprintable() and len(name) <= 64 else "a field"
    near = difflib.get_close_matches(name, known, n=1) if len(name) <= 64 else []
    hint = f" Did you mean `{near[0]}`?" if near else ""
    return UnknownParameter(
        f"`{shown}` is not a parameter of this route; the engine would ignore it silently.{hint}",
        param=shown if shown == name else None,
    )


def _list(name: str, value: object, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidRequest(f"`{name}` must be a list.", param=name)
    if len(value) > most:
        raise ParameterRefused(f"`{name}` has more than {most} entries, the most allowed here.", param=name)
    return value


def _whole(name: str, value: object, low: int, high: int, why: str) -> int:
    if type(value) is not int:
        raise InvalidRequest(f"`{name}` must be a whole number.", param=name)
    if not low <= value <= high:
        raise ParameterRefused(f"`{name}` must be from {low} to {high}: {why}", param=name)
    return value


def _messages(name: str, value: object, rules: ParameterRules) -> None:
    for message in _list(name, value, rules.messages):
        content = message.get("content") if isinstance(message, dict) else None
        if type(content) is list and not rules.media:
            _text_only(name, content)


def _input(name: str, value: object, rules: ParameterRules) -> None:
    """What /v1/responses answers, or what /v1/embeddings embeds."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        _messages(name, value, rules)
    else:
        _prompt(name, value, rules)


def _text_only(name: str, parts: list[Any]) -> None:
    for part in parts:
        if not isinstance(part, dict):
            continue
        if part.get("type", "text") not in _TEXT_PARTS:
            raise ParameterRefused(
                f"`{name}` holds a part that is not text: images, audio and files are not taken here, for an "
                "engine would fetch what they point to.",
                param=name,
            )
        inner = part.get("content")
        if type(inner) is list:
            _text_only(name, inner)


def _prompt(name: str, value: object, rules: ParameterRules) -> None:
    """One text, one list of token ids, or a list of either."""
    if isinstance(value, str):
        return
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"`{name}` must be a text, or a list that is not empty.", param=name)
    if type(value[0]) is int:
        _token_ids(name, value)
        return
    for one in _list(name, value, rules.prompts):
        if isinstance(one, list):
            _token_ids(name, one)
        elif not isinstance(one, str):
            raise InvalidRequest(f"`{name}` must hold texts or lists of token ids.", param=name)


def _token_ids(name: str, ids: list[Any]) -> None:
    if not ids:
        raise InvalidRequest(f"`{name}` holds an empty list.", param=name)
    for one in ids:
        if type(one) is not int or one < 0:
            raise ParameterRefused(
                f"`{name}` holds a token id that is not a whole number from 0: it can end the engine.",
                param=name,
            )


def _named_ids(name: str, value: object, rules: ParameterRules) -> None:
    ids = _list(name, value, rules.stop if rules.token_ids else 0) if value != [] else []
    for one in ids:
        _whole(name, one, 0, rules.token_ids - 1, "an id beyond the model's vocabulary can end the engine.")


def _stop(name: str, value: object, rules: ParameterRules) -> None:
    for one in [value] if isinstance(value, str) else _list(name, value, rules.stop):
        if not isinstance(one, str) or not 1 <= len(one) <= LONGEST_STOP:
            raise InvalidRequest(f"`{name}` must hold texts of 1 to {LONGEST_STOP} characters.", param=name)


def _bad_words(name: str, value: object, rules: ParameterRules) -> None:
    for one in _list(name, value, rules.bad_words):
        if not isinstance(one, str) or not one.strip() or len(one) > LONGEST_STOP:
            raise ParameterRefused(
                f"`{name}` must hold words of 1 to {LONGEST_STOP} characters: an empty one fails.",
                param=name,
            )


def _logit_bias(name: str, value: object, rules: ParameterRules) -> None:
    if not isinstance(value, dict):
        raise InvalidRequest(f"`{name}` must be an object.", param=name)
    if len(value) > rules.logit_bias:
        raise ParameterRefused(f"`{name}` has more than {rules.logit_bias} entries.", param=name)
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 9):
            raise InvalidRequest(f"`{name}` must have token ids as its keys.", param=name)
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise InvalidRequest(f"`{name}` must have numbers from -100 to 100 as its values.", param=name)


def _logprobs(name: str, value: object, rules: ParameterRules) -> None:
    if not isinstance(value, bool):
        _whole(name, value, 0, rules.logprobs, "more make answers many times larger.")


def _prompt_logprobs(name: str, value: object, rules: ParameterRules) -> None:
    _whole(name, value, 0, rules.prompt_logprobs, "they repeat the prompt and pass by the prefix cache.")


def _choices(name: str, value: object, rules: ParameterRules) -> None:
    if type(value) is not int or value < 1:
        raise InvalidRequest(f"`{name}` must be a whole number from 1.", param=name)
    if value > rules.n:
        raise ParameterRefused(
            f"`{name}` is more than {rules.n}: each answer takes a place of the engine's.", param=name
        )


def _min_tokens(name: str, value: object, rules: ParameterRules) -> None:  # noqa: ARG001 - one signature for all
    # Its upper bound is the request's own output, which the policy knows.
    if type(value) is not int or value < 0:
        raise InvalidRequest(f"`{name}` must be a whole number from 0.", param=name)


def _flag(allowed: Callable[[ParameterRules], bool], reason: str) -> Check:
    def check(name: str, value: object, rules: ParameterRules) -> None:
        if value is not False and not allowed(rules):
            raise ParameterRefused(f"`{name}` is not allowed here: {reason}", param=name)

    return check


def _tools(name: str, value: object, rules: ParameterRules) -> None:
    for tool in _list(name, value, rules.tools):
        if not isinstance(tool, dict):
            raise InvalidRequest(f"`{name}` must hold objects.", param=name)
        if tool.get("type", "function") not in ("function", "custom"):
            raise ParameterRefused(
                f"`{name}` may hold functions alone: the engine's host runs no tools.", param=name
            )
        function = tool.get("function", tool)
        if not isinstance(function, dict):
            raise InvalidRequest(f"`{name}` holds a function that is not an object.", param=name)
        for schema in ("parameters", "input_schema"):
            if function.get(schema) is not None:
                constraints.check_schema(function[schema], rules.bounds, name)


def _response_format(name: str, value: object, rules: ParameterRules) -> None:
    if not isinstance(value, dict):
        raise InvalidRequest(f"`{name}` must be an object.", param=name)
    kind = value.get("type")
    if kind == "json_schema":
        wrapped = value.get("json_schema", value)
        schema = wrapped.get("schema") if isinstance(wrapped, dict) else None
        if schema is None:
            raise InvalidRequest(f"`{name}` of type json_schema needs a schema.", param=name)
        constraints.check_schema(schema, rules.bounds, name)
    elif kind not in ("text", "json_object"):
        if kind == "structural_tag" and rules.grammar:
            return
        raise ParameterRefused(f"`{name}` takes text, json_object and json_schema here.", param=name)


def _text(name: str, value: object, rules: ParameterRules) -> None:
    """The output format of /v1/responses."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"`{name}` must be an object.", param=name)
    if value.get("format") is not None:
        _response_format(name, value["format"], rules)


def _structured(name: str, value: object, rules: ParameterRules) -> None:
    if not isinstance(value, dict):
        raise InvalidRequest(f"`{name}` must be an object.", param=name)
    for kind, asked in value.items():
        if asked is None:
            continue
        if kind == "json":
            constraints.check_schema(_parsed(asked), rules.bounds, f"{name}.json")
        elif kind == "regex":
            constraints.check_regex(asked, rules.bounds, f"{name}.regex")
        elif kind == "choice":
            _choice(f"{name}.choice", asked, rules)
        elif kind == "json_object" and isinstance(asked, bool):
            continue
        elif kind not in ("grammar", "structural_tag") or not rules.grammar:
            raise ParameterRefused(
                f"`{name}` takes json, regex, choice and json_object here: nothing bounds what compiling a "
                "grammar costs.",
                param=name,
            )


def _parsed(schema: object) -> object:
    """A schema that is given as text."""
    if not isinstance(schema, str):
        return schema
    try:
        return jiter.from_json(schema.encode(), allow_inf_nan=False)
    except ValueError:
        return None


def _choice(name: str, value: object, rules: ParameterRules) -> None:
    chosen = _list(name, value, rules.choices)
    if not chosen or not all(isinstance(one, str) and 0 < len(one) <= 1024 for one in chosen):
        raise InvalidRequest(f"`{name}` must hold texts of 1 to 1024 characters.", param=name)


def _template_arguments(name: str, value: object, rules: ParameterRules) -> None:
    if not isinstance(value, dict):
        raise InvalidRequest(f"`{name}` must be an object.", param=name)
    for argument, given in value.items():
        if argument not in rules.template_arguments or not isinstance(given, bool | str | int):
            raise ParameterRefused(
                f"`{name}` may set {', '.join(rules.template_arguments) or 'nothing'}: others change the "
                "prompt behind every check.",
                param=name,
            )


_CHECKS: Mapping[str, Check] = {
    "messages": _messages,
    "input": _input,
    "prompt": _prompt,
    "n": _choices,
    "best_of": _choices,
    "stop": _stop,
    "stop_sequences": _stop,
    "bad_words": _bad_words,
    "logit_bias": _logit_bias,
    "logprobs": _logprobs,
    "top_logprobs": _logprobs,
    "prompt_logprobs": _prompt_logprobs,
    "stop_token_ids": _named_ids,
    "allowed_token_ids": _named_ids,
    "min_tokens": _min_tokens,
    "echo": _flag(lambda rules: rules.echo, "it repeats the prompt in the answer."),
    "ignore_eos": _flag(lambda rules: rules.ignore_eos, "the engine would write to the very end."),
    "tools": _tools,
    "response_format": _response_format,
    "text": _text,
    "structured_outputs": _structured,
    "chat_template_kwargs": _template_arguments,
}
# For each route its fields; None: nothing to check.
_BY_ROUTE: Mapping[str, Mapping[str, Check | None]] = {
    path: {name: None if name in fields.PLAIN else _CHECKS.get(name) for name in known}
    for path, known in fields.KNOWN.items()
}
