"""/tokenize and /v1/messages/count_tokens."""

from typing import Any

from standin.config import EngineConfig
from standin.generation import (
    RefusedError,
    anthropic_errors,
    chat_messages,
    prompt_length,
    prompts_of,
    served_model,
)
from standin.render import compact
from standin.replies import Captures
from standin.text import TEMPLATE_TOKENS, count_tokens


def tokenize_body(body: dict[str, Any], config: EngineConfig, captures: Captures) -> bytes:
    """The tokens of a prompt or of messages; their numbers say nothing. Raises RefusedError."""
    if "messages" in body:
        served_model(body, config, captures)
        count = count_tokens(prompts_of("chat", body, captures)[0]) + TEMPLATE_TOKENS
    elif isinstance(body.get("prompt"), str):
        served_model(body, config, captures)
        count = count_tokens(body["prompt"])
    else:
        raise RefusedError(captures.errors["err_tokenize_missing"])
    captured = captures.bodies["tokenize"]
    tokens = list(range(count))
    return compact({**captured, "count": count, "max_model_len": config.max_model_len, "tokens": tokens})


def count_tokens_body(body: dict[str, Any], config: EngineConfig, captures: Captures) -> bytes:
    """The tokens that the same request to /v1/messages would have. Raises RefusedError."""
    if "messages" not in body:
        raise RefusedError(captures.errors["err_count_tokens_missing"])
    with anthropic_errors():
        chat_messages(body, captures)
        served_model(body, config, captures)
        prompts = prompts_of("chat", body, captures)
        count = prompt_length(prompts, TEMPLATE_TOKENS, config, captures)
    return compact({"input_tokens": count, "context_management": {"original_input_tokens": count}})
