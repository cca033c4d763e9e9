"""Which fields a request may have, and which values: what could harm the engine, the host or other tenants is
refused or bounded, each with its reason. Pure.

The facts behind each rule, by engine version, are in docs/parameters.md.
"""

import difflib
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gateway import checks, constraints, fields, formats
from gateway.endpoints import Endpoint
from gateway.errors import ParameterRefused, UnknownParameter

Count = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
Switch = Annotated[bool, Field(strict=True)]
# These would replace the template, or what is made of it.
_NEVER_ARGUMENTS: Final = frozenset(
    ("chat_template", "conversation", "tokenize", "return_tensors", "return_dict", "padding", "truncation")
)
_LONGEST_NAME = 64  # of a field that is shown in an error, in characters
_INT64 = 2**63


def _no_template(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name in _NEVER_ARGUMENTS:
            raise ValueError(f"{name} would replace the model's template; no plan can allow it")
    return names


class ParameterRules(BaseModel):
    """The `parameters:` part of a plan: what its keys may ask for. Numbers are the most that is taken.

    `n`: answers to each prompt. `prompts`: prompts of one completion; `inputs`: texts to embed or rank.
    `messages`: of a conversation. `tools`, `stop`, `logit_bias`, `bad_words`, `choices`: entries of each.
    `token_ids`: `stop_token_ids` and `allowed_token_ids` may name ids from 0 below this number; 0: none. It
    must not be more than the model's vocabulary: an id beyond it ends vLLM 0.16.
    `media`: parts that are not text, whose addresses the engine fetches.
    `schema_bytes`: of one JSON schema. `constraint_work`: of compiling one constraint, in units of about half
    a millisecond on one core. `nested_repetition`: expressions may repeat what itself repeats.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: Annotated[int, Field(strict=True, ge=1, le=128)] = 4
    prompts: Count = 32
    inputs: Count = 2048
    messages: Count = 2048
    tools: Count = 128
    logprobs: Annotated[int, Field(strict=True, ge=0, le=20)] = 20
    prompt_logprobs: Annotated[int, Field(strict=True, ge=0, le=20)] = 0
    echo: Switch = False
    ignore_eos: Switch = False
    stop: Count = 4
    logit_bias: Count = 256
    bad_words: Count = 64
    token_ids: Count = 0
    media: Switch = False
    schema_bytes: Count = 32_768
    constraint_work: Count = 4_096
    choices: Count = 256
    nested_repetition: Switch = False
    template_arguments: Annotated[tuple[str, ...], AfterValidator(_no_template)] = (
        "enable_thinking",
        "thinking",
        "reasoning_effort",
    )

    @cached_property
    def bounds(self) -> constraints.Bounds:
        """Those of constrained decoding."""
        return constraints.Bounds(
            self.schema_bytes, self.constraint_work, self.choices, self.nested_repetition
        )


def apply(endpoint: Endpoint, body: dict[str, Any], rules: ParameterRules, *, refuse_unknown: bool) -> None:
    """Takes out what the gateway sets itself. Raises ParameterRefused, UnknownParameter or InvalidRequest."""
    known = _BY_ROUTE[endpoint.path]
    own = []
    for name, value in body.items():
        if name in fields.OWN:
            own.append(name)
        elif name not in known:
            _foreign(name, value, rules, known if refuse_unknown else None)
        elif value is not None and (check := known[name]) is not None:
            check(name, value, rules)
    if body.get("tools") is not None:
        formats.tools("tools", body["tools"], body.get("tool_choice"), rules)
    for name in own:
        del body[name]


def _foreign(name: str, value: object, rules: ParameterRules, known: Iterable[str] | None) -> None:
    """A field that the route does not know: what could harm is looked at, though an engine may ignore it."""
    refused = fields.REFUSED.get(name)
    if refused is not None:
        if not any(value is one or (type(value) is type(one) and value == one) for one in refused.harmless):
            raise ParameterRefused(f"`{name}` is not allowed here: {refused.reason}", param=name)
    elif known is not None:
        raise _unknown(name, known)
    elif value is not None and (check := CHECKS.get(name)) is not None:
        check(name, value, rules)


def _unknown(name: str, known: Iterable[str]) -> UnknownParameter:
    fit = len(name) <= _LONGEST_NAME and name.isascii() and name.isprintable()
    near = difflib.get_close_matches(name, known, n=1) if fit else []
    hint = f" Did you mean `{near[0]}`?" if near else ""
    return UnknownParameter(
        f"`{name if fit else 'a field'}` is not a parameter of this route; the engine would ignore it "
        f"silently.{hint}",
        param=name if fit else None,
    )


# Ranges are the engine's own, from which it answers 400 itself: here the message is a clear one.
CHECKS: Mapping[str, checks.Check] = {
    "messages": checks.messages,
    "system": checks.content,
    "input": checks.items,
    "prompt": checks.prompt,
    "query": checks.texts,
    "queries": checks.texts,
    "documents": checks.texts,
    "text_1": checks.texts,
    "text_2": checks.texts,
    "data_1": checks.texts,
    "data_2": checks.texts,
    "n": checks.choices,
    "best_of": checks.choices,
    "temperature": checks.number(0, 100),
    "top_p": checks.number(0, 1),
    "min_p": checks.number(0, 1),
    "top_k": checks.whole(-1, _INT64 - 1),
    "seed": checks.whole(-_INT64, _INT64 - 1),
    "presence_penalty": checks.number(-2, 2),
    "frequency_penalty": checks.number(-2, 2),
    "repetition_penalty": checks.number(0, 100),
    "stop": checks.stop,
    "stop_sequences": checks.stop,
    "bad_words": checks.bad_words,
    "logit_bias": checks.logit_bias,
    "logprobs": checks.logprobs,
    "top_logprobs": checks.logprobs,
    "prompt_logprobs": checks.prompt_logprobs,
    "stop_token_ids": checks.named_ids,
    "allowed_token_ids": checks.named_ids,
    # Its upper bound is the request's own output, which the policy knows.
    "min_tokens": checks.whole(0, _INT64 - 1),
    "thinking_token_budget": checks.whole(-1, _INT64 - 1),
    "top_n": checks.whole(0, _INT64 - 1),
    "dimensions": checks.whole(1, 1_000_000),
    "echo": checks.only_if(lambda rules: rules.echo, "it repeats the prompt in the answer."),
    "ignore_eos": checks.only_if(
        lambda rules: rules.ignore_eos, "the engine would write on to the very end of the output cap."
    ),
    "store": checks.not_kept,
    "add_generation_prompt": checks.boolean,
    "continue_final_message": checks.boolean,
    "add_special_tokens": checks.boolean,
    "return_token_strs": checks.boolean,
    "include_reasoning": checks.boolean,
    "include_stop_str_in_output": checks.boolean,
    "parallel_tool_calls": checks.boolean,
    "response_format": formats.response_format,
    "text": formats.output_format,
    "output_config": formats.output_format,
    "structured_outputs": formats.structured_outputs,
    "chat_template_kwargs": checks.template_arguments,
}
_BY_ROUTE: Mapping[str, Mapping[str, checks.Check | None]] = {
    path: {name: CHECKS.get(name) for name in known} for path, known in fields.KNOWN.items()
} | {
    "/v1/embeddings": {name: CHECKS.get(name) for name in fields.KNOWN["/v1/embeddings"]}
    | {"input": checks.inputs}
}
