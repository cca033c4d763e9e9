"""The tables of docs/parameters.md that are written from the code: see docs/generate.py."""

from collections.abc import Mapping

from gateway.fields import KNOWN, OWN, REFUSED
from gateway.parameters import ParameterRules

_ASKS_NOTHING: Mapping[object, str] = {None: "null", False: "false", True: "true"}
# What each rule of a plan is; in this order on the page. "Most" is per request.
_RULES = {
    "n": "most answers to each prompt, `n` or `best_of`",
    "prompts": "most prompts of one completion: each is a request of its own to the engine",
    "inputs": "most texts to embed or to rank",
    "messages": "most messages of a conversation, or items of `input`",
    "tools": "most tools",
    "logprobs": "most alternatives per token, `logprobs` and `top_logprobs`",
    "prompt_logprobs": "the same for the prompt, which it repeats; it passes by the prefix cache",
    "echo": "whether `echo` may repeat the prompt",
    "ignore_eos": "whether an answer may be made to go on to its cap",
    "stop": "most stop sequences, `stop` and `stop_sequences`, each of 1 to 256 characters",
    "logit_bias": "most entries of `logit_bias`, each from -100 to 100",
    "bad_words": "most `bad_words`",
    "token_ids": "`stop_token_ids` and `allowed_token_ids` may hold ids below this; 0: none. Never more than "
    "the model's vocabulary: an id beyond it ends vLLM 0.16.0",
    "media": "whether prompts may hold images, audio and files, which the engine fetches from wherever they "
    "point: set `allowed-media-domains` in the engine's profile first",
    "schema_bytes": "bytes of one JSON schema",
    "constraint_work": "work of compiling one constraint, in units of about half a millisecond on one core",
    "choices": "most entries of `structured_outputs.choice`",
    "nested_repetition": "whether an expression may repeat what itself repeats",
    "template_arguments": "names that `chat_template_kwargs` may set; none can be that replaces the template",
}


def _code(names: object) -> str:
    assert isinstance(names, list | tuple | set | frozenset)
    return " ".join(f"`{name}`" for name in sorted(names))


def _default(value: object) -> str:
    if isinstance(value, tuple):
        return _code(value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def plan_table() -> str:
    """Each rule of a plan with its default. Raises KeyError for one that has no words here."""
    rows = [
        f"| `{name}` | {_default(rule.default)} | {_RULES[name]} |\n"
        for name, rule in ParameterRules.model_fields.items()
    ]
    return "| field | default | what |\n|---|---|---|\n" + "".join(rows)


def refused_table() -> str:
    """Fields that no plan allows, by reason; and the values that pass, because they ask for nothing."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for name, refused in REFUSED.items():
        passes = ", ".join(f"`{_ASKS_NOTHING.get(one, one)!s}`" for one in map(_hashable, refused.harmless))
        by_reason.setdefault((refused.reason, passes), []).append(name)
    rows = [f"| {_code(names)} | {reason} | {passes} |\n" for (reason, passes), names in by_reason.items()]
    return "| fields | why | what passes |\n|---|---|---|\n" + "".join(rows)


def _hashable(value: object) -> object:
    return str(value) if isinstance(value, list) else value


def routes_table() -> str:
    """The fields that each route knows, less those that the gateway sets itself."""
    rows = [f"| `{path}` | {_code(known - OWN)} |\n" for path, known in KNOWN.items()]
    return "| route | fields |\n|---|---|\n" + "".join(rows)
