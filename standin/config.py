"""The stand-in's settings."""

from dataclasses import dataclass, field

from standin.text import DEFAULT_TOKENS

DEFAULT_MODEL = "qwen2.5-14b-instruct-awq"


@dataclass(frozen=True)
class EngineConfig:
    """How the stand-in behaves.

    `tokens` is how many completion tokens an answer has unless fewer are asked for, the end token included.
    `delay` is the pause before each token, in seconds. `api_key` None leaves /v1 open, as in vLLM.
    `max_model_len` is the context length in tokens.
    """

    served_model_names: tuple[str, ...] = (DEFAULT_MODEL,)
    tokens: int = DEFAULT_TOKENS
    delay: float = 0.0
    api_key: str | None = field(default=None, repr=False)
    max_model_len: int = 8192
    embeddings: bool = False
