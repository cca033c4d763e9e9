"""What the value of one field may be, under a plan's rules. Each check raises InvalidRequest for what is
malformed and ParameterRefused, with the reason, for what could harm. Pure.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import InvalidRequest, ParameterRefused

if TYPE_CHECKING:
    from gateway.parameters import ParameterRules

Check = Callable[[str, Any, "ParameterRules"], None]
LONGEST_STOP = 256  # characters
_LONGEST_ARGUMENT = 64  # characters
_TEXT_PARTS: Final = frozenset(
    (
        "text",
        "input_text",
        "output_text",
        "refusal",
        "thinking",
        "redacted_thinking",
        "reasoning_text",
        "summary_text",
        "tool_use",
        "tool_result",
    )
)
# An engine reads these in a part of any type, or of none.
_MEDIA_KEYS: Final = frozenset(
    (
        "uuid",
        "source",
        "file",
        "file_data",
        "file_id",
        "file_url",
        "image_url",
        "image_pil",
        "image_embeds",
        "input_audio",
        "audio_url",
        "audio_embeds",
        "video_url",
        "video_embeds",
        "prompt_embeds",
    )
)
_NEVER_KEYS: Final = frozenset(
    ("uuid", "image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "tool")
)
_NEVER_TYPES: Final = (
    *("image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds"),
    *("tool_addition", "tool_removal"),
)
_ITEMS: Final = frozenset((None, "message", "function_call", "function_call_output", "reasoning"))


def list_of(name: str, value: object, most: int) -> list[Any]:
    """The value, if it is a list that is not too long."""
    if not isinstance(value, list):
        raise InvalidRequest(f"`{name}` must be a list.", param=name)
    if len(value) > most:
        raise ParameterRefused(f"`{name}` has more than {most} entries, the most allowed here.", param=name)
    return value


def object_of(name: str, value: object) -> dict[str, Any]:
    """The value, if it is an object."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"`{name}` must be an object.", param=name)
    return value


def _whole(name: str, value: object, low: int, high: int, why: str) -> None:
    if type(value) is not int:
        raise InvalidRequest(f"`{name}` must be a whole number.", param=name)
    if not low <= value <= high:
        raise ParameterRefused(f"`{name}` must be from {low} to {high}: {why}", param=name)


def number(low: float, high: float) -> Check:
    """A number, whole or not."""

    def check(name: str, value: object, rules: "ParameterRules") -> None:  # noqa: ARG001 - one signature
        kind = type(value)
        if (kind is not float and kind is not int) or not low <= value <= high:  # type: ignore[operator]
            raise InvalidRequest(f"`{name}` must be a number from {low:g} to {high:g}.", param=name)

    return check


def whole(low: int, high: int) -> Check:
    """A whole number."""

    def check(name: str, value: object, rules: "ParameterRules") -> None:  # noqa: ARG001 - one signature
        if type(value) is not int or not low <= value <= high:
            raise InvalidRequest(f"`{name}` must be a whole number from {low} to {high}.", param=name)

    return check


def boolean(name: str, value: object, rules: "ParameterRules") -> None:  # noqa: ARG001 - one signature
    """True or false."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"`{name}` must be true or false.", param=name)


def only_if(allowed: Callable[["ParameterRules"], bool], reason: str) -> Check:
    """A switch that the plan must allow."""

    def check(name: str, value: object, rules: "ParameterRules") -> None:
        boolean(name, value, rules)
        if value and not allowed(rules):
            raise ParameterRefused(f"`{name}` is not allowed here: {reason}", param=name)

    return check


def not_kept(name: str, value: object, rules: "ParameterRules") -> None:
    """`store`: a later request would not find the answer."""
    boolean(name, value, rules)
    if value:
        raise ParameterRefused(f"`{name}` is not allowed here: nothing is kept between requests.", param=name)


def messages(name: str, value: object, rules: "ParameterRules") -> None:
    """A conversation in the words of chat or messages."""
    conversation = list_of(name, value, rules.messages)
    if not conversation:
        raise InvalidRequest(f"`{name}` must not be empty.", param=name)
    for message in conversation:
        if not isinstance(message, dict):
            raise InvalidRequest(f"`{name}` must hold objects.", param=name)
        if type(message.get("content")) is not str:
            content(name, message.get("content"), rules)


def content(name: str, value: object, rules: "ParameterRules") -> None:
    """A text, or a list of parts that are text."""
    if value is None or isinstance(value, str):
        return
    if not isinstance(value, list):
        raise InvalidRequest(f"`{name}` has a content that is no text and no list of parts.", param=name)
    if rules.media:
        _fetched_only(name, value)
    else:
        _text_only(name, value)


def _fetched_only(name: str, parts: list[Any]) -> None:
    """Media that the engine fetches or is given: no tensors, no cached picture of another's by its name
    (its `uuid`), no tools, which stand in `tools`.
    """
    for part in parts:
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if not isinstance(kind, str) or kind in _NEVER_TYPES or not _NEVER_KEYS.isdisjoint(part):
            raise ParameterRefused(f"`{name}` holds a part that no plan allows.", param=name)
        if type(part.get("content")) is list:
            _fetched_only(name, part["content"])


def _text_only(name: str, parts: list[Any]) -> None:
    for part in parts:
        if isinstance(part, str):
            continue
        if not isinstance(part, dict):
            raise InvalidRequest(f"`{name}` has a part that is no object.", param=name)
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in _TEXT_PARTS or not _MEDIA_KEYS.isdisjoint(part):
            raise ParameterRefused(
                f"`{name}` holds a part that is not text, or has no `type`: an engine would fetch what "
                "images, audio and files point to.",
                param=name,
            )
        inner = part.get("content")
        if type(inner) is list:
            _text_only(name, inner)


def items(name: str, value: object, rules: "ParameterRules") -> None:
    """What /v1/responses answers: a text, or a list of items."""
    if isinstance(value, str):
        return
    given = list_of(name, value, rules.messages)
    if not given:
        raise InvalidRequest(f"`{name}` must not be empty.", param=name)
    for item in given:
        if not isinstance(item, dict):
            raise InvalidRequest(f"`{name}` must hold objects.", param=name)
        kind = item.get("type")
        if not (kind is None or isinstance(kind, str)) or kind not in _ITEMS:
            raise ParameterRefused(
                f"`{name}` may hold messages, function calls, their outputs and reasoning: nothing else is "
                "known to the engine, or kept here.",
                param=name,
            )
        for part in ("content", "output", "summary"):
            content(name, item.get(part), rules)


def prompt(name: str, value: object, rules: "ParameterRules") -> None:
    """One text, one list of token ids, or a list of either, each of which makes an answer."""
    _texts_or_ids(name, value, rules.prompts)


def inputs(name: str, value: object, rules: "ParameterRules") -> None:
    """The same, to embed."""
    _texts_or_ids(name, value, rules.inputs)


def _texts_or_ids(name: str, value: object, most: int) -> None:
    if isinstance(value, str):
        return
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"`{name}` must be a text, or a list that is not empty.", param=name)
    if type(value[0]) is int:
        _token_ids(name, value)
        return
    for one in list_of(name, value, most):
        if isinstance(one, list):
            _token_ids(name, one)
        elif not isinstance(one, str):
            raise InvalidRequest(f"`{name}` must hold texts or lists of token ids.", param=name)


def _token_ids(name: str, ids: list[Any]) -> None:
    if not ids:
        raise InvalidRequest(f"`{name}` holds an empty list.", param=name)
    if set(map(type, ids)) != {int} or min(ids) < 0:
        raise ParameterRefused(
            f"`{name}` holds a token id that is not a whole number from 0: such a one can end an engine.",
            param=name,
        )


def texts(name: str, value: object, rules: "ParameterRules") -> None:
    """A text or a list of texts, to rank."""
    for one in list_of(name, value, rules.inputs) if isinstance(value, list) else [value]:
        if isinstance(one, str):
            continue
        if not isinstance(one, dict) or not rules.media:
            raise ParameterRefused(f"`{name}` must hold texts: other parts would be fetched.", param=name)
        content(name, one.get("content"), rules)


def named_ids(name: str, value: object, rules: "ParameterRules") -> None:
    """Token ids that the sampler looks up."""
    ids = list_of(name, value, rules.stop if rules.token_ids else 0) if value != [] else []
    for one in ids:
        _whole(name, one, 0, rules.token_ids - 1, "one beyond the model's vocabulary can end an engine.")


def stop(name: str, value: object, rules: "ParameterRules") -> None:
    """Texts that end an answer."""
    for one in [value] if isinstance(value, str) else list_of(name, value, rules.stop):
        if not isinstance(one, str) or not 1 <= len(one) <= LONGEST_STOP:
            raise InvalidRequest(f"`{name}` must hold texts of 1 to {LONGEST_STOP} characters.", param=name)


def bad_words(name: str, value: object, rules: "ParameterRules") -> None:
    """Words that an answer must not have."""
    for one in list_of(name, value, rules.bad_words):
        if not isinstance(one, str) or not one.strip() or len(one) > LONGEST_STOP:
            raise ParameterRefused(
                f"`{name}` must hold words of 1 to {LONGEST_STOP} characters: an empty one fails.",
                param=name,
            )


def logit_bias(name: str, value: object, rules: "ParameterRules") -> None:
    """Token ids, as texts, each with a bias."""
    given = object_of(name, value)
    if len(given) > rules.logit_bias:
        raise ParameterRefused(
            f"`{name}` has more than {rules.logit_bias} entries, the most allowed here.", param=name
        )
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 9):
            raise InvalidRequest(f"`{name}` must have token ids as its keys.", param=name)
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise InvalidRequest(f"`{name}` must have numbers from -100 to 100 as its values.", param=name)


def logprobs(name: str, value: object, rules: "ParameterRules") -> None:
    """How many alternatives to each token."""
    if not isinstance(value, bool):
        _whole(name, value, 0, rules.logprobs, "more make answers many times larger.")


def prompt_logprobs(name: str, value: object, rules: "ParameterRules") -> None:
    """The same of the prompt."""
    _whole(name, value, 0, rules.prompt_logprobs, "they repeat the prompt and pass by the prefix cache.")


def choices(name: str, value: object, rules: "ParameterRules") -> None:
    """How many answers to each prompt."""
    if type(value) is not int or value < 1:
        raise InvalidRequest(f"`{name}` must be a whole number from 1.", param=name)
    if value > rules.n:
        raise ParameterRefused(
            f"`{name}` is more than {rules.n}: each answer takes a place of the engine's.", param=name
        )


def template_arguments(name: str, value: object, rules: "ParameterRules") -> None:
    """Variables of the model's chat template."""
    for argument, given in object_of(name, value).items():
        if argument not in rules.template_arguments or not isinstance(given, bool | str | int | None):
            raise ParameterRefused(
                f"`{name}` may set {', '.join(rules.template_arguments) or 'nothing'} to a word, a number or "
                "a switch: others change the prompt behind every check.",
                param=name,
            )
        if isinstance(given, str) and len(given) > _LONGEST_ARGUMENT:
            raise InvalidRequest(
                f"`{name}` has a text of more than {_LONGEST_ARGUMENT} characters.", param=name
            )
