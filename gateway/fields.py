"""Which fields each route knows, as data: OpenAI's and Anthropic's own, and vLLM's beside them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Numbers and words that say how to sample, checked by the engine and harmless in any value that it takes.
_SAMPLING = _names(
    "temperature top_p top_k min_p seed presence_penalty frequency_penalty repetition_penalty length_penalty"
)
# What clients send for their own sake; it changes nothing on the engine.
_LABELS = _names("user metadata safety_identifier prompt_cache_key service_tier store")
_CHAT_ONLY = _names(
    "tool_choice parallel_tool_calls reasoning_effort verbosity include_reasoning add_generation_prompt "
    "continue_final_message include_stop_str_in_output thinking_token_budget"
)
_RESPONSES_ONLY = _names(
    "instructions tool_choice parallel_tool_calls reasoning truncation include max_tool_calls"
)
_MESSAGES_ONLY = _names("system tool_choice thinking")
_EMBEDDINGS_ONLY = _names("encoding_format dimensions normalize")
_RANK_ONLY = _names("query documents top_n text_1 text_2")
_TOKENIZE_ONLY = _names("add_generation_prompt continue_final_message return_token_strs add_special_tokens")

# Fields without a check of their own.
PLAIN = frozenset(
    (
        *("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens"),
        *_SAMPLING,
        *_LABELS,
        *_CHAT_ONLY,
        *_RESPONSES_ONLY,
        *_MESSAGES_ONLY,
        *_EMBEDDINGS_ONLY,
        *_RANK_ONLY,
        *_TOKENIZE_ONLY,
    )
)

# What the gateway decides itself: taken out of a request without a word.
OWN = frozenset(("cache_salt", "request_id", "priority"))

_GENERATE = frozenset(("model", "stream", *_SAMPLING, *_LABELS, *OWN))
_COMPLETION = _names(
    "stream_options n best_of stop stop_token_ids allowed_token_ids bad_words logit_bias logprobs "
    "prompt_logprobs min_tokens max_tokens ignore_eos echo response_format structured_outputs"
)

KNOWN: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "/v1/chat/completions": _GENERATE
        | _COMPLETION
        | _CHAT_ONLY
        | {"messages", "tools", "top_logprobs", "max_completion_tokens", "chat_template_kwargs"},
        "/v1/completions": _GENERATE | _COMPLETION | {"prompt", "include_stop_str_in_output"},
        "/v1/responses": _GENERATE
        | _RESPONSES_ONLY
        | {"input", "tools", "text", "top_logprobs", "max_output_tokens", "logit_bias", "stop", "ignore_eos"}
        | {"structured_outputs", "stream_options", "chat_template_kwargs"},
        "/v1/messages": _GENERATE | _MESSAGES_ONLY | {"messages", "tools", "max_tokens", "stop_sequences"},
        "/v1/messages/count_tokens": _MESSAGES_ONLY | {"model", "messages", "tools"},
        "/tokenize": _TOKENIZE_ONLY | {"model", "prompt", "messages", "tools", "chat_template_kwargs"},
        "/v1/embeddings": _EMBEDDINGS_ONLY | OWN | {"model", "input", "user"},
        "/v1/rerank": _RANK_ONLY | OWN | {"model", "user"},
        "/v1/score": _RANK_ONLY | OWN | {"model", "user"},
    }
)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a field is refused, but for the values that ask for nothing."""

    reason: str
    harmless: tuple[Any, ...] = (None, False)


_TEMPLATE = Refused("it would change the prompt behind every check.")
_FETCHES = Refused("it steers how an engine fetches and reads media.")
_RAW = Refused("it passes by the text that is checked and counted.")
_STATELESS = Refused("nothing is kept between requests here. Send the whole conversation each time.")
_IGNORED = Refused("the engine does not do this and would ignore it silently.", (None, False, "none", "auto"))
_GUIDED = Refused("engines ignore it silently. Use `structured_outputs` or `response_format`.")
_TRANSFER = Refused("it steers where an engine's cache goes.")
_SPECIAL = Refused("control tokens stay as the model's author set them.", (None, True))
_IDS = Refused("answers are text.")

REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        "chat_template": _TEMPLATE,
        "documents": _TEMPLATE,
        "mm_processor_kwargs": _FETCHES,
        "media_io_kwargs": _FETCHES,
        "prompt_embeds": Refused("an engine that reads tensors can be made to fail by them."),
        "truncate_prompt_tokens": Refused("it cuts the prompt silently.", (None,)),
        "use_beam_search": Refused("each beam takes a place of the engine's."),
        "logits_processors": Refused("it names code to run on the engine's host.", (None, [])),
        "kv_transfer_params": _TRANSFER,
        "vllm_xargs": _TRANSFER,
        "skip_special_tokens": _SPECIAL,
        "spaces_between_special_tokens": _SPECIAL,
        "add_special_tokens": Refused("control tokens stay as the model's author set them."),
        "return_token_ids": _IDS,
        "return_tokens_as_token_ids": _IDS,
        "previous_response_id": _STATELESS,
        "conversation": _STATELESS,
        "background": _STATELESS,
        "previous_input_messages": _RAW,
        "enable_response_messages": _RAW,
        "container": _STATELESS,
        "context_management": _STATELESS,
        "mcp_servers": Refused("the engine's host runs no tools.", (None, [])),
        "guided_json": _GUIDED,
        "guided_regex": _GUIDED,
        "guided_choice": _GUIDED,
        "guided_grammar": _GUIDED,
        "guided_json_object": _GUIDED,
        "guided_decoding_backend": _GUIDED,
        "guided_whitespace_pattern": _GUIDED,
        "functions": Refused("the engine ignores it silently. Use `tools`.", (None, [])),
        "function_call": Refused(
            "the engine ignores it silently. Use `tool_choice`.", (None, "none", "auto")
        ),
        "audio": _IGNORED,
        "modalities": Refused("the engine writes text alone.", (None, ["text"])),
        "prediction": _IGNORED,
        "web_search_options": _IGNORED,
        "suffix": Refused("the engine does not fill in text between two others.", (None, "")),
    }
)
