"""Which fields each route knows, as data: OpenAI's and Anthropic's own, and vLLM's beside them.

Compared with the request models of vLLM 0.16.0 and 0.32.0: each of their fields is known, refused, or the
gateway's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# What the gateway decides itself: taken out of a request without a word.
OWN = frozenset(("cache_salt", "request_id", "priority"))

_SAMPLING = names(
    "temperature top_p top_k min_p seed presence_penalty frequency_penalty repetition_penalty length_penalty"
)
# What clients send for their own sake; it changes nothing on the engine.
_LABELS = names("user metadata safety_identifier prompt_cache_key service_tier store")
_ANSWERS = names(
    "model stream stream_options n max_tokens min_tokens stop stop_token_ids allowed_token_ids logit_bias "
    "logprobs prompt_logprobs ignore_eos echo include_stop_str_in_output response_format structured_outputs "
    "thinking_token_budget"
)
_COUNTING = names("model messages tools system tool_choice thinking output_config chat_template_kwargs")

KNOWN: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "/v1/chat/completions": _ANSWERS
        | _SAMPLING
        | _LABELS
        | OWN
        | names(
            "messages tools tool_choice parallel_tool_calls top_logprobs max_completion_tokens bad_words "
            "reasoning_effort verbosity include_reasoning add_generation_prompt continue_final_message "
            "chat_template_kwargs"
        ),
        "/v1/completions": _ANSWERS | _SAMPLING | _LABELS | OWN | {"prompt", "best_of"},
        "/v1/responses": _LABELS
        | OWN
        | names(
            "model stream stream_options input instructions tools tool_choice parallel_tool_calls "
            "max_tool_calls reasoning include_reasoning truncation include text top_logprobs "
            "max_output_tokens logit_bias stop stop_token_ids ignore_eos include_stop_str_in_output "
            "structured_outputs chat_template_kwargs temperature top_p top_k min_p seed presence_penalty "
            "frequency_penalty repetition_penalty"
        ),
        "/v1/messages": _COUNTING
        | OWN
        | names("stream max_tokens stop_sequences temperature top_p top_k metadata service_tier"),
        "/v1/messages/count_tokens": _COUNTING,
        "/tokenize": names(
            "model prompt messages tools chat_template_kwargs add_generation_prompt continue_final_message "
            "return_token_strs add_special_tokens"
        ),
        "/v1/embeddings": OWN | names("model input user encoding_format dimensions"),
        "/v1/rerank": OWN | names("model user query documents top_n"),
        "/v1/score": OWN | names("model user text_1 text_2 queries documents"),
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
_CUTS = Refused("it cuts the prompt silently.", (None,))
_INSIDE = Refused("it is for the parts of an engine among themselves.")
_SHAPE = Refused("answers keep one form here.", (None,))

REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        "chat_template": _TEMPLATE,
        "documents": _TEMPLATE,
        "mm_processor_kwargs": _FETCHES,
        "media_io_kwargs": _FETCHES,
        "mm_payload": _FETCHES,
        "return_mm_kwargs": _FETCHES,
        "prompt_embeds": Refused("an engine that reads tensors can be made to fail by them."),
        "truncate_prompt_tokens": _CUTS,
        "truncation_side": _CUTS,
        "max_tokens_per_doc": _CUTS,
        "max_tokens_per_query": _CUTS,
        "padding": _SHAPE,
        "use_beam_search": Refused("each beam takes a place of the engine's."),
        "logits_processors": Refused("it names code to run on the engine's host.", (None, [])),
        "kv_transfer_params": _TRANSFER,
        "ec_transfer_params": _TRANSFER,
        "vllm_xargs": _INSIDE,
        "session_id": _INSIDE,
        "routed_experts_prompt_start": _INSIDE,
        "repetition_detection": _INSIDE,
        "watermarking": _INSIDE,
        "stream_interval": _SHAPE,
        "skip_special_tokens": _SPECIAL,
        "spaces_between_special_tokens": _SPECIAL,
        "add_special_tokens": Refused("control tokens stay as the model's author set them."),
        "return_token_ids": _IDS,
        "return_tokens_as_token_ids": _IDS,
        "return_prompt_text": _IDS,
        "return_token_offsets": _IDS,
        "logprob_token_ids": Refused("an id beyond the model's vocabulary can end an engine."),
        "prompt_logprob_token_ids": Refused("an id beyond the model's vocabulary can end an engine."),
        "prompt_logprob_start": Refused("it is of no use without `prompt_logprob_token_ids`.", (None,)),
        "embed_dtype": _SHAPE,
        "endianness": _SHAPE,
        "use_activation": _SHAPE,
        "normalize": _SHAPE,
        "softmax": _SHAPE,
        "activation": _SHAPE,
        "instruction": _TEMPLATE,
        "items": _IGNORED,
        "data_1": Refused("use `text_1`."),
        "data_2": Refused("use `text_2`."),
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
